"""Small models trained in pairs: the learning curves of the paper's section 4.2.

  python -m experiments.learning_curves

Trains every arm with every seed, a few at a time: packed and unpacked with the same
sequences each step, twice the batch with each adjustment, and what packing needs left out.
Then it tests the paper's claims over the seeds. Writes learning_curves.md,
learning_curves.json and pictures to --workdir. The same command goes on with what is not
finished. Runs are on the CPU, unless JAX_PLATFORMS says otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import signal
import sys
from typing import Any

from experiments import ablation_exhibits, learning_exhibits, schedule
from experiments.exhibits import Exhibit
from experiments.paired import Arm
from experiments.study import Study
from packing import InputError
from training.command import Parser, Stopped
from training.config import ConfigError
from training.files import write_json, write_text
from training.sweep_file import SweepError

SEEDS = 3
QUICK_SEEDS = 1
_SAME = {"packing.adjust": "reduce_batch"}
_BETAS = {"packing.adjust": "lamb_betas"}
ARMS = (
  Arm("unpacked", _SAME, "unpacked"),
  Arm("constant", _SAME, "constant"),
  Arm("constant_twice_betas", _BETAS, "constant"),
  Arm("packed", _SAME),
  Arm("twice", {"packing.adjust": "none"}),
  Arm("twice_rate", {"packing.adjust": "lr_linear"}),
  Arm("twice_betas", _BETAS),
  Arm("no_mask", _SAME | {"model.attention_mask": "none"}),
  Arm("no_position_reset", _SAME | {"model.position_reset": False}),
  Arm("neither", _SAME | {"model.attention_mask": "none", "model.position_reset": False}),
  Arm("loss_of_packs", _SAME | {"train.loss_unit": "pack"}),
)
_SPEED = Arm("speed", _BETAS)
OVERRIDES: dict[str, Any] = {
  "packing.algorithm": "optimal",
  "train.steps": 2000,  # of the quickstart's 3322: 33 runs take an hour and a half
  "optimizer.warmup_steps": 117,  # the same share
  "optimizer.learning_rate": 0.0106,  # for half of its sequences a step (LOG.md)
}
QUICK: dict[str, Any] = {
  "train.steps": 10,
  "optimizer.warmup_steps": 1,
  "train.throughput_rounds": 6,
}


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool,
  seeds: int | None = None,
  jobs: int | None = None,
) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    folder: for the runs and the pictures.
    quick: a few steps with few seeds, to see that it works; says nothing of the claims.
    seeds: how many; `SEEDS` if not given, or `QUICK_SEEDS`.
    jobs: runs at a time; as many as cores if not given.

  Raises:
    Stopped: some runs failed; all others are finished.
    InputError: the data cannot be prepared.
  """
  seeds = seeds or (QUICK_SEEDS if quick else SEEDS)
  runs = folder / "quick" if quick else folder
  overrides = OVERRIDES | QUICK if quick else OVERRIDES
  study = Study(runs, ARMS, seeds, overrides)
  study.run_all(jobs=jobs or len(schedule.cores()))
  timing = Study(runs, [_SPEED], 1, overrides, module="experiments.speed")
  timing.run_all(jobs=1)  # alone, on all cores
  found, speed = study.results(), timing.results()["speed"][0]
  command = f"python -m experiments.learning_curves{' --quick' if quick else ''}"
  made = [
    learning_exhibits.same_batch(found, folder, command),
    learning_exhibits.heuristics(found, folder, command),
    learning_exhibits.by_time(found, speed, folder, command),
    learning_exhibits.spread(found, folder, command),
    ablation_exhibits.ablation(found, folder, command),
    ablation_exhibits.loss_unit(found, folder, command),
  ]
  if not quick:
    return made
  steps = found["packed"][0]["recipe"]["steps"]
  note = f"Quick: {steps} steps, seeds: {seeds}; the statements have no weight. "
  return [dataclasses.replace(x, finding=note + x.finding) for x in made]


def told(exhibit: Exhibit) -> str:
  """In Markdown.

  Args:
    exhibit: any.
  """
  statements = [
    f"- **{x.outcome}**: {x.claim}. ({x.evidence}.)" for x in exhibit.statements
  ]
  pictures = [f"![{exhibit.title}]({name})" for name in exhibit.pictures]
  parts = [
    f"## {exhibit.name}: {exhibit.title}",
    exhibit.finding,
    "\n".join(statements),
    exhibit.text,
    "\n".join(pictures),
  ]
  return "\n\n".join(filter(None, parts))


def _parser() -> Parser:
  parser = Parser(
    prog="python -m experiments.learning_curves",
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    "--workdir",
    type=pathlib.Path,
    default=pathlib.Path("results", "learning_curves"),
    help="where to write; results/learning_curves",
  )
  parser.add_argument("--quick", action="store_true", help="a few steps, in 3 minutes")
  parser.add_argument("--seeds", type=int, help=f"how many; {SEEDS}, or {QUICK_SEEDS}")
  parser.add_argument("--jobs", type=int, help="runs at a time; as many as cores")
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = _parser()
  options = parser.parse_args(arguments)
  for name in ("seeds", "jobs"):
    value = getattr(options, name)
    if value is not None and value < 1:
      parser.error(f"--{name} is {value}; expected at least 1")
  folder = options.workdir
  try:
    folder.mkdir(parents=True, exist_ok=True)
    made = exhibits(folder, quick=options.quick, seeds=options.seeds, jobs=options.jobs)
    result = {"exhibits": [dataclasses.asdict(x) for x in made]}
    write_json(folder / "learning_curves.json", result)
    text = "\n\n".join(map(told, made))
    write_text(folder / "learning_curves.md", text + "\n")
  except (SweepError, ConfigError, InputError, OSError) as error:
    schedule.say(f"error: {error}")
    return 2
  except Stopped as error:
    schedule.say(f"error: {error}")
    return 1
  except KeyboardInterrupt:
    schedule.say("Stopped. The same command goes on with what is not finished.")
    return 130
  print(json.dumps(result) if options.json else text)
  return 0


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  sys.exit(main())
