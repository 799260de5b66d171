"""Small models trained in pairs: the learning curves of the paper's section 4.2.

  python -m experiments.learning_curves

Trains every arm with every seed, a few at a time: packed and unpacked with the same
sequences each step, twice the batch with each adjustment, and what packing needs left out.
Then it tests the paper's claims over the seeds. Writes exhibits.md, exhibits.json and
pictures to --workdir. The same command goes on with what is not finished. Runs are on the
CPU, unless JAX_PLATFORMS says otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from experiments.lab.paired_run import Arm
from experiments.lab.study import Study
from experiments.packing_paper.curves import ablation as ablation_exhibits
from experiments.packing_paper.curves import claims as learning_exhibits
from training.command import Parser
from training.sweep import jobs as schedule

SEEDS = 3
QUICK_SEEDS = 1
_SAME = {"packing.adjust": "reduce_batch"}
_BETAS = {"packing.adjust": "lamb_betas"}
ARMS = (
  Arm("unpacked", _SAME, "unpacked", keep=True),
  Arm("constant_twice_betas", _BETAS, "constant"),
  Arm("packed", _SAME, keep=True),
  Arm("twice", {"packing.adjust": "none"}),
  Arm("twice_rate", {"packing.adjust": "lr_linear"}),
  Arm("twice_betas", _BETAS),
  Arm("no_mask", _SAME | {"model.attention_mask": "none"}, keep=True),
  Arm("no_position_reset", _SAME | {"model.position_reset": False}),
  Arm("loss_of_packs", _SAME | {"train.loss_unit": "pack"}),
)
_SPEED = Arm("speed", _BETAS)
OVERRIDES: dict[str, Any] = {
  "packing.algorithm": "optimal",
  "train.steps": 2000,  # of the quickstart's 3322: about an hour for 27 runs
  "optimizer.warmup_steps": 117,  # the same share
  "optimizer.learning_rate": 0.0106,  # for half of its sequences a step (LOG.md)
}
QUICK: dict[str, Any] = {
  "data.directory": "data/quick",
  "data.dupe_factor": 1,
  "data.held_out_fraction": 0.01,
  "train.steps": 6,
  "optimizer.warmup_steps": 1,
  "train.throughput_rounds": 6,
}


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
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
  study = _study(folder, ARMS, quick=quick, seeds=seeds)
  study.run_all(jobs=jobs or len(schedule.cores()))
  timing = dataclasses.replace(study, arms=[_SPEED], module="experiments.speed")
  timing.run_all(jobs=1)  # alone, on all cores
  found, speed = study.results(), timing.results()["speed"]
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
  note = f"Quick: {steps} steps, seeds: {study.seeds}; the statements have no weight. "
  return [dataclasses.replace(x, finding=note + x.finding) for x in made]


def shared(
  folder: pathlib.Path, names: Sequence[str], *, quick: bool, seeds: int | None
) -> Study:
  """Some of these arms for another part of the report, which are not run twice.

  Args:
    folder: of the other part, beside that of this one.
    names: of the arms.
    quick: as for `exhibits`.
    seeds: as for `exhibits`.
  """
  arms = [arm for arm in ARMS if arm.name in names]
  return _study(folder.parent / "learning_curves", arms, quick=quick, seeds=seeds)


def _study(
  folder: pathlib.Path, arms: Sequence[Arm], *, quick: bool, seeds: int | None
) -> Study:
  seeds = seeds or (QUICK_SEEDS if quick else SEEDS)
  overrides = OVERRIDES | QUICK if quick else OVERRIDES
  return Study(runs_folder(folder, quick=quick), arms, seeds, overrides)


def runs_folder(folder: pathlib.Path, *, quick: bool) -> pathlib.Path:
  """Where a part has its runs: quick ones must not take the place of others."""
  return folder / "quick" if quick else folder


def add_options(parser: Parser):
  """Those of a part that trains.

  Args:
    parser: of its command.
  """
  parser.add_argument(
    "--seeds", type=_positive, help=f"how many; {SEEDS}, or {QUICK_SEEDS} if quick"
  )
  parser.add_argument(
    "--jobs", type=_positive, help="runs at a time; as many as cores if not given"
  )


def _positive(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
  return int(text)


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="learning_curves", add_options=add_options))
