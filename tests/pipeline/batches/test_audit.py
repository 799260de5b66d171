"""The audit passes what the loader makes and finds whatever is broken on purpose."""

import dataclasses
import itertools
import json
import pathlib

import numpy as np
import pytest

import packing
from pipeline import __main__ as command
from pipeline.batches.audit import AuditError, audit
from pipeline.batches.loader import PackedLoader
from tests import forked
from tests.pipeline.batches.test_batches import MASKING, TaskStore

ROOT = pathlib.Path(__file__).parents[3]
# ml_collections loads config files in a way that Python 3.12 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


def make_loader(store, kind=PackedLoader, *, depth=3, batch_size=8, **options):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=depth)
  options = {"masking": MASKING, "seed": 3} | options
  return kind(store, plan, batch_size=batch_size, **options)


def altered(change) -> type[PackedLoader]:
  """A loader whose batches `change(step, batch)` replaces, or alters and returns None."""

  class Altered(PackedLoader):
    def __getitem__(self, step):
      batch = super().__getitem__(step)
      return change(step, batch) or batch

  return Altered


@pytest.mark.parametrize("epoch", [0, 1, 5, None])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"depth": 1},
    {"depth": None},
    {"process_count": 4},
    {"masking": None},
    {"assignment": "fixed", "process_count": 2},
    {"batch_size": 1000},
  ],
)
def test_what_the_loader_makes_passes(store, options, epoch):
  loader = make_loader(store, **options)
  result = audit(loader, epoch=epoch)
  assert result["sequences"] == len(store)
  assert result["tokens"] == store.lengths.sum()
  assert result["certificate"]["num_packs"] == loader.plan.num_packs
  if epoch is None:
    assert result["rows"] == loader.num_evaluation_batches * loader.batch_size
  else:
    assert result["rows"] == loader.plan.num_packs
    assert result["padding_tokens"] == loader.plan.num_padding_tokens
  if loader.masking is None:
    assert result["masked_tokens"] == 0
  else:
    expected = np.minimum(np.maximum(1, np.rint(0.15 * store.lengths)), store.lengths - 2)
    assert result["masked_tokens"] == expected.sum()


def test_fields_of_tasks_pass_and_are_checked(store):
  tasks = TaskStore(store)
  loader = make_loader(tasks)
  audit(loader)

  for name in ("start_positions", "end_positions", "sequence_labels"):
    kind = altered(lambda step, batch, name=name: add_one(batch[name]))
    with pytest.raises(AuditError, match=f"{name} in row 0, column 0"):
      audit(make_loader(tasks, kind))


def add_one(field):
  field[0, 0] += 1


def reference_correlation(values, packs):
  """Pearson's, over all ordered pairs of different sequences of a pack."""
  pairs = [(values[a], values[b]) for p in packs for a in p for b in p if a != b]
  return np.corrcoef(np.array(pairs, float).T)[0, 1]


def test_the_correlations_are_those_of_all_pairs(store):
  loader = make_loader(store)
  result = audit(loader, epoch=2)
  one, other = (
    [pack.tolist() for pack in a] for a in (loader.epochs.assignment(e) for e in (2, 3))
  )
  for name, values in (("length", store.lengths), ("number", np.arange(len(store)))):
    expected = reference_correlation(values, one)
    assert result[f"{name}_correlation"] == pytest.approx(expected, abs=1e-9)
  side_by_side = [{a, b} for p in one for a, b in itertools.pairwise(p)]
  kept = sum(any(pair <= set(q) for q in other) for pair in side_by_side)
  assert result["neighbours_kept"] == pytest.approx(kept / len(side_by_side))


def test_random_neighbours_are_distinguished_from_fixed_ones(store):
  fresh = audit(make_loader(store))
  fixed = audit(make_loader(store, assignment="fixed"))
  assert fresh["neighbours_kept"] < 0.2
  assert fixed["neighbours_kept"] == 1
  assert abs(fresh["number_correlation"]) < 0.2
  assert abs(fresh["shuffled_length_correlation"]) < 0.2
  assert audit(make_loader(store, depth=1))["length_correlation"] is None


def exchange(field, a, b):
  field[a], field[b] = field[b].copy(), field[a].copy()


def slot_of(batch, row, slot):
  """The columns of a sequence."""
  return np.flatnonzero(batch["segment_ids"][row] == slot + 1)


