"""The compiled evaluation and training steps over a mesh of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jax.tree_util import tree_map_with_path

from model import LANGUAGE_MODELS, ModelConfig, losses
from model.models import abstract_model, draw_params, drawing_device
from packing import InputError
from training.errors import ConfigError
from training.mesh import (
  DATA,
  FSDP,
  put_batch,
  replicated,
  split_rows,
  split_state,
  state_share,
)
from training.optimizer import norm

State = dict[str, Any]
# How arrays are split over the devices: not at all, by rows, or by the rows of each
# micro-batch.
_ALL, _ROWS = PartitionSpec(), PartitionSpec((DATA, FSDP))
_PARTS = PartitionSpec(None, (DATA, FSDP))
Batch = Mapping[str, jax.Array]


class ModelProgram:
  """A model as compiled functions of its parameters and a batch.

  Args:
    config: the model's config.
    mesh: from `make_mesh`; the parameters are split along its `fsdp` axis.
    head: what the model learns; a key of `model.MODELS`.
  """

  def __init__(self, config: ModelConfig, *, mesh: Mesh, head: str = "pretraining"):
    self.config, self.head, self.mesh = config, head, mesh
    # Building a model is slow, even an abstract one, so it is done once.
    self._graphdef, params = abstract_model(config, head)
    self._abstract_params = nnx.to_pure_dict(params)
    self._everywhere, self._rows = replicated(mesh), split_rows(mesh)
    self.eval_step = jax.jit(
      self._eval_step,
      in_shardings=(split_state(mesh, self._abstract_params), self._rows),
      out_shardings=self._everywhere,
    )

  def put_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Splits the rows of a PackedBatch over the devices, as `training.mesh.put_batch` does.

    Raises:
      InputError: the model has no embedding for a token or token type of this process's
        rows. XLA would read another one, or compute NaN.
    """
    tells = getattr(self.config, "tells_types", False)
    for name, size in (
      ("input_ids", self.config.vocab_size),
      ("token_type_ids", getattr(self.config, "type_vocab_size", None) if tells else None),
    ):
      ids = batch.get(name)
      if ids is None or size is None or ids.size == 0:
        continue
      if ids.min() < 0 or ids.max() >= size:
        row, place = np.argwhere((ids < 0) | (ids >= size))[0]
        raise InputError(
          f"{name} is {ids[row, place]} in row {row} of a batch, at token {place}; the "
          f"model has embeddings for 0 to {size - 1}. Check the data, or use a model with "
          "its vocabulary."
        )
    return put_batch(batch, self.mesh)

  def apply(self, params, batch: Batch, *, dropout_key=None):
    """The model's outputs, from a tree of parameters."""
    within = jax.sharding.get_abstract_mesh()  # the caller's, such as in `jax.shard_map`
    mesh = self.mesh.abstract_mesh if within.empty else within
    with jax.sharding.use_abstract_mesh(mesh):  # attention may need it
      return nnx.merge(self._graphdef, params)(batch, dropout_key=dropout_key)

  def _eval_step(self, params, batch: Batch) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """The results of `losses.per_sequence`, and logits that are not over a vocabulary."""
    params = jax.lax.with_sharding_constraint(params, self._everywhere)
    outputs = self.apply(params, batch)
    logits = {} if self.head in LANGUAGE_MODELS else outputs
    return losses.per_sequence(outputs, batch), logits


_PAIRS = losses.PairLoss()


