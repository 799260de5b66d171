"""The audit passes what the loader makes and finds whatever is broken on purpose."""

import dataclasses
import functools
import json
import pathlib

import numpy as np
import pytest

import packing
import pipeline
from launch import audit as command
from packing import row
from pipeline.batches.audit import AuditError, audit, report
from pipeline.batches.loader import PackedLoader
from pipeline.batches.packed import pack_rows
from tests.pipeline.batches import test_loader
from tests.pipeline.batches.test_batches import TaskStore

CONFIG = f"--config={pathlib.Path(__file__).parents[3] / 'configs' / 'base.py'}"
# ml_collections loads config files in a way that Python 3.12 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
make_loader = functools.partial(test_loader.make_loader, batch_size=8)


def altered(change, step=0) -> type[PackedLoader]:
  """A loader of which `change(batch)` replaces a batch, or alters it and returns None."""

  class Altered(PackedLoader):
    def __getitem__(self, number):
      batch = super().__getitem__(number)
      return (change(batch) or batch) if number == step else batch

  return Altered


OPTIONS: list[dict] = [{}, {"depth": 1}, {"depth": None}, {"process_count": 4}]
OPTIONS += [{"masking": None}, {"process_count": 2}]
SPACED = {"row_length": 100, "length_multiple": 8, "separator_tokens": 3}
OPTIONS += [{"rows": SPACED, "depth": 4}, {"rows": {"row_length": 90}, "process_count": 2}]
OPTIONS += [{"batch_size": 1000}]  # more than there are rows
OPTIONS += [{"balance": "devices", "devices": 4, "process_count": 2}]


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("options", OPTIONS)
def test_what_the_loader_makes_passes(store, options, epoch):
  loader = make_loader(store, **options)
  result = audit(loader, epoch=epoch)
  assert result["sequences"] == len(store)
  assert result["tokens"] == store.lengths.sum()
  assert result["certificate"]["num_packs"] == loader.plan.num_packs
  assert result["rows"] == loader.plan.num_packs
  assert result["padding_tokens"] == loader.plan.num_padding_tokens
  expected = np.minimum(np.maximum(1, np.rint(0.15 * store.lengths)), store.lengths - 2)
  assert result["masked_tokens"] == (expected.sum() if loader.masking else 0)
  assert ("undone by" in report(result, loader.plan)) == (loader.masking is not None)


def put(name, place, value):
  def change(batch):
    assert batch[name][place] != value
    batch[name][place] = value

  return change


def put_in_padding(batch):
  batch["input_ids"][tuple(np.argwhere(batch["segment_ids"] == 0)[-1])] = 51


def exchange_sequences(batch):
  """Two sequences of different lengths change places in `sequence_ids` alone."""
  batch["sequence_ids"][[0, 1], 0] = batch["sequence_ids"][[1, 0], 0]


def empty_row(batch):
  for name, field in batch.items():
    field[2] = -1 if name == "sequence_ids" else 0


def unhide(batch):
  """One masked token of a row is forgotten, though its slot is closed cleanly."""
  last = np.flatnonzero(batch["mlm_segment_ids"][0])[-1]
  batch["input_ids"][0, batch["mlm_positions"][0, last]] = batch["mlm_labels"][0, last]
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    batch[name][0, last] = 0


def swap_masks(batch):
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    batch[name][0, [0, 1]] = batch[name][0, [1, 0]]


def put_beyond_the_vocabulary(batch):
  batch["input_ids"][3, batch["mlm_positions"][3, 0]] = 97


def lose_a_field(batch):
  del batch["mlm_labels"]


def widen(batch):
  return batch | {"input_ids": batch["input_ids"].astype("i8")}


FIELDS = "segment_ids position_ids token_type_ids cls_positions"
TASK_FIELDS = "start_positions end_positions sequence_labels"
BREAKS = {
  name: (put(name, (3, 0), 9), rf"{name} in row 3, column 0: expected .+, found 9")
  for name in (FIELDS + " " + TASK_FIELDS).split()
}
BREAKS |= {
  "sequence_mask": (put("sequence_mask", (3, 0), False), "sequence_mask in row 3, column"),
  "a token": (put("input_ids", (3, 0), 51), "input_ids, unmasked, in row 3, column 0"),
  "a token in padding": (put_in_padding, "input_ids, unmasked, in row"),
  "a mask outside": (put("mlm_positions", (3, 0), -1), "outside the row in row 3"),
  "a mask's segment": (put("mlm_segment_ids", (3, 0), 9), "mlm_segment_ids in row 3"),
  "an empty mask": (put("mlm_labels", (3, -1), 7), "mlm_labels of an empty slot in row 3"),
  "a mask too few": (unhide, "Masked tokens of the sequence in row 0"),
  "masks out of order": (swap_masks, "mlm_positions not ascending in row 0"),
  "a special token masked": (put("mlm_labels", (3, 0), 3), "A special token was masked in"),
  "an unknown token": (put_beyond_the_vocabulary, "beyond the vocabulary in row 3"),
  "a sequence number": (exchange_sequences, "sequence_ids in row 0: A pack has 45 tokens"),
  "an unknown number": (put("sequence_ids", (3, 0), 211), "no such sequence number"),
  "a slot skipped": (put("sequence_ids", (3, 0), -1), "in row 3"),
  "an empty row": (empty_row, "Row 2 is padding alone"),
  "a type": (widen, r"input_ids of batch 0: expected \('int32', \(43,\)\)"),
  "a field lost": (lose_a_field, "mlm_labels of batch 0: expected .*found None"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_batch_is_seen(store, name):
  change, message = BREAKS[name]
  audit(make_loader(TaskStore(store)))
  with pytest.raises(AuditError, match=message):
    audit(make_loader(TaskStore(store), altered(change)))


def in_one_segment(layout):
  return layout._replace(segment_ids=np.minimum(layout.segment_ids, 1))


def without_restart(layout):
  positions = np.cumsum(layout.occupied, axis=1, dtype=np.int32) - layout.occupied
  return layout._replace(position_ids=np.where(layout.occupied, positions, 0))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (in_one_segment, r"segment_ids in row 0, column \d+: expected 2, found 1"),
    (without_restart, r"position_ids in row 0, column (\d+): expected 0, found \1"),
  ],
)
def test_an_error_of_the_layout_that_all_rows_share_is_seen(
  store, monkeypatch, change, message
):
  right = row.lay_out
  monkeypatch.setattr(
    row, "lay_out", lambda *args, **spacing: change(right(*args, **spacing))
  )
  with pytest.raises(AuditError, match=message):
    audit(make_loader(store, masking=None))


