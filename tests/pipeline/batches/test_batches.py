import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from pipeline.batches.masking import Masking, mask_tokens
from pipeline.batches.packed import pack_rows
from pipeline.store import SCHEMA, SequenceStore, StoredSequence, write_sequences

VOCAB_SIZE = 97
MASK_ID, CLS, SEP = 4, 2, 3
MASKING = Masking(
  rate=0.15, seed=5, mask_id=MASK_ID, special_ids=(0, 2, 3, 4), vocab_size=97
)
ROWS = np.array([[0, 1, -1, -1], [2, -1, -1, -1], [4, 3, 5, 6], [-1] * 4])


def random_store(path, lengths, seed=0, batch_size=3):
  rng = np.random.default_rng(seed)
  rows = []
  for length in lengths:
    ids = rng.integers(5, VOCAB_SIZE, length)
    ids[0], ids[-1] = CLS, SEP
    rows.append(StoredSequence(ids.tolist(), int(length) // 2, int(rng.integers(2))))
  write_sequences(path, rows, batch_size=batch_size)
  return SequenceStore(path), rows


class TaskStore:
  """A store as fine-tuning has it: fractions as labels, and answers."""

  has_token_labels = reads_ahead = False

  def __init__(self, store):
    self.lengths, self.first_type_lengths = store.lengths, store.first_type_lengths
    self.by_length, self.histogram = store.by_length, store.histogram
    self.gather, self.texts = store.gather, None
    rng = np.random.default_rng(3)
    self.sequence_labels = rng.random(len(store)).astype(np.float32)
    self.answer_starts = rng.integers(0, store.lengths)
    self.answer_ends = rng.integers(self.answer_starts, store.lengths)

  def __len__(self):
    return self.lengths.size


def assert_same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], name)


def joined(blocks):
  """The global batch of the blocks of all processes."""
  blocks = list(blocks)
  return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def masked(store, rows, *, row_length=150, epoch=0, masking=MASKING):
  """The rows of one epoch, masked."""
  batch = pack_rows(store, np.array(rows), row_length=row_length)
  return mask_tokens(batch, masking, epochs=np.full(len(rows), epoch))


def test_rows_equal_a_loop_over_tokens(stored):
  store, sequences = stored
  tasks = TaskStore(store)
  batch = pack_rows(tasks, ROWS, row_length=150)
  types = {"sequence_ids": "int64", "sequence_mask": "bool", "sequence_labels": "float32"}
  assert {n: f.dtype.name for n, f in batch.items()} == dict.fromkeys(
    batch, "int32"
  ) | types
  expected = {name: np.zeros_like(field) for name, field in batch.items()}
  expected |= {"sequence_ids": ROWS, "sequence_mask": ROWS >= 0}
  for row, ids in enumerate(ROWS):
    column = 0
    for slot, number in enumerate(ids[ids >= 0]):
      expected["cls_positions"][row, slot] = column
      expected["sequence_labels"][row, slot] = tasks.sequence_labels[number]
      expected["start_positions"][row, slot] = column + tasks.answer_starts[number]
      expected["end_positions"][row, slot] = column + tasks.answer_ends[number]
      first_type_length = sequences[number].first_type_length
      for position, token in enumerate(sequences[number].input_ids):
        expected["input_ids"][row, column] = token
        expected["segment_ids"][row, column] = slot + 1
        expected["position_ids"][row, column] = position
        expected["token_type_ids"][row, column] = position >= first_type_length
        column += 1
  assert_same(batch, expected)
  with pytest.raises(ValueError, match="expected 1 to 7"):
    pack_rows(store, ROWS, row_length=7)


def masked_of(batch, row, slot):
  """{position in the sequence: (label, what stands there now)} of one sequence."""
  mine = batch["mlm_segment_ids"][row] == slot + 1
  positions = batch["mlm_positions"][row][mine]
  return {
    int(batch["position_ids"][row, p]): (int(label), int(batch["input_ids"][row, p]))
    for p, label in zip(positions, batch["mlm_labels"][row][mine], strict=True)
  }


