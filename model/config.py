"""What fixes the shape of a model."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """A BERT encoder with its pretraining heads.

  Attributes:
    vocab_size: V.
    hidden_size: D, the width of the model.
    num_layers: encoder layers.
    num_heads: N; divides D.
    intermediate_size: width of the feed-forward layer.
    max_position_embeddings: positions a sequence may have, in tokens.
    type_vocab_size: token types.
    dropout_rate: of embeddings, attention probabilities and residual branches.
    layer_norm_epsilon: as in the original BERT, not Flax's default.
    initializer_range: standard deviation of the truncated normal that weights start from.
    attention_mask: "segment" lets a token attend within its own sequence only; "none" is
      the paper's ablation: it attends to every real token of the row.
    position_reset: False is the paper's ablation: positions run on through the row.
    dtype: of the computation. Softmax, LayerNorm and losses stay in at least float32.
    param_dtype: of the parameters.

  Raises:
    ValueError: heads that do not divide the width, or an unknown attention mask.
  """

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  intermediate_size: int
  max_position_embeddings: int
  type_vocab_size: int = 2
  dropout_rate: float = 0.1
  layer_norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  attention_mask: str = "segment"
  position_reset: bool = True
  dtype: jnp.dtype = jnp.float32
  param_dtype: jnp.dtype = jnp.float32

  def __post_init__(self):
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}."
      )
    if self.attention_mask not in ATTENTION_MASKS:
      raise ValueError(
        f"attention_mask is {self.attention_mask!r}; expected one of {ATTENTION_MASKS}."
      )

  @classmethod
  def from_size(cls, size: str, **fields) -> BertConfig:
    """A named size; `fields` are the rest, such as `vocab_size`.

    Example:
      >>> BertConfig.from_size("tiny", vocab_size=7, max_position_embeddings=5).num_layers
      2
    """
    if size not in SIZES:
      raise ValueError(f"There is no size {size!r}; expected one of {', '.join(SIZES)}.")
    num_layers, hidden_size = SIZES[size]
    return cls(
      num_layers=num_layers,
      hidden_size=hidden_size,
      num_heads=hidden_size // 64,
      intermediate_size=4 * hidden_size,
      **fields,
    )


ATTENTION_MASKS = ("segment", "none")

# name: (layers, width). Heads are 64 wide, feed-forward layers 4 widths.
# Devlin et al. (base, large); Turc et al., https://arxiv.org/abs/1908.08962 (the rest).
SIZES = {
  "tiny": (2, 128),
  "mini": (4, 256),
  "small": (4, 512),
  "medium": (8, 512),
  "base": (12, 768),
  "large": (24, 1024),
}
