"""packedBERT: a BERT that computes on a pack what it computes on each sequence alone.

Against an ordinary BERT three places change, and no other: positions are looked up by
`position_ids`, attention is masked by `segment_ids`, and the heads read each sequence's
own [CLS] and its own tokens.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.
  Devlin et al., https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

from typing import ClassVar

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model import blocks
from model.attention import split_by_token_type
from model.blocks import Batch, dense, embed, gelu, layer_norm, split_key
from model.config import BertConfig


class Embeddings(blocks.Embeddings):
  """Sum of token, position and token-type embeddings, normalised."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.position = embed(config, config.max_position_embeddings, rngs)
    self.token_type = embed(config, config.type_vocab_size, rngs)
    self.layer_norm = layer_norm(config, rngs)
    self.position_reset = config.position_reset

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """A batch -> [B, S, D].

    Args:
      batch: `token_type_ids`, `position_ids` and either `input_ids`, all int32[B, S], or
        `input_embeddings` float[B, S, D], which stand in for those of tokens.
      dropout_key: None for no dropout.
    """
    position_ids = batch["position_ids"]
    if not self.position_reset:
      row_length, positions = position_ids.shape[1], self.position.num_embeddings
      if row_length > positions:
        raise ValueError(
          f"Expected rows of at most max_position_embeddings={positions} tokens where "
          f"position_reset is off, found {row_length}."
        )
      position_ids = jnp.arange(row_length)[None]
    embeddings = self.of_tokens(batch) + self.token_type(batch["token_type_ids"])
    embeddings = self.layer_norm(embeddings + self.position(position_ids))
    return self.drop(embeddings, dropout_key)


class EncoderLayer(blocks.Layer):
  """Self-attention and feed-forward, each followed by residual and LayerNorm."""

  def __call__(self, hidden, segment_ids, dropout_key=None, *, max_segments=None):
    keys = split_key(dropout_key, 3)
    attended = self.attend(hidden, segment_ids, keys[:2], max_segments=max_segments)
    hidden = self.attention_layer_norm(hidden + attended)
    return self.output_layer_norm(hidden + self.feed_forward(hidden, keys[2], gelu))


class Bert(blocks.Transformer):
  """What the models have in common: embeddings and encoder."""

  config_type: ClassVar = BertConfig

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embeddings = Embeddings(config, rngs=rngs)
    self.encoder = blocks.Stack(config, EncoderLayer, rngs=rngs)

  @property
  def stack(self) -> blocks.Stack:
    return self.encoder

  def segments(self, batch):
    segment_ids, max_segments = super().segments(batch)
    if self.config.attention_mask == "token_type":
      types = self.config.type_vocab_size
      segment_ids = split_by_token_type(
        segment_ids, batch["token_type_ids"], token_types=types
      )
      max_segments = max_segments and max_segments * types
    return segment_ids, max_segments


class BertForPreTraining(Bert):
  """Masked language modelling, and next-sentence prediction unless the config has none.

  Outputs:
    mlm_logits: [B, P, V], at the masked positions only; V with `vocab_multiple`, where
      the entries that were added are as low as a number can be.
    nsp_logits: [B, M, 2], at each sequence's own [CLS].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.mlm_transform = dense(config, config.hidden_size, config.hidden_size, rngs)
    self.mlm_layer_norm = layer_norm(config, rngs)
    self.mlm_bias = nnx.Param(jnp.zeros(config.padded_vocab_size, config.param_dtype))
    if config.next_sentence:
      self.pooler = dense(config, config.hidden_size, config.hidden_size, rngs)
      self.nsp = dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in these heads
    masked = _tokens_at(hidden, batch["mlm_positions"])
    masked = self.mlm_layer_norm(gelu(self.mlm_transform(masked)))
    table, bias = self.embeddings.token, self.mlm_bias[...]
    logits = blocks.vocabulary_logits(self.config, table, masked, bias)
    outputs = {"mlm_logits": logits}
    if self.config.next_sentence:
      outputs["nsp_logits"] = self.nsp(_pooled(self.pooler, hidden, batch))
    return outputs


class BertForSequenceClassification(Bert):
  """A class for each sequence of a pack; a number for each with `num_labels=1`.

  Outputs:
    sequence_logits: [B, M, num_labels], from each sequence's own [CLS].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.pooler = dense(config, config.hidden_size, config.hidden_size, rngs)
    self.classifier = dense(config, config.hidden_size, config.num_labels, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)

  def heads(self, hidden, batch, *, dropout_key=None):
    pooled = _pooled(self.pooler, hidden, batch)
    pooled = self.dropout(pooled, deterministic=dropout_key is None, rngs=dropout_key)
    return {"sequence_logits": self.classifier(pooled)}


class BertForTokenClassification(Bert):
  """A class for each token.

  Outputs:
    token_logits: [B, S, num_labels].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.classifier = dense(config, config.hidden_size, config.num_labels, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)

  def heads(self, hidden, batch, *, dropout_key=None):
    hidden = self.dropout(hidden, deterministic=dropout_key is None, rngs=dropout_key)
    return {"token_logits": self.classifier(hidden)}


class BertForQuestionAnswering(Bert):
  """Where the answer of each sequence starts and ends.

  Outputs:
    answer_logits: [B, S, 2], for start and end; a softmax runs over the tokens of one
      sequence, as `model.losses` and `model.losses.answer_scores` do.
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.answer = dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in this head
    return {"answer_logits": self.answer(hidden)}


def _tokens_at(hidden: jax.Array, positions: jax.Array) -> jax.Array:
  """[B, S, D] at int32[B, P] -> [B, P, D]."""
  return jnp.take_along_axis(hidden, positions[:, :, None], axis=1)


def _pooled(pooler: nnx.Linear, hidden: jax.Array, batch: Batch) -> jax.Array:
  """[B, S, D] -> [B, M, D]: each sequence's own [CLS], through the pooler."""
  return jnp.tanh(pooler(_tokens_at(hidden, batch["cls_positions"])))
