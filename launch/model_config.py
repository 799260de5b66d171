"""The model that a config describes."""

from __future__ import annotations

from ml_collections import ConfigDict

import model
from launch.fields import row_length
from model import attention
from training.errors import ConfigError

GIVEN = "given"  # the value of model.size that takes the sizes of model.init_from

LAYER_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")

# Fields of config.model that only one family has.
FAMILY_FIELDS = {
  "bert": ("position_reset", "next_sentence"),
  "modern_bert": ("global_base",),
  "gpt2": ("positions",),
}
FAMILIES = ("bert", "modern_bert")  # families of models that are not causal

# Fields of config.model that every model has.
_MODEL_FIELDS = (
  "dropout_rate",
  "attention_dropout_rate",
  "attention_mask",
  "attention_impl",
  "remat",
  "dtype",
)


def check_attention(config: ConfigDict, model_config: model.ModelConfig):
  """Checks that the implementation of attention can compute a run's model.

  Raises:
    ConfigError: it cannot; the message says why.
  """
  try:
    for length in {row_length(config), config.data.max_sequence_length}:
      attention.check(model_config, length)
  except model.AttentionError as error:
    raise ConfigError(f"config.model: {error}") from error


def family_of(config: ConfigDict, head: str) -> str:
  """The family of a run's model, a key of `model.MODELS`."""
  return "gpt2" if head == "causal" else config.model.family


def model_config(
  config: ConfigDict,
  *,
  head: str = "pretraining",
  vocab_size: int,
  sizes: model.ModelConfig | None = None,
  num_labels: int = 2,
) -> model.ModelConfig:
  """The model that a run's config describes.

  Args:
    config: the run's config.
    head: the head that the run trains; a key of `model.MODELS`.
    vocab_size: V.
    sizes: the model to take the sizes of layers from, if `model.size` is `GIVEN`.
    num_labels: classes of a sequence; 1 for regression.
  """
  family = family_of(config, head)
  kind = model.CONFIGS[family]
  names = (*_MODEL_FIELDS, *FAMILY_FIELDS[family])
  fields = {name: config.model[name] for name in names} | {
    "vocab_size": vocab_size,
    "max_position_embeddings": config.data.max_sequence_length,
  }
  if family != "gpt2":
    fields |= {"num_labels": num_labels, "multi_label": config.data.task == "multi_label"}
  if family == "bert" and head == "encoder":
    fields["pooler"] = False  # a mean or a [CLS], without BERT's pooler
  if config.model.size != GIVEN:
    return kind.from_size(config.model.size, **fields)
  assert sizes is not None  # validate requires model.init_from
  return kind(**{name: getattr(sizes, name) for name in LAYER_SIZES}, **fields)
