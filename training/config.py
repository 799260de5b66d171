"""Checks a config's values, and makes the objects that it describes."""

from __future__ import annotations

import pathlib

import ml_collections
import optax

import model
from model import attention
from model.config import HEAD_SIZE, MAX_VOCAB_MULTIPLE
from training import optimizer as optimizer_lib


class ConfigError(ValueError):
  """A field of the config has a value that cannot be used."""


def _check(condition: bool, field: str, value, expected: str):
  if not condition:
    raise ConfigError(
      f"config.{field} is {value!r}; expected {expected}. Set it with --config.{field}=..."
    )


def validate(config: ml_collections.ConfigDict, *, algorithms: list[str], num_devices: int):
  """Refuses values that would fail, or mislead, later.

  Args:
    config: a config as `configs/base.py` makes it.
    algorithms: names of the packing algorithms.
    num_devices: devices that share a batch.

  Raises:
    ConfigError: names the field, what was expected and what was found.
  """
  data, packs, train = config.data, config.packing, config.train
  opt = config.optimizer
  for field in (
    "data.min_sentences",
    "data.dupe_factor",
    "packing.max_sequences_per_pack",
    "train.batch_size",
    "train.steps",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
  ):
    _check(_get(config, field) >= 1, field, _get(config, field), "at least 1")
  for field in (
    "data.short_sequence_probability",
    "model.dropout_rate",
    "model.attention_dropout_rate",
  ):
    _check(0 <= _get(config, field) < 1, field, _get(config, field), "a fraction in [0, 1)")
  for field in ("data.held_out_fraction", "data.mask_rate", "optimizer.b1", "optimizer.b2"):
    _check(0 < _get(config, field) < 1, field, _get(config, field), "a fraction in (0, 1)")
  for field in (
    "model.initializer_range",
    "optimizer.learning_rate",
    "optimizer.eps",
    "optimizer.clip_norm",
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
    not data.vocab_file or pathlib.Path(data.vocab_file).is_file(),
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
  sizes = ", ".join(model.SIZES)
  _check(config.model.size in model.SIZES, "model.size", config.model.size, sizes)
  for field, known in (
    ("model.attention_mask", model.ATTENTION_MASKS),
    ("model.attention_impl", model.IMPLEMENTATIONS),
    ("model.remat", model.REMATERIALISATIONS),
    ("model.dtype", ("float32", "bfloat16")),
    ("train.loss_unit", model.LOSS_UNITS),
  ):
    _check(_get(config, field) in known, field, _get(config, field), ", ".join(known))
  _check_attention(config, num_devices=num_devices)
  decay = opt.weight_decay
  _check(
    0 <= decay < float("inf"), "optimizer.weight_decay", decay, "0 or more, and finite"
  )
  _check(
    0 <= opt.warmup_steps < train.steps,
    "optimizer.warmup_steps",
    opt.warmup_steps,
    f"0 to train.steps - 1 = {train.steps - 1}",
  )
  target, peak = train.target_mlm_accuracy, train.peak_flops
  _check(0 <= target < 1, "train.target_mlm_accuracy", target, "a fraction in [0, 1)")
  _check(0 <= peak < float("inf"), "train.peak_flops", peak, "0 or more, and finite")
  for field in ("train.throughput_rounds", "train.loader_workers"):
    _check(_get(config, field) >= 0, field, _get(config, field), "0 or more")
  for field in ("train.eval_every", "train.checkpoint_every"):
    multiple = _get(config, field) % train.log_every == 0
    expected = f"a multiple of train.log_every={train.log_every}"
    _check(multiple, field, _get(config, field), expected)
  _check(
    train.batch_size % num_devices == 0,
    "train.batch_size",
    train.batch_size,
    f"a multiple of the {num_devices} devices",
  )


def _check_attention(config, *, num_devices: int):
  implementation = config.model.attention_impl
  # A Pallas kernel does not say how it may be split.
  _check(
    num_devices == 1 or not implementation.startswith("splash"),
    "model.attention_impl",
    implementation,
    f"xla on {num_devices} devices; splash runs on one",
  )
  try:
    attention.check(
      implementation,
      dtype=config.model.dtype,
      head_size=HEAD_SIZE,
      row_length=config.data.max_sequence_length,
      dropout_rate=config.model.attention_dropout_rate,
    )
  except model.AttentionError as error:
    raise ConfigError(f"config.model: {error}") from error


def _get(config, field: str):
  for name in field.split("."):
    config = config[name]
  return config


def bert_config(config: ml_collections.ConfigDict, *, vocab_size: int) -> model.BertConfig:
  """The model of a config."""
  return model.BertConfig.from_size(
    config.model.size,
    vocab_size=vocab_size,
    max_position_embeddings=config.data.max_sequence_length,
    dropout_rate=config.model.dropout_rate,
    attention_dropout_rate=config.model.attention_dropout_rate,
    initializer_range=config.model.initializer_range,
    attention_mask=config.model.attention_mask,
    position_reset=config.model.position_reset,
    next_sentence=config.model.next_sentence,
    attention_impl=config.model.attention_impl,
    remat=config.model.remat,
    vocab_multiple=config.model.vocab_multiple,
    dtype=config.model.dtype,
  )


def make_schedule(config: ml_collections.ConfigDict) -> optax.Schedule:
  """The learning rate of a config, over updates from 0."""
  return optimizer_lib.warmup_linear_decay(
    peak=config.optimizer.learning_rate,
    warmup_steps=config.optimizer.warmup_steps,
    total_steps=config.train.steps,
  )


def make_optimizer(
  config: ml_collections.ConfigDict, *, packing_factor: float
) -> optax.GradientTransformation:
  """The optimizer of a config, its betas adjusted to the packing factor."""
  opt = config.optimizer
  b1, b2 = optimizer_lib.packed_betas(opt.b1, opt.b2, packing_factor)
  return optimizer_lib.lamb(
    make_schedule(config),
    b1=b1,
    b2=b2,
    eps=opt.eps,
    weight_decay=opt.weight_decay,
    clip_norm=opt.clip_norm,
  )
