"""Proofs for any model: no sequence of a pack touches another, and packed equals unpacked.

A model is a function from a packed batch of NumPy arrays to an output with a value for each
token, [B, S, ...], or to several outputs by name. Outputs are arrays of NumPy, JAX or
PyTorch. If they are named in the order of computation, the first one that leaks shows where
in the model to look.

Only NumPy is needed. Derivatives are tested as well if the function takes embeddings and is
written in JAX or PyTorch.
"""

from packing.testing.influence import LeakError
from packing.testing.isolation import Isolation, assert_isolated, isolation
from packing.testing.layout import lay_out
from packing.testing.probe import TOLERANCES
from packing.testing.proofs import (
  Difference,
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
)

__all__ = [
  "TOLERANCES",
  "Difference",
  "Isolation",
  "LeakError",
  "assert_causal",
  "assert_isolated",
  "assert_no_cross_contamination",
  "assert_packed_equals_unpacked",
  "differences",
  "isolation",
  "lay_out",
]
