"""Real weights trained further on articles; here the weights and the articles are small."""

import json
import shutil

import pytest

from experiments.packing_paper.real_weights import figures_3_4_curves as real_weights
from experiments.packing_paper.real_weights import figures_18_19_phases as phases
from experiments.packing_paper.real_weights import table_3_downstream as table_3
from lab.exhibits import Part
from model import hf
from packing import InputError
from tests.experiments import encoders
from training.errors import ConfigError

pytestmark = pytest.mark.usefixtures("forked_jobs")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp("data")
  encoders.write_real_data(folder)
  return str(folder)


def test_weights_and_text_that_are_missing(data, tmp_path):
  with pytest.raises(InputError, match="nowhere has no minilm-l6-h384"):
    real_weights.exhibits(Part(tmp_path, "command", data="nowhere"))
  part = Part(tmp_path / "part", "command", data=str(tmp_path))
  given = tmp_path / real_weights.WEIGHTS
  given.mkdir()
  with pytest.raises(InputError, match=r"has no text/\*"):
    real_weights.make_study(part)
  shutil.copytree(f"{data}/text", tmp_path / "text")
  with pytest.raises(InputError, match=r"minilm-l6-h384 has no vocab\.txt"):
    real_weights.make_study(part)
  shutil.copy(f"{data}/{real_weights.WEIGHTS}/vocab.txt", given)
  with pytest.raises(ConfigError, match=r"init_from: .*config\.json"):
    real_weights.make_study(part)


def test_all_arms_start_from_the_weights(data, tmp_path):
  study = real_weights.make_study(Part(tmp_path, "command", data=data))
  assert [arm.name for arm in study.arms] == [
    "unpacked",
    "packed",
    "no_mask",
    "no_position_reset",
  ]
  folders = {run.settings.model.init_from for _, run in study.runs}
  assert folders == {f"{data}/{real_weights.WEIGHTS}"}
  assert {run.settings.seed for _, run in study.runs} == set(
    range(1, real_weights.SEEDS + 1)
  )


@pytest.mark.slow
def test_both_phases(data, tmp_path):
  part = Part(tmp_path / "real_phases", "command", quick=True, jobs=2, data=data)
  first, second = phases.exhibits(part)
  assert [first.name, second.name] == [f"Figure {x}, on Wikipedia" for x in (18, 19)]
  assert first.text.startswith(phases.ABOUT)
  assert "In phase 1, rows of 128 tokens" in first.finding
  assert "In phase 2, rows of 256 tokens" in second.finding
  assert len(list((part.folder / "runs").glob("*.json"))) == 5
  for picture in (*first.pictures, *second.pictures):
    assert (part.folder / picture).stat().st_size


@pytest.mark.slow
def test_its_exhibits(data, tmp_path, monkeypatch):
  part = Part(tmp_path / "real_weights", "command", quick=True, jobs=2, data=data)
  same, left_out = real_weights.exhibits(part)
  assert same.name == "Figure 3 left, on Wikipedia"
  assert left_out.name == "Figure 4, on Wikipedia"
  for exhibit in (same, left_out):
    assert exhibit.text.startswith(real_weights.ABOUT)
    assert exhibit.command == "command"
    assert len(exhibit.statements) > 2
  for picture in (*same.pictures, *left_out.pictures):
    assert (part.folder / picture).stat().st_size

  def times():
    return {path: path.stat().st_mtime_ns for path in (part.folder / "runs").iterdir()}

  kept = part.folder / "runs" / "packed,seed=1"  # has the sizes of the weights
  made = json.loads((kept / "config.json").read_text())
  assert (made["max_position_embeddings"], made["layer_norm_eps"]) == (512, 1e-5)
  assert hf.open_model(kept).config.num_layers == made["num_hidden_layers"]

  before = times()
  assert len(before) == 11  # four runs, their logs, and the weights of three
  monkeypatch.setattr(table_3, "GLUE", ("mrpc",))
  assert table_3.SQUAD_FIRST > table_3.GENTLE_SEEDS
  monkeypatch.setattr(table_3, "SQUAD_FIRST", 1)  # from encoders of the gentle runs
  after = part.sibling("real_downstream")
  tables = table_3.exhibits(after)
  where = ("on GLUE", "gently, on STS-B", "gently, on SQuAD")
  assert [x.name for x in tables] == [f"Table 3, {x}" for x in where]
  for table, task in zip(tables, ("mrpc", "stsb_pairs", "squad"), strict=True):
    rows = [line.split("|")[1].strip() for line in table.text.splitlines() if "|" in line]
    assert rows[2:] == [task]
  assert [len(x.statements) for x in tables] == [1, 2, 1]
  # Three scores, four and three; four gentle runs.
  assert len(list((after.folder / "runs").glob("*.json"))) == 14
  for kept in (part.folder / "runs").glob("*/"):
    shutil.rmtree(kept)  # of finished runs their files are enough
  assert table_3.exhibits(after) == tables
  assert not list((part.folder / "runs").glob("*/"))
  real_weights.exhibits(part)
  assert times() == {path: time for path, time in before.items() if path.is_file()}
  path = part.folder / "runs" / "packed,seed=1.json"
  other = json.loads(path.read_text()) | {"parameters_digest": "of another machine"}
  path.write_text(json.dumps(other))
  assert table_3.exhibits(after) == tables  # from weights that are trained again
  assert json.loads(path.read_text()) == other  # as the file says what they count as
  assert [x.name for x in (part.folder / "runs").glob("*/")] == ["packed,seed=1"]
