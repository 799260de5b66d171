"""Everything that a training loop records about its steps."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from launch.record.flops import Cost
from launch.record.metrics import Meter, MetricsLog
from launch.record.progress import Progress
from launch.record.report import sum_of_losses
from launch.record.trackers import Trackers
from packing.files import write_json
from training.errors import Stopped
from training.processes import is_first

BAD_STEP = "bad_step.json"  # describes the step that stopped a run
_FIRST_STEPS = 10  # steps that are not profiled, since they compile and warm up


class Recorder:
  """Times, checks and logs the steps of a run; a context manager.

  Each step's `finite` is checked one step late, so that the device never waits for it.

  Args:
    workdir: the run's folder.
    learning_rates: float[steps]; the rate of each update of the run.
    cost: of a step.
    first_step: the step that the run resumes from.
    saved: what `state` returned at that step; empty at the start of a run.
    trackers: the run's trackers, opened.
  """

  def __init__(
    self,
    workdir: str | pathlib.Path,
    *,
    learning_rates: np.ndarray,
    cost: Cost,
    first_step: int,
    saved: Mapping[str, Any],
    trackers: Trackers,
  ):
    self._bad_step = pathlib.Path(workdir) / BAD_STEP
    self._waiting: list[tuple[int, np.ndarray, Mapping]] = []  # steps to be checked
    self._rates = learning_rates
    self.log = MetricsLog(workdir, state=saved.get("log"), trackers=trackers)
    self.meter = Meter(self.log.last_train_line, cost=cost)
    self._progress = Progress("training", total=len(learning_rates), done=first_step)

  def __enter__(self) -> Recorder:
    self._progress.__enter__()
    return self

  def __exit__(self, *_):
    self._progress.__exit__()

  def end(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    """Records a step's sequences and metrics, and checks the previous step.

    Args:
      step: the number of the step.
      sequence_ids: int64[B, M] for this process's rows; -1 where a slot is empty.
      values: from `TrainingProgram.train_step`.

    Raises:
      Stopped: the previous step was not finite.
    """
    self.meter.add(values)
    self._waiting.append((step, sequence_ids, values))
    self.check(except_newest=1)  # the newest step still runs
    self._progress.update()

  def check(self, *, except_newest: int = 0):
    """Waits for the unchecked steps, and checks that they are finite.

    Args:
      except_newest: how many of the newest steps are left for later.

    Raises:
      Stopped: a step was not finite.
    """
    with self.meter.waiting_for("compute"):
      while len(self._waiting) > except_newest:
        step, sequence_ids, values = self._waiting.pop(0)
        if not values["finite"]:
          self._stop(step, sequence_ids, values)

  def line(self, step: int, *, compilations: int):
    """Writes the means since the last line to `metrics.jsonl`."""
    self.check()
    line = self.meter.line(compilations=compilations)
    line["learning_rate"] = float(self._rates[step - 1])
    self.log.train(step, line)
    self._progress.line(step, line)

  def evaluation(self, step: int, result: Mapping):
    """Writes the result of an evaluation to `eval.jsonl`; `line` must come before it.

    Raises:
      Stopped: a held-out loss is not finite.
    """
    if not np.isfinite(loss := sum_of_losses(result)):
      raise Stopped(
        f"The held-out loss is {loss} at step {step}. Try a lower "
        "--config.optimizer.learning_rate in another --workdir."
      )
    line = self.log.last_train_line
    trained = {"seconds": line["seconds"], "sequences_trained": line["sequences"]}
    self.log.evaluation(step, {**result, **trained})

  def state(self) -> dict[str, Any]:
    """The state from which a resumed run continues, as JSON values; `line` comes before."""
    return {"log": self.log.get_state()}

  def _stop(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    if jax.process_count() > 1:
      sequence_ids = multihost_utils.process_allgather(sequence_ids, tiled=True)
    ids = sequence_ids[sequence_ids >= 0].tolist()
    means = {
      name: f"{float(total.mean):g}"
      for name, total in values.items()
      if name.endswith(("_loss", "_norm"))
    }
    if is_first():
      write_json(self._bad_step, {"step": step, "sequence_ids": ids, "values": means})
    numbers = ", ".join(f"{name} {value}" for name, value in means.items())
    raise Stopped(
      f"Step {step} is not finite: {numbers}. {self._bad_step} lists its sequences. Try a "
      "lower --config.optimizer.learning_rate in another --workdir."
    )


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
