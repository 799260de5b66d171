"""The configs of the models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from packing.errors import short_repr

# Which tokens a token may attend to; in a causal model, never later tokens.
ATTENTION_MASKS = (
  "segment",  # those of its own sequence
  "token_type",  # those of its own sequence and token type: sentence A does not see B
  "none",  # every real token of the row; the paper's ablation
)

REMATERIALISATIONS = (
  "none",  # all activations of the forward pass are kept for the backward pass
  "layers",  # each layer keeps only its input and is computed twice
)

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
HEAD_SIZE = 64  # in all of these sizes and in GPT-2's
_MOST = 2**31 - 1  # ids and positions are int32
_LARGEST = 1e38  # in float32


def option(meaning: str, *, default: Any, **metadata: Any) -> Any:
  """A field that a run's config has, too.

  Args:
    meaning: a sentence for the reference of configs.
    default: its default.
    metadata: `absent`, other values that mean nothing for models without the field.
  """
  return dataclasses.field(default=default, metadata={"meaning": meaning} | metadata)


class AttentionSpec(NamedTuple):
  """Which attention a layer computes.

  Attributes:
    mask: one of `ATTENTION_MASKS`. With "token_type", ids differ by token type, too, so
      tokens with one id may have others between them.
    causal: whether a token sees only itself and the tokens before it.
    window: how far a token sees, in tokens to either side; None for no limit.
    slopes: the slopes of ALiBi's bias, from `alibi_slopes`; None for no bias.
    dropout_rate: the dropout rate of the attention probabilities.
  """

  mask: str = "segment"
  causal: bool = False
  window: int | None = None
  slopes: tuple[float, ...] | None = None
  dropout_rate: float = 0.0


def fastest_dtype() -> jnp.dtype:
  """bfloat16 where products are faster in it: TPUs, NVIDIA GPUs since Ampere."""
  device = jax.local_devices()[0]
  fast = device.platform == "tpu" or compute_capability(device) >= 8
  return jnp.dtype("bfloat16" if fast else "float32")


def compute_capability(device: jax.Device) -> float:
  """The compute capability of an NVIDIA GPU, such as 9.0; 0 for any other device."""
  text = str(getattr(device, "compute_capability", ""))
  return float(text) if text.replace(".", "", 1).isdecimal() else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The fields that all models have.

  What the fields mean that a run's config has, too, stands in their metadata, and in
  docs/config.md under `model`.

  Attributes:
    vocab_size: V.
    hidden_size: D, the width of the model.
    num_layers: the number of layers, each with attention and feed-forward.
    num_heads: N, the number of attention heads, which must divide D.
    intermediate_size: width of the feed-forward layer.
    max_position_embeddings: the longest sequence, in tokens.
    layer_norm_epsilon: the epsilon of LayerNorms; its default is the original model's, not
      Flax's.
    initializer_range: standard deviation of the truncated normal that initialises weights.
    dtype: the dtype of the computation. Softmax, LayerNorm and losses use at least float32.
      "auto" becomes that of `fastest_dtype`.
    param_dtype: the dtype of the parameters.

  Raises:
    ValueError: a value is out of range; the message says what was expected.
  """

  FAMILY: ClassVar[str]  # a key of `model.MODELS`
  SIZES: ClassVar[Mapping[str, tuple[int, int]]]  # name: (layers, width)
  MASKS: ClassVar[tuple[str, ...]]  # of `ATTENTION_MASKS`
  USE_BIAS: ClassVar[bool] = True  # of linear layers and LayerNorms
  CAUSAL: ClassVar[bool] = False  # whether a token sees no later token

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  intermediate_size: int
  max_position_embeddings: int
  dropout_rate: float = option(
    "Dropout of embeddings, of what a layer adds, and of the inputs of classifiers; "
    "modern_bert: of attention's output and the inputs of classifiers only.",
    default=0.1,
  )
  attention_dropout_rate: float = option(
    "Dropout of attention probabilities. Above 0 only xla computes it, which costs time on "
    "an accelerator: docs/speed.md.",
    default=0.1,
  )
  layer_norm_epsilon: float
  initializer_range: float = 0.02
  attention_mask: str = option(
    "segment: a token sees only its sequence; token_type: only its segment, A or B; none: "
    "the ablation without isolation",
    default="segment",
  )
  attention_impl: str = option(
    "auto: the fastest that this device can compute; xla, blocks, cudnn, cudnn_packed, "
    "splash, splash_interpret: docs/model.md",
    default="auto",
  )
  remat: str = option("none; layers: compute them twice, to save memory", default="none")
  dtype: Any = "auto"  # a `jnp.dtype` once the config is made, like the next
  param_dtype: Any = jnp.float32

  def __post_init__(self):
    dtype = fastest_dtype() if self.dtype == "auto" else jnp.dtype(self.dtype)
    object.__setattr__(self, "dtype", dtype)
    object.__setattr__(self, "param_dtype", jnp.dtype(self.param_dtype))
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      told = f"{field.name} is {short_repr(value)}; expected"
      least = field.metadata.get("at_least", 1)
      if field.type == "int" and (type(value) is not int or not least <= value <= _MOST):
        raise ValueError(f"{told} a whole number from {least} to {_MOST}.")
      if field.type == "float" and (
        type(value) not in (int, float) or not abs(value) < _LARGEST
      ):
        raise ValueError(f"{told} a number between -{_LARGEST} and {_LARGEST}.")
    for name in ("layer_norm_epsilon", "initializer_range"):
      if getattr(self, name) <= 0:
        raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0.")
    for name in ("dropout_rate", "attention_dropout_rate"):
      if not 0 <= getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}; expected a fraction in [0, 1).")
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads}."
      )
    self._check_choice("attention_mask", self.MASKS)
    self._check_choice("remat", REMATERIALISATIONS)

  def _check_choice(self, name: str, known):
    if getattr(self, name) not in known:
      raise ValueError(f"{name} is {getattr(self, name)!r}; expected {', '.join(known)}.")

  @property
  def slopes(self) -> tuple[float, ...] | None:
    """The slopes of ALiBi, one for each head; None for models without ALiBi."""
    return None

  @property
  def embedding_width(self) -> int:
    """The width of the embeddings; D, unless they are projected to it."""
    return self.hidden_size

  @property
  def isolated(self) -> bool:
    """Whether the outputs of a sequence are independent of what shares its row."""
    return self.attention_mask != "none"

  def window_of(self, layer: int) -> int | None:
    """How far a token sees to either side in this layer; None for its whole sequence."""
    del layer
    return None

  def attention_of(self, layer: int) -> AttentionSpec:
    """The attention of a layer, by its number from 0."""
    rate, window = self.attention_dropout_rate, self.window_of(layer)
    return AttentionSpec(self.attention_mask, self.CAUSAL, window, self.slopes, rate)

  @property
  def residual_range(self) -> float:
    """The initializer range of layers whose output is added to the residual.

    There are 2 x num_layers of them. As in the original GPT-2, the initial variance of
    their sum is that of a single output with `initializer_range`.
    """
    return self.initializer_range / math.sqrt(2 * self.num_layers)

  @classmethod
  def from_size(cls, size: str, **fields) -> Self:
    """The config of a named size; `fields` sets the others, such as `vocab_size`.

    Example:
      >>> BertConfig.from_size("tiny", vocab_size=7, max_position_embeddings=5).num_layers
      2
    """
    if size not in cls.SIZES:
      raise ValueError(f"There is no size {size!r}; expected {', '.join(cls.SIZES)}.")
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
    num_labels: the number of classes of a sequence or token classifier; 1 for regression.
    multi_label: whether a sequence may have several of the classes, or none.
  """

  num_labels: int = 2
  multi_label: bool = False


class Variant(NamedTuple):
  """How the heads of an encoder of BERT's kind differ from BERT's.

  Attributes:
    name: with which the names of its classes in transformers begin.
    activation: of the dense layer between a sequence's first token and its class: "tanh",
      "relu" or "gelu".
    drops_first_token: whether there is also a dropout before this layer.
    drops_before_answers: whether there is a dropout before the head for answers.
    has_pooler: whether the encoder alone may have a pooler.
    counts_from_padding: whether positions begin after the id of padding.
  """

  name: str
  activation: str = "tanh"
  drops_first_token: bool = False
  drops_before_answers: bool = False
  has_pooler: bool = True
  counts_from_padding: bool = False


_ROBERTA = Variant("Roberta", drops_first_token=True, counts_from_padding=True)
# By the `model_type` of transformers.
VARIANTS = {
  "bert": Variant("Bert"),
  "roberta": _ROBERTA,
  "xlm-roberta": _ROBERTA._replace(name="XLMRoberta"),
  "camembert": _ROBERTA._replace(name="Camembert"),
  "distilbert": Variant("DistilBert", "relu", drops_before_answers=True, has_pooler=False),
  "electra": Variant("Electra", "gelu", drops_first_token=True, has_pooler=False),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
  """A BERT encoder and its heads, or an encoder of its kind, such as RoBERTa.

  Attributes:
    variant: a key of `VARIANTS`.
    type_vocab_size: the number of token types; see `tells_types`.
    pair_types: whether the model's tokenizer gives the second text of a pair type 1; False
      if all tokens have type 0.
    position_offset: the position of a sequence's first token in the table of positions;
      RoBERTa's is the id of padding + 1. The table has as many more entries.
    embedding_size: the width of the embeddings, which a linear layer then projects to D, as
      in ELECTRA; None for D.
    pooler: whether a `BertModel` has a pooler.
  """

  FAMILY: ClassVar = "bert"
  SIZES: ClassVar = SIZES
  MASKS: ClassVar = ATTENTION_MASKS

  layer_norm_epsilon: float = 1e-12
  variant: str = "bert"
  type_vocab_size: int = dataclasses.field(default=2, metadata={"at_least": 0})
  pair_types: bool = True
  position_offset: int = dataclasses.field(default=0, metadata={"at_least": 0})
  embedding_size: int | None = None
  position_reset: bool = option(
    "False: the paper's ablation, whose positions continue through the row", default=True
  )
  next_sentence: bool = option(
    "False: the ablation without next-sentence prediction", default=True, absent=(False,)
  )
  pooler: bool = True

  def __post_init__(self):
    super().__post_init__()
    self._check_choice("variant", VARIANTS)
    width = self.embedding_size
    if width is not None and (type(width) is not int or not 1 <= width <= _MOST):
      raise ValueError(f"embedding_size is {short_repr(width)}; expected a width or None.")
    absent = f"True; expected False with variant={self.variant}."
    if self.next_sentence and self.variant != "bert":
      raise ValueError(f"next_sentence is {absent}")
    if self.pooler and not VARIANTS[self.variant].has_pooler:
      raise ValueError(f"pooler is {absent}")
    if self.attention_mask == "token_type" and not self.tells_types:
      raise ValueError(
        f"attention_mask is 'token_type'; expected segment or none with "
        f"variant={self.variant}, type_vocab_size={self.type_vocab_size} and "
        f"pair_types={self.pair_types}."
      )

  @property
  def tells_types(self) -> bool:
    """Whether the token types of a batch matter; RoBERTa's tokenizers give none."""
    of_roberta = VARIANTS[self.variant].counts_from_padding
    return self.pair_types and self.type_vocab_size > 1 and not of_roberta

  @property
  def embedding_width(self) -> int:
    return self.embedding_size or self.hidden_size

  @property
  def isolated(self) -> bool:
    return super().isolated and self.position_reset

  @property
  def residual_range(self) -> float:
    return self.initializer_range
