"""GPT-2 on packs: causal and block-diagonal attention together, ALiBi for positions.

It is the BERT of this project but for three things: LayerNorm comes before attention and
feed-forward, a token sees none that comes after it, and the head is the embedding itself.
With ALiBi only the distance of two tokens matters, which is the same wherever a sequence
stands in its row: positions need no reset.

References:
  Radford et al. (2019), Language models are unsupervised multitask learners.
  Press et al., https://arxiv.org/abs/2108.12409.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import flax.nnx as nnx

from model import blocks
from model.attention import alibi_slopes
from model.blocks import embed, layer_norm, split_key, tanh_gelu
from model.config import ModelConfig

POSITIONS = {
  "alibi": "a bias of attention that falls with distance; no parameters",
  "learned": "a table, looked up by position_ids, as in the original",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpt2Config(ModelConfig):
  """A GPT-2.

  Attributes:
    positions: a key of `POSITIONS`. With "alibi" a sequence may have any length, and
      `max_position_embeddings` is not read.
  """

  # name: (layers, width); small to xl as published, with 124 to 1,558 million parameters.
  SIZES: ClassVar = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (12, 768),
    "medium": (24, 1024),
    "large": (36, 1280),
    "xl": (48, 1600),
  }
  MASKS: ClassVar = ("segment", "none")

  max_position_embeddings: int = 1024
  layer_norm_epsilon: float = 1e-5
  positions: str = "alibi"

  def __post_init__(self):
    super().__post_init__()
    self._check_choice("positions", POSITIONS)

  @property
  def slopes(self) -> tuple[float, ...] | None:
    """ALiBi's, of each head; None with learned positions."""
    return alibi_slopes(self.num_heads) if self.positions == "alibi" else None


class Embeddings(blocks.Embeddings):
  """Token embeddings, and those of learned positions."""

  def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.learned = config.positions == "learned"
    if self.learned:
      self.position = embed(config, config.max_position_embeddings, rngs)

  def __call__(self, batch, *, dropout_key=None):
    embeddings = self.of_tokens(batch)
    if self.learned:
      embeddings += self.position(batch["position_ids"])
    return self.drop(embeddings, dropout_key)


class DecoderLayer(blocks.Layer):
  """Causal self-attention and feed-forward, each after LayerNorm, added to the residual."""

  config: Gpt2Config

  def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs):
    # 2 x num_layers outputs add up in the residual; as in the original, their sum starts
    # as wide as one of them would.
    narrow = config.initializer_range / math.sqrt(2 * config.num_layers)
    super().__init__(config, rngs=rngs, residual_range=narrow)

  def __call__(self, hidden, segment_ids, dropout_key=None, *, max_segments=None):
    keys = split_key(dropout_key, 3)
    hidden += self.attend(
      self.attention_layer_norm(hidden),
      segment_ids,
      keys[:2],
      causal=True,
      slopes=self.config.slopes,
      max_segments=max_segments,
    )
    normalised = self.output_layer_norm(hidden)
    return hidden + self.feed_forward(normalised, keys[2], tanh_gelu)


class Gpt2(blocks.Transformer):
  """A causal language model.

  Outputs:
    causal_logits: [B, S, V], for each token those of the token that follows it; V with
      `vocab_multiple`, where the entries that were added are as low as a number can be.
  """

  config_type: ClassVar = Gpt2Config

  def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs):
    self.config = config
    self.embeddings = Embeddings(config, rngs=rngs)
    self.decoder = blocks.Stack(config, DecoderLayer, rngs=rngs)
    self.final_layer_norm = layer_norm(config, rngs)

  @property
  def stack(self) -> blocks.Stack:
    return self.decoder

  def heads(self, hidden, batch, *, dropout_key=None):
    del batch, dropout_key  # as in the original: no dropout in the head
    hidden = self.final_layer_norm(hidden)
    table = self.embeddings.token
    return {"causal_logits": blocks.vocabulary_logits(self.config, table, hidden)}
