"""One context manager for everything that a training loop records about its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections
import numpy as np

from training.record.metrics import Meter, MetricsLog
from training.record.profiling import Profile
from training.record.progress import Progress
from training.record.report import sum_of_losses
from training.record.trackers import Trackers
from training.record.watch import Watch


@contextlib.contextmanager
def recording(
  workdir: str | pathlib.Path,
  config: ml_collections.ConfigDict,
  *,
  learning_rates: np.ndarray,
  rows: int,
  row_length: int,
  flops_per_step: float,
  peak_flops: float,
  first_step: int,
  saved: Mapping[str, Any],
  trackers: Trackers,
) -> Iterator[Recorder]:
  """Opens the record of a run.

  Args:
    workdir: the run's folder.
    config: the run's config.
    learning_rates: float[steps]; the rate of each update of the run.
    rows: rows per step, over all devices.
    row_length: S, in tokens.
    flops_per_step: operations of a step's matrix products.
    peak_flops: peak of all devices in operations per second; 0 if it is not known.
    first_step: the step that the run resumes from.
    saved: what `Recorder.state` returned at that step; empty at the start of a run.
    trackers: the run's trackers, opened.
  """
  steps, first = len(learning_rates), first_step
  with (
    MetricsLog(workdir, first_step=first, state=saved.get("log"), trackers=trackers) as log,
    Progress("training", total=steps, done=first) as progress,
    Profile(workdir, first_step=first, steps=config.profile) as profile,
  ):
    meter = Meter(
      log.last_train_line,
      packs=rows,
      tokens=rows * row_length,
      flops_per_step=flops_per_step,
      peak_flops=peak_flops,
      window=config.train.log_every,
      state=saved.get("meter"),
    )
    bad = saved.get("bad_steps", 0)
    watch = Watch(workdir, skips=config.train.skip_bad_steps, in_a_row=bad)
    yield Recorder(log, meter, progress, profile, watch, learning_rates)


@dataclasses.dataclass(frozen=True)
class Recorder:
  """Times, checks and logs the steps of a run; made by `recording`."""

  log: MetricsLog
  meter: Meter
  progress: Progress
  profile: Profile
  watch: Watch
  learning_rates: np.ndarray

  def start(self, step: int):
    """Must be called before each step."""
    self.profile.before(step)

  def waiting_for(self, name: str) -> contextlib.AbstractContextManager:
    """Counts the time of the block as waiting for "input" or "compute"."""
    return self.meter.waiting_for(name)

  def paused(self) -> contextlib.AbstractContextManager:
    """Does not count the time of the block as training."""
    return self.meter.paused()

  def end(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    """Records a step's sequences and metrics, and checks the previous step.

    Args:
      step: the number of the step.
      sequence_ids: int64[B, M] for this process's rows; -1 where a slot is empty.
      values: from `TrainingProgram.train_step`.

    Raises:
      Stopped: the previous step was not finite, and may not be skipped.
    """
    self.meter.add(values)
    self.watch.add(step, sequence_ids, values)
    self.check(except_newest=1)  # the newest step still runs
    self.progress.update()

  def check(self, *, except_newest: int = 0):
    """Waits for the unchecked steps, and checks that they are finite.

    Raises:
      Stopped: a step was not finite, and may not be skipped.
    """
    with self.waiting_for("compute"):
      self.watch.check(except_newest=except_newest)

  def line(self, step: int, *, compilations: int):
    """Writes the means since the last line to `metrics.jsonl`."""
    self.check()
    line = self.meter.line(compilations=compilations)
    updates = step - int(line["skipped"])
    line["learning_rate"] = float(self.learning_rates[max(updates - 1, 0)])
    self.log.train(step, line)
    self.progress.line(step, line)

  def evaluation(self, step: int, result: Mapping):
    """Writes the result of an evaluation to `eval.jsonl`; `line` must come before it.

    Raises:
      Stopped: a held-out loss is not finite.
    """
    self.watch.check_evaluation(step, sum_of_losses(result))
    line = self.log.last_train_line
    trained = {"seconds": line["seconds"], "sequences_trained": line["sequences"]}
    self.log.evaluation(step, {**result, **trained})

  @property
  def evaluations(self) -> list[dict]:
    """The lines of `eval.jsonl`."""
    return self.log.evaluations

  def state(self) -> dict[str, Any]:
    """The state from which a resumed run continues, as JSON values."""
    return {
      "meter": self.meter.state(),
      "log": self.log.get_state(),
      "bad_steps": self.watch.in_a_row,
    }
