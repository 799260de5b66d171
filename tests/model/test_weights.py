"""A model's folder on disk, and python -m model."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from model import hf, weights
from model.__main__ import main
from model.weights import Vocabulary, WeightsError
from tests import packs

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "model" / "golden"
PRETRAINING = GOLDEN / "BertForPreTraining"
HEADS = sorted(path.name for path in GOLDEN.glob("Bert*"))
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##\u2028b")


@pytest.fixture
def stored(tmp_path):
  """A folder as training leaves it, with two checkpoints."""
  config, params = hf.import_bert(PRETRAINING, vocab_multiple=16)
  folder = tmp_path / "run"
  folder.mkdir()
  weights.describe(
    folder, config, head="pretraining", vocabulary=Vocabulary(TOKENS, lowercase=False)
  )
  weights.save(folder, params, step=7)
  weights.save(folder, jax.tree.map(lambda x: 2 * x, params), step=11)
  return folder, config, params


def test_a_folder_is_read_as_it_was_written(stored):
  folder, config, params = stored
  assert weights.steps(folder) == [7, 11]
  newest = weights.open_folder(folder)
  assert (newest.head, newest.config, newest.step) == ("pretraining", config, 11)
  assert newest.vocabulary == Vocabulary(TOKENS, lowercase=False)
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(2 * x, y), params, newest.load())
  older = hf.open_model(folder, step=7)
  jax.tree.map(np.testing.assert_array_equal, params, older.load())


def test_what_orbax_did_not_write_is_no_checkpoint(stored):
  folder, _, _ = stored
  for name in ("13", "notes", "17.orbax-checkpoint-tmp"):
    (folder / "checkpoints" / name).mkdir()
  assert weights.steps(folder) == [7, 11]
  assert weights.open_folder(folder).step == 11
  with pytest.raises(WeightsError, match=r"Expected a checkpoint of step 13 in .* 7, 11"):
    weights.open_folder(folder, step=13)
  (folder / "checkpoints" / "11" / "params").rename(folder / "state")
  with pytest.raises(WeightsError, match="11 holds no params"):
    weights.steps(folder)


def altered(folder, **fields):
  path = folder / "model.json"
  value = json.loads(path.read_text())
  path.write_text(json.dumps(value | fields))
  return value


def test_a_description_that_was_altered_is_refused(stored):
  folder, _, _ = stored
  config = altered(folder)["config"]
  for fields, message in (
    ({"head": "generative"}, "head is 'generative', expected one of pretraining"),
    ({"config": config | {"layers": 3}}, "unexpected keyword argument 'layers'"),
    ({"config": config | {"hidden_size": 0}}, "hidden_size is 0; expected at least 1"),
  ):
    value = altered(folder, **fields)
    with pytest.raises(WeightsError, match=message):
      weights.open_folder(folder)
    altered(folder, **value)
  for fields, message in (
    ({"intermediate_size": 12}, r"bias is \(11,\), expected \(12,\) and 5 more"),
    ({"num_layers": 3}, r"layers\.2\.\S+ is missing, expected"),
    ({"num_layers": 1}, r"layers\.1\.\S+ is \(14,\), expected none"),
  ):
    altered(folder, config=config | fields)
    with pytest.raises(WeightsError, match=message) as raised:
      weights.open_folder(folder).load()
    assert len(str(raised.value)) < 600
  (folder / "vocab.txt").unlink()
  with pytest.raises(WeightsError, match=r"vocab\.txt is not there"):
    weights.open_folder(folder)


def test_a_damaged_checkpoint_is_told_in_a_few_words(stored, capfd):
  folder, _, _ = stored
  params = folder / "checkpoints" / "11" / "params"
  data = [path for path in (params / "d").iterdir() if path.stat().st_size]
  for path in (*data, params / "manifest.ocdbt", params / "_METADATA"):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="are not those of") as raised:
      weights.open_folder(folder).load()
    assert len(str(raised.value)) < 800
    path.write_bytes(whole)
  assert len(capfd.readouterr().err) < 2000
  weights.open_folder(folder).load()


# ---- commands --------------------------------------------------------------------------


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("architecture", HEADS)
def test_import_and_export_give_the_same_bits(tmp_path, capsys, architecture):
  """The first export has the present names; what follows must not differ from it."""
  original = tmp_path / "original"
  config, params = hf.import_bert(GOLDEN / architecture)
  hf.export_bert(config, params, original, vocabulary=Vocabulary(TOKENS))
  ours, out = tmp_path / "ours", tmp_path / "out"
  command = ["import", str(original), "--out", str(ours), "--vocab-multiple", "8"]
  assert main([*command, "--json"]) == 0
  told = json.loads(capsys.readouterr().out)
  assert (told["architecture"], told["vocab_size"]) == (architecture, packs.VOCAB_SIZE)
  assert weights.open_folder(ours).config.padded_vocab_size == 32
  assert (ours / "vocab.txt").read_bytes() == (original / "vocab.txt").read_bytes()

  assert main(["export", str(ours), "--out", str(out)]) == 0
  assert architecture in capsys.readouterr().out
  before, after = tensors_of(original), tensors_of(out)
  assert before.keys() == after.keys()
  for name, tensor in before.items():
    assert tensor.tobytes() == after[name].tobytes()
  files = sorted(path.name for path in original.iterdir())
  assert files == sorted(path.name for path in out.iterdir())
  for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
    assert (original / name).read_bytes() == (out / name).read_bytes()


def test_a_step_is_exported(stored, tmp_path, capsys):
  folder, _, params = stored
  out = tmp_path / "out"
  assert main(["export", str(folder), "--step", "7", "--out", str(out), "--json"]) == 0
  told = json.loads(capsys.readouterr().out)
  assert told["step"] == 7
  assert told["parameters"] == sum(x.size for x in tensors_of(out).values())
  again = hf.open_model(out)
  np.testing.assert_array_equal(again.load()["nsp"]["kernel"], params["nsp"]["kernel"])
  assert again.vocabulary == Vocabulary(TOKENS, lowercase=False)


def test_mistakes_are_told_in_a_line_with_status_2(stored, tmp_path, capsys):
  folder, _, _ = stored
  out = tmp_path / "out"
  full = tmp_path / "full"
  shutil.copytree(PRETRAINING, full)
  for arguments, message in (
    (["export", tmp_path, "--out", out], "model.json is not there"),
    (["export", PRETRAINING, "--out", out], "Expected a run's folder or an imported one"),
    (["export", folder, "--step", "8", "--out", out], "there are 7, 11"),
    (["export", folder, "--out", full], "Expected a new or empty folder"),
    (["import", tmp_path / "no", "--out", out], "Expected a Hugging Face directory"),
    (["import", folder, "--out", out], "a folder of this project already"),
    (["import", full, "--out", full], "Expected a new or empty folder"),
    (["import", full, "--out", out, "--vocab-multiple", "0"], "expected at least 1"),
    (["import", full, "--out", out, "--vocab-multiple", "100000000000"], "at most 65536"),
    (["import", full, "--out", "/proc/out"], "/proc"),
  ):
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tmp_path, capsys):
  config = packs.small_config(vocab_size=300)
  params = packs.random_params(config)[1]
  hf.export_bert(config, params, tmp_path / "hf", vocabulary=Vocabulary(TOKENS))
  arguments = ["import", str(tmp_path / "hf"), "--out", str(tmp_path / "ours")]
  for number, status in ((7, 2), (172, 2), (301, 2), (173, 0)):  # 173: padded by 127 rows
    tokens = [*TOKENS, *map(str, range(number - len(TOKENS)))]
    (tmp_path / "hf" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    assert main(arguments) == status
    told = capsys.readouterr().err
    message = f"has {number} tokens; expected 173 to 300, as vocab_size is 300. Copy"
    assert (message in told) == bool(status)
    assert (tmp_path / "ours").exists() == (not status)
  (tmp_path / "ours" / "vocab.txt").write_text("\n".join(TOKENS))
  with pytest.raises(WeightsError, match="has 7 tokens; expected 173 to 300"):
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
  folder, _, _ = stored
  place = tmp_path / "place"
  place.mkdir()
  result = subprocess.run(
    [sys.executable, "-c", FULL.format(str(PRETRAINING), str(folder))],
    capture_output=True,
    text=True,
    check=False,
    cwd=place,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  )
  assert result.returncode == 11, result.stderr
  told = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
  for line, name in zip(told, ("ours", "o"), strict=True):
    assert f"{place / name} could not be written" in line
    assert "Make room" in line
    assert len(line) < 800
  assert "Traceback" not in result.stderr
  # Threads of TensorStore may still write to what has another name.
  assert [path for path in place.iterdir() if ".partial-" not in path.name] == []


@pytest.mark.parametrize(
  ("arguments", "status", "message"),
  [
    (["--help"], 0, "import"),
    (["import", "--help"], 0, "--config.model.init_from"),
    (["export", "--help"], 0, "from_pretrained"),
    (["export", "run"], 2, "--out"),
    (["exprot"], 2, "invalid choice"),
    ([], 2, "COMMAND"),
  ],
)
def test_help_teaches_and_a_wrong_command_is_told(capsys, arguments, status, message):
  with pytest.raises(SystemExit) as left:
    main(arguments)
  assert left.value.code == status
  captured = capsys.readouterr()
  assert message in captured.out + captured.err


def test_the_module_is_a_program(tmp_path):
  result = subprocess.run(
    [sys.executable, "-m", "model", "export", str(tmp_path), "--out", str(tmp_path / "x")],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
  )
  assert result.returncode == 2
  assert "model.json is not there" in result.stderr
  assert "Traceback" not in result.stderr