def exchange_sequences(batch):
  """Two sequences of different lengths change places in `sequence_ids` alone."""
  exchange(batch["sequence_ids"], (0, 0), (1, 0))


def exchange_equal_sequences(batch):
  """Two sequences of one length change places in `sequence_ids` alone."""
  lengths = [[len(slot_of(batch, row, slot)) for slot in range(3)] for row in range(8)]
  for a, b in itertools.combinations(np.argwhere(slots(batch)).tolist(), 2):
    if a[0] != b[0] and lengths[a[0]][a[1]] == lengths[b[0]][b[1]]:
      return exchange(batch["sequence_ids"], tuple(a), tuple(b))
  raise AssertionError("no two sequences have one length")


def drop_a_sequence(batch):
  """The last slot of a row with several is emptied, everywhere."""
  row = int(batch["sequence_mask"].sum(axis=1).argmax())
  slot = int(batch["sequence_mask"][row].sum()) - 1
  columns = slot_of(batch, row, slot)
  for name in ("input_ids", "token_type_ids", "segment_ids", "position_ids"):
    batch[name][row, columns] = 0
  hidden = batch["mlm_segment_ids"][row] == slot + 1
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    batch[name][row, hidden] = 0
  for name in ("cls_positions", "sequence_labels", "sequence_mask"):
    batch[name][row, slot] = 0
  batch["sequence_ids"][row, slot] = -1


def repeat_a_row(batch):
  for field in batch.values():
    field[1] = field[0]


def empty_row(batch):
  for name, field in batch.items():
    field[2] = -1 if name == "sequence_ids" else 0


def last_token_lost(batch):
  last = np.flatnonzero(batch["segment_ids"][0])[-1]
  for name in ("input_ids", "token_type_ids", "segment_ids", "position_ids"):
    batch[name][0, last] = 0


def put(name, row, column, value):
  def change(batch):
    assert batch[name][row, column] != value
    batch[name][row, column] = value

  return change


def add(name, where, value=1):
  """Adds to the last entry for which `where` holds."""

  def change(batch):
    row, column = np.argwhere(where(batch))[-1]
    batch[name][row, column] += value

  return change


def hidden(batch):
  return batch["mlm_segment_ids"] > 0


def visible(batch):
  """Real tokens that are not masked."""
  seen = batch["segment_ids"] > 0
  rows, slots = np.nonzero(hidden(batch))
  seen[rows, batch["mlm_positions"][rows, slots]] = False
  return seen


def unhide(batch):
  """One masked token of a row is forgotten, though its slot is closed cleanly."""
  used = int(hidden(batch)[0].sum())
  last = batch["mlm_positions"][0, used - 1]
  batch["input_ids"][0, last] = batch["mlm_labels"][0, used - 1]
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    batch[name][0, used - 1] = 0


def swapped_masks(batch):
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    exchange(batch[name][0], 0, 1)


def real(batch):
  return batch["segment_ids"] > 0


def first_in_row_3(batch):
  where = np.zeros_like(real(batch))
  where[3, 0] = True
  return where


def padding(batch):
  return ~real(batch)


def slots(batch):
  return batch["sequence_mask"].copy()


