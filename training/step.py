"""One compiled training step over a mesh of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from model import BertConfig, BertForPreTraining, losses

State = dict[str, Any]


def make_mesh(num_devices: int | None = None) -> Mesh:
  """A mesh with one axis, `data`, over all devices or the first few."""
  devices = jax.devices()[:num_devices]
  return jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec("data"))


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Splits the rows of a PackedBatch over the devices; `sequence_ids` stay on the host.

  Of several processes each gives its own block of rows, as a loader made with
  `host=jax.process_index(), hosts=jax.process_count()` makes it.
  """
  sharding = split_rows(mesh)
  return {
    name: jax.make_array_from_process_local_data(sharding, field)
    for name, field in batch.items()
    if name != "sequence_ids"
  }


class TrainingProgram:
  """The model and the optimizer as functions of arrays.

  Args:
    config: of the model.
    optimizer: an Optax transformation.
    mesh: from `make_mesh`; the batch size is a multiple of its devices.
    seed: of the initial parameters and of dropout.
    loss_unit: what weighs the same in the loss; a key of `model.LOSS_UNITS`.
  """

  def __init__(
    self,
    config: BertConfig,
    optimizer: optax.GradientTransformation,
    *,
    mesh: Mesh,
    seed: int,
    loss_unit: str = "sequence",
  ):
    self.mesh = mesh
    self._loss_unit = loss_unit
    self._optimizer = optimizer
    self._config = config
    self._seed = seed
    abstract = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
    self._graphdef = nnx.graphdef(abstract)
    everywhere, rows = replicated(mesh), split_rows(mesh)
    self.train_step_name = self._train_step.__name__  # as JAX's events report it
    self.train_step = jax.jit(
      self._train_step,
      in_shardings=(everywhere, rows),
      out_shardings=everywhere,
      donate_argnums=0,
    )
    self.eval_step = jax.jit(
      self._eval_step, in_shardings=(everywhere, rows), out_shardings=everywhere
    )

  def init(self, params=None) -> State:
    """Parameters, optimizer state and step 0, on every device.

    Args:
      params: to start from, a nested dictionary; drawn if not given.
    """
    if params is None:
      return jax.jit(self._init, out_shardings=replicated(self.mesh))()
    return jax.jit(self._state_of, out_shardings=replicated(self.mesh))(params)

  def abstract_state(self) -> State:
    """Shapes, types and shardings of the state, without its arrays."""
    sharding = replicated(self.mesh)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
      jax.eval_shape(self._init),
    )

  def apply(self, params, batch: Mapping[str, jax.Array], *, dropout_key=None):
    """The model's outputs, from a tree of parameters."""
    return nnx.merge(self._graphdef, params)(batch, dropout_key=dropout_key)

  def _init(self) -> State:
    model = BertForPreTraining(self._config, rngs=nnx.Rngs(self._seed))
    return self._state_of(nnx.to_pure_dict(nnx.state(model, nnx.Param)))

  def _state_of(self, params) -> State:
    return {
      "params": params,
      "optimizer": self._optimizer.init(params),
      "step": jnp.zeros((), jnp.int32),
    }

  def _train_step(self, state: State, batch) -> tuple[State, dict[str, Any]]:
    key = None
    if self._config.dropout_rate > 0 or self._config.attention_dropout_rate > 0:
      key = jax.random.fold_in(jax.random.key(self._seed), state["step"])

    def loss_fn(params):
      outputs = self.apply(params, batch, dropout_key=key)
      return losses.loss(outputs, batch, unit=self._loss_unit)

    gradients, totals = jax.grad(loss_fn, has_aux=True)(state["params"])
    updates, optimizer_state = self._optimizer.update(
      gradients, state["optimizer"], state["params"]
    )
    params = optax.apply_updates(state["params"], updates)
    one = jnp.ones(())
    metrics = totals | {
      "gradient_norm": losses.Total(optax.tree.norm(gradients), one),
      "parameter_norm": losses.Total(optax.tree.norm(params), one),
      "sequences": batch["sequence_mask"].sum(),
      "real_tokens": (batch["segment_ids"] > 0).sum(),
    }
    new_state = {
      "params": params,
      "optimizer": optimizer_state,
      "step": state["step"] + 1,
    }
    return new_state, metrics

  def _eval_step(self, params, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    return losses.per_sequence(self.apply(params, batch), batch)
