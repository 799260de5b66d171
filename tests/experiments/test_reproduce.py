"""The command that makes the report of the packing paper."""

import re

import pytest

from experiments import reproduce


def run(tmp_path, *arguments: str) -> int:
  return reproduce.main([*arguments, "--workdir", str(tmp_path)])


def test_the_report_shows_disagreements_and_missing_parts(tmp_path, capsys):
  assert run(tmp_path, "--quick", "--only", "model_changes") == 0
  assert run(tmp_path, "--quick", "--only", "strategies") == 0
  printed = capsys.readouterr().out
  assert "Section G: 3 of 4 to the digit, 2 of 2 within their tolerance" in printed
  assert "Theorem D.1: 9 of 9 to the digit (to the digit)\n" in printed
  text = (tmp_path / "quick" / "REPORT.md").read_text()
  assert text.index("## Table 4") < text.index("## Theorem D.1")  # both calls, in order
  assert re.search(r"350,540 \| 350,550 \| \+10 \|  \| \*\*no\*\* \| a slip", text)
  assert "prove nothing" in text  # it was quick
  assert "**residuals was not made**" in text
  anchor = "#table-4-the-packing-matrix-for-8-tokens-and-depth-3"
  assert f"| [Table 4]({anchor}) | There are 10 ways" in text


def test_a_part_that_fails_is_reported_and_the_others_are_made(tmp_path, capsys):
  missing = ("--data", str(tmp_path / "nowhere"))
  assert run(tmp_path, "--only", "strategies,other_text", *missing) == 1
  assert "nowhere has no wikitext-2/" in capsys.readouterr().err
  text = (tmp_path / "REPORT.md").read_text()
  assert "**other_text failed**" in text
  assert "## Table 4" in text


def test_parts_that_need_real_data_are_left_out_without_it(tmp_path, capsys, monkeypatch):
  monkeypatch.delenv("ISOPACK_DATA", raising=False)
  assert run(tmp_path, "--only", f"strategies,{','.join(reproduce.REAL)}") == 0
  assert capsys.readouterr().err.count("left out; it needs --data FOLDER") == 4
  assert "**other_text was not made**" in (tmp_path / "REPORT.md").read_text()


@pytest.mark.parametrize(
  ("option", "message"),
  [
    ("--only=strategies,nothing", "there is no 'nothing'"),
    ("--jobs=x", "expected a whole number of at least 1, found x"),
  ],
)
def test_a_wrong_option_is_refused(tmp_path, capsys, option, message):
  with pytest.raises(SystemExit) as left:
    run(tmp_path, option)
  assert left.value.code == 2
  assert message in capsys.readouterr().err
