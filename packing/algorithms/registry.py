"""All algorithms by name."""

from __future__ import annotations

from collections.abc import Callable

from packing.algorithms.auto import auto
from packing.algorithms.greedy import greedy
from packing.algorithms.heuristics import bfd, ffd, harmonic, lpfhp, mffd, none, spfhp
from packing.algorithms.minimum_slack import mbs
from packing.algorithms.nnls import ennlshp, nnlshp
from packing.algorithms.optimal import optimal
from packing.problem import Solution

# Each takes a Problem and keyword options, and returns a Solution.
ALGORITHMS: dict[str, Callable[..., Solution]] = {
  "none": none,
  "greedy": greedy,
  "ffd": ffd,
  "bfd": bfd,
  "mffd": mffd,
  "harmonic": harmonic,
  "spfhp": spfhp,
  "lpfhp": lpfhp,
  "mbs": mbs,
  "nnlshp": nnlshp,
  "ennlshp": ennlshp,
  "optimal": optimal,
  "auto": auto,
}
