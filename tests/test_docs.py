"""The documents: links lead somewhere, files named are there, examples run."""

import ast
import doctest
import re
import tomllib

import pytest
import yaml

import packing
from lab import pages
from launch import door
from tests import markdown
from tests.markdown import CURRENT, DOCUMENTS, ROOT

OURS = [path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()]
OURS += ["benchmarks", "configs", "docs", "tests"]
EXAMPLES = [path for path in CURRENT if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=markdown.name)
def test_links_lead_somewhere(path):
  for link in markdown.links(path.read_text()):
    if link.startswith(("http://", "https://")):
      continue
    file, _, anchor = link.partition("#")
    target = path.parent / file if file else path
    assert target.exists(), link
    if anchor:
      assert anchor in markdown.anchors(target.read_text()), link


def test_every_page_can_be_found():
  """From the README, or the index that it links."""
  linked = {
    (page.parent / link.partition("#")[0]).resolve()
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md")
    for link in markdown.links(page.read_text())
  }
  pages = {path.resolve() for path in (ROOT / "docs").glob("*.md")}
  assert pages <= linked
  assert ROOT / "docs" / "README.md" in linked


@pytest.mark.parametrize("path", CURRENT, ids=markdown.name)
def test_files_named_are_there(path):
  text = path.read_text()
  named = [span for span in markdown.spans(text) if span.partition("/")[0] in OURS]
  for span in named:
    file, more = re.fullmatch(r"([\w./-]*)(.*)", span).groups()
    if "/" in file and not more.startswith("*"):
      assert (ROOT / file).exists(), span


@pytest.mark.parametrize("path", EXAMPLES, ids=markdown.name)
def test_examples_print_what_they_say(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  parts = [x for x in markdown.blocks(path.read_text(), "python") if ">>> " in x]
  name = markdown.name(path)
  test = doctest.DocTestParser().get_doctest("\n".join(parts), {}, name, name, 0)
  told: list[str] = []
  result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
  assert result.attempted > 0
  assert not result.failed, "".join(told)


def test_python_is_python_and_recipes_are_shown_as_they_are():
  blocks = [x for path in CURRENT for x in markdown.blocks(path.read_text(), "python")]
  for block in blocks:
    if ">>> " not in block:
      ast.parse(block)
  shown = "\n".join(blocks)
  recipes = sorted((ROOT / "docs" / "recipes").glob("*.py"))
  assert recipes
  for recipe in recipes:
    assert recipe.read_text() in shown, f"{recipe.name} differs from its page"


def test_the_reference_of_the_config_is_that_of_the_code():
  """python -m launch.door > docs/config.md"""
  page = (ROOT / "docs" / "config.md").read_text()
  assert page == door.reference() + "\n"


def test_the_page_of_the_packer_lists_every_algorithm():
  text = (ROOT / "docs" / "packing.md").read_text()
  table = text.partition("\n## Algorithms\n")[2].partition("\n## ")[0]
  cells = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
  listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
  assert listed == packing.ALGORITHMS.keys()


def test_the_citation_is_of_this_version():
  citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert citation["version"] == packing.__version__
  assert citation["license"] == project["license"]
  assert "2107.02027" in citation["references"][0]["url"]


# Pages that say what came out, and the reports that prove it.
RESULTS = {
  "docs/reproduce.md": ["docs/reproduction/REPORT.md"],
  "docs/learning_curves.md": ["docs/reproduction/REPORT.md"],
  "docs/atom_size.md": ["docs/atom_size/exhibits.md", "docs/atom_size/large/exhibits.md"],
}


def told_in(reports: list[str]) -> str:
  return "\n".join((ROOT / report).read_text() for report in reports)


@pytest.mark.parametrize(("page", "reports"), RESULTS.items())
def test_figures_that_are_told_are_in_the_reports(page, reports):
  number = re.compile(r"\d+\.\d+")
  found = number.findall(told_in(reports))
  _, heading, text = (ROOT / page).read_text().partition("## What came out")
  assert heading
  text = re.sub(r"jax [\d.]+|\*\*Time\.\*\*.*?\n\n", "", text, flags=re.DOTALL)
  assert len(number.findall(text)) > 10
  for told in number.findall(text):
    digits = len(told.partition(".")[2])
    assert any(f"{float(x):.{digits}f}" == told for x in found), f"{told} in {page}"


@pytest.mark.parametrize("page", ["README.md", "docs/differences.md", *RESULTS])
def test_counts_of_millions_are_in_a_report(page):
  count = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3}){2,}(?![\d,])")
  found = {x for reports in RESULTS.values() for x in count.findall(told_in(reports))}
  assert set(count.findall((ROOT / page).read_text())) <= found


def test_the_table_of_the_readme_is_on_the_pages_that_it_names():
  table = markdown.table((ROOT / "README.md").read_text(), "| what | measured | where |")
  assert len(table) == 3
  for what, measured, where in table:
    (link,) = markdown.links(where)
    page = link.partition("#")[0]
    on_page = {as_number(x) for x in FIGURE.findall((ROOT / page).read_text())}
    for told in FIGURE.findall(f"{what} {measured}"):
      assert as_number(told) in on_page, f"{told} is not in {page}"


