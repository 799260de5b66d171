"""Checkpoints: whole or not there, the newest ones kept."""

from __future__ import annotations

import pathlib

from orbax.checkpoint import v1 as ocp

from model import weights
from training.step import State

_REST = "training"  # the part of a checkpoint that only training reads


class Checkpoints:
  """The checkpoints of a run; a context manager.

  Each has two parts: the parameters, which `model.weights` reads without the other, and
  the rest of the state. Orbax writes each to a temporary folder and renames it, so a
  killed save leaves the one before it as the newest.

  Args:
    workdir: the run's folder.
    keep: how many of the newest to keep.

  Raises:
    WeightsError: a folder among them is named like a checkpoint, and is none.
  """

  def __init__(self, workdir: str | pathlib.Path, *, keep: int):
    self._workdir = pathlib.Path(workdir).absolute()
    self._refuse_foreign()  # Orbax would not save a step before that of such a folder
    self._checkpointer = ocp.training.Checkpointer(
      self._workdir / weights.CHECKPOINTS,
      preservation_policy=ocp.training.preservation_policies.LatestN(keep),
      cleanup_tmp_directories=True,
    )

  def _refuse_foreign(self):
    whole = {str(step) for step in self.steps}
    for path in (self._workdir / weights.CHECKPOINTS).glob("*"):
      if path.name.isdecimal() and path.name not in whole:
        raise weights.WeightsError(
          f"Expected checkpoints of this run alone in {path.parent}, found {path.name}, "
          "which is none. Move it away, and run the same command again."
        )

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *_):
    self._checkpointer.close()

  @property
  def steps(self) -> list[int]:
    """Steps that can be restored, oldest first."""
    return weights.steps(self._workdir)

  def save(self, step: int, state: State):
    """Saves the state after `step` updates, and waits for it.

    Raises:
      OSError: it could not be written; says what is left.
    """
    try:
      self._checkpointer.save_checkpointables(step, _parts(state))
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as a value
      raise OSError(
        f"The checkpoint of step {step} could not be written to {self._workdir}: {error} "
        f"Steps {self.steps} are kept. Make room, and run the same command again."
      ) from error

  def restore(self, step: int, abstract_state: State) -> State:
    """Loads a step in the shapes, types and shardings of `abstract_state`."""
    parts = self._checkpointer.load_checkpointables(step, _parts(abstract_state))
    return {weights.PARAMS: parts[weights.PARAMS], **parts[_REST]}


def _parts(state: State) -> dict[str, State]:
  rest = {name: value for name, value in state.items() if name != weights.PARAMS}
  return {weights.PARAMS: state[weights.PARAMS], _REST: rest}
