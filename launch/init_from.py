"""The model of a run, and the weights that it starts from if it names any."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

import model
from launch import computation
from launch.options import check_option
from launch.parts import FAMILIES, LAYER_SIZES, PREPARED, Data
from launch.settings import RunSettings
from model import hf, weights
from model.hf.pooling import Pooling, read_pooling
from model.hf.tokenizer import BYTE_LEVEL_FILES, read_byte_level_tokens
from model.models import draw_params, name_of
from pipeline.tokenizer import Tokenizer, read_vocabulary
from training import processes
from training.errors import ConfigError

_FIELD = "config.model.init_from"
# Fields of the model that no config sets, so that they always come from the weights.
_WEIGHTS_FIELDS = (
  "max_position_embeddings",
  "variant",
  "type_vocab_size",
  "pair_types",
  "position_offset",
  "embedding_size",
  "layer_norm_epsilon",
  "global_every",
  "local_window",
  "local_base",
  "pooling",
)
_CLASSIFIERS = "sequence_classification", "token_classification"
# Parameters that heads add to the encoder, in the order of computation.
_HEAD = (
  *("mlm_transform", "mlm_layer_norm", "head", "mlm_bias", "pooler", "nsp"),
  *("classifier_transform", "classifier", "token_classifier", "answer"),
)


def open_weights(run: RunSettings) -> weights.StoredModel | None:
  """Opens the weights that a run names, and checks that it can start from them.

  A causal model needs a causal one to start from; other heads take the encoder of any model
  of the run's family.

  Returns:
    The weights, whose arrays are not read yet; None if the run names none.

  Raises:
    ConfigError: there are no such weights, or this run cannot start from them.
  """
  directory, config = run.model.init_from, run.model.config
  if not directory:
    return None
  try:
    stored = hf.open_model(directory, step=weights.choose_step(directory).step)
    there = stored.config.FAMILY
    fits = there == config.FAMILY or not {there, config.FAMILY} <= set(FAMILIES)
    expected = f"{there!r}, as in {_FIELD}={directory}"
    check_option(fits, "model.family", run.given["model.family"], expected)
    sizes = stored.config_as(type(config))
  except (weights.WeightsError, OSError) as error:
    raise ConfigError(f"{_FIELD}: {error}") from error
  if isinstance(sizes, model.Gpt2Config) and isinstance(config, model.Gpt2Config):
    there, here = sizes.positions, config.positions
    check_option(
      there == here, "model.positions", here, f"{there!r}, as in {_FIELD}={directory}"
    )
    if there == "learned":
      check_length(run, sizes.max_position_embeddings)
  _check_shape(run, sizes)
  _check_vocabulary_file(run.data, stored)
  return stored


def check_length(run: RunSettings, positions: int):
  """Raises ConfigError if sequences are longer than the weights have positions."""
  length = run.data.max_sequence_length
  expected = f"at most the {positions} positions of {_FIELD}={run.model.init_from}"
  check_option(length <= positions, "data.max_sequence_length", length, expected)


def _check_shape(run: RunSettings, sizes: model.ModelConfig):
  directory = run.model.init_from
  expected = run.model.of(vocab_size=sizes.vocab_size, sizes=sizes)
  computation.check_attention(run, expected)
  there, here = (getattr(x, "global_base", None) for x in (sizes, expected))
  if run.head != "pretraining":  # which may change it, for longer sequences
    check_option(
      there == here, "model.global_base", here, f"{there}, as in {_FIELD}={directory}"
    )
  differences = [
    f"{name} {getattr(sizes, name)}, not {getattr(expected, name)}"
    for name in LAYER_SIZES
    if getattr(sizes, name) != getattr(expected, name)
  ]
  why = f"given, since {_FIELD}={directory} has {'; '.join(differences)}"
  check_option(not differences, "model.size", run.model.size, why)
  if isinstance(sizes, model.BertConfig):
    if sizes.variant == "bert":
      why = f"weights with a type_vocab_size of at least 2, not {sizes.type_vocab_size}"
      check_option(sizes.type_vocab_size >= 2, "model.init_from", directory, why)
    elif run.head == "pretraining":
      check_option(
        not getattr(run.model.config, "next_sentence", False),
        "model.next_sentence",
        True,
        f"False, since {_FIELD}={directory} is a {sizes.variant}",
      )
    check_option(
      run.model.config.attention_mask != "token_type" or sizes.tells_types,
      "model.attention_mask",
      "token_type",
      f"segment or none, since {_FIELD}={directory} does not tell sentence A from B",
    )


def _check_vocabulary_file(data: Data, stored: weights.StoredModel):
  is_causal = stored.head == "causal"
  if stored.vocabulary is None:
    expected = " or ".join(BYTE_LEVEL_FILES) if is_causal else weights.VOCABULARY
    config = stored.config
    variant = config.variant if isinstance(config, model.BertConfig) else "bert"
    if model.VARIANTS[variant].counts_from_padding:
      expected = f"{BYTE_LEVEL_FILES[0]}, which transformers' AutoTokenizer can save,"
    raise ConfigError(
      f"{_FIELD}={stored.directory} has no vocabulary. Copy its own {expected} there."
    )
  if not stored.vocabulary.lowercase and not stored.vocabulary.by_json:
    raise ConfigError(
      f"{_FIELD}={stored.directory} is cased, but text is lowercased without the model's "
      f"tokenizer.json. Copy it there, or choose another model."
    )
  path = pathlib.Path(data.vocab_file)
  if path.is_file() and path.suffix != ".json" and not _splits_alike(stored, path):
    raise ConfigError(
      f"config.data.vocab_file is {str(path)!r}, which splits text as BERT does, unlike "
      f"the {BYTE_LEVEL_FILES[0]} of {_FIELD}={stored.directory}. {_remedy(stored)}"
    )
  if path.is_file():  # if it is gone, the dataset has a copy, which is checked later
    read = read_byte_level_tokens if path.suffix == ".json" else weights.read_tokens
    try:
      tokens = read(path)
    except (weights.WeightsError, UnicodeDecodeError) as error:
      raise ConfigError(f"config.data.vocab_file={path}: {error}") from error
    check_vocabulary(stored, tokens, found_in=path)
  elif data.source != PREPARED and not pathlib.Path(data.directory).exists():
    raise ConfigError(
      f"{_FIELD}={stored.directory} needs its vocabulary, not a new one. {_remedy(stored)}"
    )


def check_vocabulary(
  stored: weights.StoredModel,
  tokens: Sequence[str],
  *,
  found_in: str | pathlib.Path = "the dataset",
):
  """Checks that a dataset has the vocabulary that the weights were trained with.

  Args:
    stored: from `open_weights`.
    tokens: the dataset's tokens, in the order of their ids.
    found_in: the source of the tokens, for the message.

  Raises:
    ConfigError: the tokens differ from those of the weights.
  """
  assert stored.vocabulary is not None  # checked by open_weights
  if tuple(tokens) != stored.vocabulary.tokens:
    raise ConfigError(
      f"The vocabulary of {found_in} ({len(tokens)} tokens) differs from that of "
      f"{_FIELD}={stored.directory} ({len(stored.vocabulary.tokens)}). {_remedy(stored)}"
    )


def check_splitting(stored: weights.StoredModel, tokenizer: Tokenizer):
  """Checks that a dataset was not split as BERT does if the weights' tokenizer differs.

  Such a dataset may have the same vocabulary, but its text was lower-cased.

  Args:
    stored: from `open_weights`.
    tokenizer: the dataset's.

  Raises:
    ConfigError: the weights need their tokenizer.json, and the dataset has none.
  """
  if not tokenizer.by_json and not _splits_alike(stored, tokenizer.path):
    raise ConfigError(
      "The text of the dataset was lower-cased and split as BERT does, unlike by the "
      f"{BYTE_LEVEL_FILES[0]} of {_FIELD}={stored.directory}. {_remedy(stored)}"
    )


def _splits_alike(stored: weights.StoredModel, path: pathlib.Path) -> bool:
  """Whether text split by a vocab.txt, as BERT does, is split as the weights need it."""
  assert stored.vocabulary is not None  # checked by open_weights
  own = stored.directory / BYTE_LEVEL_FILES[0]
  if not stored.vocabulary.by_json:
    return True
  return own.is_file() and Tokenizer(own).splits_as(read_vocabulary(path))


def _remedy(stored: weights.StoredModel) -> str:
  by_json = stored.vocabulary is not None and stored.vocabulary.by_json
  names = BYTE_LEVEL_FILES if by_json or stored.head == "causal" else [weights.VOCABULARY]
  path = stored.directory / names[0]
  if path.exists():
    return (
      f"Set --config.data.vocab_file={path} and another --config.data.directory; if you "
      f"prepare the dataset yourself, give --vocab-file {path}."
    )
  if path.name == weights.VOCABULARY:
    imported = f"python -m model import {stored.directory} --out FOLDER"
    return f"It has no {path.name}: run {imported}, and use FOLDER and its {path.name}."
  return (
    f"Save its tokenizer as {names[0]} with transformers, and set --config.data.vocab_file "
    "to that file."
  )


def run_model_config(
  run: RunSettings,
  *,
  vocab_size: int,
  stored: weights.StoredModel | None,
  begun: model.ModelConfig | None = None,
  labels: Sequence[str] = (),
  pair_types: bool = True,
) -> model.ModelConfig:
  """The model of a run, from its settings and the weights that it starts from.

  If sequences are longer than the weights have positions, the model gets additional
  positions, as in the second phase of BERT's pretraining.

  Args:
    run: its settings.
    vocab_size: the size of the dataset's vocabulary.
    stored: from `open_weights`.
    begun: the model as the run began it, whose sizes it keeps; None for a new run.
    labels: names of its classes; () for regression.
    pair_types: whether the dataset's tokenizer gives the second text of a pair type 1, as a
      new BERT then learns.

  Raises:
    ConfigError: it has begun, and its attention cannot be computed here; or it is new, and
      its attention needs the types of pairs, which the tokenizer does not give.
  """
  sizes = begun or (stored.config if stored else None)
  made = run.model.of(
    vocab_size=sizes.vocab_size if sizes else vocab_size,
    sizes=sizes,
    num_labels=num_labels_of(run.head, labels),
  )
  if sizes is None:
    if isinstance(made, model.BertConfig) and not pair_types:
      check_option(
        made.attention_mask != "token_type",
        "model.attention_mask",
        "token_type",
        "segment or none, since the dataset's tokenizer gives both texts of a pair type 0",
      )
      made = dataclasses.replace(made, pair_types=False)
    return made
  # Some models lack some of these fields.
  names = [name for name in _WEIGHTS_FIELDS if hasattr(made, name) and hasattr(sizes, name)]
  fields = {name: getattr(sizes, name) for name in names}
  if isinstance(sizes, model.BertConfig) and sizes.variant != "bert":
    fields |= {"next_sentence": False, "pooler": False}  # which only a BERT has
  made = dataclasses.replace(made, **fields)
  if begun is None:
    longest = max(run.data.max_sequence_length, sizes.max_position_embeddings)
    return dataclasses.replace(made, max_position_embeddings=longest)
  computation.check_attention(run, made)
  return made


def num_labels_of(head: str, labels: Sequence[str]) -> int:
  """Outputs: one for each class, or 1 for regression; 2 for heads without classes."""
  return max(len(labels), 1) if head in _CLASSIFIERS else 2


def pooling_of(run: RunSettings, stored: weights.StoredModel | None) -> Pooling:
  """How a run or an evaluation makes the vectors of texts, divided by their length.

  Args:
    run: of pairs, whose `pooling` may leave it to the model's folder.
    stored: the model that it starts from, or has trained; None for a random one.

  Raises:
    WeightsError: the folder asks for what training does not do.
  """
  assert run.pairs is not None
  mode, longest = run.pairs.pooling, run.data.max_sequence_length
  if stored:
    mode = read_pooling(stored, instead=None if mode == "auto" else mode).mode
  return Pooling("mean" if mode == "auto" else mode, longest, normalized=True)


def check_labels(stored: weights.StoredModel, labels: Sequence[str]):
  """Checks that a model has the classes of a dataset.

  Args:
    stored: from `open_weights`.
    labels: names of the dataset's classes; () for regression.

  Raises:
    ConfigError: the model has other classes, or has them in another order.
  """
  if stored.head not in _CLASSIFIERS:
    return  # Hugging Face's configs have a number of classes for other heads too
  expected = num_labels_of(stored.head, labels)
  there = stored.config_as(model.EncoderConfig).num_labels
  if there != expected or stored.labels not in ((), tuple(labels)):
    raise ConfigError(
      f"{stored.directory} has {there} classes ({', '.join(stored.labels) or 'no names'}), "
      f"but the dataset has {', '.join(labels) or 'numbers'}. Give a model of this task."
    )


def initial_params(
  stored: weights.StoredModel,
  config: model.ModelConfig,
  *,
  head: str = "pretraining",
  labels: Sequence[str] = (),
  seed: int = 0,
) -> weights.Params:
  """Reads the weights, and adapts them to the model of a run.

  Heads that the model lacks are dropped. Positions and parts of the head that the weights
  lack are initialised at random, with a message. A classifier is kept if it has the same
  classes, or as many without names.

  Args:
    stored: from `open_weights`.
    config: the model, from `run_model_config`.
    head: its head.
    labels: names of its classes.
    seed: of the random parts.
  """
  params = stored.load()
  if not isinstance(config, model.EncoderConfig):
    return params  # a GPT-2 has one head only, and open_weights has checked its positions
  sizes = stored.config_as(model.EncoderConfig)
  there, positions = sizes.max_position_embeddings, config.max_position_embeddings
  if there < positions and "position" in params["embeddings"]:
    processes.print_on_first(
      f"{_FIELD}={stored.directory} has {there} positions, the run has {positions}: "
      f"initialising the last {positions - there} at random"
    )
    params |= {"embeddings": _with_positions(params["embeddings"], config, seed=seed)}
  needed = weights.abstract_params(config, head)
  params = {name: value for name, value in params.items() if name in needed}
  same = stored.head == head and sizes.num_labels == config.num_labels
  if not same or stored.labels not in ((), tuple(labels)):
    for name in ("classifier", "token_classifier"):
      params.pop(name, None)
  missing = [name for name in _HEAD if name in needed and name not in params]
  if missing:
    theirs, ours = stored.name, name_of(config, head)
    if stored.head == head and head in _CLASSIFIERS:
      theirs += f" with {sizes.num_labels} classes {', '.join(stored.labels)}".rstrip()
      ours += f" with {config.num_labels} classes {', '.join(labels)}".rstrip()
    processes.print_on_first(
      f"{_FIELD}={stored.directory} is a {theirs}, the run trains a {ours}: initialising "
      f"{', '.join(missing)} at random"
    )
    drawn = draw_params(config, head, seed=seed)
    params |= {name: drawn[name] for name in missing}
  return params


def _with_positions(embeddings, config: model.ModelConfig, *, seed: int):
  old = embeddings["position"]["embedding"]
  entries = config.max_position_embeddings + getattr(config, "position_offset", 0)
  shape = (entries - old.shape[0], old.shape[1])
  draw = jax.nn.initializers.truncated_normal(config.initializer_range)
  new = draw(jax.random.key(seed), shape, old.dtype)
  return embeddings | {"position": {"embedding": jnp.concatenate([old, new])}}
