"""Held-out documents in windows: each token but a document's first is scored once."""

import numpy as np
import pytest

from packing import InputError
from pipeline.batches.windows import WindowLoader
from pipeline.store import SCHEMA, SequenceStore
from tests.pipeline.batches.test_atoms import END, sequences_of
from tests.pipeline.batches.test_loader import assert_same, joined

LENGTHS = (1, 2, 6, 7, 8, 12, 13, 14, 29, 97)


@pytest.fixture(scope="module")
def documents():
  rng = np.random.default_rng(0)
  return [rng.integers(2, 10**6, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def store(documents):
  return SequenceStore.from_sequences(sequences_of(documents, cut=7), SCHEMA)


@pytest.mark.parametrize(("row_length", "stride"), [(7, 3), (7, 6), (8, 1), (100, 50)])
def test_every_token_but_the_first_of_a_document_is_scored_once(
  documents, store, row_length, stride
):
  loader = WindowLoader(store, row_length=row_length, stride=stride, batch_size=4)
  texts = [[*document, END] for document in documents]
  scored: list[list[int]] = [[] for _ in texts]  # of each document the places, in order
  number, end = -1, 0
  batches = list(loader.evaluation_batches())
  assert len(batches) == loader.num_evaluation_batches
  batch = joined(batches)
  for row in range(int(batch["sequence_mask"].sum())):
    used = batch["segment_ids"][row] > 0
    ids, targets = batch["input_ids"][row][used], batch["loss_mask"][row]
    assert batch["position_ids"][row][used].tolist() == [*range(len(ids))]
    assert not targets[~used].any()
    if number < 0 or end == len(texts[number]):
      number, end = number + 1, 0
    start = max(end - (row_length - stride), 0)
    assert ids.tolist() == texts[number][start : start + row_length]
    places = (start + np.flatnonzero(targets)).tolist()
    scored[number] += places
    assert start == 0 or places[0] - start >= row_length - stride  # tokens seen before
    end = start + len(ids)
  assert scored == [[*range(1, len(text))] for text in texts]
  assert loader.num_tokens == sum(len(text) - 1 for text in texts)
  assert batch["loss_mask"].sum() == loader.num_tokens


def test_processes_have_blocks_of_the_same_batches(store):
  options = {"row_length": 7, "batch_size": 6}
  alone = list(WindowLoader(store, **options).evaluation_batches())
  blocks = [
    WindowLoader(store, process_index=h, process_count=3, **options).evaluation_batches()
    for h in range(3)
  ]
  together = [joined(parts) for parts in zip(*blocks, strict=True)]
  for a, b in zip(together, alone, strict=True):
    assert_same(a, b)
  assert not alone[-1]["sequence_mask"][-1]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"stride": 7}, "stride is 7; expected less than the 7 tokens of a window"),
    ({"stride": 0}, "stride is 0; expected at least 1"),
    ({"process_count": 4}, "batch_size is 6; expected a multiple of the 4 processes"),
  ],
)
def test_impossible_options_are_refused(store, options, message):
  with pytest.raises(InputError, match=message):
    WindowLoader(store, **{"row_length": 7, "batch_size": 6} | options)
