"""Packs sequences of different lengths into rows of one length. Needs no JAX.

>>> import packing
>>> histogram = packing.load_histogram("wikipedia_512")
>>> plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=3)
>>> plan.num_packs, round(plan.packing_factor, 3), round(plan.efficiency, 3)
(9094695, 1.79, 0.894)
"""

from packing.errors import InputError
from packing.histogram import Histogram, histogram_names, load_histogram
from packing.pack import ALGORITHMS, pack
from packing.plan import Assignment, Plan

__all__ = [
  "ALGORITHMS",
  "Assignment",
  "Histogram",
  "InputError",
  "Plan",
  "histogram_names",
  "load_histogram",
  "pack",
]
