"""Tables of pages: copied from results, written after comments, refused if missing."""

import json
import pathlib

import pytest

from lab import pages

PAGE = "Text.\n\n<!-- table speed.json, ways: way | rate -->\n{}\nMore.\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
  (tmp_path / "docs" / "measured").mkdir(parents=True)
  monkeypatch.setattr(pages, "ROOT", tmp_path)
  (tmp_path / "docs" / "page.md").write_text(PAGE.format(""))
  return tmp_path


def write_results(root, records):
  path = root / "speed.json"
  path.write_text(json.dumps({"tables": {"ways": records, "parts": [{}]}}))
  return str(path)


def test_tables_are_written_and_replaced(root):
  way = {"way": "packed | xla", "rate": "2.5", "seconds": "1"}
  for rate in ("2.5", "3.0"):
    pages.main([write_results(root, [way | {"rate": rate}, {"way": "not run"}])])
    rows = f"| packed \\| xla | {rate} |\n| not run |  |\n"
    table = f"\n| way | rate |\n|---|---:|\n{rows}"
    assert (root / "docs" / "page.md").read_text() == PAGE.format(table)
  (kept,) = (root / "docs" / "measured").iterdir()
  assert list(json.loads(kept.read_text())) == ["ways"]  # what the page shows


def test_a_column_that_is_missing_is_refused(root, capsys):
  with pytest.raises(SystemExit):
    pages.main([write_results(root, [{"way": "packed"}])])
  assert "page.md shows rate, which is not published" in capsys.readouterr().err
  assert (root / "docs" / "page.md").read_text() == PAGE.format("")
  assert not list((root / "docs" / "measured").iterdir())


def test_results_that_no_page_shows_are_refused(root, capsys):
  path = pathlib.Path(write_results(root, [])).rename(root / "other.json")
  with pytest.raises(SystemExit):
    pages.main([str(path)])
  assert "no page shows other.json; the pages show speed.json" in capsys.readouterr().err


def test_results_without_tables_are_refused(root, capsys):
  (root / "other.json").write_text("{}")
  with pytest.raises(SystemExit):
    pages.main([str(root / "other.json")])
  assert "other.json has no tables" in capsys.readouterr().err
  assert not list((root / "docs" / "measured").iterdir())
