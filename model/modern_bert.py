"""ModernBERT on packs: rotary positions, gated feed-forward, and local attention.

It differs from this project's BERT in five places: queries and keys are rotated by
`position_ids`, two of three layers attend to a window of near tokens, LayerNorm comes
before attention and feed-forward, the feed-forward layer is gated, and there are no biases.
A window ends where its sequence ends.

References:
  Warner et al., https://arxiv.org/abs/2412.13663.
  Su et al., https://arxiv.org/abs/2104.09864 (rotary positions).
  Shazeer, https://arxiv.org/abs/2002.05202 (GeGLU).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import blocks
from model.blocks import dense, gelu, layer_norm, pool, split_key, tokens_at
from model.config import EncoderConfig, option
from model.dropout import dropout

POOLINGS = (
  "cls",  # each sequence's own [CLS]
  "mean",  # the mean of each sequence's tokens
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
  """A ModernBERT.

  Attributes:
    max_position_embeddings: a field of transformers' config; rotary positions have no
      limit.
    dropout_rate: the rate for what attention adds to the residual, as in the authors'
      pretraining, and for the input of classifiers.
    global_every: layers 0, `global_every`, 2 x `global_every`, ... attend to the whole
      sequence, all other layers locally.
    local_window: the window of a local layer in tokens, half of them to either side.
    local_base: the base of the rotary frequencies in local layers.
    pooling: the vector from which a sequence is classified; one of `POOLINGS`.
  """

  FAMILY: ClassVar = "modern_bert"
  # name: (layers, width); base and large as published.
  SIZES: ClassVar = {
    "tiny": (4, 128),
    "mini": (7, 256),
    "base": (22, 768),
    "large": (28, 1024),
  }
  MASKS: ClassVar = ("segment", "none")
  USE_BIAS: ClassVar = False

  max_position_embeddings: int = 8192
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  layer_norm_epsilon: float = 1e-5
  global_every: int = 3
  local_window: int = 128
  global_base: float = option(
    "modern_bert: base of the rotary positions in layers that attend to all tokens",
    default=160_000.0,
  )
  local_base: float = 10_000.0
  pooling: str = "cls"

  def __post_init__(self):
    super().__post_init__()
    self._check_choice("pooling", POOLINGS)
    if self.local_window % 2:
      raise ValueError(f"local_window is {self.local_window}; expected an even number.")
    for name in ("global_base", "local_base"):
      if getattr(self, name) <= 1:
        raise ValueError(f"{name} is {getattr(self, name)}; expected more than 1.")
    if (head_size := self.hidden_size // self.num_heads) % 2:
      raise ValueError(f"hidden_size / num_heads is {head_size}; expected an even number.")

  def window_of(self, layer: int) -> int | None:
    return self.local_window // 2 if layer % self.global_every else None

  @classmethod
  def intermediate_of(cls, hidden_size: int) -> int:
    # As published: 2,624 for large.
    return {1024: 2624}.get(hidden_size, 3 * hidden_size // 2)


def rotate(x: jax.Array, position_ids: jax.Array, base: float) -> jax.Array:
  """Rotary positions: rotates pairs of numbers by angles proportional to the position.

  The product of a query and a key then depends on the positions only by their distance.
  Number i of the first half of a head is paired with number i of the second half, and the
  pair is rotated by position / base^(2 i / H). Angles are computed in at least float32.

  Args:
    x: [B, S, N, H]; H is even.
    position_ids: int32[B, S], or [1, S].
    base: of the frequencies; a larger base distinguishes positions farther apart.

  Returns:
    [B, S, N, H], in the dtype of `x`.

  Example:
    >>> x = jnp.array([1.0, 0.0, 0.0, 1.0])[None, None, None]
    >>> rotated = rotate(x, jnp.array([[1]]), 100.0)  # by angles of 1 and 0.1
    >>> [round(float(number), 3) for number in rotated[0, 0, 0]]
    [0.54, -0.1, 0.841, 0.995]

  References:
    Su et al., https://arxiv.org/abs/2104.09864, section 3.2.
  """
  wide = np.promote_types(x.dtype, np.float32)
  half = x.shape[-1] // 2
  frequencies = jnp.asarray(base ** -(np.arange(half) / half), wide)
  angles = position_ids[..., None, None].astype(wide) * frequencies[None, None, None]
  first, second = jnp.split(x.astype(wide), 2, axis=-1)
  cosine, sine = jnp.cos(angles), jnp.sin(angles)
  rotated = (first * cosine - second * sine, second * cosine + first * sine)
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class Embeddings(blocks.Embeddings):
  """Token embeddings, normalised; positions are applied in the layers."""

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.layer_norm = layer_norm(config, rngs)

  def __call__(self, batch, rows, dropout_key=None):
    del rows, dropout_key
    return self.layer_norm(self.of_tokens(batch))


class EncoderLayer(blocks.Layer):
  """Rotary self-attention and GeGLU, each after LayerNorm, added to the residual."""

  gated: ClassVar = True
  config: ModernBertConfig

  def __init__(self, config: ModernBertConfig, number: int, *, rngs: nnx.Rngs):
    super().__init__(config, number, rngs=rngs)
    if number == 0:  # the embeddings are normalised already
      del self.attention_layer_norm

  def place(self, x, rows):
    config, window = self.config, self.config.window_of(self.number)
    base = config.local_base if window else config.global_base
    return rotate(x, rows.position_ids, base)

  def __call__(self, hidden, rows, dropout_key=None):
    normalised = self.attention_layer_norm(hidden) if self.number else hidden
    hidden += self.attend(normalised, rows, split_key(dropout_key, 2))
    return hidden + self.feed_forward(self.output_layer_norm(hidden), None, geglu)


def geglu(x: jax.Array) -> jax.Array:
  """[..., 2 I] -> [..., I]: `gelu` of the first half, times the second half."""
  through, gate = jnp.split(x, 2, axis=-1)
  return gelu(through) * gate


class ModernBert(blocks.Transformer):
  """The base of all ModernBERTs: embeddings, encoder and a final LayerNorm."""

  config_type: ClassVar = ModernBertConfig
  embeddings_type: ClassVar = Embeddings
  layer_type: ClassVar = EncoderLayer
  stack_name: ClassVar = "encoder"
  config: ModernBertConfig

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.final_layer_norm = layer_norm(config, rngs)


class ModernBertModel(ModernBert):
  """The encoder alone, for embeddings of sequences.

  Outputs:
    sequence_mean: [B, M, D], the mean over each sequence's tokens, with [CLS] and [SEP].
    sequence_cls: [B, M, D], the hidden state of each sequence's own [CLS].
  """

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key
    hidden = self.final_layer_norm(hidden)
    return {f"sequence_{name}": pool(name, hidden, batch) for name in ("mean", "cls")}


class PredictionHead(nnx.Module):
  """The layers between the encoder and every head."""

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    width = config.hidden_size
    self.dense = dense(config, width, width, rngs, initializer_range=config.residual_range)
    self.layer_norm = layer_norm(config, rngs)

  def __call__(self, hidden: jax.Array) -> jax.Array:
    """[B, ..., D] -> [B, ..., D]."""
    return self.layer_norm(gelu(self.dense(hidden)))


class ModernBertForMaskedLM(ModernBert):
  """Masked language modelling.

  Outputs:
    mlm_logits: [B, P, V], at the masked positions only.
  """

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.head = PredictionHead(config, rngs=rngs)
    self.mlm_bias = nnx.Param(jnp.zeros(config.vocab_size, config.param_dtype))

  def heads(self, hidden, batch, *, dropout_key=None):
    del dropout_key  # as in the original: no dropout in this head
    masked = tokens_at(self.final_layer_norm(hidden), batch["mlm_positions"])
    masked = self.head(masked)
    table, bias = self.embeddings.token, self.mlm_bias[...]
    return {"mlm_logits": blocks.vocabulary_logits(table, masked, bias)}


class ModernBertForSequenceClassification(ModernBert):
  """A class for each sequence of a pack, or a number if `num_labels=1`.

  Outputs:
    sequence_logits: [B, M, num_labels], from each sequence's own tokens.
  """

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.head = PredictionHead(config, rngs=rngs)
    self.classifier = _classifier(config, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    pooled = pool(self.config.pooling, self.final_layer_norm(hidden), batch)
    pooled = self.head(pooled)
    pooled = dropout(pooled, self.config.dropout_rate, dropout_key)
    return {"sequence_logits": self.classifier(pooled)}


class ModernBertForTokenClassification(ModernBert):
  """A class for each token.

  Outputs:
    token_logits: [B, S, num_labels].
  """

  def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.head = PredictionHead(config, rngs=rngs)
    self.token_classifier = _classifier(config, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    hidden = self.head(self.final_layer_norm(hidden))
    dropped = dropout(hidden, self.config.dropout_rate, dropout_key)
    return {"token_logits": self.token_classifier(dropped)}


def _classifier(config: ModernBertConfig, rngs: nnx.Rngs) -> nnx.Linear:
  width = config.hidden_size
  return dense(
    config,
    width,
    config.num_labels,
    rngs,
    initializer_range=width**-0.5,
    use_bias=True,
  )
