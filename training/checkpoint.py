"""Checkpoints: whole or not there, the newest ones kept."""

from __future__ import annotations

import pathlib

from orbax.checkpoint import v1 as ocp

from training.step import State


class Checkpoints:
  """The checkpoints of a run; a context manager.

  Orbax writes each to a temporary folder and renames it, so a killed save leaves the
  one before it as the newest.

  Args:
    directory: of this run's checkpoints.
    keep: how many of the newest to keep; None to read only, which leaves alone what
      another process is saving.
  """

  def __init__(self, directory: str | pathlib.Path, *, keep: int | None):
    policies = ocp.training.preservation_policies
    policy = policies.PreserveAll() if keep is None else policies.LatestN(keep)
    self._directory = pathlib.Path(directory).absolute()
    self._checkpointer = ocp.training.Checkpointer(
      self._directory,
      preservation_policy=policy,
      cleanup_tmp_directories=keep is not None,
    )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *_):
    self._checkpointer.close()

  @property
  def steps(self) -> list[int]:
    """Steps that can be restored, oldest first."""
    return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

  def save(self, step: int, state: State):
    """Saves the state after `step` updates, and waits for it.

    Raises:
      OSError: it could not be written; says what is left.
    """
    try:
      self._checkpointer.save(step, state)
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as a value
      raise OSError(
        f"The checkpoint of step {step} could not be written to {self._directory}: {error} "
        f"Steps {self.steps} are kept. Make room, and run the same command again."
      ) from error

  def restore(self, step: int, abstract_state: State) -> State:
    """Loads a step in the shapes, types and shardings of `abstract_state`."""
    return self._checkpointer.load(step, abstract_state)
