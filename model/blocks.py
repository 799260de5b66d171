"""The blocks that models share: layers, their stack, and logits over the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model.attention import attention
from model.config import ModelConfig

Batch = Mapping[str, jax.Array]


def gelu(x: jax.Array) -> jax.Array:
  """x Phi(x), by erf as in the original BERT, in at least float32.

  `jax.nn.gelu` takes erfc, which keeps more digits of what is next to nothing (below -4)
  and is slower on CPUs.

  References:
    Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415.
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def tanh_gelu(x: jax.Array) -> jax.Array:
  """x Phi(x) by the approximation of GPT-2, in at least float32."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return jax.nn.gelu(wide, approximate=True).astype(x.dtype)


def dense(
  config: ModelConfig,
  inputs: int,
  outputs: int,
  rngs: nnx.Rngs,
  *,
  initializer_range: float | None = None,
) -> nnx.Linear:
  """Of the config's types and, if not told otherwise, its initializer range."""
  return nnx.Linear(
    inputs,
    outputs,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    kernel_init=nnx.initializers.truncated_normal(
      initializer_range or config.initializer_range
    ),
    rngs=rngs,
  )


def embed(
  config: ModelConfig, entries: int, rngs: nnx.Rngs, *, rows: int | None = None
) -> nnx.Embed:
  """Of more `rows` than entries the rest are zeros, and stay so in training."""
  draw = nnx.initializers.truncated_normal(config.initializer_range)

  def init(key, shape, dtype):
    drawn = draw(key, (entries, shape[1]), dtype)
    return jnp.pad(drawn, ((0, shape[0] - entries), (0, 0)))

  return nnx.Embed(
    rows or entries,
    config.hidden_size,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    embedding_init=init,
    rngs=rngs,
  )


