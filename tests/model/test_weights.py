"""A model's folder on disk, and python -m model."""

import errno
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
import tensorstore
from orbax.checkpoint import v1 as ocp

from model import files, hf, weights
from model.__main__ import main
from model.weights import Vocabulary, WeightsError, choose_step
from packing.files import NotWritten
from tests import packs

ROOT = pathlib.Path(__file__).parents[2]
PRETRAINING = ROOT / "tests" / "model" / "golden" / "BertForPreTraining"
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##\u2028b")
VOCABULARY = Vocabulary(TOKENS, lowercase=False)


@pytest.fixture
def stored(tmp_path):
  """A folder as training leaves it, with two checkpoints, and what is in the first."""
  given = hf.open_model(PRETRAINING)
  config, params = given.config, given.load()
  folder = tmp_path / "run"
  folder.mkdir()
  weights.describe(folder, config, head="pretraining", vocabulary=VOCABULARY)
  weights.save(folder, params, step=7)
  weights.save(folder, jax.tree.map(lambda x: 2 * x, params), step=11)
  return folder, config, params


def test_a_folder_is_read_as_it_was_written(stored):
  folder, config, params = stored
  assert weights.steps(folder) == [7, 11]
  newest = weights.open_folder(folder)
  assert (newest.head, newest.config, newest.step) == ("pretraining", config, 11)
  assert newest.vocabulary == VOCABULARY
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(2 * x, y), params, newest.load())
  older = hf.open_model(folder, step=7)
  jax.tree.map(np.testing.assert_array_equal, params, older.load())


def test_tokens_with_ends_of_lines_are_read_as_they_were_written(tmp_path):
  config = packs.small_config(vocab_size=4)
  vocabulary = Vocabulary(("a", "\n", "b\r", "c"), by_json=True)
  weights.describe(tmp_path, config, head="pretraining", vocabulary=vocabulary)
  assert weights.read_description(tmp_path).vocabulary == vocabulary


def test_what_orbax_did_not_write_is_no_checkpoint(stored):
  folder, _, _ = stored
  for name in ("13", "notes", "17.orbax-checkpoint-tmp"):
    (folder / "checkpoints" / name).mkdir()
  assert weights.open_folder(folder).step == 11
  with pytest.raises(WeightsError, match=r"has no checkpoint of step 13; there are 7, 11"):
    weights.open_folder(folder, step=13)
  (folder / "checkpoints" / "11" / "params").rename(folder / "state")
  with pytest.raises(WeightsError, match="11 holds no params"):
    weights.steps(folder)


@pytest.mark.parametrize(
  ("fields", "sizes", "message"),
  [
    ({"head": "generative"}, {}, "no head .*'generative.*; expected pretraining"),
    ({}, {"intermediate_size": 12}, r"bias is \(11,\), expected \(12,\) and 5 more"),
    ({}, {"num_layers": 3}, r"layers\.2\.\S+ is missing, expected"),
    ({}, {"num_layers": 300_000}, r"has 4\d arrays for 300,000 layers"),
    ({}, {"vocab_size": 2**70}, r"vocab_size is 1180\d+; expected a whole number"),
    (
      {"lowercase": None},
      {"vocab_size": 2**31 - 1},
      r"have \d{3},\S+ bytes, but its",
    ),
  ],
)
def test_a_description_that_was_altered_is_refused(stored, fields, sizes, message):
  path = stored[0] / "model.json"
  value = json.loads(path.read_text())
  path.write_text(json.dumps(value | {"config": value["config"] | sizes} | fields))
  with pytest.raises(WeightsError, match=message) as raised:
    weights.open_folder(stored[0]).load()
  assert len(str(raised.value)) < 800


def test_an_array_of_another_shape_is_not_read(stored):
  """The memory for it is not there."""
  params = stored[0] / "checkpoints" / "11" / "params"
  store = tensorstore.KvStore.open(
    {"driver": "ocdbt", "base": f"file://{params}/"}
  ).result()
  array = json.loads(store["nsp.bias/zarr.json"])
  store["nsp.bias/zarr.json"] = json.dumps(array | {"shape": [2**40]})
  with pytest.raises(WeightsError, match=r"nsp\.bias is \(1099511627776,\), expected \(2"):
    weights.open_folder(stored[0]).load()


