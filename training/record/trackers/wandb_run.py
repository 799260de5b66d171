"""The record of a run in Weights & Biases."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

import wandb

REMEDY = "Log in with wandb login, or set WANDB_MODE=offline."


class TrackedRun:
  """A run of Weights & Biases.

  Its environment variables apply: with WANDB_MODE=offline the record stays in the run's
  folder, until `wandb sync` uploads it.

  Args:
    folder: the run's folder; files go to `wandb/` in it.
    config: the run's config.
    run_id: the W&B run to continue; None for a new one.

  Raises:
    Exception: of any type, if nobody is logged in, or the server cannot be reached.
  """

  def __init__(self, folder: pathlib.Path, config: Mapping, *, run_id: str | None):
    self._run = wandb.init(
      project=os.environ.get("WANDB_PROJECT", "isopack"),
      name=os.environ.get("WANDB_NAME", folder.name),
      dir=folder,
      id=run_id,
      resume="allow",
      settings=wandb.Settings(
        console="off",  # does not capture or change printed output
        finish_timeout=60,  # seconds; `wandb sync` uploads the rest
        # Upload only the numbers and the config: no code, command line, packages or host.
        disable_code=True,
        disable_git=True,
        host="-",  # instead of the host's name
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
      ),
    )
    self.run_id = self._run.id
    self._run.config.update(dict(config), allow_val_change=True)
    # W&B's own step cannot go back, but a killed run trains some steps again.
    self._run.define_metric("*", step_metric="step")

  def log(self, step: int, values: Mapping[str, float]):
    """Records numbers of a step."""
    self._run.log({"step": step, **values})

  def close(self, *, failed: bool):
    """Ends the record, and waits until it is uploaded."""
    self._run.finish(exit_code=int(failed))
