"""Un-padding under XLA: each device computes its own sequences, each at its own length.

XLA compiles fixed shapes. So the program has a branch for each of a few lengths, and a
device goes through its sequences, each in the branch of the next such length. A step has
two programs: the first computes gradients, without communication between the devices; the
second adds the gradients up over the devices and updates the parameters. So each device's
own work can be timed apart from the exchange, for packing too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from model import losses
from training.mesh import DATA, FSDP, replicated, split_rows
from training.step import Batch, State, TrainingProgram

_OF_TOKENS = ("input_ids", "token_type_ids", "segment_ids", "position_ids")  # [rows, S]
_OF_MASKED = ("mlm_positions", "mlm_labels", "mlm_segment_ids")  # [rows, P]
_HEADS = ("mlm", "nsp")
_DEVICES = PartitionSpec((DATA, FSDP))  # a leading dimension, one part a device


class UnpaddedProgram:
  """A step of un-padding, and one of packing beside it, in two programs each.

  Gradients are of the mean over all sequences of the step, so the un-padded step of some
  sequences equals `TrainingProgram`'s step of the same ones, padded or packed.

  Args:
    program: the model and its mesh; without dropout. The steps here take its state.
    optimizer: of the program.
    shapes: compiled shapes, as tokens and masked tokens of a row, both ascending; the last
      is a whole row.

  Attributes:
    counts: rows -> the counts, over the whole step, that gradients are divided by.
    unpadded_gradients: parameters, rows with one sequence each, int32[rows] their
      branches, counts -> gradients, float[n, ...], the part of each device on that device.
    packed_gradients: parameters, rows, counts -> such gradients.
    update: the state and such gradients -> the next state.
  """

  def __init__(
    self,
    program: TrainingProgram,
    optimizer: optax.GradientTransformation,
    *,
    shapes: Sequence[tuple[int, int]],
  ):
    self._program, self._optimizer = program, optimizer
    self._shapes = tuple(shapes)
    self.mesh = program.mesh
    everywhere = replicated(self.mesh)
    self.counts = jax.jit(functools.partial(losses.count, _HEADS), out_shardings=everywhere)
    self.unpadded_gradients = self._on_each_device(self._sequences, rows=2)
    self.packed_gradients = self._on_each_device(self._gradients, rows=1)
    self.update = jax.jit(
      self._update,
      in_shardings=(everywhere, split_rows(self.mesh)),
      out_shardings=everywhere,
      donate_argnums=0,
    )

  def branches(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """int32[rows]; the index of the smallest compiled length that each row fits in."""
    lengths = (rows["segment_ids"] > 0).sum(1)
    return np.searchsorted([most for most, _ in self._shapes], lengths).astype(np.int32)

  def _on_each_device(self, own: Callable, *, rows: int) -> Callable:
    """`own` on each device; the `rows` arguments after the parameters are split."""

    def stacked(*arguments):
      return jax.tree.map(lambda x: x[None], own(*arguments))

    return jax.jit(
      jax.shard_map(
        stacked,
        mesh=self.mesh,
        in_specs=(PartitionSpec(), *(_DEVICES,) * rows, PartitionSpec()),
        out_specs=_DEVICES,
        check_vma=False,  # else gradients of parameters are summed over the devices here
      )
    )

  def _gradients(self, params, rows: Batch, counts: Mapping[str, jax.Array]):
    def loss(params):
      return losses.loss(self._program.apply(params, rows), rows, counts=counts)[0]

    return jax.grad(loss)(params)

  def _sequences(self, params, rows: Batch, branches: jax.Array, counts):
    """One row after the other, each cut to the length of its branch."""

    def of_shape(shape: tuple[int, int], row: Batch):
      widths = dict.fromkeys(_OF_TOKENS, shape[0]) | dict.fromkeys(_OF_MASKED, shape[1])
      cut = {name: x[None, : widths.get(name)] for name, x in row.items()}
      return self._gradients(params, cut, counts)

    ways = [functools.partial(of_shape, shape) for shape in self._shapes]

    def add(sums, of_row):
      row, branch = of_row
      return jax.tree.map(jnp.add, sums, jax.lax.switch(branch, ways, row)), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, zeros, (rows, branches))[0]

  def _update(self, state: State, gradients: Any) -> State:
    """Adds gradients up over the devices (the exchange); updates as `TrainingProgram`."""
    summed = jax.tree.map(lambda x: x.sum(0), gradients)
    updates, optimizer_state = self._optimizer.update(
      summed, state["optimizer"], state["params"]
    )
    return state | {
      "params": optax.apply_updates(state["params"], updates),
      "optimizer": optimizer_state,
      "step": state["step"] + 1,
    }
