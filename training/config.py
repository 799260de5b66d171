"""Checks a config's values, and makes the objects that it describes."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection, Mapping
from typing import TypeVar

import ml_collections
import optax

import model
from model import attention
from model.config import MAX_VOCAB_MULTIPLE
from training import optimizer as optimizer_lib
from training.errors import ConfigError
from training.errors import check as _check
from training.recipe import Recipe, check_recipe

MASKED_TASKS = ("pretraining", "sentences")  # whose tokens are hidden, and to be told
GIVEN = "given"  # the size of a model that has the sizes of model.init_from


def validate(
  config: ml_collections.ConfigDict,
  *,
  algorithms: Collection[str],
  tasks: Mapping[str, str],
  num_devices: int,
  typed: Collection[str] = (),
):
  """Refuses values that would fail, or mislead, later.

  Args:
    config: a config as `configs/base.py` makes it.
    algorithms: names of the packing algorithms.
    tasks: by name the head that learns a task, a key of `model.MODELS`.
    num_devices: devices that share a batch.
    typed: fields that were asked for, and did not come with the config file.

  Raises:
    ConfigError: names the field, what was expected and what was found.
  """
  data, packs, train, opt = config.data, config.packing, config.train, config.optimizer
  for field in (
    "data.min_sentences",
    "data.dupe_factor",
    "train.batch_size",
    "train.steps",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.fsdp",
  ):
    _check(_get(config, field) >= 1, field, _get(config, field), "at least 1")
  for field in (
    "data.short_sequence_probability",
    "model.dropout_rate",
    "model.attention_dropout_rate",
    "train.target_mlm_accuracy",
  ):
    _check(0 <= _get(config, field) < 1, field, _get(config, field), "a fraction in [0, 1)")
  for field in ("data.held_out_fraction", "data.mask_rate", "optimizer.b1", "optimizer.b2"):
    _check(0 < _get(config, field) < 1, field, _get(config, field), "a fraction in (0, 1)")
  for field in (
    "model.initializer_range",
    "optimizer.learning_rate",
    "optimizer.eps",
  ):
    finite = 0 < _get(config, field) < float("inf")
    _check(finite, field, _get(config, field), "more than 0, and finite")
  multiple, most = config.model.vocab_multiple, MAX_VOCAB_MULTIPLE
  expected = f"at least 1 and at most {most}"
  _check(1 <= multiple <= most, "model.vocab_multiple", multiple, expected)
  length = data.max_sequence_length
  _check(5 <= length <= 65535, "data.max_sequence_length", length, "5 to 65535 tokens")
  _check(data.vocab_size >= 64, "data.vocab_size", data.vocab_size, "at least 64")
  _check(
    config.model.size != GIVEN or config.model.init_from,
    "model.init_from",
    config.model.init_from,
    "the folder of a model to start from, a run's or an imported one, since model.size is "
    f"{GIVEN!r}",
  )
  causal = tasks.get(data.task) == "causal"
  kind = model.Gpt2Config if causal else model.BertConfig
  sizes = (*kind.SIZES, GIVEN)
  _check(config.model.size in sizes, "model.size", config.model.size, ", ".join(sizes))
  _check(
    causal or config.model.positions == "alibi",
    "model.positions",
    config.model.positions,
    f"'alibi' with data.task={data.task}, which trains a BERT: its positions are learned",
  )
  found = not data.vocab_file or pathlib.Path(data.vocab_file).is_file()
  _check(  # where the vocabulary is taken from the model, its folder is what is wrong
    found or pathlib.Path(config.model.init_from or ".").is_dir(),
    "model.init_from",
    config.model.init_from,
    "the folder of a model to start from, a run's or an imported one",
  )
  _check(
    found,
    "data.vocab_file",
    data.vocab_file,
    "a vocabulary file, or nothing to train one",
  )
  for field in ("seed", "data.seed"):
    _check(0 <= _get(config, field) < 2**32, field, _get(config, field), "0 to 2^32 - 1")
  names = ", ".join(algorithms)
  _check(packs.algorithm in algorithms, "packing.algorithm", packs.algorithm, names)
  modes = ("fresh", "fixed")
  _check(
    packs.assignment in modes, "packing.assignment", packs.assignment, ", ".join(modes)
  )
  _check(data.task in tasks, "data.task", data.task, ", ".join(tasks))
  _check(
    data.task in MASKED_TASKS or not train.target_mlm_accuracy,
    "train.target_mlm_accuracy",
    train.target_mlm_accuracy,
    f"0 with data.task={data.task}, which masks no tokens",
  )
  _check(
    not causal or config.model.position_reset,
    "model.position_reset",
    config.model.position_reset,
    f"True with data.task={data.task}: positions of a GPT-2 are those of its sequences",
  )
  layouts = ("packed", "concat", "padding") if data.task == "text" else ("packed",)
  _check(data.layout in layouts, "data.layout", data.layout, ", ".join(layouts))
  size = data.atom_size
  _check(
    not size or (size > 1 and max(size, length) % min(size, length) == 0),
    "data.atom_size",
    size,
    f"0, or what divides data.max_sequence_length={length} or is its multiple, from 2 on",
  )
  for field, value in (("packing.assignment", "fresh"), ("train.throughput_rounds", 0)):
    _check(
      data.layout not in layouts[1:] or _get(config, field) == value,
      field,
      _get(config, field),
      f"{value} with data.layout={data.layout}, whose atoms are shuffled and not packed",
    )
  for field, users in (
    ("data.atom_size", ("concat", "padding")),
    ("data.loss_on_padding", ("padding",)),
  ):
    _check(
      data.layout in users or not _get(config, field),
      field,
      _get(config, field),
      f"{type(_get(config, field))()} with data.layout={data.layout}",
    )
  _check(
    data.min_words >= 0 and (data.task == "text" or not data.min_words),
    "data.min_words",
    data.min_words,
    "0 or more for data.task=text, 0 for others",
  )
  _check(
    data.task != "sentences" or not config.model.next_sentence,
    "model.next_sentence",
    config.model.next_sentence,
    "False with data.task=sentences, which has no next sentence",
  )
  _check(
    data.held_out_source or not data.mismatched_source,
    "data.mismatched_source",
    data.mismatched_source,
    "data.held_out_source as well",
  )
  for field, known in (
    ("model.attention_mask", kind.MASKS),
    ("model.positions", model.POSITIONS),
    ("model.attention_impl", model.IMPLEMENTATIONS),
    ("model.remat", model.REMATERIALISATIONS),
    ("model.dtype", ("float32", "bfloat16")),
    ("train.loss_unit", model.LOSS_UNITS),
    ("optimizer.name", optimizer_lib.OPTIMIZERS),
    ("optimizer.trust_ratio", optimizer_lib.TRUST_RATIOS),
  ):
    _check(_get(config, field) in known, field, _get(config, field), ", ".join(known))
  # A Pallas kernel does not say how it may be split.
  _check(
    num_devices == 1 or not config.model.attention_impl.startswith("splash"),
    "model.attention_impl",
    config.model.attention_impl,
    f"xla on {num_devices} devices; splash runs on one",
  )
  if config.model.size != GIVEN:
    make = gpt2_config if causal else bert_config
    check_attention(config, make(config, vocab_size=data.vocab_size))
  for field in (
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.max_weight_norm",
    "train.peak_flops",
  ):
    finite = 0 <= _get(config, field) < float("inf")
    _check(finite, field, _get(config, field), "0 or more, and finite")
  for field, default, users in (
    ("optimizer.bias_correction", True, ("lamb", "adamw")),
    ("optimizer.trust_ratio", "weights", ("lamb",)),
    ("optimizer.max_weight_norm", 0.0, ("lamb",)),
  ):
    _check(
      opt.name in users or _get(config, field) == default,
      field,
      _get(config, field),
      f"{default!r} with optimizer.name={opt.name}, which has no such option",
    )
  for field in (
    "profile",
    "packing.max_sequences_per_pack",
    "train.throughput_rounds",
    "train.loader_workers",
    "train.skip_bad_steps",
    "train.keep_every",
    "train.patience",
  ):
    _check(_get(config, field) >= 0, field, _get(config, field), "0 or more")
  for field in ("train.eval_every", "train.checkpoint_every"):
    multiple = _get(config, field) % train.log_every == 0
    expected = f"a multiple of train.log_every={train.log_every}"
    _check(multiple, field, _get(config, field), expected)
  _check(
    num_devices % train.fsdp == 0,
    "train.fsdp",
    train.fsdp,
    f"what divides the {num_devices} devices",
  )
  check_recipe(config, num_devices=num_devices, typed=typed)


def check_attention(config: ml_collections.ConfigDict, model_config: model.ModelConfig):
  """Refuses an implementation of attention that cannot compute this model.

  Args:
    config: of the run.
    model_config: of the model.

  Raises:
    ConfigError: says why.
  """
  try:
    attention.check(model_config, config.data.max_sequence_length)
  except model.AttentionError as error:
    raise ConfigError(f"config.model: {error}") from error


def _get(config, field: str):
  for name in field.split("."):
    config = config[name]
  return config


def bert_config(
  config: ml_collections.ConfigDict,
  *,
  vocab_size: int,
  sizes: model.ModelConfig | None = None,
  num_labels: int = 2,
) -> model.BertConfig:
  """The model of a config.

  Args:
    config: of the run.
    vocab_size: V.
    sizes: what has the sizes of the layers where `model.size` is `GIVEN`.
    num_labels: classes of a sequence; 1 for regression.
  """
  return _model_config(
    model.BertConfig,
    config,
    sizes,
    vocab_size=vocab_size,
    num_labels=num_labels,
    position_reset=config.model.position_reset,
    next_sentence=config.model.next_sentence,
  )


def gpt2_config(
  config: ml_collections.ConfigDict,
  *,
  vocab_size: int,
  sizes: model.ModelConfig | None = None,
) -> model.Gpt2Config:
  """The model of a config whose task has the head `causal`; see `bert_config`."""
  return _model_config(
    model.Gpt2Config,
    config,
    sizes,
    vocab_size=vocab_size,
    positions=config.model.positions,
  )


_Config = TypeVar("_Config", bound=model.ModelConfig)


def _model_config(
  kind: type[_Config],
  config: ml_collections.ConfigDict,
  sizes: model.ModelConfig | None = None,
  **fields,
) -> _Config:
  """Of a kind, with its own `fields`, and those that all models have."""
  if config.model.size == GIVEN:
    assert sizes is not None  # validate asks for model.init_from
    names = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    make = functools.partial(kind, **{name: getattr(sizes, name) for name in names})
  else:
    make = functools.partial(kind.from_size, config.model.size)
  return make(
    max_position_embeddings=config.data.max_sequence_length,
    dropout_rate=config.model.dropout_rate,
    attention_dropout_rate=config.model.attention_dropout_rate,
    initializer_range=config.model.initializer_range,
    attention_mask=config.model.attention_mask,
    attention_impl=config.model.attention_impl,
    remat=config.model.remat,
    vocab_multiple=config.model.vocab_multiple,
    dtype=config.model.dtype,
    **fields,
  )


def make_schedule(recipe: Recipe) -> optax.Schedule:
  """The learning rate of a recipe, over updates from 0."""
  return optimizer_lib.warmup_linear_decay(
    peak=recipe.learning_rate,
    warmup_steps=recipe.warmup_steps,
    total_steps=recipe.steps,
  )


def make_optimizer(
  config: ml_collections.ConfigDict, recipe: Recipe
) -> optax.GradientTransformation:
  """The optimizer of a config, with the learning rate and the betas of a recipe."""
  opt, rate = config.optimizer, make_schedule(recipe)
  common = {"weight_decay": opt.weight_decay, "clip_norm": opt.clip_norm}
  if opt.name == "sgd":
    return optimizer_lib.sgd(rate, b1=recipe.b1, **common)
  if opt.name == "adafactor":
    return optimizer_lib.adafactor(rate, **common)
  common |= {"b1": recipe.b1, "b2": recipe.b2, "eps": opt.eps}
  common |= {"bias_correction": opt.bias_correction}
  if opt.name == "adamw":
    return optimizer_lib.adamw(rate, **common)
  return optimizer_lib.lamb(
    rate, trust_ratio=opt.trust_ratio, max_weight_norm=opt.max_weight_norm, **common
  )
