"""What fixes the shape of a model."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

# Which tokens a token may attend to.
ATTENTION_MASKS = {
  "segment": "those of its own sequence",
  "token_type": "those of its own sequence and token type: sentence A does not see B",
  "none": "every real token of the row; the paper's ablation",
}

REMATERIALISATIONS = {
  "none": "all activations of the forward pass are kept for the backward pass",
  "layers": "each layer keeps its input alone and is computed twice",
}

# name: (layers, width). Feed-forward layers are 4 widths wide.
# Devlin et al. (base, large); Turc et al., https://arxiv.org/abs/1908.08962 (the rest).
SIZES = {
  "tiny": (2, 128),
  "mini": (4, 256),
  "small": (4, 512),
  "medium": (8, 512),
  "base": (12, 768),
  "large": (24, 1024),
}
HEAD_SIZE = 64  # of all of these
MAX_VOCAB_MULTIPLE = 2**16  # wider than any matrix unit


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """A BERT encoder and what its heads need.

  Attributes:
    vocab_size: V.
    hidden_size: D, the width of the model.
    num_layers: encoder layers.
    num_heads: N; divides D.
    intermediate_size: width of the feed-forward layer.
    max_position_embeddings: positions a sequence may have, in tokens.
    type_vocab_size: token types.
    dropout_rate: of embeddings, residual branches and what classifiers read.
    attention_dropout_rate: of attention probabilities.
    layer_norm_epsilon: as in the original BERT, not Flax's default.
    initializer_range: standard deviation of the truncated normal that weights start from.
    attention_mask: which tokens a token may attend to; a key of `ATTENTION_MASKS`.
    position_reset: False is the paper's ablation: positions run on through the row.
    next_sentence: False is the ablation without next-sentence prediction.
    num_labels: classes of a sequence or token classifier; 1 for regression.
    vocab_multiple: the token embedding has its rows rounded up to a multiple of this,
      for hardware with wide matrix units. The added entries are never predicted.
    attention_impl: a key of `model.attention.IMPLEMENTATIONS`.
    remat: what is computed twice to save memory; a key of `REMATERIALISATIONS`.
    dtype: of the computation. Softmax, LayerNorm and losses stay in at least float32.
    param_dtype: of the parameters.

  Raises:
    ValueError: a value that no model can have; says what was expected.
  """

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  intermediate_size: int
  max_position_embeddings: int
  type_vocab_size: int = 2
  dropout_rate: float = 0.1
  attention_dropout_rate: float = 0.1
  layer_norm_epsilon: float = 1e-12
  initializer_range: float = 0.02
  attention_mask: str = "segment"
  position_reset: bool = True
  next_sentence: bool = True
  num_labels: int = 2
  vocab_multiple: int = 1
  attention_impl: str = "xla"
  remat: str = "none"
  dtype: jnp.dtype = jnp.float32
  param_dtype: jnp.dtype = jnp.float32

  def __post_init__(self):
    for name in (
      "vocab_size",
      "hidden_size",
      "num_layers",
      "num_heads",
      "intermediate_size",
      "max_position_embeddings",
      "type_vocab_size",
      "num_labels",
      "vocab_multiple",
    ):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")
    if self.vocab_multiple > MAX_VOCAB_MULTIPLE:
      raise ValueError(
        f"vocab_multiple is {self.vocab_multiple}; expected at most {MAX_VOCAB_MULTIPLE}: "
        "no hardware gains by more, and each row takes memory."
      )
    for name in ("layer_norm_epsilon", "initializer_range"):
      if not 0 < getattr(self, name) < math.inf:
        raise ValueError(
          f"{name} is {getattr(self, name)}; expected more than 0, and finite."
        )
    for name in ("dropout_rate", "attention_dropout_rate"):
      if not 0 <= getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}; expected a fraction in [0, 1).")
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}."
      )
    for name, known in (("attention_mask", ATTENTION_MASKS), ("remat", REMATERIALISATIONS)):
      if getattr(self, name) not in known:
        raise ValueError(
          f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}."
        )

  @property
  def padded_vocab_size(self) -> int:
    """Rows of the token embedding."""
    return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

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
      num_heads=hidden_size // HEAD_SIZE,
      intermediate_size=4 * hidden_size,
      **fields,
    )
