"""Parts of a report: what they write, and plans that are made once."""

import numpy as np
import pytest

from experiments.packing_paper import table_4_strategies as strategies
from lab import part as parts
from lab import plans, report
from lab.exhibits import Part, to_the_digit, within
from lab.plans import cached_plan
from packing import InputError
from packing.files import write_json


def test_a_number_agrees_if_it_rounds_to_the_printed_one():
  assert to_the_digit("x", "1.25", 1.2549).agrees
  assert not to_the_digit("x", "1.25", 1.2551).agrees
  assert to_the_digit("x", "8,168", 8167).difference == "-1"
  assert within("x", "40,808", 40778, tolerance=30).agrees
  assert not within("x", "40,808", 40778, tolerance=29).agrees


def test_a_part_is_written_and_read_again(tmp_path):
  part = Part(tmp_path / "part", "the command")
  made = parts.make(strategies.exhibits, part)
  for kept, exhibit in zip(parts.read(part.folder), made, strict=True):
    assert report.section(kept, folder=".") == report.section(exhibit, folder=".")
    assert (kept.claim, kept.machine) == (exhibit.claim, exhibit.machine)
  text = (part.folder / "exhibits.md").read_text()
  assert "## Table 4" in text
  assert "`the command`" in text
  assert made[0].minutes > 0
  (part.folder / "minutes.json").write_text("100.0")
  assert parts.make(strategies.exhibits, part)[0].minutes > 100  # of all calls
  (part.folder / "runs").mkdir()
  write_json(part.folder / "runs/a.json", {"machine": "another; cpu, jax 0.1"})
  assert (
    parts.make(strategies.exhibits, part)[0].machine == "another"
  )  # its runs are copied
  assert parts.read(tmp_path / "other") == []


def test_a_plan_is_made_once(tmp_path, capsys, monkeypatch):
  part = Part(tmp_path / "part", "the command")

  def plan(**options):
    return cached_plan(part, "glue_cola_128", "lpfhp", 5, **options)

  first = plan()
  assert "packing glue_cola_128" in capsys.readouterr().err
  again = plan()
  assert not capsys.readouterr().err
  assert again.strategies == first.strategies
  assert np.array_equal(again.repeat_counts, first.repeat_counts)
  (path,) = (tmp_path / "plans").iterdir()
  plan(seed=7)
  monkeypatch.setattr(plans, "solvers", lambda: ["another version"])
  plan()
  assert len(list((tmp_path / "plans").iterdir())) == 3
  monkeypatch.undo()
  path.write_text(path.read_text().replace("[", "[1,", 1))
  with pytest.raises(InputError, match=r"changed|damaged"):
    plan()
