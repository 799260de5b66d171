"""The compiled evaluation and training steps over a mesh of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, Sharding

from model import LANGUAGE_MODELS, ModelConfig, losses
from model.models import abstract_model, draw_params, drawing_device
from training.errors import ConfigError
from training.mesh import DATA, FSDP, replicated, split_rows, split_state, state_share
from training.optimizer import norm

State = dict[str, Any]
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
    loss_unit: the unit that has equal weight in the loss; a key of `model.LOSS_UNITS`.
    accumulate: micro-batches per step. Their losses and gradients are summed and divided
      by the counts of the whole batch, so the step equals that of the whole batch. The
      batch size must be a multiple of `accumulate` times the number of devices.
    pair_loss: the loss of the head "encoder", over all texts of a step.

  Raises:
    ConfigError: JAX_PLATFORMS excludes the CPU, on which parameters are drawn.
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

    Raises:
      ConfigError: a device would hold more than 1.05 / fsdp of the state.
    """
    self._check_split()
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
    """Gradients of the loss of the whole batch, and totals of its losses and accuracies."""
    key = None
    if self.config.dropout_rate > 0 or self.config.attention_dropout_rate > 0:
      key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
    if self.head == "encoder":
      return self._pair_gradients(state["params"], batch, key)

    def loss(params, part: Batch, key, counts=None):
      # Gathered before use, so that devices along `fsdp` compute like all others.
      params = jax.lax.with_sharding_constraint(params, self._everywhere)
      outputs = self.apply(params, part, dropout_key=key)
      return losses.loss(outputs, part, unit=self._loss_unit, counts=counts)

    gradient = jax.grad(loss, has_aux=True)
    if self._accumulate == 1:
      return gradient(state["params"], batch, key)

    outputs = jax.eval_shape(self.apply, state["params"], batch)
    counts = losses.count(losses.heads_of(outputs), batch, unit=self._loss_unit)

    def add(sums, numbered):
      number, part = numbered
      part_key = None if key is None else jax.random.fold_in(key, number)
      gradients, totals = gradient(state["params"], part, part_key, counts)
      gradients = jax.lax.with_sharding_constraint(gradients, self._shardings["params"])
      return jax.tree.map(jnp.add, sums, (gradients, totals)), None

    parts = jax.tree.map(self._split, batch)
    zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype),
      jax.eval_shape(
        gradient, state["params"], jax.tree.map(lambda x: x[0], parts), key, counts
      ),
    )
    return jax.lax.scan(add, zeros, (jnp.arange(self._accumulate), parts))[0]

  def _pair_gradients(self, params, batch: Batch, key):
    """As `_gradients`, where each text is compared with those of the whole batch.

    Micro-batches are embedded twice: all of them for the loss and its gradients with
    respect to the vectors, then one by one for the gradients of parameters.

    References:
      Gao et al., https://arxiv.org/abs/2101.06983, for the second way.
    """

    def embed(params, number, part: Batch) -> jax.Array:
      params = jax.lax.with_sharding_constraint(params, self._everywhere)
      part_key = None if key is None else jax.random.fold_in(key, number)
      outputs = self.apply(params, part, dropout_key=part_key)
      return outputs[f"sequence_{self._pair_loss.pooling}"]

    def loss(vectors, batch: Batch):
      return losses.pair_loss(vectors, batch, self._pair_loss)

    if self._accumulate == 1:
      whole = jax.grad(lambda x: loss(embed(x, 0, batch), batch), has_aux=True)
      return whole(params)
    parts = jax.tree.map(self._split, batch)
    numbered = jnp.arange(self._accumulate), parts
    vectors = jax.lax.map(lambda part: embed(params, *part), numbered)
    of_vectors, totals = jax.grad(loss, has_aux=True)(vectors, parts)

    def add(sums, part):
      number, rows, of_part = part
      _, backward = jax.vjp(lambda x: embed(x, number, rows), params)
      sums = jax.tree.map(jnp.add, sums, *backward(of_part))
      return jax.lax.with_sharding_constraint(sums, self._shardings["params"]), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, zeros, (*numbered, of_vectors))[0], totals

  def _split(self, rows: jax.Array) -> jax.Array:
    """[B, ...] -> [A, B / A, ...]; row r goes to micro-batch r mod A.

    Thus each device keeps its rows, and the micro-batches are the same for any number of
    devices.
    """
    parts = rows.reshape(-1, self._accumulate, *rows.shape[1:]).swapaxes(0, 1)
    spec = jax.sharding.PartitionSpec(None, (DATA, FSDP))
    sharding = jax.sharding.NamedSharding(self.mesh, spec)
    return jax.lax.with_sharding_constraint(parts, sharding)


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
