"""Chunks of examples in rows of several lengths."""

import numpy as np
import pytest

from packing import InputError
from pipeline.prediction.chunks import BatchShape, default_row_lengths, pack_examples
from pipeline.prediction.examples import Example
from pipeline.store import SCHEMA


@pytest.mark.parametrize("devices", [1, 3])
def test_each_sequence_lies_once_in_a_batch_of_one_of_the_shapes(devices):
  rng = np.random.default_rng(0)
  lengths = rng.choice([7, 12, 13, 24, 30, 40], 300)
  examples = [Example(str(i), [([7] * n, n, 0)], "") for i, n in enumerate(lengths)]
  costs = {12: 6, 24: 24, 40: 50}
  shape = BatchShape(40, 2 * devices, row_costs=costs, batch_multiple=devices)
  (chunk,) = pack_examples(examples, SCHEMA, shape=shape)
  assert set(chunk.packs) == set(costs)
  batches = list(chunk.batches())
  ids = np.concatenate([x["sequence_ids"][x["sequence_mask"]] for x in batches])
  assert sorted(ids) == list(range(300))
  rows = {length: shape.rows(length) for length in costs}
  assert rows == ({12: 6, 24: 3, 40: 2} if devices == 1 else {12: 18, 24: 9, 40: 6})
  assert {x["input_ids"].shape for x in batches} == {(n, s) for s, n in rows.items()}
  for batch in batches[:-1]:
    assert (batch["segment_ids"][:, 0] > 0).all(), "only the last batch has empty rows"


def test_one_sequence_a_row_takes_the_shortest_row_that_holds_it():
  examples = [Example(str(n), [([7] * n, n, 0)], "") for n in (5, 8, 9, 20)]
  shape = BatchShape(20, 1, algorithm="none", row_costs={8: 1, 20: 2})
  (chunk,) = pack_examples(examples, SCHEMA, shape=shape)
  assert {row: len(packs) for row, packs in chunk.packs.items()} == {8: 2, 20: 2}


def test_only_longer_sequences_take_rows_above_the_ordinary():
  lengths = default_row_lengths(3000)
  shape = BatchShape(3000, 3, row_costs={n: n * (4000 + n) for n in lengths})
  assert [shape.rows(n) for n in (256, 512, 1024, 3000)] == [6, 3, 1, 1]
  assert shape.slots == BatchShape(512).slots == 128
  rng = np.random.default_rng(0)
  for longest, expected in ((500, 512), (513, 1024), (1025, 2048), (2999, 3000)):
    sizes = [longest, *rng.integers(5, 300, 50).tolist()]
    examples = [Example(str(i), [([7] * n, n, 0)], "") for i, n in enumerate(sizes)]
    (chunk,) = pack_examples(examples, SCHEMA, shape=shape)
    assert max(chunk.packs) == max(shape.costs_for(longest)) == expected
    longer = sum(len(packs) for row, packs in chunk.packs.items() if row > 512)
    assert longer == (longest > 512), "short sequences stay in ordinary rows"
    ids = np.concatenate([x["sequence_ids"][x["sequence_mask"]] for x in chunk.batches()])
    assert sorted(ids) == list(range(len(sizes)))


def test_the_longest_row_holds_the_longest_sequence():
  assert default_row_lengths(23) == (16, 23)
  with pytest.raises(InputError, match="longest row has 8 tokens; expected 16"):
    BatchShape(16, row_costs={8: 1})
