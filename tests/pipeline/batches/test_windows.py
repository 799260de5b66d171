"""Held-out documents in windows: each token but a document's first is scored once."""

import numpy as np
import pytest

from packing import InputError
from pipeline.batches.windows import WindowLoader, cut_windows
from pipeline.store import SCHEMA, SequenceStore
from tests.pipeline.batches.test_atoms import END, sequences_of
from tests.pipeline.batches.test_batches import assert_same, joined

LENGTHS = (1, 2, 6, 7, 8, 12, 13, 14, 29, 97)
RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.integers(2, 10**6, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def store():
  return SequenceStore.from_sequences(sequences_of(DOCUMENTS, cut=7), SCHEMA)


@pytest.mark.parametrize("row_length", [2, 7, 8, 100])
def test_every_token_but_the_first_of_a_document_is_scored_once(store, row_length):
  loader, stride = WindowLoader(store, row_length=row_length, batch_size=4), row_length // 2
  batches = list(loader.evaluation_batches())
  assert len(batches) == loader.num_evaluation_batches
  blocks = [loader.for_process(index, 2).evaluation_batches() for index in range(2)]
  for whole, *parts in zip(batches, *blocks, strict=True):
    assert_same(joined(parts), whole)
  batch, row = joined(batches), 0
  for text in ([*document, END] for document in DOCUMENTS):
    scored: list[int] = []
    start = end = 0
    while end < len(text):
      used = batch["segment_ids"][row] > 0
      ids, targets = batch["input_ids"][row][used], batch["loss_mask"][row]
      start = max(end - (row_length - stride), 0)
      end = start + len(ids)
      assert ids.tolist() == text[start : start + row_length]
      assert batch["position_ids"][row][used].tolist() == [*range(len(ids))]
      assert not targets[~used].any()
      places = np.flatnonzero(targets)
      assert start == 0 or places[0] >= row_length - stride  # tokens seen before
      scored += (start + places).tolist()
      row += 1
    assert scored == [*range(1, len(text))]
  assert batch["sequence_mask"].sum() == row
  assert batch["loss_mask"].sum() == loader.num_tokens == sum(LENGTHS)


def test_a_window_without_context_is_refused():
  with pytest.raises(InputError, match="stride is 7; expected less than row_length=7"):
    cut_windows(np.array([9]), row_length=7, stride=7)
