"""Fine-tuning runs of one task, each by train.py; a finished run leaves a small file."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab import records
from lab.studies.study import (
  agrees,
  is_of,
  known_by,
  prepare_data,
  run_jobs,
  stop_if_failed,
  without_places,
)
from launch import workdir
from launch.door import nested
from launch.sweep import __main__ as sweep
from launch.sweep.file import Run, Sweep
from launch.sweep.jobs import Job
from packing import InputError
from packing.files import write_json

Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Runs:
  """All runs of a task.

  A run trains in `folder/TASK/RUN`. At the end of `run_all`, `folder/runs/TASK,RUN.json`
  records what a finished run was and its results (see `lab.records`); then only its dataset
  is needed besides.

  Attributes:
    task: its name.
    sweep: the runs.
    folder: for all that they write.
    look: returns further results of a run that has ended, from the run and its folder.
    costs: how long a run takes, by arm, in any unit; for the order and the time left.
  """

  task: str
  sweep: Sweep
  folder: pathlib.Path
  look: Callable[[Run, pathlib.Path], Result] = lambda run, place: {}
  costs: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def place(self, run: Run) -> pathlib.Path:
    """The folder in which a run trains."""
    return self.folder / self.task / run.name

  def file(self, run: Run) -> pathlib.Path:
    """The file that is kept of a run."""
    return self.folder / "runs" / f"{self.task},{run.name}.json"

  def read(self, run: Run) -> Result | None:
    """A run's record; None if it has not ended, or if the file belongs to another run."""
    kept = self._stored(run)
    same = is_of(kept, run.settings) and agrees(
      kept.get("config"), nested(run.settings.given)
    )
    return kept if same else None

  def _stored(self, run: Run) -> Result:
    """A run's record; empty if there is none."""
    try:
      return records.read(self.file(run)) or {}
    except ValueError:
      return {}

  def keep(self):
    """Writes the files of the runs that have ended since the last call."""
    (self.folder / "runs").mkdir(parents=True, exist_ok=True)
    for run in self.sweep.runs:
      if self.read(run) is None and sweep.is_finished(self.place(run), run.settings):
        kept = {
          "config": without_places(nested(run.settings.given)),
          "summary": workdir.read_summary(self.place(run)),
        }
        kept |= known_by(run.settings) | dict(self.look(run, self.place(run)))
        write_json(self.file(run), kept)

  def process(self, run: Run) -> Job:
    """The process that makes a run.

    Raises:
      InputError: it has ended already, but started from other weights or had other data.
    """
    place = self.place(run)
    job = sweep.make_job(self.sweep, run, place)
    # train.py does not record the weights that a run started from; the file does.
    same = self._stored(run).get("summary") == workdir.read_summary(place)
    if same and job.is_finished() and self.read(run) is None:
      raise InputError(
        f"{place} has a run that started from other weights or had other data. Delete the "
        "folder, or give another --workdir."
      )
    return dataclasses.replace(
      job,
      name=f"{self.task}, {run.name}",
      is_finished=lambda: self.read(run) is not None or job.is_finished(),
      cost=self.costs.get(run.arm, 1.0),
    )

  def results(self, arm: str) -> list[Result]:
    """What is kept of an arm's finished runs, by seed."""
    results = (self.read(run) for run in self.sweep.runs if run.arm == arm)
    return [result for result in results if result is not None]

  def summaries(self, arm: str) -> list[Result]:
    """The summaries that train.py wrote for an arm's finished runs, by seed."""
    return [result["summary"] for result in self.results(arm)]


def run_all(all_runs: Sequence[Runs], *, number: int):
  """Runs what has not ended, `number` at a time: seed by seed, longest runs first.

  Raises:
    InputError: as by `Runs.process` and `prepare_data`.
    Stopped: some runs failed; has the last line of each.
  """
  prepare_data(run for runs in all_runs for run in runs.sweep.runs)
  pairs = [
    (run.settings.seed, runs.process(run)) for runs in all_runs for run in runs.sweep.runs
  ]
  pairs.sort(key=lambda pair: (pair[0], -pair[1].cost))
  processes = [process for _, process in pairs]
  try:
    failures = run_jobs(processes, number=number)
  finally:  # a stopped study keeps what is finished, with the weights that it started from
    for runs in all_runs:
      runs.keep()
  stop_if_failed(failures, len(processes))
