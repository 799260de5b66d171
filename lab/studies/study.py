"""A study: every arm with every seed; each run has a process and a JSON file of its own."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

import pipeline
from lab import records
from lab.studies.identity import is_of, is_same_run, known_by, without_places
from lab.studies.streams import BATCHES, ONE_A_ROW
from launch import command
from launch.data import prepare_dataset
from launch.door import nested, settings_of_flags
from launch.machine import check_machine
from launch.options import check_option
from launch.settings import RunSettings
from launch.sweep import jobs
from launch.sweep.file import Run, make_sweep
from launch.sweep.jobs import Job
from packing import InputError
from packing.files import write_json
from training import memory
from training.errors import Stopped

SAME_LOSS = 1e-3  # nats, at a run's first evaluation, where machines hardly differ
FORMAT = 1  # of the files; a run whose file has another format is repeated
SEEDS = 3  # of each arm, unless a study says otherwise
QUICKSTART = "configs/quickstart.py"
# Its recipe when the first studies were made, by which their records are recognised.
_ITS_RECIPE = {
  "train.batch_size": 16,
  "train.steps": 3322,
  "optimizer.warmup_steps": 195,
}
# Pairs of runs are compared to the last digits, whatever device a machine has.
COMPUTATION = {"model.dtype": "float32", "model.attention_impl": "xla"}
# The cost of a run whose rows have one sequence each, relative to other runs.
_ONE_A_ROW_COST = 2.0

Results = Sequence[Mapping[str, Any]]  # of one arm, by seed
ByArm = Mapping[str, Results]


@dataclasses.dataclass(frozen=True)
class Arm:
  """One way to train."""

  name: str  # of its files
  fields: Mapping[str, Any]  # of the config, in which it differs from the other arms
  batches: str = "packed"  # how sequences become batches; one of `streams.BATCHES`
  keep: bool = False  # whether its runs keep their parameters
  starts_from: str = ""  # an arm: each run starts from its kept parameters of the same seed
  weights: Sequence[pathlib.Path] = ()  # or folders: each run starts from that of its seed
  cost: float = 1.0  # how long a run takes with packed batches, in any unit


@dataclasses.dataclass(frozen=True)
class Study:
  """Arms and seeds.

  A run writes the record `runs/ARM,seed=N.json`, with its log and any kept parameters
  beside it. Besides the data, a finished run needs only its record (see `lab.records`):
  missing parameters are trained again when a run that starts from them, or a caller, needs
  them. The record stays: on another machine these parameters differ in their last bits, and
  count as the same. If they were trained on other rows, the run fails.
  """

  folder: pathlib.Path
  arms: Sequence[Arm]
  overrides: Mapping[str, Any]  # fields of the config of all arms
  seeds: int = SEEDS  # of each arm
  jobs: int = 1  # runs at a time
  config: str = QUICKSTART  # the file that all runs start from
  module: str = "lab.studies.paired_run"  # makes a run and writes its record
  first_seed: int = 1  # seed 0 is for choosing the recipe, except in fine-tuning
  name: str = ""  # precedes the names of its runs where studies share a folder

  @functools.cached_property
  def runs(self) -> list[tuple[Arm, Run]]:
    """All runs, checked, seed by seed.

    Raises:
      ConfigError: a field or a value that no run can have.
    """
    arms = {arm.name: arm for arm in self.arms}
    assert len(arms) == len(self.arms), "two arms have one name"
    spec = {
      "config": self.config,
      "overrides": COMPUTATION
      | (_ITS_RECIPE if self.config == QUICKSTART else {})
      | dict(self.overrides),
      "arms": {name: _fields_of(arm) for name, arm in arms.items()},
      "grid": {"seed": [self.first_seed + i for i in range(self.seeds)]},
    }
    runs = [(arms[run.arm], run) for run in make_sweep(spec, where="the study").runs]
    kept = {(a.name, r.settings.seed): _kept(self.path(r)) for a, r in runs}
    for i, (arm, run) in enumerate(runs):
      seed = run.settings.seed
      if arm.starts_from:
        first = arms[arm.starts_from]
        assert first.keep, f"{first.name} does not keep what {arm.name} starts from"
        assert not first.starts_from, f"{first.name} does not start at random"
        folder = kept[arm.starts_from, seed]
      elif arm.weights:
        assert len(arm.weights) == self.seeds, f"{arm.name} lacks weights"
        folder = arm.weights[seed - self.first_seed]
      else:
        continue
      fields = {"model.init_from": str(folder)}
      settings = run.settings.changed(fields)
      fields = {**run.fields, **fields}
      runs[i] = arm, dataclasses.replace(run, fields=fields, settings=settings)
    return runs

  def path(self, run: Run) -> pathlib.Path:
    """The file of a run's record."""
    return self.folder / "runs" / f"{self._name(run)}.json"

  def _name(self, run: Run) -> str:
    return ",".join(filter(None, (self.name, run.name)))

  def kept_of(self, *arms: str) -> list[pathlib.Path]:
    """The folders of the parameters that some arms keep, by seed."""
    return [_kept(self.path(run)) for arm, run in self.runs if arm.name in arms]

  def run(self, kept: Collection[pathlib.Path] = ()) -> dict[str, list[dict[str, Any]]]:
    """Prepares the data, runs what is not finished; returns by arm the results by seed.

    Args:
      kept: some of `kept_of`, the folders of parameters that have to exist.

    Raises:
      Stopped: some runs failed; has the last line of each. All others are finished.
      InputError: the data cannot be prepared, or were prepared from other files.
    """
    run_all([self], number=self.jobs, kept=kept)
    return self.results()

  def results(self) -> dict[str, list[dict[str, Any]]]:
    """The results of finished runs, by arm and in the order of seeds."""
    results: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in self.arms}
    for arm, run in self.runs:
      if (result := read(self.path(run), arm, run.settings)) is not None:
        results[arm.name].append(result)
    return results

  def job(self, arm: Arm, run: Run, *, kept: bool = False) -> Job:
    """The process of one of `runs`; with `kept`, its parameters have to exist, too."""
    path = self.path(run)

    def is_finished() -> bool:
      has_parameters = not kept or _kept(path).is_dir()
      return has_parameters and read(path, arm, run.settings) is not None

    words = [
      *(sys.executable, "-m", self.module),
      f"--config={jobs.ROOT / self.config}",
      *(f"--config.{field}={value}" for field, value in run.fields.items()),
      f"--arm={arm.name}",
      f"--out={path}",
      "--end_with_parent",
    ]
    if arm.batches != "packed":
      words.append(f"--batches={arm.batches}")
    if arm.keep:
      words.append("--keep")
    cost = arm.cost * (_ONE_A_ROW_COST if arm.batches in ONE_A_ROW else 1.0)
    return Job(self._name(run), words, path.with_suffix(".log"), is_finished, cost)


