"""The blocks that models share: layers, their stack, and logits over the vocabulary."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import losses, products
from model.attention import attention
from model.config import ModelConfig
from model.dropout import dropout
from model.layer_norm import LayerNorm

Batch = Mapping[str, jax.Array]


class Rows(NamedTuple):
  """What layers know about the rows of a batch, besides the hidden states.

  Attributes:
    segment_ids: int32[B, S]; attention stays within equal ids, 0 is padding.
    position_ids: int32[B, S], or [1, S] if all rows share them.
    max_segments: the largest possible segment id; None if unknown.
  """

  segment_ids: jax.Array
  position_ids: jax.Array
  max_segments: int | None


def gelu(x: jax.Array) -> jax.Array:
  """x Phi(x), computed with erf as in the original BERT, in at least float32.

  `jax.nn.gelu` uses erfc, which keeps more digits of results near zero (for x below -4) but
  is slower on CPUs.

  References:
    Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415.
  """
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def tanh_gelu(x: jax.Array) -> jax.Array:
  """x Phi(x) in the tanh approximation that GPT-2 uses, in at least float32."""
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  return jax.nn.gelu(wide, approximate=True).astype(x.dtype)


class Linear(nnx.Linear):
  """Flax's Linear, except that it adds the bias in at least float32.

  The bias's gradient, a sum over all tokens, is then summed in that dtype, too. In
  bfloat16, most terms of such a long sum would be lost.
  """

  def __call__(self, inputs):  # type: ignore[override]
    dtype = self.dtype or inputs.dtype
    product = products.linear_product(inputs.astype(dtype), self.kernel[...].astype(dtype))
    if self.bias is None:
      return product
    wide = np.promote_types(product.dtype, np.float32)
    bias = self.bias[...].astype(wide).reshape(*[1] * (inputs.ndim - 1), -1)
    return (product.astype(wide) + bias).astype(product.dtype)


class Embed(nnx.Embed):
  """Flax's Embed, except that embeddings have the dtype of the parameters.

  They are added, and their gradients summed over all tokens, in that dtype. An id beyond
  the table gives NaN, and -1 the last entry; Flax ignores the ids of a table of one entry.
  """

  def __call__(self, inputs):  # type: ignore[override]
    return jnp.take(self.embedding[...], inputs, axis=0)


def dense(
  config: ModelConfig,
  inputs: int,
  outputs: int,
  rngs: nnx.Rngs,
  *,
  initializer_range: float | None = None,
  use_bias: bool | None = None,
) -> Linear:
  """A linear layer; `initializer_range` and `use_bias` override the config's values."""
  return Linear(
    inputs,
    outputs,
    use_bias=config.USE_BIAS if use_bias is None else use_bias,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    kernel_init=nnx.initializers.truncated_normal(
      initializer_range or config.initializer_range
    ),
    rngs=rngs,
  )


def embed(config: ModelConfig, entries: int, rngs: nnx.Rngs) -> Embed:
  """An embedding table."""
  return Embed(
    entries,
    config.embedding_width,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    embedding_init=nnx.initializers.truncated_normal(config.initializer_range),
    rngs=rngs,
  )


