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
    keep: how many of the newest to keep.
  """

  def __init__(self, directory: str | pathlib.Path, *, keep: int):
    self._checkpointer = ocp.training.Checkpointer(
      pathlib.Path(directory).absolute(),
      preservation_policy=ocp.training.preservation_policies.LatestN(keep),
      cleanup_tmp_directories=True,
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
    """Saves the state after `step` updates, and waits for it."""
    self._checkpointer.save(step, state)

  def restore(self, step: int, abstract_state: State) -> State:
    """Loads a step in the shapes, types and shardings of `abstract_state`."""
    return self._checkpointer.load(step, abstract_state)
