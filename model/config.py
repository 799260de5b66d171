"""The configs of the models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Self

import jax.numpy as jnp

# Which tokens a token may attend to; in a causal model, no later token.
ATTENTION_MASKS = {
  "segment": "those of its own sequence",
  "token_type": "those of its own sequence and token type: sentence A does not see B",
  "none": "every real token of the row; the paper's ablation",
}

REMATERIALISATIONS = {
  "none": "all activations of the forward pass are kept for the backward pass",
  "layers": "each layer keeps its input alone and is computed twice",
}

# name: (layers, width).
# Devlin et al. (base, large); Turc et al., https://arxiv.org/abs/1908.08962 (the rest).
SIZES = {
  "tiny": (2, 128),
  "mini": (4, 256),
  "small": (4, 512),
  "medium": (8, 512),
  "base": (12, 768),
  "large": (24, 1024),
}
HEAD_SIZE = 64  # in all of these and in GPT-2's sizes
MAX_VOCAB_MULTIPLE = 2**16  # wider than any matrix unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The fields that all models have.

  Attributes:
    vocab_size: V.
    hidden_size: D, the width of the model.
    num_layers: layers of attention and feed-forward.
    num_heads: N; divides D.
    intermediate_size: width of the feed-forward layer.
    max_position_embeddings: the longest sequence, in tokens.
    dropout_rate: of embeddings, residual branches and the inputs of classifiers.
    attention_dropout_rate: of attention probabilities.
    layer_norm_epsilon: the original's, not Flax's default.
    initializer_range: standard deviation of the initial weights, a truncated normal.
    attention_mask: which tokens a token may attend to; one of `MASKS`.
    vocab_multiple: the entries of the token embedding are rounded up to a multiple of
      this, for hardware with wide matrix units. The added entries are never predicted.
    attention_impl: a key of `model.IMPLEMENTATIONS`.
    remat: what to compute twice to save memory; a key of `REMATERIALISATIONS`.
    dtype: of the computation. Softmax, LayerNorm and losses stay in at least float32.
    param_dtype: of the parameters.

  Raises:
    ValueError: a value out of range; says what was expected.
  """

  FAMILY: ClassVar[str]  # a key of `model.MODELS`
  SIZES: ClassVar[Mapping[str, tuple[int, int]]]  # name: (layers, width)
  MASKS: ClassVar[tuple[str, ...]]  # of `ATTENTION_MASKS`
  USE_BIAS: ClassVar[bool] = True  # of linear layers and LayerNorms

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  intermediate_size: int
  max_position_embeddings: int
  dropout_rate: float = 0.1
  attention_dropout_rate: float = 0.1
  layer_norm_epsilon: float
  initializer_range: float = 0.02
  attention_mask: str = "segment"
  vocab_multiple: int = 1
  attention_impl: str = "xla"
  remat: str = "none"
  dtype: jnp.dtype = jnp.float32
  param_dtype: jnp.dtype = jnp.float32

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if field.type == "int" and getattr(self, field.name) < 1:
        raise ValueError(
          f"{field.name} is {getattr(self, field.name)}; expected at least 1."
        )
    if self.vocab_multiple > MAX_VOCAB_MULTIPLE:
      raise ValueError(
        f"vocab_multiple is {self.vocab_multiple}; expected at most {MAX_VOCAB_MULTIPLE}: "
        "no hardware gains by more, and each entry takes memory."
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
    self._check_choice("attention_mask", self.MASKS)
    self._check_choice("remat", REMATERIALISATIONS)

  def _check_choice(self, name: str, known):
    if getattr(self, name) not in known:
      raise ValueError(
        f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}."
      )

  @property
  def padded_vocab_size(self) -> int:
    """Entries of the token embedding."""
    return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

  @property
  def slopes(self) -> tuple[float, ...] | None:
    """ALiBi's, one a head; None for models without ALiBi."""
    return None

  @property
  def isolated(self) -> bool:
    """Whether outputs of a sequence do not depend on what shares its row."""
    return self.attention_mask != "none"

  def window_of(self, layer: int) -> int | None:
    """How far a token of a layer sees to either side; None for its whole sequence."""
    del layer
    return None

  @property
  def has_windows(self) -> bool:
    """Whether some layers are local."""
    return any(self.window_of(layer) for layer in range(self.num_layers))

  @property
  def residual_range(self) -> float:
    """The initializer range of layers whose output is added to the residual."""
    return self.initializer_range

  @classmethod
  def from_size(cls, size: str, **fields) -> Self:
    """A config of a named size; `fields` are the others, such as `vocab_size`.

    Example:
      >>> BertConfig.from_size("tiny", vocab_size=7, max_position_embeddings=5).num_layers
      2
    """
    if size not in cls.SIZES:
      raise ValueError(
        f"There is no size {size!r}; expected one of {', '.join(cls.SIZES)}."
      )
    num_layers, hidden_size = cls.SIZES[size]
    return cls(
      num_layers=num_layers,
      hidden_size=hidden_size,
      num_heads=hidden_size // HEAD_SIZE,
      intermediate_size=cls.intermediate_of(hidden_size),
      **fields,
    )

  @classmethod
  def intermediate_of(cls, hidden_size: int) -> int:
    """The width of the feed-forward layer, for a named size."""
    return 4 * hidden_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
  """The fields that all encoders have.

  Attributes:
    num_labels: classes of a sequence or token classifier; 1 for regression.
  """

  num_labels: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
  """A BERT encoder and its heads.

  Attributes:
    type_vocab_size: token types.
    position_reset: False is the paper's ablation: positions count along the whole row.
    next_sentence: False is the ablation without next-sentence prediction.
    pooler: of a `BertModel`, whether it has one.
  """

  FAMILY: ClassVar = "bert"
  SIZES: ClassVar = SIZES
  MASKS: ClassVar = tuple(ATTENTION_MASKS)

  layer_norm_epsilon: float = 1e-12
  type_vocab_size: int = 2
  position_reset: bool = True
  next_sentence: bool = True
  pooler: bool = True

  @property
  def isolated(self) -> bool:
    return super().isolated and self.position_reset
