"""The sequences that every model gets."""

from __future__ import annotations

from typing import Any

import numpy as np

VOCABULARY = 160
LENGTHS = (9, 6, 5)  # of three sequences in a row; all are longer than a window


def examples() -> list[dict[str, Any]]:
  """Sequences of made-up tokens, all different."""
  ids = 5 + np.random.default_rng(1).permutation(VOCABULARY - 25)[: sum(LENGTHS)]
  parts = np.split(ids, np.cumsum(LENGTHS)[:-1])
  return [{"input_ids": part.tolist()} for part in parts]
