"""One context for all that a training loop records of its steps."""

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
    config: of the run.
    learning_rates: float[steps]; the rate of each update of the run.
    rows: of a step, over all devices.
    row_length: S, in tokens.
    flops_per_step: of a step's matrix products.
    peak_flops: of all devices, a second; 0 where it is not known.
    first_step: the step that the run resumes from.
    saved: what `Recorder.state` returned then; empty at the start of a run.
    trackers: of the run, opened.
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
    watch = Watch(
      workdir,
      skips=config.train.skip_bad_steps,
      in_a_row=saved.get("bad_steps", 0),  # an earlier version did not save it
    )
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
    """To be called before each step."""
    self.profile.before(step)

  def waiting_for(self, name: str) -> contextlib.AbstractContextManager:
    """Counts the time inside as waiting for "input" or for "compute"."""
    return self.meter.waiting_for(name)

  def paused(self) -> contextlib.AbstractContextManager:
    """What happens inside does not count as training."""
    return self.meter.paused()

  def end(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    """Takes what a step was made from and its metrics, and checks the step before it.

    Args:
      step: its number.
      sequence_ids: int64[B, M], -1 where a slot is empty; of this process's rows.
      values: from `TrainingProgram.train_step`.

    Raises:
      Stopped: the step before was not finite, and may not be skipped.
    """
    self.meter.add(values)
    self.watch.add(step, sequence_ids, values)
    self.check(except_newest=1)  # the newest still runs
    self.progress.update()

  def check(self, *, except_newest: int = 0):
    """Waits for the steps, and checks that they are finite.

    Raises:
      Stopped: one was not, and may not be skipped.
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
    """Writes the result of an evaluation to `eval.jsonl`, after the step's line.

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
    """What a resumed run continues from, as JSON takes it."""
    return {
      "meter": self.meter.state(),
      "log": self.log.get_state(),
      "bad_steps": self.watch.in_a_row,
    }
