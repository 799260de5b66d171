"""The parts of the reproduction that need no training, and their report."""

import dataclasses
import inspect
import json
import re

import numpy as np
import pytest

import packing
from experiments import reproduce
from experiments.lab import part as parts
from experiments.lab import plans, report
from experiments.lab.exhibits import Exhibit, Statement, Value, to_the_digit, within
from experiments.packing_paper import section_f_residuals as residuals
from experiments.packing_paper import table_4_strategies as strategies
from experiments.packing_paper import tables_1_5_6_7_packing as packing_tables
from packing import InputError
from packing.algorithms import nnls


def agreements(exhibit: Exhibit) -> list[bool]:
  return [value.agrees for value in exhibit.values if value.agrees is not None]


def test_a_number_agrees_if_it_rounds_to_the_printed_one():
  assert to_the_digit("x", "1.25", 1.2549).agrees
  assert not to_the_digit("x", "1.25", 1.2551).agrees
  assert to_the_digit("x", "8,168", 8167).difference == "-1"


def test_weights_that_are_not_named_are_those_of_the_algorithm():
  defaults = inspect.signature(nnls.nnlshp).parameters
  wanted = ("residual_offset", "residual_weight")
  assert tuple(defaults[name].default for name in wanted) == residuals.DEFAULT


def test_the_packing_matrix_of_table_4_is_ours():
  table_4, section_g = strategies.exhibits(None)
  assert all(agreements(table_4))
  # One slip of the paper is told as a disagreement, with its reason.
  wrong = [value for value in section_g.values if not value.agrees]
  assert [value.here for value in wrong] == ["350,550"]
  assert wrong[0].note


def test_a_missing_column_of_table_4_is_seen(monkeypatch):
  changed = strategies.TABLE_4.copy()
  changed[0, 0] = 3  # 3 x 1 + 6 fills no row of 8
  monkeypatch.setattr(strategies, "TABLE_4", changed)
  assert agreements(strategies.table_4()).count(False) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("results")


def test_tables_of_glue_agree_to_the_digit(folder):
  tables = packing_tables.Tables(folder / "plans", seeds=[0])
  table_6, missing = tables.table_6()
  assert len(agreements(table_6)) == 26
  assert all(agreements(table_6))
  assert missing.agreement == "not run here"


@pytest.mark.slow
def test_table_7_agrees_to_the_digit(folder):
  table_7 = packing_tables.Tables(folder / "plans", seeds=[0]).table_7()
  assert len(agreements(table_7)) == 43
  assert all(agreements(table_7))


def test_a_plan_is_made_once(folder, capsys):
  wanted = {"algorithm": "lpfhp", "max_sequences_per_pack": 5}
  first = plans.cached_plan(folder / "once", "glue_cola_128", **wanted)
  assert "packing glue_cola_128" in capsys.readouterr().err
  again = plans.cached_plan(folder / "once", "glue_cola_128", **wanted)
  assert not capsys.readouterr().err
  assert again.strategies == first.strategies
  assert np.array_equal(again.repeat_counts, first.repeat_counts)
  (path,) = (folder / "once").iterdir()
  plans.cached_plan(folder / "once", "glue_cola_128", **wanted | {"seed": 7})
  assert len(list((folder / "once").iterdir())) == 2
  path.write_text(path.read_text().replace("[", "[1,", 1))
  with pytest.raises(InputError, match=r"changed|damaged"):
    plans.cached_plan(folder / "once", "glue_cola_128", **wanted)


def test_a_plan_made_by_other_code_is_another(folder, monkeypatch):
  wanted = {"algorithm": "lpfhp", "max_sequences_per_pack": 5}
  plans.cached_plan(folder / "code", "glue_cola_128", **wanted)
  monkeypatch.setattr(plans, "_solvers", lambda: ["another version"])
  plans.cached_plan(folder / "code", "glue_cola_128", **wanted)
  assert len(list((folder / "code").iterdir())) == 2


