"""The proofs of `packing.testing`, which here also accept models of this project.

Such a model needs no wrapper: its layers, heads and losses are tested, by derivatives with
respect to the embeddings of its tokens.
"""

from __future__ import annotations

from typing import Any

import jax

from model.testing import probe as probe  # registers the models of this project
from packing.testing import (
  TOLERANCES,
  Difference,
  LeakError,
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
  lay_out,
  proofs,
)
from packing.testing.proofs import first_fit

__all__ = [
  "TOLERANCES",
  "Difference",
  "LeakError",
  "assert_causal",
  "assert_no_cross_contamination",
  "assert_packed_equals_unpacked",
  "differences",
  "first_fit",
  "lay_out",
  "relative_difference",
]


def relative_difference(a: Any, b: Any) -> float:
  """max|a - b| / max|b| over whole trees; max|a| if b is zero; NaN if any is NaN."""
  return proofs.relative_difference(jax.tree.leaves(a), jax.tree.leaves(b))
