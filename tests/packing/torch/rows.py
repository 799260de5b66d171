"""Two packs of sequences, for tiny models."""

import numpy as np

LENGTHS = ((9, 3, 11, 1), (6, 2, 14))
ROW = 26


def packs():
  rng = np.random.default_rng(1)
  return [[{"input_ids": rng.integers(5, 140, n)} for n in pack] for pack in LENGTHS]
