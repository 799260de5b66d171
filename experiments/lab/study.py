"""A paired study: every arm with every seed, and what they came to."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

import pipeline
from experiments.lab.paired_run import EVALUATED, POINTS, Arm, identity
from training.command import Stopped
from training.sweep import jobs as schedule
from training.sweep.file import Run, make_sweep

CONFIG = "configs/quickstart.py"
EARLY = 2  # the number of the evaluation that early convergence is judged by
_COST = {"packed": 1.0, "unpacked": 2.1, "constant": 2.0}  # of a run, in packed ones


@dataclasses.dataclass(frozen=True)
class Study:
  """Arms and seeds.

  Attributes:
    folder: for the runs; `runs/ARM,seed=N.json` and beside it the log, and the parameters
      of arms that keep them.
    arms: what is compared.
    seeds: how many, from 1 on; what was chosen by trial was chosen with seed 0.
    overrides: fields of the config that all arms have.
    config: the file that all start from.
    module: that does one run; its command is `paired.worker`.
  """

  folder: pathlib.Path
  arms: Sequence[Arm]
  seeds: int
  overrides: Mapping[str, Any]
  config: str = CONFIG
  module: str = "experiments.paired"

  @functools.cached_property
  def runs(self) -> list[tuple[Arm, Run]]:
    """All of them, checked; seeds outermost.

    Raises:
      SweepError: a field or a value that no run can have.
    """
    arms = {arm.name: arm for arm in self.arms}
    spec = {
      "config": self.config,
      "overrides": dict(self.overrides),
      "arms": {name: dict(arm.fields) for name, arm in arms.items()},
      "grid": {"seed": list(range(1, self.seeds + 1))},
    }
    runs = [(arms[run.arm], run) for run in make_sweep(spec, where="the study").runs]
    kept = {(arm.name, run.config.seed): self.kept(run) for arm, run in runs}
    return [
      (arm, _started_from(run, kept[arm.starts_from, run.config.seed]))
      if arm.starts_from
      else (arm, run)
      for arm, run in runs
    ]

  def path(self, run: Run) -> pathlib.Path:
    """Of its file."""
    return self.folder / "runs" / f"{run.name}.json"

  def kept(self, run: Run) -> pathlib.Path:
    """Of its parameters, if its arm keeps them."""
    return self.path(run).with_suffix("")

  def run_all(self, *, jobs: int):
    """Runs what is not finished; prepares the data first, once.

    Args:
      jobs: how many at a time.

    Raises:
      Stopped: some failed, with their last words; all others are finished.
      InputError: the data cannot be prepared.
    """
    tasks = [self._task(arm, run) for arm, run in self.runs]
    if not all(task.is_finished() for task in tasks):
      for config in self._distinct_data():
        pipeline.prepare_dataset(config)
    failures: dict[str, str] = {}
    for later in (False, True):  # those that start from others come after them
      wave = []
      for task, (arm, run) in zip(tasks, self.runs, strict=True):
        if bool(arm.starts_from) != later:
          continue
        if later and not pathlib.Path(run.config.model.init_from).is_dir():
          failures[task.name] = f"{arm.starts_from}, which it starts from, is not there"
        else:
          wave.append(task)
      failures |= run_tasks(wave, jobs=jobs)
    stop_if_failed(failures, len(tasks))

  def results(self) -> dict[str, list[dict[str, Any]]]:
    """What each arm's runs wrote, by seed, of those that are finished."""
    found: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in self.arms}
    for arm, run in self.runs:
      if (result := read(self.path(run), arm, run.config)) is not None:
        found[arm.name].append(result)
    return found

  def _task(self, arm: Arm, run: Run) -> schedule.Task:
    path = self.path(run)
    fields = [f"--config.{field}={value}" for field, value in run.fields.items()]
    command = [
      *(sys.executable, "-m", self.module),
      f"--config={schedule.ROOT / self.config}",
      *fields,
      f"--arm={arm.name}",
      f"--batches={arm.batches}",
      f"--keep={arm.keep}",
      f"--out={path}",
      "--end_with_parent",
    ]
    return schedule.Task(
      run.name,
      command,
      path.with_suffix(".log"),
      lambda: read(path, arm, run.config) is not None,
      _COST[arm.batches],
    )

  def _distinct_data(self) -> list[ml_collections.ConfigDict]:
    found = {json.dumps(run.config.data.to_dict()): run.config for _, run in self.runs}
    return list(found.values())