def layer_norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  return nnx.LayerNorm(
    config.hidden_size,
    epsilon=config.layer_norm_epsilon,
    use_fast_variance=False,  # the fast form cancels, and packed = unpacked asks for digits
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


def split_key(key: jax.Array | None, num: int):
  return [None] * num if key is None else jax.random.split(key, num)


class Embeddings(nnx.Module):
  """The table of tokens, and dropout; a model adds to it what else it embeds."""

  def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
    rows = config.padded_vocab_size
    self.token = embed(config, config.vocab_size, rngs, rows=rows)
    self.dropout = nnx.Dropout(config.dropout_rate)

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """A batch -> [B, S, D]; None for no dropout."""
    raise NotImplementedError

  def of_tokens(self, batch: Batch) -> jax.Array:
    """`input_embeddings` float[B, S, D], or those of `input_ids` int32[B, S]."""
    if "input_embeddings" not in batch:
      return self.token(batch["input_ids"])
    embeddings = batch["input_embeddings"].astype(self.token.dtype)
    expected = (*batch["segment_ids"].shape, self.token.features)
    if embeddings.shape != expected:
      raise ValueError(
        f"Expected input_embeddings of shape [B, S, D] = {expected}, found "
        f"{embeddings.shape}."
      )
    return embeddings

  def drop(self, embeddings: jax.Array, key: jax.Array | None) -> jax.Array:
    return self.dropout(embeddings, deterministic=key is None, rngs=key)


class Layer(nnx.Module):
  """Self-attention and feed-forward; a subclass says where residual and LayerNorm go.

  Args:
    config: of the model.
    residual_range: the initializer range of what is added to the residual; that of the
      config if not given.
  """

  def __init__(
    self, config: ModelConfig, *, rngs: nnx.Rngs, residual_range: float | None = None
  ):
    width, inner = config.hidden_size, config.intermediate_size
    self.config = config
    self.query = dense(config, width, width, rngs)
    self.key = dense(config, width, width, rngs)
    self.value = dense(config, width, width, rngs)
    self.attention_output = dense(
      config, width, width, rngs, initializer_range=residual_range
    )
    self.attention_layer_norm = layer_norm(config, rngs)
    self.intermediate = dense(config, width, inner, rngs)
    self.output = dense(config, inner, width, rngs, initializer_range=residual_range)
    self.output_layer_norm = layer_norm(config, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)

  def __call__(
    self,
    hidden: jax.Array,
    segment_ids: jax.Array,
    dropout_key: jax.Array | None = None,
    *,
    max_segments: int | None = None,
  ) -> jax.Array:
    """[B, S, D] -> [B, S, D]; the rest as in `model.attention.attention`."""
    raise NotImplementedError

  def attend(self, x: jax.Array, segment_ids: jax.Array, keys, **options) -> jax.Array:
    """Self-attention and its dropouts; `options` are those of `attention`."""
    config = self.config
    split = lambda x: x.reshape(*x.shape[:2], config.num_heads, -1)  # noqa: E731
    attended = attention(
      split(self.query(x)),
      split(self.key(x)),
      split(self.value(x)),
      segment_ids,
      implementation=config.attention_impl,
      mask="none" if config.attention_mask == "none" else "segment",
      dropout_rate=config.attention_dropout_rate,
      dropout_key=keys[0],
      **options,
    ).reshape(x.shape)
    return self._drop(self.attention_output(attended), keys[1])

  def feed_forward(self, x: jax.Array, key, activation: Callable) -> jax.Array:
    return self._drop(self.output(activation(self.intermediate(x))), key)

  def _drop(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
    return self.dropout(x, deterministic=key is None, rngs=key)


class Stack(nnx.Module):
  """Layers one after the other."""

  def __init__(self, config: ModelConfig, layer: type[Layer], *, rngs: nnx.Rngs):
    self.config = config
    self.layers = nnx.List(layer(config, rngs=rngs) for _ in range(config.num_layers))

  def __call__(
    self,
    embeddings: jax.Array,
    segment_ids: jax.Array,
    *,
    max_segments: int | None = None,
    dropout_key: jax.Array | None = None,
  ) -> list[jax.Array]:
    """[B, S, D] -> what each layer gives, [B, S, D] each."""

    def call(layer: Layer, *args) -> jax.Array:
      return layer(*args, max_segments=max_segments)

    apply_layer = nnx.remat(call) if self.config.remat == "layers" else call
    states = [embeddings]
    keys = split_key(dropout_key, len(self.layers))
    for layer, key in zip(self.layers, keys, strict=True):
      states.append(apply_layer(layer, states[-1], segment_ids, key))
    return states[1:]


class Transformer(nnx.Module):
  """What all models have in common: `embeddings`, a `stack`, and heads."""

  config_type: ClassVar[type[ModelConfig]]
  embeddings: Embeddings

  def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
    raise NotImplementedError

  def __call__(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """The logits of `heads`.

    Args:
      batch: the fields of a PackedBatch; B packs of S tokens, P masked tokens and M
        sequences at most. `input_embeddings` may stand in for `input_ids`.
      dropout_key: a PRNG key; None for no dropout.
    """
    stack_key, head_key = split_key(dropout_key, 2)
    hidden = list(self.hidden_states(batch, dropout_key=stack_key).values())[-1]
    return self.heads(hidden, batch, dropout_key=head_key)

  def hidden_states(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """[B, S, D] each: `embeddings`, `layer 1`, `layer 2`, ..."""
    keys = split_key(dropout_key, 2)
    embeddings = self.embeddings(batch, dropout_key=keys[0])
    segment_ids, max_segments = self.segments(batch)
    states = self.stack(
      embeddings, segment_ids, max_segments=max_segments, dropout_key=keys[1]
    )
    return {"embeddings": embeddings} | {
      f"layer {number}": state for number, state in enumerate(states, start=1)
    }

  @property
  def stack(self) -> Stack:
    raise NotImplementedError

  def segments(self, batch: Batch) -> tuple[jax.Array, int | None]:
    """int32[B, S], by which attention tells sequences apart, and the largest there is."""
    max_segments = batch["sequence_mask"].shape[1] if "sequence_mask" in batch else None
    return batch["segment_ids"], max_segments

  def heads(
    self, hidden: jax.Array, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """[B, S, D] -> logits by name; `model.losses` says what each name means."""
    raise NotImplementedError


def vocabulary_logits(
  config: ModelConfig, table: nnx.Embed, hidden: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
  """Logits over the vocabulary by the embeddings of its tokens, [B, P, D] -> [B, P, V].

  The entries that `vocab_multiple` adds are as low as a number can be.
  """
  embedding = table.embedding[...].astype(hidden.dtype)
  bias = None if bias is None else bias.astype(hidden.dtype)
  logits = _products(hidden, embedding, bias)
  if config.padded_vocab_size > config.vocab_size:
    exists = jnp.arange(logits.shape[-1]) < config.vocab_size
    logits = jnp.where(exists[None, None], logits, jnp.finfo(logits.dtype).min)
  return logits


@jax.custom_vjp
def _products(hidden: jax.Array, embedding: jax.Array, bias: jax.Array | None) -> jax.Array:
  """[B, P, D], [V, D] and [V] -> [B, P, V], all of one type.

  The gradients are products for which XLA transposes no [B, P, V] on CPUs; that is most
  of what this head has in memory. For reverse-mode differentiation only.
  """
  products = jnp.einsum("BPD,VD->BPV", hidden, embedding)
  return products if bias is None else products + bias[None, None]


def _products_forward(hidden, embedding, bias):
  return _products(hidden, embedding, bias), (hidden, embedding, bias)


def _products_backward(saved, gradient):
  hidden, embedding, bias = saved
  of_hidden = jnp.einsum("BPV,VD->BPD", gradient, embedding)
  of_embedding = jnp.einsum("BPD,BPV->DV", hidden, gradient).T
  if bias is None:
    return of_hidden, of_embedding, None
  ones = jnp.ones(gradient.shape[:2], gradient.dtype)
  return of_hidden, of_embedding, jnp.einsum("BP,BPV->V", ones, gradient)


_products.defvjp(_products_forward, _products_backward)
