"""The study at real size; here model, text and tasks are small."""

import functools
import json
import shutil

import pytest

from experiments.real_size import __main__ as real_size
from experiments.real_size import results
from lab import part as parts
from lab.exhibits import Part
from pipeline.tokenizer import SPECIAL_TOKENS
from tests.experiments import encoders

pytestmark = pytest.mark.usefixtures("forked_jobs")


@pytest.fixture
def data(tmp_path):
  folder = tmp_path / "real"
  folder.mkdir()
  encoders.write_real_data(folder)
  vocabulary = "\n".join([*SPECIAL_TOKENS, ".", *encoders.WORDS])
  (folder / real_size.VOCABULARY).write_text(f"{vocabulary}\n")
  return folder


def test_data_that_are_missing_are_refused_in_one_line(data, tmp_path, capsys, monkeypatch):
  monkeypatch.delenv("ISOPACK_DATA", raising=False)
  words = ["--quick", "--prepare", f"--prepared={tmp_path}", f"--workdir={tmp_path}"]
  assert real_size.main(words) == 2
  assert capsys.readouterr().err.startswith("error: --data is not given; expected a folder")
  shutil.rmtree(data / "text")
  assert real_size.main([*words, f"--data={data}"]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f"{data} has no text/*" in line


@pytest.mark.slow
def test_minutes_are_obeyed_and_finished_runs_are_kept(data, tmp_path, monkeypatch):
  monkeypatch.setattr(real_size, "TASKS", ("mrpc",))
  monkeypatch.setattr(real_size, "EVALUATED", range(25, 101, 25))
  folder, prepared = tmp_path / "out", tmp_path / "prepared"

  def start(minutes, data=None):
    part = Part(folder, "command", quick=True, data=data)
    study = real_size.make_study(part, prepared, steps=1, rate=1e-3)
    fields = {"study": study, "prepared": prepared, "minutes": minutes}
    made = parts.make_by_and_by(functools.partial(real_size.exhibits, **fields), part)
    kept = json.loads((folder / "exhibits.json").read_text())
    assert [x["finding"] for x in kept] == [x.finding for x in made]
    return made, [results.read(study, *pair) for pair in study.runs]

  # A turn of each arm fits, and nothing else.
  (losses, scores), records = start(1e-3, str(data))
  assert [len(record["evaluations"]) for record in records] == [1, 1, 1]
  assert "Not run in these minutes, or not to the end: packed,seed=1 after" in losses.text
  assert scores.agreement == "not run here"

  (losses, scores), records = start(10)  # the data are prepared
  assert all(map(results.is_finished, records))
  assert "Not run" not in losses.text + scores.text
  assert (folder / losses.pictures[0]).stat().st_size
  packed, unpacked, no_mask = (results.last(record) for record in records)
  assert packed["own"]["mlm_loss"] == pytest.approx(unpacked["own"]["mlm_loss"], abs=0.05)
  assert no_mask["own"]["mlm_loss"] != no_mask["alone"]["mlm_loss"]
  assert packed["sequences"] == pytest.approx(unpacked["sequences"], rel=0.2)
  assert scores.text.count("| mrpc |") == 2

  def again(*_, **__):
    raise AssertionError("a finished run began again")

  monkeypatch.setattr(real_size, "PairedRun", again)
  monkeypatch.setattr(real_size, "run_jobs", again)
  (_, kept), same = start(10)
  assert same == records
  assert kept.finding == scores.finding
