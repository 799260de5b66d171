"""Checkpoints, written atomically while training continues and verified when read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from model import weights
from model.files import is_full
from packing.files import parse_json, write_json
from training import processes
from training.process_parts import PARTS, OwnParts, SavedParts, sha256
from training.step import State

_REST = "training"  # the part that only training reads
_SHA256 = "sha256"  # of the other metadata
BROKEN = "broken"  # the folder of checkpoints that cannot be read


class Restored(NamedTuple):
  """A checkpoint.

  Attributes:
    step: the step after which it was saved.
    state: the state after that step.
    run: that passed to `save`.
    parts: those passed to `save` by all processes; each is read when it is asked for.
  """

  step: int
  state: State
  run: dict[str, Any]
  parts: Mapping[str, Any]


@dataclasses.dataclass
class _Best(ocp.training.preservation_policies.PreservationPolicy):
  """Preserves the checkpoint of one step, which may be reassigned."""

  step: int | None = None

  def should_preserve(self, checkpoints, *, context):
    del context
    return [checkpoint.step == self.step for checkpoint in checkpoints]


class Checkpoints:
  """The checkpoints of a run; a context manager.

  Each checkpoint has the parameters, which `model.weights` can read alone, and the rest of
  the state; if processes hold different parts of the run's position in the data, each
  writes its own. Its metadata, in JSON, holds the step, a fingerprint of the state,
  whatever else a resumed run needs, and a checksum of all these, so that none of them can
  be exchanged alone. Orbax writes to a temporary folder and renames it, so after an
  interrupted save the previous checkpoint is still the newest. With several processes, all
  must make the same calls.

  Folders that lack a part, or whose metadata or name were changed, are moved to `broken/`
  with a warning.

  Args:
    workdir: the run's folder.
    keep: how many of the newest checkpoints to keep.
  """

  def __init__(self, workdir: str | pathlib.Path, *, keep: int):
    self._folder = pathlib.Path(workdir).absolute() / weights.CHECKPOINTS
    processes.on_first(self._move_unfinished)
    policies = ocp.training.preservation_policies
    self._best = _Best()
    self._policy = policies.AnyPreservationPolicy([policies.LatestN(keep), self._best])
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
  def steps(self) -> list[int]:
    """Steps that can be restored, oldest first."""
    return weights.steps(self._folder.parent)

  def save(
    self,
    step: int,
    state: State,
    run: dict[str, Any],
    best: int | None = None,
    parts: Mapping[str, Any] | None = None,
  ):
    """Starts to save the state after a step; training may continue meanwhile.

    Waits for the previous save first. Of a step that is saved already, only `run` and
    `best` are written, at once: Orbax would delete the checkpoint before it saves it again.

    Args:
      step: the number of the step.
      state: the state of a `TrainingProgram`.
      run: what else a resumed run needs, such as the input position, as JSON values; the
        same in all processes.
      best: the step of one more checkpoint to keep, such as the best so far.
      parts: what only this process has, as JSON values. Over all processes, the names are
        "0", "1", ..., and each process has as many.

    Raises:
      OSError: this or the previous checkpoint could not be written; the message lists the
        checkpoints that are kept.
    """
    self.wait()
    self._best.step = best
    with self._explain_write_errors(step):
      if self._checkpointer is None:  # after broken checkpoints were moved away
        self._checkpointer = ocp.training.Checkpointer(
          self._folder, preservation_policy=self._policy, cleanup_tmp_directories=True
        )
      metadata = run | {weights.BEST: best, "step": step, "fingerprint": fingerprint(state)}
      content: dict[str, Any] = _parts(state)
      if parts:
        metadata[PARTS] = len(parts) * jax.process_count()
        content[PARTS] = OwnParts(parts, metadata["fingerprint"])
      metadata |= {_SHA256: sha256(metadata)}
      if processes.on_first(lambda: step in self.steps):
        processes.on_first(functools.partial(self._rewrite, step, metadata))
        return
      self._checkpointer.save_checkpointables_async(step, content, custom_metadata=metadata)
    self._saving = step

  def _rewrite(self, step: int, metadata: dict[str, Any]):
    path = self._folder / str(step) / weights.METADATA
    write_json(path, parse_json(path.read_text()) | {"custom_metadata": metadata})

  def wait(self):
    """Waits until the last checkpoint is on disk.

    Raises:
      OSError: the checkpoint could not be written.
    """
    if self._checkpointer is not None and self._saving is not None:
      step, self._saving = self._saving, None
      with self._explain_write_errors(step):
        self._checkpointer.wait()

  @contextlib.contextmanager
  def _explain_write_errors(self, step: int) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError) as error:  # TensorStore raises ValueError on a full disk
      remedy = "Make room" if is_full(error) else "Correct this"
      why = weights.beginning(error)
      why += "" if why.endswith(".") else "."
      raise OSError(
        f"Step {step} could not be saved in {self._folder}: {why} "
        f"Steps {self.steps} are kept. {remedy}, and run the same command again."
      ) from error

  def restore_newest(self, abstract_state: State) -> Restored | None:
    """Loads the newest intact checkpoint.

    A truncated, altered or renamed checkpoint is moved to `checkpoints/broken/`, with a
    warning, and the previous one is tried.

    Args:
      abstract_state: shapes, types and shardings of the state. Devices and processes may
        differ from those that saved it.

    Returns:
      The checkpoint, or None if none has been saved.

    Raises:
      WeightsError: all checkpoints are broken, or the newest one belongs to another model
        or optimizer.
    """
    expected = _parts(abstract_state)
    while step := processes.on_first(lambda: max(self.steps, default=0)):
      why = processes.on_first(functools.partial(self._damage, step, expected))
      if why is None:
        try:
          restored = self._load(step, expected)
          if restored.run.pop("fingerprint") == fingerprint(restored.state):
            return restored
          why = "its numbers differ from those that were saved."
        except (jax.errors.JaxRuntimeError, MemoryError):
          raise  # a failure of the device, not of the checkpoint
        except Exception as error:  # Orbax raises many types of errors for bad metadata
          why = weights.beginning(error)
      processes.on_first(functools.partial(self._move_away, str(step), why))
    if any((self._folder / BROKEN).glob("*")):
      raise weights.WeightsError(
        f"No checkpoint in {self._folder} can be read; they are in {BROKEN}/. Repair "
        f"one and move it back as {weights.CHECKPOINTS}/STEP, or give another --workdir."
      )
    return None

  def _load(self, step: int, expected: dict[str, Any]) -> Restored:
    path = self._folder / str(step)
    read = ocp.load_checkpointables(path, expected)
    state = {weights.PARAMS: read[weights.PARAMS], **read[_REST]}
    run = self._read_run(str(step))
    parts = SavedParts(path, run.pop(PARTS, 0), run["fingerprint"])
    return Restored(step, state, run, parts)

  def _read_run(self, name: str) -> dict[str, Any]:
    """The `run` in a folder, and the fingerprint.

    Raises:
      ValueError: it was changed, or belongs to another step than the folder is named for.
      OSError: it cannot be read.
    """
    text = (self._folder / name / weights.METADATA).read_text()
    try:
      run = parse_json(text)["custom_metadata"]
      same = run.pop(_SHA256) == sha256(run)
    except (LookupError, TypeError, AttributeError) as error:
      raise ValueError("its metadata are damaged.") from error
    if not same:
      raise ValueError("its metadata, such as the place in the data, were changed.")
    run.pop(weights.BEST, None)  # an earlier version did not write it
    if str(step := run.pop("step")) != name:
      raise ValueError(f"it was saved as step {step}.")
    return run

  def _damage(self, step: int, expected: dict[str, Any]) -> str | None:
    """Reads a whole checkpoint; returns what is wrong with it, or None.

    Raises:
      WeightsError: it is intact, but belongs to another model or optimizer.
      OSError: the disk fails now; that says nothing about the checkpoint.
    """
    path = self._folder / str(step)
    try:
      run = self._read_run(str(step))
      for _ in SavedParts(path, run.get(PARTS, 0), run["fingerprint"]).values():
        pass  # reading it checks it
      for part, arrays in expected.items():
        weights.read_through(path / part, arrays)
    except weights.OtherArrays as error:
      raise weights.WeightsError(
        f"{path} belongs to another model or optimizer: {error} Give the run's own config."
      ) from error
    except (ValueError, KeyError, FileNotFoundError, NotADirectoryError) as error:
      return weights.beginning(error)
    return None

  def _move_unfinished(self):
    for path in [path for path in self._folder.glob("*") if path.name.isdecimal()]:
      try:
        if not all((path / part).is_dir() for part in (weights.PARAMS, _REST)):
          raise FileNotFoundError
        self._read_run(path.name)
      except (FileNotFoundError, NotADirectoryError):
        self._move_away(path.name, "parts of it are missing.")
      except ValueError as error:
        self._move_away(path.name, weights.beginning(error))

  def _move_away(self, name: str, why: str):
    aside = self._folder / BROKEN
    aside.mkdir(exist_ok=True)
    names = (aside / f"{name}.{number}" for number in itertools.count())
    (self._folder / name).rename(next(path for path in names if not path.exists()))
    warning = f"WARNING: the checkpoint of step {name} is broken: {why}"
    print(f"{warning} It was moved to {aside}.", file=sys.stderr, flush=True)


def fingerprint(state: State) -> list[int]:
  """Two checksums over all bits of a state.

  They are sums of integers, computed on the devices, so they do not depend on how the
  arrays are split.

  Example:
    >>> a, b = ({"x": jnp.array(x)} for x in ([1.0, 2.0], [2.0, 1.0]))
    >>> fingerprint(a) == fingerprint(a), fingerprint(a) == fingerprint(b)
    (True, False)
  """
  sums = [0, 0]
  # A program for each kind of leaf compiles in a fraction of one for all leaves at once.
  # They run one after the other: Gloo mixes up reductions of programs that run together.
  for number, leaf in enumerate(jax.tree.leaves(state)):
    own = jax.device_get(_sums(leaf, np.uint32(number)))
    for i, odd in enumerate(_ODD):
      sums[i] = (sums[i] * odd + int(own[i])) % 2**32
  return sums


_ODD = 0x9E3779B1, 0x85EBCA77


@jax.jit
def _sums(leaf: jax.Array, place: jax.Array) -> list[jax.Array]:
  """The checksums of an array; `place` is its number in the state."""
  unsigned = jnp.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}")
  bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
  for axis in range(bits.ndim):
    stride = jnp.uint32(math.prod(bits.shape[axis + 1 :]) % 2**32)
    place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * stride
  sums = []
  for odd in _ODD:
    mixed = (bits ^ (place * jnp.uint32(odd))) * jnp.uint32(0xC2B2AE3D)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x27D4EB2F)
    sums.append(mixed.sum(dtype=jnp.uint32))
  return sums


def _parts(state: State) -> dict[str, State]:
  rest = {name: value for name, value in state.items() if name != weights.PARAMS}
  return {weights.PARAMS: state[weights.PARAMS], _REST: rest}
