"""benchmarks/training.py: each way has the same sequences, and takes the same steps."""

import json

import numpy as np
import pytest

import packing
from benchmarks import training, training_tables
from benchmarks.sample import BUCKETS, draw
from tests import packs

ROW_LENGTH, SEQUENCES, BATCH_SIZE, VOCAB_SIZE = 31, 32, 4, 211


@pytest.fixture(scope="module")
def sample():
  lengths = np.arange(4, ROW_LENGTH + 1)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=ROW_LENGTH)
  return draw(histogram, sequences=SEQUENCES, batch_size=BATCH_SIZE, vocab_size=VOCAB_SIZE)


@pytest.fixture
def torch():
  import torch

  threads = torch.get_num_threads()
  yield torch
  torch.set_num_threads(threads)


def masked_sequences(batch) -> dict:
  """By its number: the tokens of a sequence, and what is masked where."""
  return {number: rest for number, *rest in packs.examples(batch)}


def test_every_way_has_each_sequence_once_the_same_and_in_full_batches(sample):
  layouts: dict[str, dict] = {}
  for name, batches in sample.batches.items():
    layouts[name] = {}
    for ids, row_length in batches:
      assert ids.shape[0] == (BATCH_SIZE // 2 if name == "packs" else BATCH_SIZE)
      assert (ids >= 0).any(axis=1).all()
      measured = masked_sequences(sample.lay_out(ids, row_length))
      assert not measured.keys() & layouts[name].keys()
      layouts[name] |= measured
  assert sorted(layouts["rows"]) == list(range(SEQUENCES))
  for name, measured in layouts.items():
    assert measured == layouts["rows"], name
    check = masked_sequences(sample.check_batch(name))
    assert check == {number: measured[number] for number in sample.check.tolist()}
  widths = {name: [w for _, w in batches] for name, batches in sample.batches.items()}
  assert set(widths["packs"]) == set(widths["rows"]) == {ROW_LENGTH}
  assert len(set(widths["buckets"])) <= BUCKETS
  assert sum(widths["sorted"]) <= min(sum(widths["longest"]), sum(widths["buckets"]))


def test_batches_that_cannot_be_full_are_refused():
  histogram = packing.Histogram.from_lengths([4, 9], max_sequence_length=13)
  with pytest.raises(packing.InputError, match="Take more sequences, or smaller batches"):
    draw(histogram, sequences=6, batch_size=6, vocab_size=VOCAB_SIZE)


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("small", [packs.small_config, packs.small_modern_bert])
def test_peers_take_the_same_first_steps_and_the_parts_make_the_whole(sample, torch, small):
  config = small(
    vocab_size=VOCAB_SIZE, max_position_embeddings=ROW_LENGTH, initializer_range=0.2
  )
  names = ["packed", "unpacked", "padded", "masked", "unpadded"]
  learners = training.make_learners(config, names, threads=1)
  measured = training.measure(learners, sample, rounds=1)
  assert list(measured) == names
  first, second = measured["unpacked"]["losses"]
  assert abs(first - second) > 1e-3
  for name, way in measured.items():
    assert way["losses"] == pytest.approx([first, second], abs=1e-4), name
    assert way["compilations"] == (1 if name in training_tables.OURS else 0)
    for kind in training_tables.KINDS:
      assert {len(way[kind][x]) for x in ("rates", "processor_rates")} == {1}
  real = int(sample.store.lengths.sum())
  assert measured["unpadded"]["computed_tokens"] == real
  rows = sum(len(ids) for ids, _ in sample.batches["packs"])
  assert measured["packed"]["computed_tokens"] == rows * ROW_LENGTH < real * 1.1
  shown = training.way_rows(measured, names, {}, sequences=SEQUENCES)
  line = training_tables.realised_line(measured, packing_factor=1.5)
  for kind in training_tables.KINDS:  # a ratio compares times of one kind
    rates = {name: way[kind]["rates"][0] for name, way in measured.items()}
    faster = rates["packed"] / rates["padded"]
    told = f"{faster:.2f} ({faster:.2f} to {faster:.2f})"
    assert shown[names.index("padded")][f"packed is faster, {kind}"] == told
    *factors, whole = [rates[one] / rates[other] for _, one, other in training_tables.PARTS]
    np.testing.assert_allclose(np.prod(factors), whole)
    assert f" {factors[0] / 1.5:.2f} (" in line


@pytest.mark.extra("torch", "transformers")
def test_each_way_computes_in_its_dtype(sample, torch):
  """Losses in bfloat16 are near those in float32, and differ."""
  config = packs.small_config(
    vocab_size=VOCAB_SIZE, max_position_embeddings=ROW_LENGTH, initializer_range=0.2
  )
  ways, dtypes = ["unpacked", "masked", "unpadded"], ["float32", "bfloat16"]
  keys = training_tables.expand(ways, ["xla"], dtypes)
  measured = training.measure(
    training.make_learners(config, keys, threads=1), sample, rounds=1
  )
  exact = measured["unpacked"]["losses"][0]
  for key in keys:
    gap = abs(measured[key]["losses"][0] - exact)
    if training_tables.split(key).dtype == "bfloat16":
      assert 1e-5 < gap < 0.05, key
    else:
      assert gap < 2e-6, key


@pytest.mark.extra("torch", "transformers")
def test_queued_steps_are_awaited_at_the_end_and_awaited_ones_each(sample):
  config = packs.small_config(vocab_size=VOCAB_SIZE, max_position_embeddings=ROW_LENGTH)
  learners = training.make_learners(config, ["packed", "padded"], threads=1)
  events = {name: "" for name in learners}

  def note(name, letter, call):
    def noted(*args):
      events[name] += letter
      return call(*args)

    return noted

  for name, learner in learners.items():
    for method in ("step", "wait", "loss"):
      setattr(learner, method, note(name, method[0], getattr(learner, method)))
  training.measure(learners, sample, rounds=1)
  for name, layout in (("packed", "packs"), ("padded", "rows")):
    number = len(sample.batches[layout])
    first, _, timed = events[name].rpartition("l")
    assert first == "sls"
    block, each, rounds = number * "s" + "w", number * "sw", 2
    assert (timed.count(block), timed.count(each)) == (rounds, rounds)
    assert timed.replace(block, "").replace(each, "") in ("", "w")


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize(
  ("family", "name"), [("bert", "BERT"), ("modern_bert", "ModernBERT")]
)
def test_a_short_run_has_a_row_for_every_way(tmp_path, capsys, torch, family, name):
  written = tmp_path / "new" / "training.json"
  options = "--size=tiny --histogram=wikipedia_128 --sequences=16 --batch-size=4 --rounds=1"
  options += " --ways=packed,sorted_masked --attention-impls=xla,cudnn --dtypes=float32"
  options += f" --family={family}"
  training.main([*options.split(), "--threads=1", f"--json={written}"])
  assert torch.get_num_threads() == 1
  record = json.loads(written.read_text())
  assert list(record["ways"]) == ["packed", "sorted_masked"]
  for kind in training_tables.KINDS:
    assert all(len(way[kind]["rates"]) == 1 for way in record["ways"].values())
  printed = capsys.readouterr().out
  assert f"\n{name}-tiny, float32, AdamW; 16 sequences of wikipedia_128" in printed
  assert "\n| isopack, packed | " in printed
  assert "\n| the same, sorted, head at masked tokens | " in printed
  assert f"attention cudnn: not run: {record['not_run']['packed cudnn']}" in printed