def run_tasks(tasks: Sequence[schedule.Task], *, jobs: int) -> dict[str, str]:
  """Runs tasks of JAX, on the CPU unless JAX_PLATFORMS says otherwise.

  What one has compiled, others need not: it is kept in data/compiled, beside the data of
  the configs, unless JAX_COMPILATION_CACHE_DIR says where. And glibc keeps the memory of
  arrays that are gone for the next ones, or else a fifth of the time of small BERTs goes
  to page faults (LOG.md); what the environment says already, stays.

  Args:
    tasks: as of `schedule.run_all`.
    jobs: how many at a time.

  Returns:
    The last words of those that failed, by their names.
  """
  defaults = {
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path("data", "compiled").absolute()),
    "JAX_PLATFORMS": "cpu",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
  }
  environment = {k: v for k, v in defaults.items() if k not in os.environ}
  return schedule.run_all(tasks, jobs=jobs, environment=environment)


def stop_if_failed(failures: Mapping[str, str], total: int):
  """Raises `Stopped` with the last words of runs that failed, of so many in all."""
  if failures:
    told = "; ".join(f"{name}: {words}" for name, words in failures.items())
    raise Stopped(f"{len(failures)} of {total} runs failed. {told}")


def _started_from(run: Run, directory: pathlib.Path) -> Run:
  fields = {"model.init_from": str(directory)}
  config = run.config.copy_and_resolve_references()
  config.update_from_flattened_dict(fields)
  return dataclasses.replace(run, fields={**run.fields, **fields}, config=config)


Results = Sequence[Mapping[str, Any]]  # of one arm, by seed


def read(
  path: pathlib.Path, arm: Arm, config: ml_collections.ConfigDict
) -> dict[str, Any] | None:
  """What a run wrote; None where it is not finished, or was another one.

  Args:
    path: of its file.
    arm: that it is to be of.
    config: that it is to have.
  """
  try:
    found = json.loads(path.read_text())
  except (OSError, ValueError):
    return None
  kept = not arm.keep or path.with_suffix("").is_dir()
  before = pathlib.Path(config.model.init_from)
  if config.model.init_from and not (
    before.is_dir() and before.stat().st_mtime <= path.stat().st_mtime
  ):
    return None  # what it started from is gone, or was made anew
  if found.get("dataset") not in (None, _dataset_of(config)):
    return None  # of another text, or prepared by another version
  stored, wanted = found.get("run", {}), identity(arm, config)
  same = stored.keys() == wanted.keys() and agrees(stored, wanted)
  return found if kept and same else None


def _dataset_of(config: ml_collections.ConfigDict) -> dict[str, str] | None:
  """The checksums of the dataset of a config, if it is prepared."""
  manifest = pathlib.Path(config.data.directory, "manifest.json")
  return json.loads(manifest.read_text())["sha256"] if manifest.exists() else None


def agrees(stored: Any, wanted: Any) -> bool:
  """Whether a config is as it was; a field that came since then had no other value.

  Args:
    stored: nested dictionaries, as they were written.
    wanted: the same as they are now.
  """
  if isinstance(stored, dict) and isinstance(wanted, dict):
    return all(k in wanted and agrees(v, wanted[k]) for k, v in stored.items())
  return stored == wanted


def held_out(
  results: Results, metric: str = "mlm_loss", *, at: int = -1, way: str = "own"
) -> list[float]:
  """A metric of each seed.

  Args:
    results: of an arm.
    metric: that `evaluate_pretraining` gives.
    at: which evaluation, from 0; the last by default.
    way: "own", as the model was trained, or "alone".
  """
  return [run["evaluations"][at][way][metric] for run in results]


def in_training(
  results: Results, metric: str = "mlm_loss", *, points: int = 10
) -> list[float]:
  """A metric of each seed, the mean over the last points of its learning curve."""
  return [
    sum(point[metric] for point in run["curve"][-points:]) / len(run["curve"][-points:])
    for run in results
  ]


def early_share() -> float:
  """The part of a run's sequences that it has seen by the evaluation `EARLY`."""
  return EVALUATED[EARLY] / POINTS
