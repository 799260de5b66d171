"""packedBERT: a BERT that computes on a pack what it computes on each sequence alone.

Against an ordinary BERT three places change, and no other: positions are looked up by
`position_ids`, attention is masked by `segment_ids`, and the heads read each sequence's
own [CLS] and its own tokens.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.
  Devlin et al., https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model.attention import attention, split_by_token_type
from model.config import BertConfig

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


def _dense(config: BertConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
  return nnx.Linear(
    inputs,
    outputs,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    kernel_init=nnx.initializers.truncated_normal(config.initializer_range),
    rngs=rngs,
  )


def _embed(
  config: BertConfig, entries: int, rngs: nnx.Rngs, *, rows: int | None = None
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


def _layer_norm(config: BertConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  return nnx.LayerNorm(
    config.hidden_size,
    epsilon=config.layer_norm_epsilon,
    use_fast_variance=False,  # the fast form cancels, and packed = unpacked asks for digits
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


def _split(key: jax.Array | None, num: int):
  return [None] * num if key is None else jax.random.split(key, num)


class Embeddings(nnx.Module):
  """Sum of token, position and token-type embeddings, normalised."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    rows = config.padded_vocab_size
    self.token = _embed(config, config.vocab_size, rngs, rows=rows)
    self.position = _embed(config, config.max_position_embeddings, rngs)
    self.token_type = _embed(config, config.type_vocab_size, rngs)
    self.layer_norm = _layer_norm(config, rngs)
    self.dropout = nnx.Dropout(config.dropout_rate)
    self.position_reset = config.position_reset

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """A batch -> [B, S, D].

    Args:
      batch: `token_type_ids`, `position_ids` and either `input_ids`, all int32[B, S], or
        `input_embeddings` float[B, S, D], which stand in for those of tokens.
      dropout_key: None for no dropout.
    """
    if "input_embeddings" in batch:
      embeddings = batch["input_embeddings"].astype(self.token.dtype)
      expected = (*batch["segment_ids"].shape, self.token.features)
      if embeddings.shape != expected:
        raise ValueError(
          f"Expected input_embeddings of shape [B, S, D] = {expected}, found "
          f"{embeddings.shape}."
        )
    else:
      embeddings = self.token(batch["input_ids"])
    position_ids = batch["position_ids"]
    if not self.position_reset:
      row_length, positions = position_ids.shape[1], self.position.num_embeddings
      if row_length > positions:
        raise ValueError(
          f"Expected rows of at most max_position_embeddings={positions} tokens where "
          f"position_reset is off, found {row_length}."
        )
      position_ids = jnp.arange(row_length)[None]
    embeddings += self.token_type(batch["token_type_ids"])
    embeddings = self.layer_norm(embeddings + self.position(position_ids))
    return self.dropout(embeddings, deterministic=dropout_key is None, rngs=dropout_key)


