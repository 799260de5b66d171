"""Packs sequences of different lengths into rows of one length, without JAX.

>>> import packing
>>> packing.pack([5, 3, 8, 2, 6, 8], max_sequence_length=8)
<Plan: 6 sequences in 4 packs of 8 tokens by auto; proven minimal; efficiency 1.0000>
>>> histogram = packing.load_histogram("squad_1_1_384")
>>> plan = packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=3)
>>> plan.num_packs, plan.lower_bound, round(plan.packing_factor, 3)
(40195, 40195, 2.205)
"""

from packing.algorithms.default_depth import choose_depth
from packing.assignment import Assignment
from packing.batches import (
  Cost,
  SortedBatches,
  balanced_order,
  deal,
  sorted_batches,
  waiting,
)
from packing.batches.step import StepPacks, pack_step
from packing.certificate import Certificate
from packing.errors import InputError
from packing.histogram import Histogram, histogram_names, load_histogram
from packing.online import OnlinePacker, StreamPacker
from packing.pack import ALGORITHMS, algorithm_options, pack
from packing.plan import Plan
from packing.planfile import load_plan
from packing.row import make_row, make_rows
from packing.row_length import choose_row_length

__version__ = "0.4.0"

__all__ = [
  "ALGORITHMS",
  "Assignment",
  "Certificate",
  "Cost",
  "Histogram",
  "InputError",
  "OnlinePacker",
  "Plan",
  "SortedBatches",
  "StepPacks",
  "StreamPacker",
  "algorithm_options",
  "balanced_order",
  "choose_depth",
  "choose_row_length",
  "deal",
  "histogram_names",
  "load_histogram",
  "load_plan",
  "make_row",
  "make_rows",
  "pack",
  "pack_step",
  "sorted_batches",
  "waiting",
]