def run_all(studies: Sequence[Study], *, number: int, kept: Collection[pathlib.Path] = ()):
  """Runs what is not finished, `number` at a time: seed by seed, the longest runs first.

  Runs that start from another arm of their study come after all others. `kept` and the
  errors are those of `Study.run`.
  """
  every = [(study, arm, run) for study in studies for arm, run in study.runs]
  prepare_data(run for *_, run in every)
  needed = set(map(str, kept))
  waves: tuple[list[tuple[Run, Job]], ...] = ([], [])
  # Runs that start from others come first, since they decide which parameters are needed.
  for study, arm, run in sorted(every, key=lambda x: not x[1].starts_from):
    job = study.job(arm, run, kept=str(_kept(study.path(run))) in needed)
    if not job.is_finished():
      needed.add(run.settings.model.init_from)
    waves[bool(arm.starts_from)].append((run, job))
  failures: dict[str, str] = {}
  for wave in waves:
    queue = []
    for run, job in sorted(wave, key=lambda x: (x[0].settings.seed, -x[1].cost)):
      before = run.settings.model.init_from
      if job.is_finished() or not before or pathlib.Path(before).is_dir():
        queue.append(job)
      else:
        name = pathlib.Path(before).name
        failures[job.name] = f"{name}, which it starts from, is missing"
    failures |= run_jobs(queue, number=number)
  stop_if_failed(failures, len(every))


def _fields_of(arm: Arm) -> dict[str, Any]:
  """The fields of an arm, with the weights of its first seed, if it is given weights."""
  if not arm.weights:
    return dict(arm.fields)
  return {**arm.fields, "model.init_from": str(arm.weights[0])}


