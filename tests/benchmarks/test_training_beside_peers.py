"""benchmarks/training.py: each way has the same sequences, and takes the same steps."""

import numpy as np
import pytest

import packing
from benchmarks import training
from benchmarks.sample import BUCKETS, draw
from tests import packs

ROW_LENGTH, SEQUENCES, BATCH_SIZE, VOCAB_SIZE = 31, 32, 4, 211


@pytest.fixture(scope="module")
def sample():
  lengths = np.arange(4, ROW_LENGTH + 1)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=ROW_LENGTH)
  return draw(histogram, sequences=SEQUENCES, batch_size=BATCH_SIZE, vocab_size=VOCAB_SIZE)


def masked_sequences(batch) -> dict:
  """By its number: the tokens of a sequence, and what is masked where."""
  found = {}
  for row, slot in np.argwhere(batch["sequence_mask"]).tolist():
    tokens = batch["segment_ids"][row] == slot + 1
    masked = batch["mlm_segment_ids"][row] == slot + 1
    positions = batch["mlm_positions"][row][masked] - batch["cls_positions"][row, slot]
    found[int(batch["sequence_ids"][row, slot])] = (
      batch["input_ids"][row][tokens].tolist(),
      batch["token_type_ids"][row][tokens].tolist(),
      list(zip(positions, batch["mlm_labels"][row][masked], strict=True)),
      int(batch["sequence_labels"][row, slot]),
    )
  return found


def test_every_way_has_each_sequence_once_the_same_and_in_full_batches(sample):
  layouts: dict[str, dict] = {}
  for name, batches in sample.batches.items():
    layouts[name] = {}
    for ids, row_length in batches:
      assert ids.shape[0] == (BATCH_SIZE // 2 if name == "packs" else BATCH_SIZE)
      assert (ids >= 0).any(axis=1).all()
      found = masked_sequences(sample.lay_out(ids, row_length))
      assert not found.keys() & layouts[name].keys()
      layouts[name] |= found
  assert sorted(layouts["rows"]) == list(range(SEQUENCES))
  for name, found in layouts.items():
    assert found == layouts["rows"], name
    check = masked_sequences(sample.check_batch(name))
    assert check == {number: found[number] for number in sample.check.tolist()}
  widths = {name: [w for _, w in batches] for name, batches in sample.batches.items()}
  assert set(widths["packs"]) == set(widths["rows"]) == {ROW_LENGTH}
  assert len(set(widths["buckets"])) <= BUCKETS
  assert sum(widths["sorted"]) <= min(sum(widths["longest"]), sum(widths["buckets"]))


def test_batches_that_cannot_be_full_are_refused():
  histogram = packing.Histogram.from_lengths([4, 9], max_sequence_length=13)
  with pytest.raises(packing.InputError, match="Take more sequences, or smaller batches"):
    draw(histogram, sequences=6, batch_size=6, vocab_size=VOCAB_SIZE)


def test_peers_take_the_same_first_steps_and_the_parts_make_the_whole(sample):
  pytest.importorskip("torch", reason="make reference installs it")
  pytest.importorskip("transformers", reason="make reference installs it")
  config = packs.small_config(
    vocab_size=VOCAB_SIZE, max_position_embeddings=ROW_LENGTH, initializer_range=0.2
  )
  names = ["packed", "unpacked", "padded", "masked", "unpadded"]
  learners = training.make_learners(config, names, attention="sdpa", threads=1)
  found = training.measure(learners, sample, rounds=1)
  assert list(found) == names
  first, second = found["unpacked"]["losses"]
  assert abs(first - second) > 1e-3
  for name, way in found.items():
    assert way["losses"] == pytest.approx([first, second], abs=1e-4), name
    assert way["compilations"] == (1 if name in training.OURS else 0)
    assert len(way["rates"]) == 1
  real = int(sample.store.lengths.sum())
  assert found["unpadded"]["computed_tokens"] == real
  rows = sum(len(ids) for ids, _ in sample.batches["packs"])
  assert found["packed"]["computed_tokens"] == rows * ROW_LENGTH < real * 1.1
  text = training.table(found, names, sequences=SEQUENCES)
  assert len(text.splitlines()) == 2 + len(names)
  *factors, whole = [
    np.divide(found[one]["rates"], found[other]["rates"])
    for _, one, other in training.PARTS
  ]
  np.testing.assert_allclose(np.prod(factors, axis=0), whole)
  assert len(training.parts(found).splitlines()) == 2 + len(training.PARTS)


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
  monkeypatch.setattr(training, "NEEDED", ("no_such_package",))
  assert training.missing() == ["no_such_package"]
  packed = {
    "losses": [2.0, 1.0],
    "compilations": 1,
    "first_seconds": 3.0,
    "computed_tokens": 4,
    "rates": [5.0],
    "processor_rates": [2.5],
  }
  rows = training.table({"packed": packed}, ["packed", "padded"], sequences=2).splitlines()
  assert rows[2].startswith("| isopack, packed | 5.00 ")
  assert "Hugging Face, padded to the row | not installed: make reference |" in rows[3]
