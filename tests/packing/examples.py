"""Examples for rows of every framework, and what such rows hold."""

import itertools

import numpy as np

import packing

ROW = 17
LENGTHS = np.random.default_rng(0).integers(1, ROW + 1, 61)
ENDS = np.cumsum(LENGTHS)
# No two tokens are equal, and none is 0.
EXAMPLES = [
  {
    "input_ids": list(range(end - n + 1, end + 1)),
    "token_type_ids": [i % 2] * n,
    "label": i % 7,
    "score": i / 8,
  }
  for i, (n, end) in enumerate(zip(LENGTHS.tolist(), ENDS.tolist(), strict=True))
]
TOKENS = [{"input_ids": example["input_ids"]} for example in EXAMPLES]
PLAN = packing.pack(LENGTHS, max_sequence_length=ROW, max_sequences_per_pack=3)
OPTIONS = {"row_length": ROW, "max_sequences_per_pack": 3, "open_packs": 4}


def every_token_once(rows, times=1):
  tokens = np.concatenate([np.ravel(row["input_ids"]) for row in rows])
  expected = np.repeat(np.arange(1, ENDS[-1] + 1), times)
  np.testing.assert_array_equal(np.sort(tokens[tokens > 0]), expected)


def assert_equal(rows, others):
  for row, other in zip(rows, others, strict=True):
    assert row.keys() == other.keys()
    for name in row:
      assert row[name].dtype == other[name].dtype
      np.testing.assert_array_equal(row[name], other[name])


def neighbours(rows):
  return {tuple(np.sort(row["input_ids"][row["input_ids"] > 0])) for row in rows}


def first_tokens(packs):
  return [[example["input_ids"][0] for example in pack] for pack in packs]


def flat(packs):
  return sorted(itertools.chain(*packs))
