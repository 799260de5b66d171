"""The published reports and the index of exhibits."""

import json

from experiments import publish, reproduce
from experiments.lab import part as lab
from experiments.lab import report
from experiments.lab.exhibits import Exhibit
from experiments.lab.part import Part
from experiments.packing_paper import table_4_strategies as strategies

PACKING = publish.ROOT / publish.PACKING
ATOMS = publish.ROOT / publish.ATOMS


def published(folder) -> dict[str, list[Exhibit]]:
  parts = json.loads((folder / "exhibits.json").read_text())
  return {name: [Exhibit.from_dict(x) for x in part] for name, part in parts.items()}


def test_reports_are_what_the_exhibits_say():
  packing, atoms = published(PACKING), published(ATOMS)["atom_size"]
  assert (PACKING / "REPORT.md").read_text() == report.document(packing)
  assert (ATOMS / "exhibits.md").read_text() == report.part("atom_size", atoms)
  index = (publish.ROOT / "experiments" / "README.md").read_text()
  for folder, part in (
    (ATOMS, atoms),
    *((PACKING / name, packing[name]) for name in packing),
  ):
    for exhibit in part:
      assert exhibit.claim, exhibit.name
      assert f"[{exhibit.name}](" in index
      assert all((folder / picture).exists() for picture in exhibit.pictures), exhibit.name
  assert list(packing) == list(reproduce.PARTS)


def test_only_parts_that_were_made_are_replaced(tmp_path):
  root, results = tmp_path / "root", tmp_path / "results"
  for folder in (publish.PACKING, publish.ATOMS, "experiments"):
    (root / folder).mkdir(parents=True)
  before = published(PACKING) | {"strategies": []}
  kept = {name: [vars(x) for x in part] for name, part in before.items()}
  (root / publish.PACKING / "exhibits.json").write_text(json.dumps(kept))
  made = lab.make(strategies.exhibits, Part(results / "strategies", "the command"))
  run = "wikipedia/runs/packed,seed=1.json"
  (results / run).parent.mkdir(parents=True)
  (results / run).write_text("{}")
  publish.publish(results, root)
  assert (root / publish.PACKING / run).read_text() == "{}"
  after = published(root / publish.PACKING)
  assert [x.name for x in after.pop("strategies")] == [x.name for x in made]
  before.pop("strategies")
  assert after == before
  index = (root / "experiments" / "README.md").read_text()
  row = next(line for line in index.splitlines() if line.startswith("| [Table 4]("))
  assert "10 ways" in row
  assert "`the command`" in row
