"""The notebooks: they run, and come to the outputs that are kept in them."""

import json
import pathlib
import re
import shutil

import pytest

from tests import markdown
from tests.markdown import ROOT
from tests.programs import link_checkout

FOLDER = ROOT / "docs" / "notebooks"
LARGEST = 200_000  # bytes of a file
# The training notebook's steps are many; what is compared here, fewer say as well.
LESS = {
  "--config.train.steps=400": "--config.train.steps=6",
  "--config.data.labels=": "--config.train.duration='200 sequences' --config.data.labels=",
}


def texts(notebook) -> list[str]:
  """What is printed, a string for each cell."""
  return [
    "".join(x["text"] for x in cell.get("outputs", ()) if x["output_type"] == "stream")
    for cell in notebook.cells
  ]


def pictures(notebook) -> int:
  return sum(
    "image/png" in x.get("data", ())
    for cell in notebook.cells
    for x in cell.get("outputs", ())
  )


def label(line: str) -> str:
  """What stands before a line's first number; after it, if the line starts with one."""
  words = re.match(r"[\s\d,.]*([^\d]*)", line)
  return words[1].strip() if words else ""


def proven(texts: list[str]) -> list[str]:
  """What the packing notebook prints, without what differs between plans of as many packs.

  Which of them is found depends on the last bits of sums, so on a CPU's instructions.
  """
  of_a_plan = re.compile(
    r" of \d+ kinds|(?m:^depth .*$|^.* rows of .*$|row 5,000 .*$)|0\.0\d+"
  )
  return [re.sub(r"\n+", "\n", of_a_plan.sub("", text)) for text in texts]


def held_out_accuracies(text: str) -> list[float]:
  """Of masked tokens, in percent: what train.py prints, then what eval.py prints."""
  return [
    float(x) for x in re.findall(r"masked-token accuracy .*?([\d.]+)% held out", text)
  ]


@pytest.mark.slow
@pytest.mark.extra("nbclient", "ipykernel")
@pytest.mark.parametrize("name", ["packing", "training"])
def test_a_notebook_runs_and_prints_what_it_says(tmp_path, monkeypatch, name):
  """What is proven, if it only packs; what a run prints depends on the machine."""
  import nbclient
  import nbformat

  link_checkout(tmp_path)
  folder = tmp_path / "docs" / "notebooks"
  folder.mkdir(parents=True)
  path = pathlib.Path(shutil.copy(FOLDER / f"{name}.ipynb", folder))
  assert path.stat().st_size < LARGEST
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  kept, run = (nbformat.read(path, as_version=4) for _ in range(2))
  for cell in run.cells:
    cell["outputs"] = []
  if name == "training":
    for much, less in LESS.items():
      (cell,) = (x for x in run.cells if much in x["source"])
      cell["source"] = cell["source"].replace(much, less)
  place = {"metadata": {"path": str(folder)}}
  nbclient.NotebookClient(run, timeout=900, resources=place).execute()
  assert pictures(run) == pictures(kept) > 0
  if name == "packing":
    assert proven(texts(run)) == proven(texts(kept))
  else:
    printed, wanted = ("\n".join(texts(x)) for x in (run, kept))
    assert [*map(label, printed.splitlines())] == [*map(label, wanted.splitlines())]
    trained, evaluated = held_out_accuracies(printed)
    assert evaluated == pytest.approx(trained, abs=0.1)
    assert (tmp_path / "runs" / "notebook" / "task" / "summary.json").exists()


def test_kept_outputs_are_of_one_run_and_links_lead_somewhere():
  paths = sorted(FOLDER.glob("*.ipynb"))
  assert len(paths) == 2
  for path in paths:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds == {"stream", "display_data"}
    assert not re.search(r"(?<![\w.:/])/(home|Users|tmp|root|work)/", path.read_text())
    text = "".join(line for cell in cells for line in cell["source"])
    links = markdown.links(text)
    assert len(links) > 2
    assert all((FOLDER / link).exists() for link in links)
