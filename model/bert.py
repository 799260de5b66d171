"""packedBERT: a BERT that computes on a pack what it computes on each sequence alone.

Against an ordinary BERT three places change, and no other: positions are looked up by
`position_ids`, attention is masked by `segment_ids`, and the heads read each sequence's
own [CLS] and its own masked tokens.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.
  Devlin et al., https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model.attention import (
  dot_product_attention,
  packed_attention_mask,
  padding_attention_mask,
)
from model.config import BertConfig

gelu = functools.partial(jax.nn.gelu, approximate=False)


def _dense(config: BertConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
  return nnx.Linear(
    inputs,
    outputs,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    kernel_init=nnx.initializers.truncated_normal(config.initializer_range),
    rngs=rngs,
  )


def _embed(config: BertConfig, entries: int, rngs: nnx.Rngs) -> nnx.Embed:
  return nnx.Embed(
    entries,
    config.hidden_size,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    embedding_init=nnx.initializers.truncated_normal(config.initializer_range),
    rngs=rngs,
  )


def _layer_norm(config: BertConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  return nnx.LayerNorm(
    config.hidden_size,
    epsilon=config.layer_norm_epsilon,
    use_fast_variance=False,  # the fast form cancels, and packed = unpacked asks for digits
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


class Embeddings(nnx.Module):
  """Sum of token, position and token-type embeddings, normalised."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.token = _embed(config, config.vocab_size, rngs)
    self.position = _embed(config, config.max_position_embeddings, rngs)
    self.token_type = _embed(config, config.type_vocab_size, rngs)
    self.layer_norm = _layer_norm(config, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)
    self.position_reset = config.position_reset

  def __call__(self, input_ids, token_type_ids, position_ids, *, rngs=None) -> jax.Array:
    """int32[B, S] each -> [B, S, D]."""
    if not self.position_reset:
      position_ids = jnp.arange(input_ids.shape[1])[None]
    embeddings = self.token(input_ids) + self.token_type(token_type_ids)
    embeddings = self.layer_norm(embeddings + self.position(position_ids))
    return self.dropout(embeddings, deterministic=rngs is None, rngs=rngs)


class EncoderLayer(nnx.Module):
  """Self-attention and feed-forward, each followed by residual and LayerNorm."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    width = config.hidden_size
    self.num_heads = config.num_heads
    self.query = _dense(config, width, width, rngs)
    self.key = _dense(config, width, width, rngs)
    self.value = _dense(config, width, width, rngs)
    self.attention_output = _dense(config, width, width, rngs)
    self.attention_layer_norm = _layer_norm(config, rngs)
    self.intermediate = _dense(config, width, config.intermediate_size, rngs)
    self.output = _dense(config, config.intermediate_size, width, rngs)
    self.output_layer_norm = _layer_norm(config, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)

  def __call__(self, hidden: jax.Array, mask: jax.Array, *, rngs=None) -> jax.Array:
    """[B, S, D] -> [B, S, D]; mask as in `dot_product_attention`."""
    split = lambda x: x.reshape(*x.shape[:2], self.num_heads, -1)  # noqa: E731
    drop = functools.partial(self.dropout, deterministic=rngs is None, rngs=rngs)
    attended = dot_product_attention(
      split(self.query(hidden)),
      split(self.key(hidden)),
      split(self.value(hidden)),
      mask,
      dropout=self.dropout,
      rngs=rngs,
    ).reshape(hidden.shape)
    hidden = self.attention_layer_norm(hidden + drop(self.attention_output(attended)))
    return self.output_layer_norm(
      hidden + drop(self.output(gelu(self.intermediate(hidden))))
    )


class Encoder(nnx.Module):
  """The stack of layers, under one mask built from the packs."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.layers = nnx.List(
      EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)
    )
    masks = {"segment": packed_attention_mask, "none": padding_attention_mask}
    self.make_mask = masks[config.attention_mask]

  def __call__(
    self, embeddings: jax.Array, segment_ids: jax.Array, *, rngs=None
  ) -> jax.Array:
    """[B, S, D] and int32[B, S] -> [B, S, D]."""
    mask = self.make_mask(segment_ids)
    hidden = embeddings
    for layer in self.layers:
      hidden = layer(hidden, mask, rngs=rngs)
    return hidden


class BertForPreTraining(nnx.Module):
  """Masked language modelling and next-sentence prediction on packs."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embeddings = Embeddings(config, rngs=rngs)
    self.encoder = Encoder(config, rngs=rngs)
    self.mlm_transform = _dense(config, config.hidden_size, config.hidden_size, rngs)
    self.mlm_layer_norm = _layer_norm(config, rngs)
    self.mlm_bias = nnx.Param(jnp.zeros(config.vocab_size, config.param_dtype))
    self.pooler = _dense(config, config.hidden_size, config.hidden_size, rngs)
    self.nsp = _dense(config, config.hidden_size, 2, rngs)

  def __call__(
    self, batch: Mapping[str, jax.Array], *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """Logits of both heads.

    Args:
      batch: the fields of a PackedBatch; B packs of S tokens, P masked tokens and M
        sequences at most.
      dropout_key: a PRNG key; None for no dropout.

    Returns:
      mlm_logits: [B, P, V], at the masked positions only.
      nsp_logits: [B, M, 2], at each sequence's own [CLS].
    """
    rngs = None if dropout_key is None else nnx.Rngs(dropout=dropout_key)
    embeddings = self.embeddings(
      batch["input_ids"], batch["token_type_ids"], batch["position_ids"], rngs=rngs
    )
    hidden = self.encoder(embeddings, batch["segment_ids"], rngs=rngs)
    return self.heads(hidden, batch)

  def heads(
    self, hidden: jax.Array, batch: Mapping[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """[B, S, D] -> the logits of `__call__`."""
    masked = _tokens_at(hidden, batch["mlm_positions"])
    masked = self.mlm_layer_norm(gelu(self.mlm_transform(masked)))
    mlm_logits = self.embeddings.token.attend(masked) + self.mlm_bias[None, None]
    pooled = jnp.tanh(self.pooler(_tokens_at(hidden, batch["cls_positions"])))
    return {"mlm_logits": mlm_logits, "nsp_logits": self.nsp(pooled)}


def _tokens_at(hidden: jax.Array, positions: jax.Array) -> jax.Array:
  """[B, S, D] at int32[B, P] -> [B, P, D]."""
  return jnp.take_along_axis(hidden, positions[:, :, None], axis=1)
