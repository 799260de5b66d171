"""What a config describes: the model, the length of its rows, and the optimizer."""

from __future__ import annotations

import pathlib
import runpy

import ml_collections
import optax

import model
from model import attention
from training import optimizer as optimizer_lib
from training.errors import ConfigError
from training.recipe import Recipe

# Names allowed in train.trackers, and the modules that they need.
TRACKERS = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
BASE = pathlib.Path(__file__).parents[2] / "configs" / "base.py"
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
  "vocab_multiple",
  "dtype",
)


def base_config() -> ml_collections.ConfigDict:
  """A config with every field, set to its default."""
  return runpy.run_path(str(BASE))["get_config"]()


def tracker_names(config: ml_collections.ConfigDict) -> list[str]:
  """The names in `train.trackers`."""
  return [name.strip() for name in config.train.trackers.split(",") if name.strip()]


def row_length(config: ml_collections.ConfigDict) -> int:
  """The most tokens of a packed row; without packing, `data.max_sequence_length`."""
  length, packing = config.data.max_sequence_length, config.packing
  return length if packing.algorithm == "none" else max(packing.row_length, length)


def check_attention(config: ml_collections.ConfigDict, model_config: model.ModelConfig):
  """Checks that the implementation of attention can compute a model.

  Args:
    config: the run's config.
    model_config: the model's config.

  Raises:
    ConfigError: it cannot; the message says why.
  """
  try:
    for length in {row_length(config), config.data.max_sequence_length}:
      attention.check(model_config, length)
  except model.AttentionError as error:
    raise ConfigError(f"config.model: {error}") from error


def family_of(config: ml_collections.ConfigDict, head: str) -> str:
  """The family of a run's model, a key of `model.MODELS`."""
  return "gpt2" if head == "causal" else config.model.family


def model_config(
  config: ml_collections.ConfigDict,
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
    fields["num_labels"] = num_labels
  if config.model.size != GIVEN:
    return kind.from_size(config.model.size, **fields)
  assert sizes is not None  # validate requires model.init_from
  return kind(**{name: getattr(sizes, name) for name in LAYER_SIZES}, **fields)


def make_schedule(config: ml_collections.ConfigDict, recipe: Recipe) -> optax.Schedule:
  """The learning rate of a recipe, over updates from 0."""
  return optimizer_lib.warmup_and_decay(
    peak=recipe.learning_rate,
    warmup_steps=recipe.warmup_steps,
    total_steps=recipe.steps,
    decay=config.optimizer.decay,
    decay_share=config.optimizer.decay_share,
  )


def make_optimizer(
  config: ml_collections.ConfigDict, recipe: Recipe
) -> optax.GradientTransformation:
  """The optimizer of a config, with the learning rate and the betas of a recipe."""
  opt, rate = config.optimizer, make_schedule(config, recipe)
  common = {"weight_decay": opt.weight_decay, "clip_norm": opt.clip_norm}
  if opt.name == "sgd":
    return optimizer_lib.sgd(rate, b1=recipe.b1, **common)
  common |= {"b1": recipe.b1, "b2": recipe.b2, "eps": opt.eps}
  common |= {"bias_correction": opt.bias_correction}
  if opt.name == "adamw":
    return optimizer_lib.adamw(rate, clip_update=opt.clip_update, **common)
  return optimizer_lib.lamb(rate, **common)
