"""GPT-2 on packs: attention both causal and block-diagonal, and ALiBi for positions.

It differs from this project's BERT in three places: LayerNorm comes before attention and
feed-forward, a token sees no later token, and the head is the token embedding itself. With
ALiBi, only the distance between two tokens matters. Distances do not depend on a sequence's
place in its row, so positions need no reset.

References:
  Radford et al. (2019), Language models are unsupervised multitask learners.
  Press et al., https://arxiv.org/abs/2108.12409.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.nnx as nnx

from model import blocks
from model.attention import alibi_slopes
from model.blocks import embed, layer_norm, split_key, tanh_gelu
from model.config import ModelConfig, option
from model.dropout import dropout

POSITIONS = (
  "alibi",  # an attention bias that falls with distance; no parameters
  "learned",  # a table, looked up by position_ids, as in the original
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpt2Config(ModelConfig):
  """A GPT-2.

  With "alibi" positions, sequences may have any length, and `max_position_embeddings` has
  no effect.
  """

  FAMILY: ClassVar = "gpt2"
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
  CAUSAL: ClassVar = True

  max_position_embeddings: int = 1024
  layer_norm_epsilon: float = 1e-5
  positions: str = option(
    "only GPT-2. alibi: by the distance of two tokens; learned: a table, as in BERT",
    default="alibi",
  )

  def __post_init__(self):
    super().__post_init__()
    self._check_choice("positions", POSITIONS)

  @property
  def slopes(self) -> tuple[float, ...] | None:
    return alibi_slopes(self.num_heads) if self.positions == "alibi" else None


class Embeddings(blocks.Embeddings):
  """Token embeddings, and a table of positions if they are learned."""

  def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.learned = config.positions == "learned"
    if self.learned:
      self.position = embed(config, config.max_position_embeddings, rngs)

  def __call__(self, batch, rows, dropout_key=None):
    embeddings = self.of_tokens(batch)
    if self.learned:
      embeddings += self.position(rows.position_ids)
    return dropout(embeddings.astype(self.token.dtype), self.dropout_rate, dropout_key)


class DecoderLayer(blocks.Layer):
  """Causal self-attention and feed-forward, each after LayerNorm, added to the residual."""

  def __call__(self, hidden, rows, dropout_key=None):
    keys = split_key(dropout_key, 3)
    hidden += self.attend(self.attention_layer_norm(hidden), rows, keys[:2])
    normalised = self.output_layer_norm(hidden)
    return hidden + self.feed_forward(normalised, keys[2], tanh_gelu)


class Gpt2(blocks.Transformer):
  """A causal language model.

  Outputs:
    causal_logits: [B, S, V], each token's prediction of the next token.
  """

  config_type: ClassVar = Gpt2Config
  embeddings_type: ClassVar = Embeddings
  layer_type: ClassVar = DecoderLayer
  stack_name: ClassVar = "decoder"

  def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.final_layer_norm = layer_norm(config, rngs)

  def heads(self, hidden, batch, *, dropout_key=None):
    del batch, dropout_key  # as in the original: no dropout in the head
    hidden = self.final_layer_norm(hidden)
    logits = blocks.vocabulary_logits(self.embeddings.token, hidden)
    return {"causal_logits": logits}
