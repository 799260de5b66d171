"""The recipe of docs/how_to_pack.md for tf.data: every token once, in rows of one shape.

It is skipped where TensorFlow is not installed, which is in the extra `recipes`. In an
environment without JAX: pytest --noconftest tests/test_recipes.py
"""

import itertools
import pathlib
import runpy

import numpy as np
import pytest

import packing

RECIPE = pathlib.Path(__file__).parents[1] / "docs" / "recipes" / "tf_data.py"
ROW = 17
LENGTHS = np.random.default_rng(0).integers(1, ROW + 1, 61)
# Of all their tokens no two are equal, and none is 0.
TOKENS = np.arange(1, LENGTHS.sum() + 1, dtype=np.int32)
SEQUENCES = np.split(TOKENS, np.cumsum(LENGTHS)[:-1])
PLAN = packing.pack(
  packing.Histogram.from_lengths(LENGTHS, max_sequence_length=ROW), max_sequences_per_pack=3
)


def check(batches):
  """Rows of [B, S] are the packs of epoch 1, in any order; each sequence is in one."""
  packs = [pack.tolist() for pack in PLAN.assign(LENGTHS, seed=1)]
  assert sorted(itertools.chain(*packs)) == list(range(len(SEQUENCES)))
  expected = []
  for pack in packs:
    ids = [token for i in pack for token in SEQUENCES[i].tolist()]
    segments = [number for number, i in enumerate(pack, 1) for _ in SEQUENCES[i]]
    positions = [position for i in pack for position in range(LENGTHS[i])]
    expected.append([x + [0] * (ROW - len(x)) for x in (ids, segments, positions)])
  fields = ("input_ids", "segment_ids", "position_ids")
  found = [np.concatenate([np.asarray(b[name]) for b in batches]) for name in fields]
  assert all(np.issubdtype(field.dtype, np.integer) for field in found)
  assert sorted(np.stack(found, axis=1).tolist()) == sorted(expected)


@pytest.mark.extra("tensorflow")
def test_tf_data():
  tf = pytest.importorskip("tensorflow", reason='pip install ".[recipes]" installs it')
  packed_rows = runpy.run_path(str(RECIPE))["packed_rows"]
  ragged = tf.RaggedTensor.from_row_lengths(TOKENS, LENGTHS)
  rows = packed_rows(ragged, PLAN, epoch=1).shuffle(100, seed=0).batch(5)
  assert rows.element_spec["input_ids"].shape.as_list() == [None, ROW]
  check(list(rows.as_numpy_iterator()))