@hypothesis.given(st.permutations(list(range(9))), st.integers(0, 3))
@hypothesis.settings(
  max_examples=50,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_masking_keeps_its_promises_and_its_draws(stored, order, epoch):
  """However sequences are packed, each has the same tokens masked in the same epoch."""
  store, sequences = stored
  rows = np.array(order).reshape(3, 3)
  before = pack_rows(store, rows, row_length=150)["input_ids"]
  batch = masked(store, rows, epoch=epoch)
  changed = batch["input_ids"] != before
  for row, slot in np.ndindex(3, 3):
    ids = sequences[rows[row, slot]].input_ids
    found = masked_of(batch, row, slot)
    assert len(found) == min(max(1, round(0.15 * len(ids))), len(ids) - 2)
    for position, (label, _) in found.items():
      assert label == ids[position]
      assert label not in MASKING.special_ids
    alone = masked(store, [[rows[row, slot]]], row_length=41, epoch=epoch)
    assert found == masked_of(alone, 0, 0)
    here = changed[row] & (batch["segment_ids"][row] == slot + 1)
    assert set(batch["position_ids"][row][here].tolist()) <= set(found)


def test_80_10_10_and_other_draws_for_each_sequence_epoch_and_seed(store):
  rows = np.arange(211)[:, None]
  batches = [masked(store, rows, row_length=41, epoch=epoch) for epoch in range(20)]
  used = batches[0]["mlm_segment_ids"] > 0
  tokens = [np.take_along_axis(b["input_ids"], b["mlm_positions"], 1) for b in batches]
  now = np.stack(tokens)[:, used]
  labels = np.stack([batch["mlm_labels"] for batch in batches])[:, used]
  spread = 4 * np.sqrt(0.25 / labels.size)
  # One random token in V is [MASK], one is the token itself.
  share = pytest.approx(0.8 + 0.1 / VOCAB_SIZE, abs=spread)
  assert (now == MASK_ID).mean() == share
  assert (now == labels).mean() == pytest.approx(0.1 + 0.1 / VOCAB_SIZE, abs=spread)
  other = masked(store, rows, row_length=41, masking=dataclasses.replace(MASKING, seed=6))
  for batch in (batches[1], other):
    assert (batches[0]["mlm_positions"] != batch["mlm_positions"]).mean() > 0.3
  # Every position of a sequence is as likely as any other; each sequence draws alone.
  drawn = np.concatenate([b["mlm_positions"][100][used[100]] for b in batches])
  assert np.unique(drawn).size > 0.5 * (store.lengths[100] - 2)
  assert np.unique(batches[0]["mlm_positions"][store.lengths > 30, 0]).size > 10


@pytest.mark.parametrize(
  "lengths",
  [[3, 3], [65_537, 4_460, 3], [131_072], [2] * 33_000 + [29]],
  ids=["15 % is none", "beyond 65,536 tokens", "131,072 tokens", "33,001 sequences"],
)
def test_short_and_long_rows_are_masked_as_their_sequences_alone(lengths):
  tokens = np.random.default_rng(3).integers(5, VOCAB_SIZE, sum(lengths))
  sequences = [
    StoredSequence(part.tolist(), len(part), 0)
    for part in np.split(tokens, np.cumsum(lengths)[:-1])
  ]
  store = SequenceStore.from_sequences(sequences, SCHEMA)
  batch = masked(store, [range(len(lengths))], row_length=sum(lengths))
  num_slots = int(0.15 * sum(lengths)) + len(lengths)  # as many as may be masked
  used = batch["mlm_segment_ids"] > 0
  assert used.shape == (1, num_slots)
  positions = batch["mlm_positions"][used]
  assert np.unique(positions).size == positions.size
  counts = np.bincount(batch["mlm_segment_ids"][used], minlength=len(lengths) + 1)[1:]
  expected = np.maximum(1, np.rint(MASKING.rate * np.array(lengths)))
  assert counts.tolist() == expected.tolist()
  last = len(lengths) - 1
  alone = masked(store, [[last]], row_length=lengths[last])
  assert masked_of(batch, 0, last) == masked_of(alone, 0, 0)
