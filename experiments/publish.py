"""Copies full results into the documents: the reports, their pictures, and the index.

  python -m experiments.publish

Maintainers run this after a full `make reproduce`, or after `python -m experiments.NAME`
where NAME is atom_size, contamination or finetuning. It publishes the parts and the
finished runs (`lab.records`) that --workdir has. It judges all statements again, also those
of other parts, from the numbers that they hold. It writes docs/reproduction, docs/NAME and
experiments/README.md.
To copy published runs to where the commands look for them:

  mkdir -p results
  cp -r docs/contamination docs/atom_size docs/finetuning results/
  cp -r docs/reproduction/. results/
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import sys

from experiments.reproduce import PARTS
from lab import records, report
from lab.exhibits import Exhibit
from lab.options import add, make_parser
from lab.part import read
from lab.statistics import judge
from packing.files import write_json, write_text

ROOT = pathlib.Path(__file__).parents[1]
PACKING = "docs/reproduction"
# Studies of one part.
ALONE = {
  name: f"docs/{name}"
  for name in ("atom_size", "atom_size/large", "contamination", "finetuning")
}
# Parts of the packing paper that train; and the folder of the runs that two of them share.
TRAINED = (
  *("learning_curves", "adjustments", "other_ways", "other_text", "real_weights"),
  *("two_phases", "real_phases", "next_sentence", "downstream", "real_downstream"),
  "fine_tuning",
)
# Parts whose measurements are kept for a machine.
TIMED = ("solution_times", "rounding", "speedups", "compiled_steps", "greedy_and_sort")
# Folders with records, as patterns in the results; and the folder of the documents in
# which each gets its file of records.
STUDIES = {
  **{folder: PACKING for folder in (*TRAINED, *TIMED)},
  **{name: "docs" for name in ALONE},
  "atom_size/wikitext/*": "docs",
  "atom_size/large/wikipedia/*": "docs",
}
_INDEX = """\
# Every table and figure of the papers

`python -m experiments.publish` writes this page from the exhibits themselves. Results are
those of the last full run; minutes are those of the whole part. `packing_paper` has a file
for each part of `experiments.reproduce`. [`atom_size`](../docs/atom_size.md) reproduces the
atom-size paper. [`contamination`](../docs/contamination.md),
[`load_balance`](../docs/load_balance.md) and [`finetuning`](../docs/finetuning.md) are
studies of our own. [`real_size`](../docs/reproduce.md#at-real-size) trains BERT-base and
waits for a GPU. The folder `lab` in the root of the checkout has the code that they share.

## The packing paper: [report](../docs/reproduction/REPORT.md)

{packing}

## The atom-size paper: [report](../docs/atom_size/exhibits.md)

{atom_size}

### Larger models: [report](../docs/atom_size/large/exhibits.md)

{atom_size/large}

## Packing or contamination: [report](../docs/contamination/exhibits.md)

{contamination}

## Fine-tuning, packed and unpacked: [report](../docs/finetuning/exhibits.md)

{finetuning}

## Publishing results

After a full `make reproduce`, or after a study such as `python -m experiments.finetuning`,
run `python -m experiments.publish`. It copies the parts and the finished runs in `results/`
to `docs/`, and writes the reports there and this page.

A table in `docs/` below a `<!-- table ... -->` comment is published from the JSON of the
command that measured it. Run that command, then `python -m lab.pages` with its file:

```
python -m benchmarks.packing --only step --json results/packing_step.json
python -m lab.pages results/packing_step.json
```

`lab.pages` copies the tables of the file to `docs/measured/` and writes the pages.

The page that shows a table names its command. `docs/measured/verify.json` is of
`python -m model verify --json > results/verify.json`, and the tables of
[load balance](../docs/load_balance.md) are of its studies.
"""


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = make_parser(__doc__, "experiments.publish")
  add(parser, "--workdir", pathlib.Path("results"), "where results are", type=pathlib.Path)
  workdir = parser.parse_args(arguments).workdir
  if workdir.absolute().name == "quick":
    parser.error(f"{workdir} has results of --quick; expected those of full runs")
  if found := publish(workdir, ROOT):
    print(f"published from {workdir}: {', '.join(found)}")
  else:
    print(f"{workdir} has no results; wrote again what was published before")
  return 0


def publish(results: pathlib.Path, root: pathlib.Path) -> list[str]:
  """Publishes the parts that are in a folder; returns their names.

  Args:
    results: the folder of `make reproduce`, and of the studies in `ALONE`.
    root: of the checkout.
  """
  for pattern, documents in STUDIES.items():
    for study in sorted(results.glob(pattern)):
      records.pack(study, root / documents / study.relative_to(results))
  packing = _update(results, root / PACKING, list(PARTS))
  write_text(root / PACKING / "REPORT.md", report.document(packing))
  exhibits = [exhibit for part in packing.values() for exhibit in part]
  indices = {"packing": report.index(exhibits, report=f"../{PACKING}/REPORT.md")}
  for name, folder in ALONE.items():
    made = _update(results, root / folder, [name])[name]
    write_text(root / folder / "exhibits.md", report.part(name, made))
    indices[name] = report.index(made, report=f"../{folder}/exhibits.md")
  write_text(root / "experiments" / "README.md", _INDEX.format(**indices))
  return [name for name in (*PARTS, *ALONE) if read(results / name)]


def _update(
  results: pathlib.Path, folder: pathlib.Path, names: list[str]
) -> dict[str, list[Exhibit]]:
  """The published exhibits of some parts, after those in `results` have replaced them."""
  path = folder / "exhibits.json"
  kept = json.loads(path.read_text()) if path.exists() else {}
  parts = {name: [Exhibit.from_dict(x) for x in kept.get(name, [])] for name in names}
  for name in names:
    if made := read(results / name):
      parts[name] = made
      for picture in [picture for exhibit in made for picture in exhibit.pictures]:
        target = folder / name if len(names) > 1 else folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(results / name / picture, target / picture)
  parts = {name: [_judged_again(x) for x in part] for name, part in parts.items()}
  as_dicts = {
    name: [dataclasses.asdict(exhibit) for exhibit in part] for name, part in parts.items()
  }
  write_json(path, as_dicts)
  return parts


def _judged_again(exhibit: Exhibit) -> Exhibit:
  """The exhibit, with the outcomes that today's rule gives for its stored tests."""
  statements = [judge(x.claim, x.test) if x.test else x for x in exhibit.statements]
  return dataclasses.replace(exhibit, statements=statements)


if __name__ == "__main__":
  sys.exit(main())