BREAKS = {
  "a token": (add("input_ids", visible), "input_ids, unmasked, in row 7"),
  "a token in padding": (add("input_ids", padding), "input_ids, unmasked, in row"),
  "a label of a masked token": (add("mlm_labels", hidden), "input_ids, unmasked, in row 7"),
  "a masked position": (put("mlm_positions", 3, 0, 40), "not ascending in row 3"),
  "a masked position outside": (put("mlm_positions", 3, 0, -1), "outside the row in row 3"),
  "a masked token's segment": (add("mlm_segment_ids", hidden), "mlm_segment_ids in row 7"),
  "an empty masked slot": (put("mlm_labels", 3, -1, 7), "mlm_labels of an empty slot"),
  "a masked token too few": (unhide, "Masked tokens of the sequence in row 0"),
  "masked tokens out of order": (swapped_masks, "mlm_positions not ascending in row 0"),
  "a special token masked": (put("mlm_labels", 3, 0, 3), "A special token was masked in"),
  "a token beyond the vocabulary": (
    lambda b: b["input_ids"].__setitem__((3, b["mlm_positions"][3, 0]), 97),
    "beyond the vocabulary in row 3",
  ),
  "a segment": (
    add("segment_ids", first_in_row_3),
    "segment_ids in row 3, column 0: expected 1, found 2",
  ),
  "a segment beyond": (
    put("segment_ids", 3, 0, 9),
    "segment_ids in row 3, column 0: expected 1, found 9",
  ),
  "a token after padding": (
    put("segment_ids", 3, 0, 0),
    "segment_ids in row 3, column 0: expected 1, found 0",
  ),
  "a position": (
    add("position_ids", first_in_row_3, 2),
    "position_ids in row 3, column 0: expected 0, found 2",
  ),
  "a position in padding": (add("position_ids", padding), "position_ids in row"),
  "a token type": (
    add("token_type_ids", first_in_row_3),
    "token_type_ids in row 3, column 0: expected 0, found 1",
  ),
  "a [CLS]": (add("cls_positions", slots), "cls_positions in row 7"),
  "a label": (add("sequence_labels", slots), "sequence_labels in row 7"),
  "the mask of slots": (put("sequence_mask", 3, 0, False), "sequence_mask in row 3"),
  "a sequence number": (
    exchange_sequences,
    "sequence_ids in row 1: The sequences of a pack have 71 tokens together",
  ),
  "a sequence number of one length": (
    exchange_equal_sequences,
    "in row [0-9], column",
  ),
  "an unknown number": (put("sequence_ids", 3, 0, 211), "no such sequence number"),
  "a slot skipped": (put("sequence_ids", 3, 0, -1), "in row 3"),
  "the last token lost": (
    last_token_lost,
    "segment_ids in row 0, column [0-9]+: expected [1-3], found 0",
  ),
  "a sequence lost": (drop_a_sequence, "1 of 211 sequences never came"),
  "a row twice": (repeat_a_row, "Sequence [0-9]+ came twice"),
  "an empty row": (empty_row, "Row 2 is padding alone"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_batch_is_seen(store, name):
  change, message = BREAKS[name]

  kind = altered(lambda step, batch: change(batch) if step == 0 else None)
  with pytest.raises(AuditError, match=message):
    audit(make_loader(store, kind))


def test_other_broken_orders_are_seen(store):
  class Again(PackedLoader):
    """Repeats its first batch later."""

    def __getitem__(self, step):
      return super().__getitem__(0 if step == 2 else step)

  def wider(step, batch):
    return batch if step < 2 else batch | {"input_ids": batch["input_ids"].astype("i8")}

  def longer(step, batch):
    return batch | {"position_ids": np.pad(batch["position_ids"], ((0, 0), (0, 1)))}

  def less(step, batch):
    del batch["mlm_labels"]

  class SameBlock(PackedLoader):
    """Every process has the first block."""

    def for_process(self, process_index, process_count):
      return super().for_process(0, process_count)

  for kind, message in (
    (Again, "came twice"),
    (altered(wider), r"input_ids of batch 2: expected \('int32', \(43,\)\)"),
    (altered(longer), r"position_ids of batch 0: expected .*\(43,\).*found .*\(44,\)"),
    (altered(less), "mlm_labels of batch 0: expected .*found None"),
    (SameBlock, "came twice"),
  ):
    with pytest.raises(AuditError, match=message):
      audit(make_loader(store, kind, process_count=2 if kind is SameBlock else 1))


def test_packs_that_are_not_those_of_the_plan_are_seen(store, monkeypatch):
  loader = make_loader(store)
  certificate = loader.plan.certificate()
  planned = certificate.packs_by_depth | {1: certificate.packs_by_depth[1] + 1}
  other = dataclasses.replace(certificate, packs_by_depth=planned)
  monkeypatch.setattr(packing.Plan, "certificate", lambda plan: other)
  with pytest.raises(AuditError, match=r"Expected packs by depth .*, as planned"):
    audit(loader)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """A small prepared dataset and the options that name it."""
  import pipeline
  from configs import base
  from tests.stdlib_corpus import make_library

  folder = tmp_path_factory.mktemp("prepared")
  (folder / "library").mkdir()
  make_library(folder / "library")
  config = base.get_config()
  settings = {
    "source": f"stdlib:{folder / 'library'}",
    "directory": str(folder / "data"),
    "vocab_size": 500,
    "held_out_fraction": 0.1,
  }
  config.data.update(settings)
  pipeline.prepare_dataset(config)
  return [str(folder / "data"), "--config", str(ROOT / "configs" / "base.py")]


def test_the_command_prints_the_certificate_and_what_it_proved(prepared, capsys):
  assert command.main(["audit", *prepared, "--hosts=4", "--epoch=1"]) == 0
  output = capsys.readouterr().out
  for text in (
    "auto, rows of 128",
    "audit of epoch 1, 4 hosts: right",
    "lengths",
    "kept",
  ):
    assert text in output
  arguments = ["audit", *prepared, "--json", "--config.packing.algorithm=spfhp"]
  assert command.main(arguments) == 0
  result = json.loads(capsys.readouterr().out)
  assert result["certificate"]["algorithm"] == "spfhp"
  assert result["sequences"] == result["certificate"]["num_sequences_out"]
  assert command.main(["audit", *prepared, "--split=held_out"]) == 0
  assert "audit of evaluation, 1 host: right" in capsys.readouterr().out


def test_other_tasks_than_pretraining_are_audited_without_masks(tmp_path, capsys):
  import tokenizers

  from pipeline import DatasetSettings, prepare

  vocabulary = {"<unk>": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "</s>": 5}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  vocab_file, bert = tmp_path / "tokenizer.json", tmp_path / "vocab.txt"
  tokenizer.save(str(vocab_file))
  bert.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
  answers = {"text": ["b"], "answer_start": [2]}
  rows: dict[str, dict] = {
    "text": {"text": "a b a"},
    "tokens": {"input_ids": [3, 4, 3]},
    "glue/stsb": {"sentence1": "a b", "sentence2": "b", "label": 2.5},
    "squad": {"question": "a", "context": "a b", "answers": answers},
  }
  config = ["--config", str(ROOT / "configs" / "base.py")]
  for task, row in rows.items():
    for vocabulary_file in (vocab_file, bert):
      source = tmp_path / "rows.jsonl"
      source.write_text("".join(f"{json.dumps({**row, 'id': str(i)})}\n" for i in range(5)))
      folder = tmp_path / task / vocabulary_file.name
      prepare(
        folder,
        DatasetSettings(
          str(source), 128, task=task, vocab_file=str(vocabulary_file), doc_stride=32
        ),
      )
      assert command.main(["audit", str(folder), *config, "--json"]) == 0
      result = json.loads(capsys.readouterr().out)
      assert result["sequences"] == 5
      assert result["masked_tokens"] == 0


def test_the_command_fails_with_status_1_where_something_is_wrong(
  prepared, capsys, monkeypatch
):
  def broken(self, contents, epochs, right=PackedLoader._lay_out):
    batch = right(self, contents, epochs)
    batch["position_ids"][-1, 0] = 5
    return batch

  monkeypatch.setattr(PackedLoader, "_lay_out", broken)
  assert command.main(["audit", *prepared]) == 1
  output = capsys.readouterr()
  assert "audit failed: position_ids in row 31, column 0: expected 0, found 5" in output.err
  assert not output.out


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--hosts=3"], "batch_size is 32; expected a multiple of the 3 processes"),
    (["--epoch=-1"], "--epoch is -1; expected at least 0"),
    (["--config.packing.algoritm=none"], "Did you mean"),
    (
      ["--config.data.max_sequence_length=50"],
      "max_sequence_length=128; the config has 50",
    ),
    (["--config.data.mask_rate=-1.0"], "mask_rate is -1.0; expected a fraction in (0, 1)"),
    (["--config.data.mask_rate=2.0"], "mask_rate is 2.0; expected a fraction in (0, 1)"),
    (["--config.seed=-1"], "seed is -1; expected at least 0"),
    (["--config", "missing.py"], "missing.py cannot be used as --config"),
  ],
)
def test_a_users_mistake_is_reported_with_status_2(prepared, capsys, options, message):
  assert command.main(["audit", *prepared, *options]) == 2
  output = capsys.readouterr()
  assert message in output.err
  assert output.err.startswith("error: ")
  assert len(output.err.splitlines()) == 1


def test_the_command_as_a_program(prepared, tmp_path):
  for arguments, status, message in (
    (["--help"], 0, "exit status 1"),
    ([str(tmp_path), *prepared[1:]], 2, "is not a prepared dataset"),
    ([*prepared, "extra"], 2, "found 'extra'"),
  ):
    result = forked.run(["-m", "pipeline", "audit", *arguments], cwd=ROOT)
    assert result.returncode == status, result.stderr
    assert message in (result.stderr if status else result.stdout)
    assert "Traceback" not in result.stderr