def test_a_checkpoint_of_another_step_is_refused(stored, tmp_path):
  folder, _, params = stored
  path = folder / "checkpoints" / "13"
  ocp.save_checkpointables(path, {"params": params}, custom_metadata={"step": 12})
  with pytest.raises(WeightsError, match=r"13 is damaged, .*: it was saved as step 12\."):
    weights.open_folder(folder)
  (path / "_CHECKPOINT_METADATA").write_text("{")
  with pytest.raises(WeightsError, match="13 is damaged") as raised:
    weights.open_folder(folder)
  assert str(raised.value).count("Restore it") == 1


def test_a_folder_is_written_where_a_link_points_to(tmp_path):
  (tmp_path / "link").symlink_to("there")
  with files.whole_folder(tmp_path / "link") as folder:
    (folder / "file").touch()
  assert (tmp_path / "link").is_symlink()
  assert (tmp_path / "there" / "file").exists()


def test_where_no_folder_can_be_created_is_told_before_any_work(tmp_path):
  (tmp_path / "file").touch()
  for place in (tmp_path / "file" / "out", pathlib.Path("/proc/out")):
    with pytest.raises(NotWritten, match="no folder can be created in "):
      files.check_new_folder(place)
  files.check_new_folder(tmp_path / "new" / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_is_too_long_for_a_folder_is_told(tmp_path):
  place = tmp_path / ("x" * 250)
  with pytest.raises(NotWritten, match="name too long"), files.whole_folder(place):
    pass


CUT_SHORT = OSError("Error writing ...")
CUT_SHORT.__cause__ = ValueError(f"Error writing a.kernel: {os.strerror(errno.ENOSPC)} [os")


@pytest.mark.parametrize(
  ("error", "told"),
  [
    (NotWritten("Cannot write a: No."), r"^Cannot write a: No\.$"),
    (PermissionError(errno.EACCES, "Permission denied"), r"Permission denied\.$"),
    (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), r"\. Make room\.$"),
    (CUT_SHORT, r"Error writing \.\.\.\. Make room\.$"),
  ],
)
def test_a_folder_that_could_not_be_written_says_why_once(tmp_path, error, told):
  """Room is asked for only where there is none."""
  with pytest.raises(NotWritten, match=told), files.whole_folder(tmp_path / "out"):
    raise error


def test_a_damaged_checkpoint_is_told_in_a_few_words(stored, capfd):
  folder, _, _ = stored
  params = folder / "checkpoints" / "11" / "params"
  data = [path for path in (params / "d").iterdir() if path.stat().st_size]
  for path in (*data, params / "manifest.ocdbt", params / "_METADATA"):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="is damaged, or another model") as raised:
      weights.open_folder(folder).load()
    assert len(str(raised.value)) < 800
    path.unlink()
    with pytest.raises(WeightsError, match="is damaged, or another model"):
      weights.open_folder(folder).load()
    path.write_bytes(whole)
  assert len(capfd.readouterr().err) < 2000
  weights.open_folder(folder).load()


def save_metadata(folder, step, saved_with):
  path = folder / "checkpoints" / str(step)
  (path / "params").mkdir(parents=True, exist_ok=True)
  text = json.dumps({"custom_metadata": saved_with})
  (path / "_CHECKPOINT_METADATA").write_text(text)


def test_one_rule_chooses_a_runs_checkpoint(tmp_path):
  assert choose_step(tmp_path) == (None, "the newest")
  with pytest.raises(WeightsError, match=r"keeps no best step, only \[\]\."):
    choose_step(tmp_path, "best")
  for step in (4, 6):
    save_metadata(tmp_path, step, {"best": None, "step": step})
  assert choose_step(tmp_path) == (6, "the newest")
  with pytest.raises(WeightsError, match=r"keeps no best step, only \[4, 6\]\."):
    choose_step(tmp_path, "best")
  save_metadata(tmp_path, 6, {"best": 4, "step": 6})
  assert choose_step(tmp_path) == choose_step(tmp_path, "best")
  assert choose_step(tmp_path) == (4, "the best; the newest is 6")
  assert choose_step(tmp_path, "6") == (6, "by --step")
  with pytest.raises(WeightsError, match="--step is 'last'; expected a number, or best"):
    choose_step(tmp_path, "last")
  (tmp_path / "checkpoints" / "6" / "_CHECKPOINT_METADATA").write_text("{")
  with pytest.raises(WeightsError, match=r"checkpoints/6 is damaged, .* Restore it, or"):
    choose_step(tmp_path)
  save_metadata(tmp_path, 6, ["best"])
  with pytest.raises(WeightsError, match="checkpoints/6 is damaged"):
    choose_step(tmp_path)


