"""The model of a run, and the weights that it starts from where some are given."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import ml_collections

import model
from model import hf, weights
from model.hf.tokenizer import BYTE_LEVEL_FILES, read_byte_level_tokens
from model.models import make_model
from training import processes
from training.config import ConfigError, bert_config, check_attention, gpt2_config

_FIELD = "config.model.init_from"
# What a run's config does not say, and what its checkpoints cannot do without.
_OF_THE_WEIGHTS = ("max_position_embeddings", "type_vocab_size", "layer_norm_epsilon")
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
_SHAPES = (*_SIZES, "next_sentence", "vocab_multiple", "num_labels", "positions")
# Of the model that a task adds to the encoder, in the order in which it reads.
_HEAD = ("pooler", "classifier", "answer")


def open_weights(
  config: ml_collections.ConfigDict, *, head: str = "pretraining"
) -> weights.StoredModel | None:
  """Checks the weights that a config names, as far as can be before any work.

  Args:
    config: of the run.
    head: that the run trains. Pretraining goes on from a pretrained model alone, a causal
      model from a causal one; others take the encoder of any BERT.

  Returns:
    None where it names none. The arrays are not read yet.

  Raises:
    ConfigError: there are no such weights, or this config cannot start from them.
  """
  directory = config.model.init_from
  if not directory:
    return None
  try:
    given = hf.open_model(directory)
    sizes = given.gpt2 if head == "causal" else given.bert
  except (weights.WeightsError, OSError) as error:
    raise ConfigError(f"{_FIELD}: {error}") from error
  if isinstance(sizes, model.Gpt2Config):
    _check_positions(config, directory, sizes)
  elif head == "pretraining":
    _check_pretrained(config, given)
  _check_shape(config, directory, sizes, head=head)
  _check_vocabulary_file(config, given)
  return given


def _check_positions(config, directory: str, sizes: model.Gpt2Config):
  there, here = sizes.positions, config.model.positions
  if there != here:
    raise ConfigError(
      f"{_FIELD}={directory} has {there} positions, config.model.positions is {here!r}. "
      f"Set --config.model.positions={there}."
    )
  most, length = sizes.max_position_embeddings, config.data.max_sequence_length
  if there == "learned" and most < length:
    raise ConfigError(
      f"{_FIELD}={directory} has {most} positions, config.data.max_sequence_length is "
      f"{length}. Set --config.data.max_sequence_length={most} and another "
      "--config.data.directory."
    )


def _check_pretrained(config, given: weights.StoredModel):
  directory = given.directory
  if given.head != "pretraining":
    raise ConfigError(
      f"{_FIELD}={directory} holds a {model.MODELS[given.head].__name__}; its "
      "masked-language-model head is missing. Expected BertForPreTraining or "
      "BertForMaskedLM; give other weights."
    )
  if config.model.next_sentence and not given.bert.next_sentence:
    raise ConfigError(
      f"{_FIELD}={directory} has no next-sentence head (pooler, nsp). Give other weights, "
      "or train without it: --config.model.next_sentence=False."
    )


def _check_shape(config, directory: str, sizes: model.ModelConfig, *, head: str):
  expected = _expected(config, head=head, vocab_size=sizes.vocab_size, sizes=sizes)
  check_attention(config, expected)
  differences = [
    f"{name} is {getattr(sizes, name)} there and {getattr(expected, name)} here"
    for name in _SIZES
    if getattr(sizes, name) != getattr(expected, name)
  ]
  if differences:
    raise ConfigError(
      f"{_FIELD}={directory} is not of config.model.size={config.model.size}: "
      f"{'; '.join(differences)}. Give its size with --config.model.size=..., one of "
      f"{', '.join(type(expected).SIZES)}; given takes any."
    )
  if isinstance(sizes, model.BertConfig) and sizes.type_vocab_size < 2:
    raise ConfigError(
      f"{_FIELD}={directory} has type_vocab_size={sizes.type_vocab_size}; "
      "expected 2 or more, for the two sentences of a sequence. Give other weights."
    )


def _check_vocabulary_file(config, given: weights.StoredModel):
  is_causal = given.head == "causal"
  if given.vocabulary is None:
    expected = " or ".join(BYTE_LEVEL_FILES) if is_causal else weights.VOCABULARY
    raise ConfigError(
      f"{_FIELD}={given.directory} has no vocabulary; expected {expected} there. Copy the "
      "one that it was trained with to it."
    )
  if not given.vocabulary.lowercase and not is_causal:
    raise ConfigError(
      f"{_FIELD}={given.directory} is cased; expected an uncased model, since the "
      "pipeline lowers its text. Give other weights."
    )
  path = pathlib.Path(config.data.vocab_file)
  if config.data.vocab_file:
    read = read_byte_level_tokens if path.suffix == ".json" else weights.read_tokens
    try:
      tokens = read(path)
    except weights.WeightsError as error:
      raise ConfigError(f"config.data.vocab_file: {error}") from error
    check_vocabulary(given, tokens, found_in=path)
  elif (
    config.data.source != "prepared" and not pathlib.Path(config.data.directory).exists()
  ):
    raise ConfigError(
      f"{_FIELD}={given.directory} has a vocabulary, and one would be trained for the "
      f"dataset. {_remedy(given)}"
    )


def check_vocabulary(
  given: weights.StoredModel,
  tokens: Sequence[str],
  *,
  found_in: str | pathlib.Path = "the dataset",
):
  """Checks that the ids of a dataset mean what the weights have learned of them.

  Args:
    given: from `open_weights`.
    tokens: of the dataset, in the order of their ids.
    found_in: where they come from, for the message.

  Raises:
    ConfigError: they are not those of the weights.
  """
  assert given.vocabulary is not None  # checked by open_weights
  if tuple(tokens) != given.vocabulary.tokens:
    raise ConfigError(
      f"The vocabulary of {found_in} ({len(tokens)} tokens) is not that of "
      f"{_FIELD}={given.directory} ({len(given.vocabulary.tokens)} tokens). "
      f"{_remedy(given)}"
    )


def _remedy(given: weights.StoredModel) -> str:
  if given.head == "causal":
    return (
      f"Set --config.data.vocab_file to the {' or '.join(BYTE_LEVEL_FILES)} that it was "
      "trained with, and another --config.data.directory."
    )
  path = given.directory / weights.VOCABULARY
  if path.exists():
    return f"Set --config.data.vocab_file={path} and another --config.data.directory."
  return (
    f"It has no {weights.VOCABULARY} of its own: run python -m model import "
    f"{given.directory} --out FOLDER, and give FOLDER in its place, with "
    "--config.data.vocab_file=FOLDER/vocab.txt and another --config.data.directory."
  )


def model_config(
  config: ml_collections.ConfigDict,
  *,
  workdir: str | pathlib.Path,
  vocab_size: int,
  given: weights.StoredModel | None,
  head: str = "pretraining",
  labels: Sequence[str] = (),
) -> model.ModelConfig:
  """The model of a run: as the config and the weights, its own or given ones, say.

  Sequences longer than the positions of the weights get positions of their own, as in the
  second phase of BERT's pretraining.

  Args:
    config: of the run.
    workdir: of the run; where it has a checkpoint, the sizes are those of `model.json`.
    vocab_size: of the dataset.
    given: from `open_weights`.
    head: that the run trains.
    labels: of its classes; () for regression.

  Raises:
    WeightsError: the run has checkpoints, and no `model.json` beside them.
    ConfigError: the config has other sizes than they have.
  """
  num_labels = num_labels_of(head, labels)
  if weights.steps(workdir):
    begun = weights.read_description(workdir).config
    now = _expected(
      config, head=head, vocab_size=begun.vocab_size, sizes=begun, num_labels=num_labels
    )
    now = _with_fields_of(begun, now)
    check_attention(config, now)
    for name in _SHAPES:  # each is of some kind of model, and not of others
      there, here = (getattr(x, name, None) for x in (begun, now))
      if there != here:
        raise ConfigError(
          f"{workdir} holds checkpoints of a model with {name} {there}; the config has "
          f"{here}. Give the same config.model, or another --workdir."
        )
    return now
  if given is None:
    return _expected(config, head=head, vocab_size=vocab_size, num_labels=num_labels)
  sizes = given.config
  made = _expected(
    config, head=head, vocab_size=sizes.vocab_size, sizes=sizes, num_labels=num_labels
  )
  longest = max(config.data.max_sequence_length, sizes.max_position_embeddings)
  return dataclasses.replace(_with_fields_of(sizes, made), max_position_embeddings=longest)


def _expected(
  config,
  *,
  head: str,
  vocab_size: int,
  sizes: model.ModelConfig | None = None,
  num_labels: int = 2,
) -> model.ModelConfig:
  """What a config says, with the sizes of given weights where it says `given`."""
  if head == "causal":
    return gpt2_config(config, vocab_size=vocab_size, sizes=sizes)
  return bert_config(config, vocab_size=vocab_size, sizes=sizes, num_labels=num_labels)


def _with_fields_of(there: model.ModelConfig, here: model.ModelConfig):
  """What no config says, as weights have it."""
  names = [name for name in _OF_THE_WEIGHTS if hasattr(here, name) and hasattr(there, name)]
  return dataclasses.replace(here, **{name: getattr(there, name) for name in names})


def num_labels_of(head: str, labels: Sequence[str]) -> int:
  """Outputs a sequence: one a class, or one number; 2 where the head has no say."""
  return max(len(labels), 1) if head == "sequence_classification" else 2


def check_labels(given: weights.StoredModel, labels: Sequence[str]):
  """Checks that a model tells the classes of a dataset.

  Args:
    given: from `open_weights`.
    labels: of the dataset; () for regression.

  Raises:
    ConfigError: it tells others, or as many in another order.
  """
  if given.head != "sequence_classification":
    return  # Hugging Face gives other heads a number of classes too
  expected = num_labels_of(given.head, labels)
  if given.bert.num_labels != expected or given.labels not in ((), tuple(labels)):
    raise ConfigError(
      f"{given.directory} tells {given.bert.num_labels} classes "
      f"({', '.join(given.labels) or 'without names'}), the dataset has "
      f"{', '.join(labels) or 'numbers'}. Give a model of this task, or train one with "
      f"--config.model.init_from={given.directory}."
    )


def initial_params(
  given: weights.StoredModel,
  config: model.ModelConfig,
  *,
  head: str = "pretraining",
  labels: Sequence[str] = (),
  seed: int = 0,
) -> weights.Params:
  """Reads the weights for a model of `model_config`.

  Rows of the vocabulary are padded anew, and heads that the model lacks are left out.
  Positions and parts of the head that the weights lack are drawn, and the console is told;
  a classifier is kept where it tells the same classes, or as many that have no names.

  Args:
    given: from `open_weights`.
    config: of the model.
    head: of the model.
    labels: of its classes.
    seed: of what is drawn.
  """
  params = given.load()
  _, params = weights.resize_vocabulary(
    given.config, params, multiple=config.vocab_multiple
  )
  if not isinstance(config, model.BertConfig):
    return params  # a GPT-2 has no other head, and open_weights wants all its positions
  there, positions = given.config.max_position_embeddings, config.max_position_embeddings
  if there < positions:
    processes.tell(
      f"{_FIELD}={given.directory} has {there} positions, the run {positions}: drawing the "
      f"last {positions - there} anew"
    )
    params |= {"embeddings": _with_positions(params["embeddings"], config, seed=seed)}
  wanted = weights.abstract_params(config, head)
  params = {name: value for name, value in params.items() if name in wanted}
  same = given.head == head and given.bert.num_labels == config.num_labels
  if not same or given.labels not in ((), tuple(labels)):
    params.pop("classifier", None)
  missing = [name for name in _HEAD if name in wanted and name not in params]
  if missing:
    theirs, ours = model.MODELS[given.head].__name__, model.MODELS[head].__name__
    if given.head == head:
      theirs += f" of {_classes(given.labels, given.bert)}"
      ours += f" of {_classes(labels, config)}"
    processes.tell(
      f"{_FIELD}={given.directory} is a {theirs}, the run a {ours}: drawing "
      f"{', '.join(missing)} anew"
    )
    params |= _draw(missing, config, head=head, seed=seed)
  return params


def _classes(labels: Sequence[str], config: model.BertConfig) -> str:
  return ", ".join(labels) or f"{config.num_labels} without names"


def _draw(names: Sequence[str], config: model.BertConfig, *, head: str, seed: int):
  """Some parts of a model, as a fresh one has them."""

  @jax.jit
  def draw():
    fresh = make_model(config, head, seed=seed)
    params = nnx.to_pure_dict(nnx.state(fresh, nnx.Param))
    return {name: params[name] for name in names}

  return draw()


def _with_positions(embeddings, config: model.BertConfig, *, seed: int):
  old = embeddings["position"]["embedding"]
  shape = (config.max_position_embeddings - old.shape[0], old.shape[1])
  draw = jax.nn.initializers.truncated_normal(config.initializer_range)
  new = draw(jax.random.key(seed), shape, old.dtype)
  return embeddings | {"position": {"embedding": jnp.concatenate([old, new])}}