def test_the_readme_leads_from_each_idea_to_its_code():
  readme = (ROOT / "README.md").read_text()
  told = readme.partition("## From an idea to its code\n")[2].partition("\n## ")[0]
  words = ("Flax", "jnp.equal", "LAMB", "optax", "betas", "pjit", "mesh", "un-padding")
  for word in (*words, "config", "no mask", "no position reset", "train.py", "eval.py"):
    assert word in told, word
  rows = markdown.table(told, "| idea | code | try it |")
  assert len(rows) >= 7
  for idea, code, command in rows:
    linked = [link for link in markdown.links(code) if "://" not in link]
    assert linked, idea
    for link in linked:
      assert (ROOT / link).exists(), link
    assert markdown.spans(command), idea
  # What an idea is called is in the file that is linked for it.
  for file, name in {
    "model/masks.py": "jnp.equal(segment_ids",
    "training/optimizer.py": "def lamb(",
    "launch/recipe/adjustment.py": "packed_betas(",
    "training/step.py": "jax.jit(",
    "training/mesh.py": "Mesh(",
    "configs/sweeps/ablations.py": '"no position reset"',
  }.items():
    assert f"]({file})" in told, file
    assert name in (ROOT / file).read_text(), name


def test_tables_of_pages_are_the_published_ones():
  texts = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
  tables = pages.published()
  assert [pages.fill(text, tables) for text in texts] == texts
  for name, titles in tables.items():
    for title in titles:
      assert any(f"<!-- table {name}, {title}: " in text for text in texts)


NOT_KEPT = "JSON was not kept."


def figures_without_a_source(page: str) -> list[str]:
  """Headers of tables of figures whose caption does not say where the figures are kept.

  A table of figures has a column that is aligned to the right. Its caption is the paragraph
  before it; a second table after it has the same one. It names a published table, links a
  report, or says that the JSON was not kept.
  """
  missing, caption = [], ""
  for block in re.split(r"\n{2,}", page):
    if not block.startswith("|"):
      caption = block
    elif "---:" in block.splitlines()[1]:
      told = " ".join(caption.split())
      kept = re.search(r"<!-- table |\((?:\w+/)*(?:exhibits|REPORT)\.md", told)
      if not (kept or NOT_KEPT in told):
        missing.append(block.splitlines()[0])
  return missing


@pytest.mark.parametrize("path", CURRENT, ids=markdown.name)
def test_a_table_of_figures_says_where_they_are_kept(path):
  if path.parent == ROOT / "docs" or path == ROOT / "README.md":
    assert not figures_without_a_source(path.read_text())


def test_a_table_of_figures_without_a_source_is_found():
  table = "| way | rate |\n|---|---:|\n| packed | 2.5 |"
  for caption, missing in (
    ("On two cores:", ["| way | rate |"]),
    ("On two cores. Its JSON was not\nkept.", []),
    ("On two cores ([report](finetuning/exhibits.md)):", []),
    ("<!-- table speed.json, ways: way | rate -->", []),
  ):
    assert figures_without_a_source(f"## Speed\n\n{caption}\n\n{table}\n") == missing
  words = table.replace("---:", "---")
  assert not figures_without_a_source(f"What to read:\n\n{words}\n")


@pytest.mark.parametrize(
  "tried",
  ["glue, qm9, squad", pytest.param("wikipedia", marks=pytest.mark.slow)],
)
def test_packs_of_the_built_in_histograms_are_those_of_the_optimum(tried):
  page = (ROOT / "docs" / "packing.md").read_text()
  depths = " | ".join(f"depth {depth}" for depth in (2, 3, 4, 8, "max"))
  header = f"| histogram | {depths} | slowest, seconds |"
  rows = markdown.table(page, header)
  assert [row[0] for row in rows] == packing.histogram_names()
  for name, *cells, _ in rows:
    if not name.startswith(tuple(tried.split(", "))):
      continue
    for depth, told in zip((2, 3, 4, 8, None), cells, strict=True):
      if name in ("wikipedia_1024", "wikipedia_2048") and depth in (4, 8):
        continue  # these take up to minutes
      histogram = packing.load_histogram(name)
      plan = packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=depth)
      assert f"{plan.num_packs}{' +1' * plan.gap}" == told, (name, depth)


FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")


def as_number(figure: str) -> float:
  return float(figure.replace(",", ""))


def test_as_many_numbers_agree_as_is_told():
  report = (ROOT / "docs/reproduction/REPORT.md").read_text().partition("\n## ")[0]
  told = (ROOT / "docs/reproduce.md").read_text()
  for how, sentence in (
    ("to the digit", "{} of {} numbers are the paper's"),
    ("within their tolerance", "{} of the {} that have a tolerance"),
  ):
    counts = [map(int, x) for x in re.findall(rf"(\d+) of (\d+) {how}", report)]
    agree, total = (sum(x) for x in zip(*counts, strict=True))
    assert sentence.format(agree, total) in " ".join(told.split())
