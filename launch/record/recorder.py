"""One context manager for everything that a training loop records about its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from launch.record.flops import Cost
from launch.record.metrics import Meter, MetricsLog
from launch.record.progress import Progress
from launch.record.report import sum_of_losses
from launch.record.trackers import Trackers
from launch.record.watch import Watch
from training.processes import is_first

_FIRST_STEPS = 10  # steps that are not profiled, since they compile and warm up


@contextlib.contextmanager
def recording(
  workdir: str | pathlib.Path,
  config: ConfigDict,
  *,
  learning_rates: np.ndarray,
  cost: Cost,
  first_step: int,
  saved: Mapping[str, Any],
  trackers: Trackers,
) -> Iterator[Recorder]:
  """Opens the record of a run.

  Args:
    workdir: the run's folder.
    config: the run's config.
    learning_rates: float[steps]; the rate of each update of the run.
    cost: of a step.
    first_step: the step that the run resumes from.
    saved: what `Recorder.state` returned at that step; empty at the start of a run.
    trackers: the run's trackers, opened.
  """
  steps, first = len(learning_rates), first_step
  with (
    MetricsLog(workdir, first_step=first, state=saved.get("log"), trackers=trackers) as log,
    Progress("training", total=steps, done=first) as progress,
  ):
    meter = Meter(
      log.last_train_line,
      cost=cost,
      window=config.train.log_every,
      state=saved.get("meter"),
    )
    bad = saved.get("bad_steps", 0)
    watch = Watch(workdir, skips=config.train.skip_bad_steps, in_a_row=bad)
    yield Recorder(log, meter, progress, watch, learning_rates)


@dataclasses.dataclass(frozen=True)
class Recorder:
  """Times, checks and logs the steps of a run; made by `recording`."""

  log: MetricsLog
  meter: Meter
  progress: Progress
  watch: Watch
  learning_rates: np.ndarray

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
    with self.meter.waiting_for("compute"):
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

  def state(self) -> dict[str, Any]:
    """The state from which a resumed run continues, as JSON values."""
    return {
      "meter": self.meter.state(),
      "log": self.log.get_state(),
      "bad_steps": self.watch.in_a_row,
    }


class Profile:
  """Profiles steps of a run into `profile/` of its folder; a context manager.

  TensorBoard, XProf and Perfetto show it.

  Args:
    workdir: the run's folder.
    first_step: the step that the run resumes from.
    steps: how many steps to profile; 0 for none.
  """

  def __init__(self, workdir: str | pathlib.Path, *, first_step: int, steps: int):
    self._folder = pathlib.Path(workdir) / "profile"
    self._start = first_step + 1 + _FIRST_STEPS if steps else 0  # no step has number 0
    self._end = self._start + steps
    self._running, self._waits = False, steps > 0

  def __enter__(self) -> Profile:
    return self

  def __exit__(self, *_):
    self._stop()
    if self._waits and is_first():
      print(
        f"No profile: the run ended before step {self._start}, where profiling begins, "
        f"after the first {_FIRST_STEPS} steps of the process.",
        file=sys.stderr,
        flush=True,
      )

  def before(self, step: int):
    """Must be called before each step."""
    if step == self._start:
      jax.profiler.start_trace(self._folder)
      self._running, self._waits = True, False
    elif step == self._end:
      self._stop()

  def _stop(self):
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
