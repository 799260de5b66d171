"""Checkpoints: written whole or not at all while training continues, checked when read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from orbax.checkpoint import v1 as ocp

from model import weights
from training import processes
from training.step import State

_REST = "training"  # the part that only training reads
_METADATA = "_CHECKPOINT_METADATA"  # Orbax's, written last
BROKEN = "broken"  # checkpoints that cannot be read are moved there
# Fields of the config's optimizer that decide what its state is made of: others may have
# arrays of the same names and shapes.
_OF_THE_STATE = ("name", "trust_ratio")


class Restored(NamedTuple):
  """A checkpoint: its step, the state after it, and the `run` that `save` took."""

  step: int
  state: State
  run: dict[str, Any]


@dataclasses.dataclass
class _Best(ocp.training.preservation_policies.PreservationPolicy):
  """Preserves one step, which changes."""

  step: int | None = None

  def should_preserve(self, checkpoints, *, context):
    del context
    return [checkpoint.step == self.step for checkpoint in checkpoints]


class Checkpoints:
  """The checkpoints of a run; a context manager.

  Each has two parts: the parameters, which `model.weights` reads without the other, and
  the rest of the state. Beside them, as JSON, are what else a resumed run needs and a
  fingerprint of the state. Orbax writes to a temporary folder and renames it, so a killed
  save leaves the checkpoint before it as the newest. If there are several processes, all
  make the same calls.

  Folders without Orbax's metadata, or without a part, are moved away with a warning.

  Args:
    workdir: the run's folder.
    keep: how many of the newest to keep.
    keep_every: those whose step is a multiple of it are kept for good; 0: none are.

  Attributes:
    best: a step whose checkpoint is kept; set before `save`.
  """

  def __init__(self, workdir: str | pathlib.Path, *, keep: int, keep_every: int = 0):
    self._folder = pathlib.Path(workdir).absolute() / weights.CHECKPOINTS
    processes.first(self._move_unfinished)
    policies = ocp.training.preservation_policies
    self._best = _Best()
    kept = [policies.LatestN(keep), self._best]
    if keep_every:
      kept.append(policies.EveryNSteps(keep_every))
    self._policy = policies.AnyPreservationPolicy(kept)
    self._checkpointer: ocp.training.Checkpointer | None = None
    self._saving: int | None = None

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *_):
    try:
      self.wait()
    finally:
      if self._checkpointer is not None:
        self._checkpointer.close()

  @property
  def best(self) -> int | None:
    return self._best.step

  @best.setter
  def best(self, step: int | None):
    self._best.step = step

  @property
  def steps(self) -> list[int]:
    """Steps that can be restored, oldest first."""
    return weights.steps(self._folder.parent)

  def save(self, step: int, state: State, run: dict[str, Any]):
    """Starts saving the state after `step` updates, while training continues.

    Waits first for the previous save.

    Args:
      step: its number.
      state: of a `TrainingProgram`.
      run: what else a resumed run needs, as JSON: the position of the input, the config.

    Raises:
      OSError: this checkpoint, or the previous one, could not be written; lists those kept.
    """
    self.wait()
    with self._told(step):
      if self._checkpointer is None:  # after broken checkpoints were moved away
        self._checkpointer = ocp.training.Checkpointer(
          self._folder, preservation_policy=self._policy, cleanup_tmp_directories=True
        )
      self._checkpointer.save_checkpointables_async(
        step, _parts(state), custom_metadata=run | {"fingerprint": fingerprint(state)}
      )
    self._saving = step

  def wait(self):
    """Waits until the last save is on disk.

    Raises:
      OSError: it could not be written.
    """
    if self._checkpointer is not None and self._saving is not None:
      step, self._saving = self._saving, None
      with self._told(step):
        self._checkpointer.wait()

  @contextlib.contextmanager
  def _told(self, step: int) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as a value
      raise OSError(
        f"The checkpoint of step {step} could not be written to {self._folder}: "
        f"{weights.beginning(error)} {self._kept()} Make room, and run the same command "
        "again."
      ) from error

  def _kept(self) -> str:
    steps = ", ".join(map(str, self.steps))
    return f"Those of the steps {steps} are kept." if steps else "There is none before it."

  def restore_newest(
    self, abstract_state: State, *, optimizer: Mapping[str, Any] | None = None
  ) -> Restored | None:
    """Loads the newest checkpoint that is intact.

    One that was cut short or altered is moved to `checkpoints/broken/`, with a warning, and
    the one before it is loaded.

    Args:
      abstract_state: its shapes, types and shardings; the devices and processes may be
        others than those that saved it.
      optimizer: the fields of the config's optimizer, to compare with those in the config
        that was saved.

    Returns:
      None where no checkpoint has been saved.

    Raises:
      WeightsError: all are broken, or the newest is of another model or optimizer.
    """
    expected = _parts(abstract_state)
    while step := processes.first(lambda: max(self.steps, default=0)):
      damage = functools.partial(self._damage, step, expected, optimizer or {})
      why = processes.first(damage)
      if why is None:
        try:
          restored = self._load(step, expected)
          if restored.run.pop("fingerprint") == fingerprint(restored.state):
            return restored
          why = "the numbers in it are not those that were saved."
        except (jax.errors.JaxRuntimeError, MemoryError):
          raise  # the device's trouble, not the checkpoint's
        except Exception as error:  # Orbax raises many kinds of errors for bad metadata
          why = weights.beginning(error)
      processes.first(functools.partial(self._move_away, str(step), why))
    if any((self._folder / BROKEN).glob("*")):
      raise weights.WeightsError(
        f"No checkpoint in {self._folder} can be read; they are in {BROKEN}/ there. Bring "
        "one back from a copy, or start again with another --workdir."
      )
    return None

  def _load(self, step: int, expected: dict[str, Any]) -> Restored:
    path = self._folder / str(step)
    parts = ocp.load_checkpointables(path, expected)
    state = {weights.PARAMS: parts[weights.PARAMS], **parts[_REST]}
    return Restored(step, state, self._run(step))

  def _run(self, step: int) -> dict[str, Any]:
    return json.loads((self._folder / str(step) / _METADATA).read_text())["custom_metadata"]

  def _damage(
    self, step: int, expected: dict[str, Any], optimizer: Mapping[str, Any]
  ) -> str | None:
    """Reads all bytes of a checkpoint; returns what is wrong with them.

    Raises:
      WeightsError: it is intact, but of another model or optimizer.
    """
    path = self._folder / str(step)
    try:
      found = {part: weights.read_through(path / part) for part in expected}
      there = self._run(step).get("config", {}).get("optimizer", {})
    except (ValueError, KeyError, OSError) as error:
      return weights.beginning(error)
    try:
      for part, shapes in found.items():
        weights.check_shapes(shapes, expected[part])
      for name in _OF_THE_STATE:
        here = optimizer.get(name)
        if there.get(name, here) != here:
          raise ValueError(f"optimizer.{name} is {there[name]!r} there, expected {here!r}.")
    except ValueError as error:
      raise weights.WeightsError(
        f"{path} is of another model or optimizer than the config describes: {error} Give "
        "the run's own config, or another --workdir."
      ) from error
    return None

  def _move_unfinished(self):
    for path in [path for path in self._folder.glob("*") if path.name.isdecimal()]:
      try:
        whole = "custom_metadata" in json.loads((path / _METADATA).read_text())
      except (OSError, ValueError, TypeError):
        whole = False
      if not whole or not all((path / part).is_dir() for part in (weights.PARAMS, _REST)):
        self._move_away(path.name, "parts of it are missing.")

  def _move_away(self, name: str, why: str):
    aside = self._folder / BROKEN
    aside.mkdir(exist_ok=True)
    number = sum(1 for _ in aside.glob(f"{name}.*"))
    (self._folder / name).rename(aside / f"{name}.{number}")
    print(
      f"WARNING: the checkpoint of step {name} is broken: {why} It is moved to {aside}, "
      "and the one before it is tried.",
      file=sys.stderr,
      flush=True,
    )


def fingerprint(state: State) -> list[int]:
  """Two sums over the bits of a state, which detect an altered one.

  They are integers, computed where the arrays are, so they do not depend on how the arrays
  are split.

  Example:
    >>> a, b = ({"x": jnp.array(x)} for x in ([1.0, 2.0], [2.0, 1.0]))
    >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
    (True, False)
  """
  return [int(x) for x in _sums(state)]


@jax.jit
def _sums(state: State) -> list[jax.Array]:
  sums = [jnp.uint32(0), jnp.uint32(0)]
  for number, leaf in enumerate(jax.tree.leaves(state)):
    unsigned = jnp.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}")
    bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
    place = jnp.uint32(number)
    for axis in range(bits.ndim):
      stride = jnp.uint32(math.prod(bits.shape[axis + 1 :]) % 2**32)
      place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * stride
    for i, odd in enumerate((0x9E3779B1, 0x85EBCA77)):
      mixed = (bits ^ (place * jnp.uint32(odd))) * jnp.uint32(0xC2B2AE3D)
      mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x27D4EB2F)
      sums[i] = sums[i] * jnp.uint32(odd) + mixed.sum(dtype=jnp.uint32)
  return sums


def _parts(state: State) -> dict[str, State]:
  rest = {name: value for name, value in state.items() if name != weights.PARAMS}
  return {weights.PARAMS: state[weights.PARAMS], _REST: rest}
