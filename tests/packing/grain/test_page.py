"""What docs/how_to_pack.md shows with its output, packing.grain among it."""

import doctest

import pytest

from tests import markdown

pytest.importorskip("grain")
pytestmark = pytest.mark.extra("grain")


def test_the_page_prints_what_it_shows(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  page = (markdown.ROOT / "docs/how_to_pack.md").read_text()
  shown = [block for block in markdown.blocks(page, "python") if ">>>" in block]
  test = doctest.DocTestParser().get_doctest("\n".join(shown), {}, "page", None, 0)
  assert len(test.examples) > 20
  assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