# ---- commands; test_hf has what they write ---------------------------------------------


@pytest.mark.parametrize(
  ("options", "why"),
  [(["--step", "7"], "by --step"), ([], "the best; the newest is 11")],
)
def test_a_step_is_exported(stored, tmp_path, capsys, options, why):
  folder, _, params = stored
  path = folder / "checkpoints" / "11" / "_CHECKPOINT_METADATA"
  written = json.loads(path.read_text()) | {"custom_metadata": {"best": 7, "step": 11}}
  path.write_text(json.dumps(written))
  out = tmp_path / "out"
  assert main(["export", str(folder), "--out", str(out), "--json", *options]) == 0
  printed = capsys.readouterr()
  told = json.loads(printed.out)
  assert printed.err == f"step 7 of {folder} ({why})\n"
  tensors = safetensors.numpy.load_file(out / "model.safetensors").values()
  assert (told["step"], told["parameters"]) == (7, sum(x.size for x in tensors))
  again = hf.open_model(out)
  np.testing.assert_array_equal(again.load()["nsp"]["kernel"], params["nsp"]["kernel"])
  assert again.vocabulary == VOCABULARY


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ("export .", "There is no model.json"),
    ("export run --step 8", "there are 7, 11"),
    ("export run --out run", "is not a new or empty folder"),
    ("import run", "of this project already. Use it without an import"),
  ],
)
def test_mistakes_are_told_in_a_line_with_status_2(
  stored, capsys, monkeypatch, arguments, message
):
  monkeypatch.chdir(stored[0].parent)
  command, *others = arguments.split()
  assert main([command, "--out", "out", *others]) == 2
  (told,) = capsys.readouterr().err.splitlines()
  assert told.startswith("error: ")
  assert message in told
  assert [path.name for path in pathlib.Path.cwd().iterdir()] == ["run"]


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tmp_path, capsys):
  config = packs.small_config(vocab_size=300)
  params = packs.random_params(config)[1]
  hf.export_model(config, params, tmp_path / "hf", vocabulary=VOCABULARY)
  arguments = ["import", str(tmp_path / "hf"), "--out", str(tmp_path / "ours")]
  for number, status in ((7, 2), (172, 2), (301, 2), (173, 0)):  # 173: padded by 127 rows
    tokens = [*TOKENS, *map(str, range(number - len(TOKENS)))]
    (tmp_path / "hf" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    assert main(arguments) == status, number
    message = f"has {number} tokens; its vocab_size of 300 needs 173 to 300."
    assert (message in capsys.readouterr().err) == bool(status)
    assert (tmp_path / "ours").exists() == (not status)
  (tmp_path / "ours" / "vocab.txt").write_text("\n".join(TOKENS))
  with pytest.raises(WeightsError, match=r"has 7 tokens; .* needs 173 to 300"):
    weights.open_folder(tmp_path / "ours")
  (tmp_path / "ours" / "vocab.txt").unlink()
  with pytest.raises(WeightsError, match=r"no \S+vocab\.txt"):
    weights.open_folder(tmp_path / "ours")


FULL = """
import resource, signal, sys
from model.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
imported = main(["import", {0!r}, "--out", "ours"])
sys.exit(10 * imported + main(["export", {1!r}, "--out", "o"]))
"""


def test_a_full_disk_is_told_in_a_line_with_status_1(stored, tmp_path):
  place = tmp_path / "place"
  place.mkdir()
  result = subprocess.run(
    [sys.executable, "-c", FULL.format(str(PRETRAINING), str(stored[0]))],
    capture_output=True,
    text=True,
    check=False,
    cwd=place,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  )
  assert result.returncode == 11, result.stderr
  told = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
  for line, name in zip(told, ("ours", "o"), strict=True):
    assert f"Cannot write {place / name}: " in line
    assert "Make room" in line
    assert len(line) < 800
  assert "Traceback" not in result.stderr
  # Threads of TensorStore may still write to what has another name.
  assert [path for path in place.iterdir() if ".partial" not in path.name] == []