class EncoderLayer(nnx.Module):
  """Self-attention and feed-forward, each followed by residual and LayerNorm."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    width = config.hidden_size
    self.config = config
    self.query = _dense(config, width, width, rngs)
    self.key = _dense(config, width, width, rngs)
    self.value = _dense(config, width, width, rngs)
    self.attention_output = _dense(config, width, width, rngs)
    self.attention_layer_norm = _layer_norm(config, rngs)
    self.intermediate = _dense(config, width, config.intermediate_size, rngs)
    self.output = _dense(config, config.intermediate_size, width, rngs)
    self.output_layer_norm = _layer_norm(config, rngs)
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
    config = self.config
    keys = _split(dropout_key, 3)
    split = lambda x: x.reshape(*x.shape[:2], config.num_heads, -1)  # noqa: E731

    def drop(x, key):
      return self.dropout(x, deterministic=key is None, rngs=key)

    attended = attention(
      split(self.query(hidden)),
      split(self.key(hidden)),
      split(self.value(hidden)),
      segment_ids,
      implementation=config.attention_impl,
      mask="none" if config.attention_mask == "none" else "segment",
      max_segments=max_segments,
      dropout_rate=config.attention_dropout_rate,
      dropout_key=keys[0],
    ).reshape(hidden.shape)
    attended = drop(self.attention_output(attended), keys[1])
    hidden = self.attention_layer_norm(hidden + attended)
    output = drop(self.output(gelu(self.intermediate(hidden))), keys[2])
    return self.output_layer_norm(hidden + output)


class Encoder(nnx.Module):
  """The stack of layers."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.layers = nnx.List(
      EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)
    )

  def __call__(
    self, embeddings: jax.Array, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> list[jax.Array]:
    """[B, S, D] -> what each layer gives, [B, S, D] each; the last is the encoder's."""
    segment_ids = batch["segment_ids"]
    max_segments = batch["sequence_mask"].shape[1] if "sequence_mask" in batch else None
    if self.config.attention_mask == "token_type":
      types = self.config.type_vocab_size
      segment_ids = split_by_token_type(
        segment_ids, batch["token_type_ids"], token_types=types
      )
      max_segments = max_segments and max_segments * types

    def call(layer: EncoderLayer, *args) -> jax.Array:
      return layer(*args, max_segments=max_segments)

    apply_layer = nnx.remat(call) if self.config.remat == "layers" else call
    states = [embeddings]
    keys = _split(dropout_key, len(self.layers))
    for layer, key in zip(self.layers, keys, strict=True):
      states.append(apply_layer(layer, states[-1], segment_ids, key))
    return states[1:]


class Bert(nnx.Module):
  """What the models have in common: embeddings and encoder."""

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embeddings = Embeddings(config, rngs=rngs)
    self.encoder = Encoder(config, rngs=rngs)

  def __call__(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """The logits of `heads`.

    Args:
      batch: the fields of a PackedBatch; B packs of S tokens, P masked tokens and M
        sequences at most. `input_embeddings` may stand in for `input_ids`.
      dropout_key: a PRNG key; None for no dropout.
    """
    encoder_key, head_key = _split(dropout_key, 2)
    hidden = list(self.hidden_states(batch, dropout_key=encoder_key).values())[-1]
    return self.heads(hidden, batch, dropout_key=head_key)

  def hidden_states(
    self, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """[B, S, D] each: `embeddings`, `layer 1`, `layer 2`, ..."""
    keys = _split(dropout_key, 2)
    embeddings = self.embeddings(batch, dropout_key=keys[0])
    states = self.encoder(embeddings, batch, dropout_key=keys[1])
    return {"embeddings": embeddings} | {
      f"layer {number}": state for number, state in enumerate(states, start=1)
    }

  def heads(
    self, hidden: jax.Array, batch: Batch, *, dropout_key: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """[B, S, D] -> logits by name; `model.losses` says what each name means."""
    raise NotImplementedError


class BertForPreTraining(Bert):
  """Masked language modelling, and next-sentence prediction unless the config has none.

  Outputs:
    mlm_logits: [B, P, V], at the masked positions only; V with `vocab_multiple`, where
      the entries that were added are as low as a number can be.
    nsp_logits: [B, M, 2], at each sequence's own [CLS].
  """

  def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.mlm_transform = _dense(config, config.hidden_size, config.hidden_size, rngs)
    self.mlm_layer_norm = _layer_norm(config, rngs)
    self.mlm_bias = nnx.Param(jnp.zeros(config.padded_vocab_size, config.param_dtype))
    if config.next_sentence:
      self.pooler = _dense(config, config.hidden_size, config.hidden_size, rngs)
      self.nsp = _dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in these heads
    masked = _tokens_at(hidden, batch["mlm_positions"])
    masked = self.mlm_layer_norm(gelu(self.mlm_transform(masked)))
    embedding = self.embeddings.token.embedding[...].astype(masked.dtype)
    logits = _vocabulary_logits(masked, embedding, self.mlm_bias.astype(masked.dtype))
    if self.config.padded_vocab_size > self.config.vocab_size:
      exists = jnp.arange(logits.shape[-1]) < self.config.vocab_size
      logits = jnp.where(exists[None, None], logits, jnp.finfo(logits.dtype).min)
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
    self.pooler = _dense(config, config.hidden_size, config.hidden_size, rngs)
    self.classifier = _dense(config, config.hidden_size, config.num_labels, rngs)
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
    self.classifier = _dense(config, config.hidden_size, config.num_labels, rngs)
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
    self.answer = _dense(config, config.hidden_size, 2, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in this head
    return {"answer_logits": self.answer(hidden)}


# By the name of the head, as configs and commands give it.
MODELS: dict[str, type[Bert]] = {
  "pretraining": BertForPreTraining,
  "sequence_classification": BertForSequenceClassification,
  "token_classification": BertForTokenClassification,
  "question_answering": BertForQuestionAnswering,
}


def _tokens_at(hidden: jax.Array, positions: jax.Array) -> jax.Array:
  """[B, S, D] at int32[B, P] -> [B, P, D]."""
  return jnp.take_along_axis(hidden, positions[:, :, None], axis=1)


@jax.custom_vjp
def _vocabulary_logits(
  hidden: jax.Array, embedding: jax.Array, bias: jax.Array
) -> jax.Array:
  """[B, P, D], [V, D] and [V] -> [B, P, V], all of one type.

  The gradients are products for which XLA transposes no [B, P, V] on CPUs; that is most
  of what this head has in memory. For reverse-mode differentiation only.
  """
  return jnp.einsum("BPD,VD->BPV", hidden, embedding) + bias[None, None]


def _vocabulary_logits_forward(hidden, embedding, bias):
  return _vocabulary_logits(hidden, embedding, bias), (hidden, embedding)


def _vocabulary_logits_backward(saved, gradient):
  hidden, embedding = saved
  of_hidden = jnp.einsum("BPV,VD->BPD", gradient, embedding)
  of_embedding = jnp.einsum("BPD,BPV->DV", hidden, gradient).T
  ones = jnp.ones(gradient.shape[:2], gradient.dtype)
  of_bias = jnp.einsum("BP,BPV->V", ones, gradient)
  return of_hidden, of_embedding, of_bias


_vocabulary_logits.defvjp(_vocabulary_logits_forward, _vocabulary_logits_backward)


def _pooled(pooler: nnx.Linear, hidden: jax.Array, batch: Batch) -> jax.Array:
  """[B, S, D] -> [B, M, D]: each sequence's own [CLS], through the pooler."""
  return jnp.tanh(pooler(_tokens_at(hidden, batch["cls_positions"])))
