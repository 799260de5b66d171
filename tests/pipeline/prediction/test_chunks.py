"""Chunks of examples in rows that are as long as they need to be."""

import numpy as np
import pytest

from pipeline.prediction.chunks import BatchShape, pack_examples
from pipeline.prediction.examples import Example
from pipeline.store import SCHEMA


def examples_of(lengths):
  return [Example(str(i), [([7] * n, n, 0)], "") for i, n in enumerate(lengths)]


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("algorithm", ["optimal", "none"])
def test_each_sequence_lies_once_in_batches_of_one_shape(devices, algorithm):
  lengths = np.random.default_rng(0).choice([7, 12, 13, 24, 30, 40], 300)
  shape = BatchShape(96, 2 * devices, algorithm=algorithm, batch_multiple=devices)
  (chunk,) = pack_examples(examples_of(lengths), SCHEMA, shape=shape)
  batches = list(chunk.batches())
  ids = np.concatenate([x["sequence_ids"][x["sequence_mask"]] for x in batches])
  assert sorted(ids) == list(range(300))
  assert {x["input_ids"].shape for x in batches} == {(3 * devices, 64)}
  for batch in batches[:-1]:
    assert (batch["segment_ids"][:, 0] > 0).all(), "only the last batch has empty rows"


def test_rows_grow_with_the_longest_sequence_up_to_the_limit():
  shape = BatchShape(1000, 3)
  lengths = [5, 60, 200, 5, 64, 8, 1000, 990]
  chunks = list(pack_examples(examples_of(lengths), SCHEMA, shape=shape, chunk_size=2))
  assert [chunk.row_length for chunk in chunks] == [64, 256, 256, 1000]
  assert [shape.rows(n) for n in (64, 256, 512, 1000)] == [24, 6, 3, 1]
  assert [shape.slots(n) for n in (64, 512, 1000)] == [16, 128, 128]
  for chunk in chunks:
    shapes = {batch["input_ids"].shape for batch in chunk.batches()}
    assert shapes == {(shape.rows(chunk.row_length), chunk.row_length)}