def run_jobs(queue: Sequence[Job], *, number: int) -> dict[str, str]:
  """Runs JAX commands, `number` at a time, as `jobs.run_all` does.

  They run on the CPU and share compiled programs in data/compiled, unless JAX_PLATFORMS and
  JAX_COMPILATION_CACHE_DIR are set. Returns the last line of each failed job, by name.
  """
  compiled = str(pathlib.Path("data", "compiled").absolute())
  defaults = {"JAX_COMPILATION_CACHE_DIR": compiled, "JAX_PLATFORMS": "cpu"}
  environment = {k: v for k, v in defaults.items() if k not in os.environ}
  return jobs.run_all(queue, jobs=number, environment=environment)


def stop_if_failed(failures: Mapping[str, str], total: int):
  """Raises `Stopped` with the last line of each failed run."""
  if failures:
    lines = "; ".join(f"{name}: {line}" for name, line in failures.items())
    raise Stopped(f"{len(failures)} of {total} runs failed. {lines}")


def prepare_data(runs: Iterable[Run]):
  """Prepares the datasets of runs, also of finished ones.

  So a source with other files is refused, and runs of other data do not count as finished.

  Raises:
    InputError: the data cannot be prepared, or were prepared from other files.
  """
  for data in {run.settings.data for run in runs}:
    prepare_dataset(data)


def identity(arm: Arm, settings: RunSettings) -> dict[str, Any]:
  """The fields that identify a run, as its file records them."""
  return {
    "format": FORMAT,
    "arm": arm.name,
    "batches": arm.batches,
    "config": without_places(nested(settings.given)),
  }


def read(path: pathlib.Path, arm: Arm, settings: RunSettings) -> dict[str, Any] | None:
  """A run's record; None if it is not finished, or if the record belongs to another run."""
  try:
    result = records.read(path) or {}
  except ValueError:
    return None
  if not is_of(result, settings):
    return None
  return result if is_same_run(result.get("run"), identity(arm, settings)) else None


def _kept(path: pathlib.Path) -> pathlib.Path:
  """The folder of a run's kept parameters, from the path of its JSON file."""
  return path.with_suffix("")


def write_record(
  path: pathlib.Path, arm: Arm, settings: RunSettings, result: Mapping[str, Any]
):
  """Writes the record of a run, with what identifies it, unless there is one already.

  Raises:
    InputError: there is one, and the run was trained again for its parameters, on other
      rows. These are deleted.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  if (before := read(path, arm, settings)) is None:
    write_json(path, {"run": identity(arm, settings), **known_by(settings), **result})
  elif arm.keep and not _same_rows(before, result):
    shutil.rmtree(_kept(path))
    raise InputError(
      f"{path.stem} was trained again for its parameters, and its rows are not those of "
      "its record, probably because another version of this code made the record. To "
      "repeat the study, give another folder for its results."
    )
  print(f"written to {path}")


def worker(make: Callable[..., dict[str, Any]], *, head: str = "pretraining"):
  """The command of a process that makes one run and writes its file.

  make(arm, settings, keep_in=folder) returns the content of the file, to which the fields
  are added by which `read` recognises the run. `head` is the head of the tasks that `make`
  can train.
  """
  config_flags.DEFINE_config_file("config", help_string="A config file.")
  name = flags.DEFINE_string("arm", "run", "The name of the arm.")
  about = "How sequences become batches."
  batches = flags.DEFINE_enum("batches", "packed", list(BATCHES), about)
  keep = flags.DEFINE_bool("keep", False, "Keep the parameters in a folder beside --out.")
  out = flags.DEFINE_string("out", None, "The JSON file to write.", required=True)
  ends = flags.DEFINE_bool("end_with_parent", False, "End when standard input ends.")
  flags.mark_flag_as_required("config")

  def main():
    if ends.value:
      jobs.end_with_parent()
    memory.keep()
    path = pathlib.Path(out.value)
    arm = Arm(name.value, {}, batches.value, keep.value)
    chosen = settings_of_flags()
    check_machine(chosen, num_devices=1)
    tasks = [task for task, of_task in pipeline.TASK_HEADS.items() if of_task == head]
    task = chosen.data.task
    check_option(task in tasks, "data.task", task, f"one of {', '.join(tasks)}")
    write_record(path, arm, chosen, make(arm, chosen, keep_in=_kept(path)))

  command.run(main)


def _same_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
  """Whether two results are of the same rows, with about the same losses at first."""
  counts = [
    [[point[name] for name in ("step", "sequences", "real_tokens")] for point in x["curve"]]
    for x in (one, other)
  ]
  losses = [x["evaluations"][0]["own"]["mlm_loss"] for x in (one, other)]
  return counts[0] == counts[1] and abs(losses[0] - losses[1]) < SAME_LOSS