def test_a_part_is_written_and_read_again(tmp_path):
  made = parts.make(lambda folder, *, quick: strategies.exhibits(folder), tmp_path / "part")
  assert [x.name for x in parts.read(tmp_path / "part")] == [x.name for x in made]
  assert parts.read(tmp_path / "part")[0].values == list(made[0].values)
  assert "## Table 4" in (tmp_path / "part" / "exhibits.md").read_text()
  assert parts.read(tmp_path / "other") == []


def test_a_part_that_fails_leaves_nothing_that_looks_finished(tmp_path):
  def maker(folder, *, quick):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    parts.make(maker, tmp_path / "part")
  assert not list((tmp_path / "part").iterdir())
  assert (
    parts.main("Doc.", maker, name="part", arguments=["--workdir", str(tmp_path)]) == 130
  )


def test_the_report_tells_what_does_not_agree(tmp_path, capsys):
  arguments = ["--workdir", str(tmp_path), "--quick", "--json"]
  assert reproduce.main(["--only", "model_changes", *arguments]) == 0
  assert reproduce.main(["--only", "strategies", *arguments]) == 0
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert found["exhibits"]["Section G"]["does"] == (
    "3 of 4 to the digit, 2 of 2 within their tolerance"
  )
  assert found["exhibits"]["Theorem D.1"]["does"] == "9 of 9 to the digit"
  text = (tmp_path / "quick" / "REPORT.md").read_text()
  assert text.index("## Table 4") < text.index("## Theorem D.1")  # both calls, in order
  assert re.search(r"350,540 \| 350,550 \| \+10 \|  \| \*\*no\*\* \| a slip", text)
  assert "no weight" in text  # it was quick
  assert "**residuals was not made**" in text
  anchors = {report._anchor(x) for x in strategies.exhibits(None)}
  assert all(f"(#{anchor})" in text for anchor in anchors)


def test_a_part_that_cannot_be_made_is_told(tmp_path, capsys):
  arguments = ["--only", "strategies,other_text", "--workdir", str(tmp_path), "--json"]
  assert reproduce.main([*arguments, "--wikitext", str(tmp_path / "nowhere")]) == 1
  failures = json.loads(capsys.readouterr().out)["failures"]
  assert "expected a folder with .txt files" in failures["other_text"]
  text = (tmp_path / "REPORT.md").read_text()
  assert "**other_text failed**" in text
  assert "## Table 4" in text


def test_statements_are_told_as_they_came_out():
  exhibit = Exhibit(
    name="Figure 0",
    title="A | B",
    agreement="in shape",
    finding="So it is.",
    command="python -m x",
    statements=[Statement("a", "holds", "p 0.01"), Statement("b", "fails", "p 0.5")],
    pictures=["a.png"],
  )
  assert exhibit.state == "1 holds, 1 fails"
  text = report.section(exhibit, folder="part")
  assert "| b | **fails** | p 0.5 |" in text
  assert "(part/a.png)" in text


@pytest.mark.parametrize("only", ["nothing", "strategies,nothing", ""])
def test_a_part_that_is_none_is_refused(only, capsys):
  with pytest.raises(SystemExit) as left:
    reproduce.main(["--only", only])
  assert left.value.code == 2
  assert "there is no part" in capsys.readouterr().err


def test_least_squares_tells_its_residual():
  histogram = packing.Histogram.from_lengths([1, 2, 2, 3, 3, 3, 5], max_sequence_length=5)
  plan = packing.pack(histogram, algorithm="nnlshp", max_sequences_per_pack=2)
  residual = np.array(plan.details["residual"])
  assert residual.shape == (5,)
  assert plan.details["num_leftover_sequences"] == np.maximum(residual, 0).sum()


def test_columns_that_no_number_needs_are_left_out():
  values = [within("a", "40,808", 40778, tolerance=40.5, note="why")]
  exhibit = Exhibit("A", "b", "in shape", "", "command", values=values)
  head, rule, row = report.section(exhibit, folder=".").splitlines()[4:7]
  assert head == "|  | paper | here | difference | allowed | agrees | note |"
  assert rule == "|---|---:|---:|---:|---:|---|---|"
  assert row == "| a | 40,808 | 40,778 | -30 | 40 | yes | why |"
  listed = dataclasses.replace(exhibit, values=[Value("a", "1", "not run")])
  assert "|  | paper | here |\n" in report.section(listed, folder=".")