class TrainingProgram(ModelProgram):
  """A model and its optimizer as compiled functions of a state and a batch.

  The state is a dictionary: `params`; `optimizer`, Optax's state; `step`, the number of
  steps so far; and `key`, the random key of dropout. A step whose loss, gradient or
  parameters are not finite is applied, and flagged in `finite`.

  Args:
    config, mesh, head: as for `ModelProgram`; the whole state is split along `fsdp`.
    optimizer: an Optax transformation.
    seed: of the initial parameters and of dropout.
    loss_unit: the unit that has equal weight in the loss; one of `model.LOSS_UNITS`.
    accumulate: micro-batches per step. Their losses and gradients are summed and divided
      by the counts of the whole batch, so the step equals that of the whole batch. The
      batch size must be a multiple of `accumulate` times the number of devices.
    pair_loss: the loss of the head "encoder", over all texts of a step.

  Raises:
    ConfigError: JAX_PLATFORMS excludes the CPU, on which parameters are drawn; or a device
      would hold more than 1.05 / fsdp of the state.
  """

  def __init__(
    self,
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    *,
    mesh: Mesh,
    seed: int,
    head: str = "pretraining",
    loss_unit: str = "sequence",
    accumulate: int = 1,
    pair_loss: losses.PairLoss = _PAIRS,
  ):
    super().__init__(config, mesh=mesh, head=head)
    try:  # now, since a resumed run draws parameters only at its end
      drawing_device()
    except LookupError as error:
      raise ConfigError(str(error)) from error
    self._optimizer = optimizer
    self._seed = seed
    self._loss_unit, self._pair_loss = loss_unit, pair_loss
    self._accumulate = accumulate
    self._abstract = jax.eval_shape(self._state_of, self._abstract_params)
    self._shardings = split_state(mesh, self._abstract)
    self._check_split()
    self._split = jax.tree.map(lambda x: x.spec, self._shardings["params"])
    self.train_step_name = self._train_step.__name__  # as JAX's events report it
    self.train_step = jax.jit(
      self._train_step,
      in_shardings=(self._shardings, self._rows),
      out_shardings=(self._shardings, self._everywhere),
      donate_argnums=0,
    )

  def init(self, params=None) -> State:
    """Makes the state of step 0, placed on the devices.

    Args:
      params: a nested dictionary of parameters to start from; by default they are
        initialised at random.
    """
    if params is None:
      params = draw_params(self.config, self.head, seed=self._seed)
    params = jax.device_get(params)
    if self.mesh.is_multi_process:  # whose processors may draw other last bits
      params = jax.device_get(multihost_utils.broadcast_one_to_all(params))
    params = jax.tree.map(_place, params, self._shardings["params"])
    return jax.jit(self._state_of, out_shardings=self._shardings)(params)

  def abstract_state(self) -> State:
    """Shapes, types and shardings of the state, without its arrays."""
    return jax.tree.map(
      lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
      self._abstract,
      self._shardings,
    )

  def _check_split(self):
    devices, share = self.mesh.shape[FSDP], state_share(self.abstract_state())
    if share > 1.05 / devices:
      raise ConfigError(
        f"config.train.fsdp is {devices}, but a device holds {share:.1%} of the state; "
        f"expected at most {1.05 / devices:.1%}. Choose a divisor of the layers' sizes."
      )

  def _state_of(self, params) -> State:
    return {
      "params": params,
      "optimizer": self._optimizer.init(params),
      "step": jnp.zeros((), jnp.int32),
      "key": jax.random.key_data(jax.random.key(self._seed)),
    }

  def _train_step(self, state: State, batch: Batch) -> tuple[State, dict[str, Any]]:
    gradients, totals = self._gradients(state, batch)
    updates, optimizer_state = self._optimizer.update(
      gradients, state["optimizer"], state["params"]
    )
    new_state = state | {
      "params": optax.apply_updates(state["params"], updates),
      "optimizer": optimizer_state,
      "step": state["step"] + 1,
    }
    gradient_norm = norm(gradients)
    parameter_norm = norm(new_state["params"])
    seen = jnp.stack([total.total for total in totals.values()])
    finite = jnp.isfinite(jnp.array([seen.sum(), gradient_norm, parameter_norm])).all()
    one = jnp.ones(())
    totals |= {
      "gradient_norm": losses.Total(gradient_norm, one),
      "parameter_norm": losses.Total(parameter_norm, one),
    }
    counts = {
      "finite": finite,
      "sequences": _num_sequences(batch),
      "real_tokens": _real_tokens(batch),
    }
    return new_state, totals | counts

  def _gradients(self, state: State, batch: Batch):
    """Gradients of the loss of the whole batch, and totals of its losses and accuracies.

    Each device sums the gradients of its own rows, over all of its micro-batches, and then
    the devices add up theirs, once. XLA by itself would add them up in each micro-batch.
    """
    params, key = state["params"], None
    if self.config.dropout_rate > 0 or self.config.attention_dropout_rate > 0:
      key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
    if self.head == "encoder":
      return self._pair_gradients(params, batch, key)
    counts = None
    if self._accumulate > 1 or self.mesh.size > 1:  # a part does not know them
      outputs = jax.eval_shape(self.apply, params, batch)
      counts = losses.count(losses.heads_of(outputs), batch, unit=self._loss_unit)

    def of_device(params, rows, counts, key):
      gradients, totals = self._sums(params, rows, counts, key)
      everywhere = jax.tree.map(lambda _: _ALL, totals)
      return self._added_up(gradients, self._split), self._added_up(totals, everywhere)

    arguments = {"rows": (batch, _ROWS), "counts": (counts, _ALL), "key": (key, _ALL)}
    return self._on_devices(of_device, params, arguments, (self._split, _ALL))

  def _on_devices(
    self,
    work: Callable[..., Any],
    params: Any,
    arguments: Mapping[str, tuple[Any, PartitionSpec]],
    results: Any,
  ) -> Any:
    """Calls a function on each device, with whole parameters and the device's own rows.

    Args:
      work: of parameters and `arguments`.
      params: split along `fsdp`, as the state is.
      arguments: by name, each with how it is split over the devices.
      results: how those of `work` are split.
    """
    values = [value for value, _ in arguments.values()]
    if self.mesh.size == 1:
      return work(params, *values)

    def of_device(params, *values):
      return work(tree_map_with_path(self._gathered, params, self._split), *values)

    # Were the replication of the parameters checked, JAX would add up the gradients over
    # the devices in each micro-batch.
    return jax.shard_map(
      of_device,
      mesh=self.mesh,
      in_specs=(self._split, *(spec for _, spec in arguments.values())),
      out_specs=results,
      check_vma=False,
    )(params, *values)

  def _added_up(self, sums: Any, split: Any) -> Any:
    """The sums of all devices; of an array that they share, one device's part of it."""

    def of_all(sums: jax.Array, spec: PartitionSpec) -> jax.Array:
      if FSDP not in spec:
        return jax.lax.psum(sums, (DATA, FSDP))
      axis = spec.index(FSDP)
      part = jax.lax.psum_scatter(sums, FSDP, scatter_dimension=axis, tiled=True)
      return jax.lax.psum(part, DATA) if self.mesh.shape[DATA] > 1 else part

    return sums if self.mesh.size == 1 else jax.tree.map(of_all, sums, split)

  def _sums(self, params, rows: Batch, counts, key):
    """Sums over the rows of one device, or of all: gradients of the whole batch's loss,
    and totals."""

    def loss(params, part: Batch, key):
      if self.mesh.size == 1:  # no constraint, but without it XLA rounds other last bits
        params = jax.lax.with_sharding_constraint(params, self._everywhere)
      outputs = self.apply(params, part, dropout_key=key)
      return losses.loss(outputs, part, unit=self._loss_unit, counts=counts)

    gradient = jax.grad(loss, has_aux=True)
    if self._accumulate == 1:
      return gradient(params, rows, key)

    def add(sums, numbered):
      number, part = numbered
      part_key = None if key is None else jax.random.fold_in(key, number)
      return jax.tree.map(jnp.add, sums, gradient(params, part, part_key)), None

    parts = jax.tree.map(self._micro_batches, rows)
    first = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, first, key)
    )
    return jax.lax.scan(add, zeros, (jnp.arange(self._accumulate), parts))[0]

  def _gathered(self, path, part: jax.Array, spec: PartitionSpec) -> jax.Array:
    """The whole of a parameter that the devices along `fsdp` share.

    Kernels cross in the dtype in which the model multiplies by them, so nothing is lost.
    """
    if FSDP not in spec:
      return part
    is_kernel = getattr(path[-1], "key", None) == "kernel"
    sent = part.astype(self.config.dtype) if is_kernel else part
    whole = jax.lax.all_gather(sent, FSDP, axis=spec.index(FSDP), tiled=True)
    return whole.astype(part.dtype)

  def _pair_gradients(self, params, batch: Batch, key):
    """As `_gradients`, where each text is compared with those of the whole batch.

    Micro-batches are embedded twice: all of them for the loss and its gradients with
    respect to the vectors, then one by one for the gradients of parameters.

    References:
      Gao et al., https://arxiv.org/abs/2101.06983, for the second way.
    """

    def embed(params, number, part: Batch, key) -> jax.Array:
      part_key = None if key is None else jax.random.fold_in(key, number)
      outputs = self.apply(params, part, dropout_key=part_key)
      return outputs[f"sequence_{self._pair_loss.pooling}"]

    def loss(vectors, batch: Batch):
      return losses.pair_loss(vectors, batch, self._pair_loss)

    if self._accumulate == 1:

      def whole(params):
        params = jax.lax.with_sharding_constraint(params, self._everywhere)
        return loss(embed(params, 0, batch, key), batch)

      return jax.grad(whole, has_aux=True)(params)

    numbers = jnp.arange(self._accumulate)

    def forward(params, rows, key):
      parts = jax.tree.map(self._micro_batches, rows)
      return jax.lax.map(
        lambda part: embed(params, part[0], part[1], key), (numbers, parts)
      )

    def backward(params, rows, of_vectors, key):
      def add(sums, part):
        number, rows, of_part = part
        _, pull = jax.vjp(lambda x: embed(x, number, rows, key), params)
        return jax.tree.map(jnp.add, sums, *pull(of_part)), None

      parts = jax.tree.map(self._micro_batches, rows)
      zeros = jax.tree.map(jnp.zeros_like, params)
      sums, _ = jax.lax.scan(add, zeros, (numbers, parts, of_vectors))
      return self._added_up(sums, self._split)

    arguments = {"rows": (batch, _ROWS), "key": (key, _ALL)}
    vectors = self._on_devices(forward, params, arguments, _PARTS)
    parts = jax.tree.map(self._of_all_devices, batch)
    of_vectors, totals = jax.grad(loss, has_aux=True)(vectors, parts)
    arguments = {
      "rows": (batch, _ROWS),
      "of_vectors": (of_vectors, _PARTS),
      "key": (key, _ALL),
    }
    return self._on_devices(backward, params, arguments, self._split), totals

  def _micro_batches(self, rows: jax.Array) -> jax.Array:
    """[B, ...] -> [A, B / A, ...]; row r goes to micro-batch r mod A.

    Thus each device keeps its rows, and the micro-batches are the same for any number of
    devices.
    """
    return rows.reshape(-1, self._accumulate, *rows.shape[1:]).swapaxes(0, 1)

  def _of_all_devices(self, rows: jax.Array) -> jax.Array:
    """The micro-batches of all devices."""
    sharding = NamedSharding(self.mesh, _PARTS)
    return jax.lax.with_sharding_constraint(self._micro_batches(rows), sharding)


def _place(x: np.ndarray, sharding: Sharding) -> jax.Array:
  """Puts on each device its part of an array, and no more."""
  return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])


def _num_sequences(batch: Batch) -> jax.Array:
  """Sequences of a batch; of pairs, which have several texts, the records."""
  if "text_numbers" in batch:
    return (batch["text_numbers"] == 1).sum()
  return batch["sequence_mask"].sum()


def _real_tokens(batch: Batch) -> jax.Array:
  """Tokens that are not padding; batches padded with ordinary tokens carry the count."""
  if "real_tokens" in batch:
    return batch["real_tokens"].sum()
  return (batch["segment_ids"] > 0).sum()
