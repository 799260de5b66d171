import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from pipeline.batches.masking import Masking, _stable_argsort, mask_tokens
from pipeline.batches.packed import pack_rows
from pipeline.store import SCHEMA, SequenceStore, StoredSequence, write_sequences

VOCAB_SIZE = 97
MASK_ID, CLS, SEP = 4, 2, 3
MASKING = Masking(
  rate=0.15, seed=5, mask_id=MASK_ID, special_ids=(0, 2, 3, 4), vocab_size=97
)


def random_store(path, lengths, seed=0, batch_size=3):
  rng = np.random.default_rng(seed)
  rows = []
  for length in lengths:
    ids = rng.integers(5, VOCAB_SIZE, length)
    ids[0], ids[-1] = CLS, SEP
    rows.append(StoredSequence(ids.tolist(), int(length) // 2, int(rng.integers(2))))
  write_sequences(path, rows, batch_size=batch_size)
  return SequenceStore(path), rows


ROWS = np.array([[0, 1, -1, -1], [2, -1, -1, -1], [4, 3, 5, 6], [-1] * 4])


def test_rows_equal_a_loop_over_tokens(stored):
  store, sequences = stored
  row_length = int(np.where(ROWS < 0, 0, store.lengths[ROWS]).sum(1).max()) + 2
  batch = pack_rows(store, ROWS, row_length=row_length)
  for row, ids in enumerate(ROWS):
    column = 0
    for slot, number in enumerate(ids[ids >= 0]):
      sequence = sequences[number]
      assert batch["cls_positions"][row, slot] == column
      assert batch["sequence_labels"][row, slot] == sequence.sequence_label
      for i, token in enumerate(sequence.input_ids):
        assert batch["input_ids"][row, column] == token
        assert batch["segment_ids"][row, column] == slot + 1
        assert batch["position_ids"][row, column] == i
        assert batch["token_type_ids"][row, column] == (i >= sequence.first_type_length)
        column += 1
    for name in ("input_ids", "segment_ids", "position_ids", "token_type_ids"):
      assert (batch[name][row, column:] == 0).all()
  np.testing.assert_array_equal(batch["sequence_mask"], ROWS >= 0)


def test_shapes_and_types_are_those_of_the_contract(store):
  batch = mask_tokens(pack_rows(store, ROWS, row_length=150), MASKING, epochs=np.zeros(4))
  found = {name: (field.dtype.name, field.shape) for name, field in batch.items()}
  tokens, masked, slots = ((4, n) for n in (150, 22 + 4, 4))
  assert found == {
    "input_ids": ("int32", tokens),
    "token_type_ids": ("int32", tokens),
    "segment_ids": ("int32", tokens),
    "position_ids": ("int32", tokens),
    "mlm_positions": ("int32", masked),
    "mlm_labels": ("int32", masked),
    "mlm_segment_ids": ("int32", masked),
    "cls_positions": ("int32", slots),
    "sequence_labels": ("int32", slots),
    "sequence_mask": ("bool", slots),
    "sequence_ids": ("int64", slots),
  }


class TaskStore:
  """A store as fine-tuning has it: fractions as labels, and answers."""

  def __init__(self, store):
    self.lengths, self.first_type_lengths = store.lengths, store.first_type_lengths
    self.gather = store.gather
    rng = np.random.default_rng(3)
    self.sequence_labels = rng.random(len(store)).astype(np.float64)
    self.answer_starts = rng.integers(0, store.lengths)
    self.answer_ends = rng.integers(self.answer_starts, store.lengths)

  def __len__(self):
    return self.lengths.size


def test_fields_of_tasks_are_laid_beside_their_sequences(stored):
  store, sequences = stored
  tasks = TaskStore(store)
  batch = pack_rows(tasks, ROWS, row_length=150)
  plain = pack_rows(store, ROWS, row_length=150)
  names = ("start_positions", "end_positions")
  assert batch.keys() - plain.keys() == set(names)
  assert [batch[name].dtype for name in names] == [np.int32] * 2
  assert batch["sequence_labels"].dtype == np.float32
  used = 0
  for row, ids in enumerate(ROWS):
    for slot, number in enumerate(ids):
      start, end = batch["start_positions"][row, slot], batch["end_positions"][row, slot]
      label = batch["sequence_labels"][row, slot]
      if number < 0:
        assert (start, end, label) == (0, 0, 0)
        continue
      used += 1
      answer = slice(tasks.answer_starts[number], tasks.answer_ends[number] + 1)
      expected = sequences[number].input_ids[answer]
      assert batch["input_ids"][row, start : end + 1].tolist() == expected
      assert batch["segment_ids"][row, end] == slot + 1
      assert label == np.float32(tasks.sequence_labels[number])
  assert used == 7


def test_a_pack_that_overflows_is_refused(store):
  with pytest.raises(ValueError, match="the row has 7"):
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
  max_examples=50, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_masking_keeps_its_promises_and_its_draws(stored, order, epoch):
  """However sequences are packed, each has the same tokens masked in the same epoch."""
  store, sequences = stored
  rows = np.array(order).reshape(3, 3)
  epochs = np.full(3, epoch)
  before = pack_rows(store, rows, row_length=150)
  batch = mask_tokens(before, MASKING, epochs=epochs)
  assert before["input_ids"] is not batch["input_ids"]
  changed = batch["input_ids"] != before["input_ids"]
  for row in range(3):
    for slot in range(3):
      number = rows[row, slot]
      ids = sequences[number].input_ids
      masked = masked_of(batch, row, slot)
      assert len(masked) == min(max(1, round(0.15 * len(ids))), len(ids) - 2)
      for position, (label, _) in masked.items():
        assert label == ids[position]
        assert label not in MASKING.special_ids
      alone = mask_tokens(
        pack_rows(store, np.array([[number]]), row_length=41), MASKING, epochs=epochs[:1]
      )
      assert masked == masked_of(alone, 0, 0)
      columns = np.flatnonzero(changed[row] & (batch["segment_ids"][row] == slot + 1))
      assert {int(batch["position_ids"][row, c]) for c in columns} <= set(masked)


def test_80_10_10_and_another_draw_each_epoch(store):
  rows = np.arange(211)[:, None]
  batches = [
    mask_tokens(pack_rows(store, rows, row_length=41), MASKING, epochs=np.full(211, e))
    for e in range(20)
  ]
  used = batches[0]["mlm_segment_ids"] > 0
  kinds = {"mask": 0, "kept": 0, "random": 0}
  for batch in batches:
    now = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[used]
    kept = now == batch["mlm_labels"][used]
    kinds["mask"] += (now == MASK_ID).sum()
    kinds["kept"] += kept.sum()
    kinds["random"] += (~kept & (now != MASK_ID)).sum()
  total = sum(kinds.values())
  spread = 4 * np.sqrt(0.25 / total)
  # One random token in V is [MASK], one is the token itself.
  assert kinds["mask"] / total == pytest.approx(0.8 + 0.1 / VOCAB_SIZE, abs=spread)
  assert kinds["kept"] / total == pytest.approx(0.1 + 0.1 / VOCAB_SIZE, abs=spread)
  assert (batches[0]["mlm_positions"] != batches[1]["mlm_positions"]).mean() > 0.3
  # Every position of a sequence is as likely as any other.
  drawn = np.concatenate([b["mlm_positions"][100][used[100]] for b in batches])
  assert np.unique(drawn).size > 0.5 * (store.lengths[100] - 2)


def test_the_shortest_sequence_has_a_masked_token(tmp_path):
  """15 % of 3 tokens would be none."""
  store, _ = random_store(tmp_path / "s.arrow", [3, 3])
  batch = mask_tokens(
    pack_rows(store, np.array([[0, 1]]), row_length=7), MASKING, epochs=np.zeros(1, int)
  )
  assert batch["mlm_positions"][0, :2].tolist() == [1, 4]
  assert batch["mlm_segment_ids"][0, :2].tolist() == [1, 2]


@pytest.mark.parametrize(
  "lengths",
  [[65_537, 4_460, 3], [131_072], [2] * 33_000 + [29]],
  ids=["beyond 65,536 tokens", "131,072 tokens", "33,001 sequences"],
)
def test_long_rows_are_masked_as_their_sequences_alone(lengths):
  tokens = np.random.default_rng(3).integers(5, VOCAB_SIZE, sum(lengths)).tolist()
  ends = np.cumsum(lengths).tolist()
  store = SequenceStore.from_sequences(
    [
      StoredSequence(tokens[end - n : end], n, 0)
      for end, n in zip(ends, lengths, strict=True)
    ],
    SCHEMA,
  )
  row = np.arange(len(lengths))[None]
  batch = pack_rows(store, row, row_length=sum(lengths))
  batch = mask_tokens(batch, MASKING, epochs=np.zeros(1, int))
  used = batch["mlm_segment_ids"] > 0
  positions = batch["mlm_positions"][used]
  assert np.unique(positions).size == positions.size
  masked = np.bincount(batch["mlm_segment_ids"][used], minlength=len(lengths) + 1)[1:]
  expected = np.maximum(1, np.rint(MASKING.rate * np.array(lengths)))
  assert masked.tolist() == expected.tolist()
  short = len(lengths) - 1  # the last sequence, alone in a short row
  alone = pack_rows(store, np.array([[short]]), row_length=lengths[short])
  alone = mask_tokens(alone, MASKING, epochs=np.zeros(1, int))
  assert masked_of(batch, 0, short) == masked_of(alone, 0, 0)


def test_the_order_of_a_row_is_the_stable_one_however_it_is_sorted():
  keys = np.random.default_rng(0).integers(0, 5, (3, 11)).astype(np.uint64)
  expected = np.argsort(keys, axis=1, kind="stable")
  np.testing.assert_array_equal(_stable_argsort(keys), expected)
  np.testing.assert_array_equal(_stable_argsort(keys << np.uint64(61)), expected)


@hypothesis.given(
  st.lists(st.integers(3, 40), min_size=1, max_size=13), st.floats(0.01, 0.9)
)
def test_no_row_has_more_masked_tokens_than_slots(lengths, rate):
  masking = Masking(rate=rate, seed=0, mask_id=4, special_ids=(0,), vocab_size=97)
  wanted = sum(max(1, round(rate * n)) for n in lengths)
  assert wanted <= masking.max_masked(sum(lengths), len(lengths))