def test_other_broken_orders_are_seen(store):
  first = make_loader(store)[0]

  def lose_a_sequence(batch):
    ids = batch["sequence_ids"]
    rows, slots = np.nonzero(ids >= 0)
    ids[rows[slots.argmax()], slots.max()] = -1
    return pack_rows(store, ids, row_length=43)

  class SameBlock(PackedLoader):
    """Every process has the first block."""

    def for_process(self, process_index, process_count):
      return super().for_process(0, process_count)

  for kind, options, message in (
    (altered(lambda batch: first, step=2), {}, "occurs twice"),
    (SameBlock, {"process_count": 2}, "occurs twice"),
    (altered(lose_a_sequence), {"masking": None}, "1 sequences are missing"),
  ):
    with pytest.raises(AuditError, match=message):
      audit(make_loader(store, kind, **options))


def test_packs_that_are_not_those_of_the_plan_are_seen(store, monkeypatch):
  loader = make_loader(store)
  certificate = loader.plan.certificate()
  planned = certificate.packs_by_depth | {1: certificate.packs_by_depth[1] + 1}
  other = dataclasses.replace(certificate, packs_by_depth=planned)
  monkeypatch.setattr(packing.Plan, "certificate", lambda plan: other)
  with pytest.raises(AuditError, match=r"Packs by depth are .*; planned"):
    audit(loader)


@pytest.fixture
def arguments(reference):
  length = "--config.data.max_sequence_length=61"
  return [str(reference.directory), CONFIG, length]


def test_the_command_prints_the_certificate_and_what_it_proved(arguments, capsys):
  assert command.main([*arguments, "--hosts=4", "--epoch=1"]) == 0
  output = capsys.readouterr().out
  for text in ("auto, rows of 61", "audit of epoch 1, 4 hosts: right", "undone by"):
    assert text in output
  assert command.main([*arguments, "--json", "--config.packing.algorithm=spfhp"]) == 0
  result = json.loads(capsys.readouterr().out)
  assert result["certificate"]["algorithm"] == "spfhp"
  assert result["sequences"] == result["certificate"]["num_sequences_out"]


@pytest.mark.parametrize(
  ("task", "row", "masked"),
  [
    ("text", {"text": "a b a"}, 0),  # its vocabulary is learned, and has no [MASK]
    ("sentences", {"text": "a b a"}, 5),
  ],
)
def test_only_masked_tasks_are_audited_with_masks(
  corpus, tmp_path, capsys, task, row, masked
):
  source = tmp_path / "rows.jsonl"
  source.write_text("".join(f"{json.dumps({**row, 'id': str(i)})}\n" for i in range(5)))
  fields: dict = {"vocab_file": "" if task == "text" else str(corpus / "vocab")}
  fields |= {"min_sentences": 1}
  settings = pipeline.DatasetSettings(str(source), 128, task=task, **fields)
  pipeline.prepare(tmp_path / "d", settings)
  assert command.main([str(tmp_path / "d"), CONFIG, "--json"]) == 0
  result = json.loads(capsys.readouterr().out)
  assert (result["sequences"], result["masked_tokens"]) == (5, masked)


def test_the_command_fails_where_something_is_wrong(arguments, capsys, monkeypatch):
  def broken(self, contents, epochs, right=PackedLoader._lay_out):
    batch = right(self, contents, epochs)
    batch["position_ids"][-1, 0] = 5
    return batch

  monkeypatch.setattr(PackedLoader, "_lay_out", broken)
  assert command.main(arguments) == 1
  output = capsys.readouterr()
  assert "audit failed: position_ids in row 31, column 0: expected 0, found 5" in output.err
  assert not output.out


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--epoch=-1"], "--epoch is -1; expected at least 0"),
    (["--config.packing.algoritm=none"], "did you mean"),
    (["--config.data.mask_rate=-1.0"], "mask_rate is -1.0; expected a fraction in"),
  ],
)
def test_a_users_mistake_is_reported_with_status_2(arguments, capsys, options, message):
  assert command.main([*arguments, *options]) == 2
  output = capsys.readouterr()
  assert message in output.err
  assert output.err.startswith("error: ")
  assert len(output.err.splitlines()) == 1


def test_unknown_words_are_refused(arguments, capsys):
  with pytest.raises(SystemExit) as stop:
    command.main([*arguments, "extra"])
  assert stop.value.code == 2
  assert "found 'extra'" in capsys.readouterr().err
