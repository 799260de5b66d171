"""Stops a run at a step that is not finite, and names the step's sequences."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from packing.files import write_json
from training.errors import Stopped
from training.processes import is_first

_SHOWN = 8  # sequence numbers in the message; the file lists all
BAD_STEP = "bad_step.json"


class Watch:
  """Checks each step's `finite`, one step late, so that the device never waits for it.

  A step is bad if it is not finite.

  Args:
    workdir: the run's folder; its `bad_step.json` will describe the step that stopped it.
    skips: how many bad steps in a row may be skipped; 0 if the first one stops the run.
    in_a_row: if the run is resumed, how many steps just before were bad in a row.

  Attributes:
    in_a_row: how many of the last checked steps were bad in a row.
  """

  def __init__(self, workdir: str | pathlib.Path, *, skips: int, in_a_row: int = 0):
    self._workdir = pathlib.Path(workdir)
    self._skips = skips
    self.in_a_row = in_a_row
    self._waiting: list[tuple[int, np.ndarray, Mapping]] = []

  def add(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    """Adds a step to be checked.

    Args:
      step: the number of the step.
      sequence_ids: int64[B, M] for this process's rows; -1 where a slot is empty.
      values: from `TrainingProgram.train_step`.
    """
    self._waiting.append((step, sequence_ids, values))

  def check(self, *, except_newest: int = 0):
    """Checks the steps that were added.

    Args:
      except_newest: how many of the newest steps are left for later.

    Raises:
      Stopped: a step was not finite, and may not be skipped.
    """
    while len(self._waiting) > except_newest:
      step, sequence_ids, values = self._waiting.pop(0)
      if bool(values["finite"]):
        self.in_a_row = 0
        continue
      self.in_a_row += 1
      if self.in_a_row > self._skips:
        self._stop(step, sequence_ids, values)

  def check_evaluation(self, step: int, loss: float):
    """Checks a held-out loss.

    Raises:
      Stopped: it is not finite.
    """
    if not np.isfinite(loss):
      raise Stopped(
        f"The held-out loss is {loss} at step {step}. Earlier checkpoints are kept. Try a "
        "lower --config.optimizer.learning_rate in another --workdir."
      )

  def _stop(self, step: int, sequence_ids: np.ndarray, values: Mapping):
    if jax.process_count() > 1:
      sequence_ids = multihost_utils.process_allgather(sequence_ids, tiled=True)
    ids = sequence_ids[sequence_ids >= 0].tolist()
    means = {
      name: f"{float(total.mean):g}"
      for name, total in values["found"].items()
      if name.endswith(("_loss", "_norm"))
    }
    if is_first():
      write_json(
        self._workdir / BAD_STEP, {"step": step, "sequence_ids": ids, "values": means}
      )
    shown = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
    numbers = ", ".join(f"{name} {value}" for name, value in means.items())
    row = f", bad step number {self.in_a_row} in a row" if self.in_a_row > 1 else ""
    skipping = (
      "or resume here and skip up to 5 such steps in a row with "
      "--config.train.skip_bad_steps=5 --allow_changed_config."
    )
    raise Stopped(
      f"Step {step} is not finite{row}: {numbers}. Its batch has the sequences {shown} "
      f"({self._workdir / BAD_STEP} lists all {len(ids)}). Earlier checkpoints are kept. "
      "Try a lower --config.optimizer.learning_rate in another --workdir"
      f"{'.' if self._skips else f', {skipping}'}"
    )
