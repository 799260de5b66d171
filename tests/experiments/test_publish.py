"""The published reports and the index of exhibits."""

import collections
import dataclasses
import json
import pathlib
import shutil

import pytest

from experiments import publish, reproduce
from experiments.packing_paper import table_4_strategies as strategies
from lab import part as parts
from lab import records, report
from lab.exhibits import Exhibit, Part, Statement
from lab.statistics import judge, larger

PACKING = publish.ROOT / publish.PACKING
ALONE = {name: publish.ROOT / folder for name, folder in publish.ALONE.items()}


@pytest.fixture
def root(tmp_path):
  """A checkout without anything published."""
  for place in (publish.PACKING, *publish.ALONE.values(), "experiments"):
    (tmp_path / "root" / place).mkdir(parents=True)
  return tmp_path / "root"


def published(folder) -> dict[str, list[Exhibit]]:
  parts = json.loads((folder / "exhibits.json").read_text())
  return {name: [Exhibit.from_dict(x) for x in part] for name, part in parts.items()}


def test_reports_are_what_the_exhibits_say():
  packing = published(PACKING)
  assert (PACKING / "REPORT.md").read_text() == report.document(packing)
  parts = [(PACKING / name, part) for name, part in packing.items()]
  for name, folder in ALONE.items():
    part = published(folder)[name]
    assert (folder / "exhibits.md").read_text() == report.part(name, part)
    parts.append((folder, part))
  index = (publish.ROOT / "experiments" / "README.md").read_text()
  for folder, part in parts:
    for exhibit in part:
      assert exhibit.claim, exhibit.name
      assert f"[{exhibit.name}](" in index
      assert all((folder / picture).exists() for picture in exhibit.pictures), exhibit.name
  assert list(packing) == list(reproduce.PARTS)


def test_results_of_an_earlier_rule_are_judged_again_too(root, tmp_path):
  test = larger("more", [2.002, 2.102, 2.203], [2.0, 2.1, 2.2]).test
  exhibit = Exhibit("x", "y", "in shape", "z", "c", "claim")
  old = dataclasses.replace(exhibit, statements=[Statement("more", "holds", "old", test)])
  folder = tmp_path / "results" / "contamination"
  folder.mkdir(parents=True)
  (folder / "exhibits.json").write_text(json.dumps([dataclasses.asdict(old)]))
  assert publish.publish(tmp_path / "results", root) == ["contamination"]
  (made,) = published(root / publish.ALONE["contamination"])["contamination"]
  assert made.statements == [judge("more", test)]


@pytest.mark.parametrize("folder", [PACKING, *ALONE.values()])
def test_outcomes_are_those_of_the_kept_numbers(folder):
  kept = [x for part in published(folder).values() for y in part for x in y.statements]
  tested = [x for x in kept if x.test]
  assert tested
  for statement in tested:
    assert judge(statement.claim, statement.test) == statement


def test_claims_say_which_seeds_were_added_after_a_look():
  told = "(seeds 4 to 8 were added after the results of 1 to 3 had been seen)"
  parts = published(PACKING)
  for name in ("learning_curves", "two_phases"):
    tested = [x for exhibit in parts[name] for x in exhibit.statements if x.test]
    added = [x for x in tested if "8 pairs" in x.evidence]
    assert added
    assert [x for x in tested if told in x.claim] == added


def test_a_clone_has_the_finished_runs_of_studies():
  kinds: collections.Counter[str] = collections.Counter()
  for pattern, documents in publish.STUDIES.items():
    studies = [*(publish.ROOT / documents).glob(pattern)]
    assert studies, pattern
    for study in studies:
      kept = records.read_all(study)
      assert kept, study
      kinds.update(name.partition("/")[0] for name in kept)
      runs = [record for name, record in kept.items() if name.startswith("runs/")]
      assert all(len(run["dataset"]) == 64 for run in runs)  # the digest of its data
  assert kinds.pop("runs") == 726
  assert kinds == {"measured": 66, "ranks": 12, "minutes.json": 18, "seconds.json": 7}
  assert {*publish.TRAINED} - {*reproduce.PARTS} == {"fine_tuning"}


def test_kept_statements_are_judged_again(root):
  test = larger("more", [2.002, 2.102, 2.203], [2.0, 2.1, 2.2]).test
  old = Statement("more", "holds", "by an old rule", test)
  counted = Statement("counted", "fails", "1 of 2")
  exhibit = Exhibit("x", "y", "in shape", "z", "c", statements=[old, counted])
  path = root / publish.PACKING / "exhibits.json"
  path.write_text(json.dumps({"lengths": [dataclasses.asdict(exhibit)]}))
  assert publish.publish(root / "nothing", root) == []
  (made,) = published(root / publish.PACKING)["lengths"]
  assert made.statements == [judge("more", test), counted]
  assert made.state == "1 fails, 1 equivalent"
  assert "| more | equivalent | " in (root / publish.PACKING / "REPORT.md").read_text()


def test_what_was_copied_from_the_documents_is_published_as_it_was(root, tmp_path):
  """As `python -m experiments.publish --help` says, to use the published runs."""
  results = tmp_path / "results"
  for name, folder in ALONE.items():
    (results / name).mkdir(parents=True)
    for path in filter(pathlib.Path.is_file, folder.iterdir()):
      shutil.copy(path, results / name)
  publish.publish(results, root)
  for name, folder in ALONE.items():
    made = root / publish.ALONE[name]
    assert published(made) == published(folder)
    assert records.read_all(made) == records.read_all(folder)


def test_quick_results_are_not_published(tmp_path, capsys):
  with pytest.raises(SystemExit):
    publish.main([f"--workdir={tmp_path / 'quick'}"])
  assert "has results of --quick; expected those of full runs" in capsys.readouterr().err


def test_only_parts_that_were_made_are_replaced(root, tmp_path):
  results = tmp_path / "results"
  before = published(PACKING) | {"strategies": []}
  kept = {name: [vars(x) for x in part] for name, part in before.items()}
  (root / publish.PACKING / "exhibits.json").write_text(json.dumps(kept))
  made = parts.make(strategies.exhibits, Part(results / "strategies", "the command"))
  runs = {
    "learning_curves/runs/packed,seed=1.json": publish.PACKING,
    "learning_curves/minutes.json": publish.PACKING,
    "fine_tuning/runs/sst2,packed,seed=1-0.json": publish.PACKING,
    "real_downstream/runs/mrpc,packed,seed=1-0.json": publish.PACKING,
    "atom_size/wikitext/64/runs/packed,seed=1.json": "docs",
  }
  for run in runs:
    (results / run).parent.mkdir(parents=True, exist_ok=True)
    (results / run).write_text(json.dumps({"of": run}, indent=1))
  assert publish.publish(results, root) == ["strategies"]
  for run, folder in runs.items():
    assert not (root / folder / run).exists()
    assert records.read(root / folder / run) == {"of": run}
  after = published(root / publish.PACKING)
  assert [x.name for x in after.pop("strategies")] == [x.name for x in made]
  before.pop("strategies")
  assert after == before
  index = (root / "experiments" / "README.md").read_text()
  row = next(line for line in index.splitlines() if line.startswith("| [Table 4]("))
  assert "10 ways" in row
  assert "`the command`" in row
