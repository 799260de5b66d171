"""packedBERT: a BERT that computes for a pack what it computes for each sequence alone.

RoBERTa, DistilBERT and ELECTRA are the same model with other values: where positions begin,
how wide embeddings are, what is absent, and the layer before a class (`model.VARIANTS`).

It differs from an ordinary BERT in only three places: positions are looked up by
`position_ids`, attention is masked by `segment_ids`, and the heads read each sequence's own
[CLS] and its own tokens.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.
  Devlin et al., https://arxiv.org/abs/1810.04805.
  Liu et al. (RoBERTa), https://arxiv.org/abs/1907.11692.
  Sanh et al. (DistilBERT), https://arxiv.org/abs/1910.01108.
  Clark et al. (ELECTRA), https://arxiv.org/abs/2003.10555.
"""

from __future__ import annotations

from typing import ClassVar

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model import blocks
from model.blocks import (
  Batch,
  dense,
  embed,
  gelu,
  layer_norm,
  pool,
  split_key,
  tokens_at,
)
from model.config import VARIANTS, BertConfig
from model.dropout import dropout
from model.masks import split_by_token_type

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": gelu}


class Embeddings(blocks.Embeddings):
  """Sum of token, position and token-type embeddings, normalised; projected if narrow."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.config, width = config, config.embedding_width
    entries = config.position_offset + config.max_position_embeddings
    self.position = embed(config, entries, rngs)
    if config.type_vocab_size:
      self.token_type = embed(config, config.type_vocab_size, rngs)
    self.layer_norm = layer_norm(config, rngs, width=width)
    if width != config.hidden_size:
      self.projection = dense(config, width, config.hidden_size, rngs)

  def __call__(self, batch, rows, dropout_key=None):
    config, embeddings = self.config, self.of_tokens(batch)
    if config.type_vocab_size:
      types = batch["token_type_ids"]
      if not config.tells_types:  # as in RoBERTa: nothing tells sentence A from B
        types = jnp.zeros_like(types)
      embeddings += self.token_type(types)
    places = rows.position_ids + config.position_offset
    embeddings = self.layer_norm(embeddings + self.position(places))
    embeddings = dropout(embeddings, self.dropout_rate, dropout_key)
    is_narrow = config.embedding_width != config.hidden_size
    return self.projection(embeddings) if is_narrow else embeddings


class EncoderLayer(blocks.Layer):
  """Self-attention and feed-forward, each followed by the residual sum and LayerNorm."""

  def __call__(self, hidden, rows, dropout_key=None):
    keys = split_key(dropout_key, 3)
    hidden = self.attention_layer_norm(hidden + self.attend(hidden, rows, keys[:2]))
    return self.output_layer_norm(hidden + self.feed_forward(hidden, keys[2], gelu))


class Bert(blocks.Transformer):
  """The base of all BERTs: embeddings and encoder."""

  config_type: ClassVar = BertConfig
  embeddings_type: ClassVar = Embeddings
  layer_type: ClassVar = EncoderLayer
  stack_name: ClassVar = "encoder"
  config: BertConfig

  def rows(self, batch):
    rows = super().rows(batch)
    if not self.config.position_reset:
      row_length, most = batch["segment_ids"].shape[1], self.config.max_position_embeddings
      if row_length > most:
        raise ValueError(
          f"Rows of {row_length} tokens need as many max_position_embeddings, not {most}."
        )
      rows = rows._replace(position_ids=jnp.arange(row_length)[None])
    if self.config.attention_mask == "token_type":
      types = self.config.type_vocab_size
      rows = rows._replace(
        segment_ids=split_by_token_type(
          rows.segment_ids, batch["token_type_ids"], token_types=types
        ),
        max_segments=rows.max_segments and rows.max_segments * types,
      )
    return rows


class BertModel(Bert):
  """The encoder alone, for embeddings of sequences.

  Outputs:
    sequence_mean: [B, M, D], the mean over each sequence's tokens, with [CLS] and [SEP].
    sequence_cls: [B, M, D], the hidden state of each sequence's own [CLS].
    sequence_pooled: [B, M, D], the output of the pooler for that [CLS], if the config has a
      pooler.
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    if config.pooler:
      self.pooler = dense(config, config.hidden_size, config.hidden_size, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key
    outputs = {f"sequence_{name}": pool(name, hidden, batch) for name in ("mean", "cls")}
    if self.config.pooler:
      outputs["sequence_pooled"] = _pooled(self.pooler, hidden, batch)
    return outputs


class BertForPreTraining(Bert):
  """Masked language modelling, and next-sentence prediction if the config has it.

  Outputs:
    mlm_logits: [B, P, V], at the masked positions only.
    nsp_logits: [B, M, 2], at each sequence's own [CLS].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    width = config.embedding_width
    self.mlm_transform = dense(config, config.hidden_size, width, rngs)
    self.mlm_layer_norm = layer_norm(config, rngs, width=width)
    self.mlm_bias = nnx.Param(jnp.zeros(config.vocab_size, config.param_dtype))
    if config.next_sentence:
      self.pooler = dense(config, config.hidden_size, config.hidden_size, rngs)
      self.nsp = dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in these heads
    masked = tokens_at(hidden, batch["mlm_positions"])
    masked = self.mlm_layer_norm(gelu(self.mlm_transform(masked)))
    table, bias = self.embeddings.token, self.mlm_bias[...]
    logits = blocks.vocabulary_logits(table, masked, bias)
    outputs = {"mlm_logits": logits}
    if self.config.next_sentence:
      outputs["nsp_logits"] = self.nsp(_pooled(self.pooler, hidden, batch))
    return outputs


class BertForSequenceClassification(Bert):
  """A class for each sequence of a pack, or a number if `num_labels=1`.

  Outputs:
    sequence_logits: [B, M, num_labels], from each sequence's own [CLS].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    transform = dense(config, config.hidden_size, config.hidden_size, rngs)
    if config.variant == "bert":
      self.pooler = transform
    else:  # it is no pooler, since their pretraining does not know it
      self.classifier_transform = transform
    self.classifier = dense(config, config.hidden_size, config.num_labels, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    variant, rate = VARIANTS[self.config.variant], self.config.dropout_rate
    first = tokens_at(hidden, batch["cls_positions"])
    if variant.drops_first_token:
      first_key, dropout_key = split_key(dropout_key, 2)
      first = dropout(first, rate, first_key)
    is_bert = self.config.variant == "bert"
    transform = self.pooler if is_bert else self.classifier_transform
    pooled = _ACTIVATIONS[variant.activation](transform(first))
    return {"sequence_logits": self.classifier(dropout(pooled, rate, dropout_key))}


class BertForTokenClassification(Bert):
  """A class for each token.

  Outputs:
    token_logits: [B, S, num_labels].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.classifier = dense(config, config.hidden_size, config.num_labels, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    hidden = dropout(hidden, self.config.dropout_rate, dropout_key)
    return {"token_logits": self.classifier(hidden)}


class BertForQuestionAnswering(Bert):
  """Where the answer of each sequence starts and ends.

  Outputs:
    answer_logits: [B, S, 2], for start and end. `model.losses` computes the softmax over
      the tokens of one sequence.
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.answer = dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    if VARIANTS[self.config.variant].drops_before_answers:  # the original has no dropout
      hidden = dropout(hidden, self.config.dropout_rate, dropout_key)
    return {"answer_logits": self.answer(hidden)}


def _pooled(pooler: nnx.Linear, hidden: jax.Array, batch: Batch) -> jax.Array:
  """[B, S, D] -> [B, M, D]: the output of the pooler for each sequence's own [CLS]."""
  return jnp.tanh(pooler(tokens_at(hidden, batch["cls_positions"])))