def layer_norm(
  config: ModelConfig, rngs: nnx.Rngs, *, width: int | None = None
) -> LayerNorm:
  """A LayerNorm of the model's width, or of another."""
  return LayerNorm(
    width or config.hidden_size,
    epsilon=config.layer_norm_epsilon,
    use_bias=config.USE_BIAS,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


def split_key(key: jax.Array | None, num: int):
  return [None] * num if key is None else jax.random.split(key, num)


class Embeddings(nnx.Module):
  """The token table and dropout; models add their other embeddings."""

  def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
    self.token = embed(config, config.vocab_size, rngs)
    self.dropout_rate = config.dropout_rate

  def __call__(
    self, batch: Batch, rows: Rows, dropout_key: jax.Array | None = None
  ) -> jax.Array:
    """A batch -> float[B, S, D]; without a key, there is no dropout."""
    raise NotImplementedError

  def of_tokens(self, batch: Batch) -> jax.Array:
    """The batch's `input_embeddings` float[B, S, E], or else those of its `input_ids`.

    In the dtype of the parameters.
    """
    if "input_embeddings" not in batch:
      return self.token(batch["input_ids"])
    return batch["input_embeddings"].astype(self.token.param_dtype)


class Layer(nnx.Module):
  """Self-attention and feed-forward; a subclass places the residuals and LayerNorms.

  The LayerNorms are named after their branch, not their place in it, because checkpoints,
  digests and the optimizer's weight decay use these names. BERT normalises after a branch,
  GPT-2 before it.

  Args:
    config: the config of the model.
    number: the number of the layer, from 0.
  """

  gated: ClassVar[bool] = False  # whether the feed-forward layer is gated

  def __init__(self, config: ModelConfig, number: int, *, rngs: nnx.Rngs):
    width, inner = config.hidden_size, config.intermediate_size
    into_residual = config.residual_range
    self.config, self.number = config, number
    linear_layer = functools.partial(dense, config, rngs=rngs)
    self.query = linear_layer(width, width)
    self.key = linear_layer(width, width)
    self.value = linear_layer(width, width)
    self.attention_output = linear_layer(width, width, initializer_range=into_residual)
    self.attention_layer_norm = layer_norm(config, rngs)
    self.intermediate = linear_layer(width, inner * (2 if self.gated else 1))
    self.output = linear_layer(inner, width, initializer_range=into_residual)
    self.output_layer_norm = layer_norm(config, rngs)

  def __call__(
    self, hidden: jax.Array, rows: Rows, dropout_key: jax.Array | None = None
  ) -> jax.Array:
    """float[B, S, D] -> float[B, S, D]; without a key, there is no dropout."""
    raise NotImplementedError

  def attend(self, x: jax.Array, rows: Rows, keys) -> jax.Array:
    """Self-attention; `keys` are for dropout of its probabilities and of its output."""
    output = self.attention_output(self.attended(x, rows, keys[0]))
    return dropout(output, self.config.dropout_rate, keys[1])

  def attended(self, x: jax.Array, rows: Rows, key) -> jax.Array:
    """What the heads of self-attention give, side by side: [B, S, D] -> [B, S, D]."""
    config = self.config
    heads = lambda x: x.reshape(*x.shape[:2], config.num_heads, -1)  # noqa: E731
    return attention(
      self.place(heads(self.query(x)), rows),
      self.place(heads(self.key(x)), rows),
      heads(self.value(x)),
      rows.segment_ids,
      spec=config.attention_of(self.number),
      implementation=config.attention_impl,
      max_segments=rows.max_segments,
      dropout_key=key,
    ).reshape(x.shape)

  def place(self, x: jax.Array, rows: Rows) -> jax.Array:
    """Applies rotary positions to queries or keys, [B, S, N, H]; by default, nothing."""
    del rows
    return x

  def feed_forward(self, x: jax.Array, key, activation: Callable) -> jax.Array:
    output = self.output(activation(self.intermediate(x)))
    return dropout(output, self.config.dropout_rate, key)


class Stack(nnx.Module):
  """A sequence of layers."""

  def __init__(self, config: ModelConfig, layer: type[Layer], *, rngs: nnx.Rngs):
    self.config = config
    self.layers = nnx.List(
      layer(config, number, rngs=rngs) for number in range(config.num_layers)
    )

  def __call__(
    self, embeddings: jax.Array, rows: Rows, dropout_key: jax.Array | None = None
  ) -> list[jax.Array]:
    """float[B, S, D] -> the outputs of all layers, each float[B, S, D]."""

    def call(layer: Layer, hidden: jax.Array, key: jax.Array | None) -> jax.Array:
      return layer(hidden, rows, key)

    apply_layer = nnx.remat(call) if self.config.remat == "layers" else call
    states = [embeddings]
    for layer, key in zip(
      self.layers, split_key(dropout_key, len(self.layers)), strict=True
    ):
      states.append(apply_layer(layer, states[-1], key))
    return states[1:]


class Transformer(nnx.Module):
  """The base of all models: embeddings, a stack of layers, and heads.

  A subclass names its parts, adds the parameters of its heads, and computes `heads`. The
  stack is stored as the attribute `stack_name`, because checkpoints use that name for its
  parameters.
  """

  config_type: ClassVar[type[ModelConfig]]
  embeddings_type: ClassVar[type[Embeddings]]
  layer_type: ClassVar[type[Layer]]
  stack_name: ClassVar[str]

  def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embeddings = self.embeddings_type(config, rngs=rngs)
    setattr(self, self.stack_name, Stack(config, self.layer_type, rngs=rngs))

  @property
  def stack(self) -> Stack:
    return getattr(self, self.stack_name)

  def __call__(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """The logits of `heads`.

    Args:
      batch: the fields of a PackedBatch: B packs of S tokens, with at most P masked tokens
        and M sequences each. `input_embeddings` may replace `input_ids`.
      dropout_key: a PRNG key; None for no dropout.
    """
    stack_key, head_key = split_key(dropout_key, 2)
    hidden = list(self.hidden_states(batch, dropout_key=stack_key).values())[-1]
    return self.heads(hidden, batch, dropout_key=head_key)

  def hidden_states(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """The states `embeddings`, `layer 1`, `layer 2`, ..., each float[B, S, D]."""
    embeddings_key, stack_key = split_key(dropout_key, 2)
    rows = self.rows(batch)
    embeddings = self.embeddings(batch, rows, embeddings_key)
    states = self.stack(embeddings, rows, stack_key)
    return {"embeddings": embeddings} | {
      f"layer {number}": state for number, state in enumerate(states, start=1)
    }

  def rows(self, batch: Batch) -> Rows:
    """What the layers need to know about the rows of a batch."""
    max_segments = batch["sequence_mask"].shape[1] if "sequence_mask" in batch else None
    return Rows(batch["segment_ids"], batch["position_ids"], max_segments)

  def heads(
    self, hidden: jax.Array, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """float[B, S, D] -> logits by name; `model.losses` defines what each name means."""
    raise NotImplementedError


def tokens_at(hidden: jax.Array, positions: jax.Array) -> jax.Array:
  """[B, S, D] and positions int32[B, P] -> [B, P, D]."""
  return jnp.take_along_axis(hidden, positions[:, :, None], axis=1)


def pool(pooling: str, hidden: jax.Array, batch: Batch) -> jax.Array:
  """[B, S, D] -> [B, M, D]: for each sequence, its [CLS] ("cls") or its mean ("mean")."""
  if pooling == "cls":
    return tokens_at(hidden, batch["cls_positions"])
  max_sequences = batch["sequence_mask"].shape[1]
  return losses.mean_of_tokens(hidden, batch["segment_ids"], max_sequences)


def vocabulary_logits(
  table: nnx.Embed, hidden: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
  """Logits over the vocabulary, by the token embeddings: [B, P, D] -> [B, P, V]."""
  embedding = table.embedding[...].astype(hidden.dtype)
  bias = None if bias is None else bias.astype(hidden.dtype)
  return products.vocabulary_products(hidden, embedding, bias)
