"""The model of a run, and the weights that it starts from where some are given."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_collections

import model
from model import hf, weights
from training import processes
from training.config import ConfigError, bert_config

_FIELD = "config.model.init_from"
# What a run's config does not say, and what its checkpoints cannot do without.
_OF_THE_WEIGHTS = ("max_position_embeddings", "type_vocab_size", "layer_norm_epsilon")
_SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
_SHAPES = (*_SIZES, "next_sentence", "vocab_multiple")


def open_weights(config: ml_collections.ConfigDict) -> weights.StoredModel | None:
  """Checks the weights that a config names, as far as can be before any work.

  Args:
    config: of the run.

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
  except (weights.WeightsError, OSError) as error:
    raise ConfigError(f"{_FIELD}: {error}") from error
  if given.head != "pretraining":
    raise ConfigError(
      f"{_FIELD}={directory} holds a {model.MODELS[given.head].__name__}; its "
      "masked-language-model head is missing. Expected BertForPreTraining or "
      "BertForMaskedLM; give other weights."
    )
  if config.model.next_sentence and not given.config.next_sentence:
    raise ConfigError(
      f"{_FIELD}={directory} has no next-sentence head (pooler, nsp). Give other weights, "
      "or train without it: --config.model.next_sentence=False."
    )
  _check_shape(config, given)
  _check_vocabulary_file(config, given)
  return given


def _check_shape(config, given: weights.StoredModel):
  expected = bert_config(config, vocab_size=given.config.vocab_size)
  differences = [
    f"{name} is {getattr(given.config, name)} there and {getattr(expected, name)} here"
    for name in _SIZES
    if getattr(given.config, name) != getattr(expected, name)
  ]
  if differences:
    raise ConfigError(
      f"{_FIELD}={given.directory} is not of config.model.size={config.model.size}: "
      f"{'; '.join(differences)}. Give its size with --config.model.size=..., one of "
      f"{', '.join(model.SIZES)}."
    )
  if given.config.type_vocab_size < 2:
    raise ConfigError(
      f"{_FIELD}={given.directory} has type_vocab_size={given.config.type_vocab_size}; "
      "expected 2 or more, for the two sentences of a sequence. Give other weights."
    )


def _check_vocabulary_file(config, given: weights.StoredModel):
  if given.vocabulary is None:
    raise ConfigError(
      f"{_FIELD}={given.directory} has no vocabulary; expected vocab.txt there. Copy the "
      "one that it was trained with to it."
    )
  if not given.vocabulary.lowercase:
    raise ConfigError(
      f"{_FIELD}={given.directory} is cased; expected an uncased model, since the "
      "pipeline lowers its text. Give other weights."
    )
  path = pathlib.Path(config.data.vocab_file)
  if config.data.vocab_file:
    check_vocabulary(given, weights.read_tokens(path), found_in=path)
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
) -> model.BertConfig:
  """The model of a run: as the config and the weights, its own or given ones, say.

  Sequences longer than the positions of the weights get positions of their own, as in the
  second phase of BERT's pretraining.

  Args:
    config: of the run.
    workdir: of the run; where it has a checkpoint, the sizes are those of `model.json`.
    vocab_size: of the dataset.
    given: from `open_weights`.

  Raises:
    WeightsError: the run has checkpoints, and no `model.json` beside them.
    ConfigError: the config has other sizes than they have.
  """
  if weights.steps(workdir):
    begun = weights.read_description(workdir)[1]
    now = dataclasses.replace(
      bert_config(config, vocab_size=begun.vocab_size),
      **{name: getattr(begun, name) for name in _OF_THE_WEIGHTS},
    )
    for name in _SHAPES:
      if getattr(now, name) != getattr(begun, name):
        raise ConfigError(
          f"{workdir} holds checkpoints of a model with {name} {getattr(begun, name)}; the "
          f"config has {getattr(now, name)}. Give the same config.model, or another "
          "--workdir."
        )
    return now
  if given is None:
    return bert_config(config, vocab_size=vocab_size)
  return dataclasses.replace(
    bert_config(config, vocab_size=given.config.vocab_size),
    max_position_embeddings=max(
      config.data.max_sequence_length, given.config.max_position_embeddings
    ),
    type_vocab_size=given.config.type_vocab_size,
    layer_norm_epsilon=given.config.layer_norm_epsilon,
  )


def initial_params(
  given: weights.StoredModel, config: model.BertConfig, *, seed: int = 0
) -> weights.Params:
  """Reads the weights for a model of `model_config`.

  Rows of the vocabulary are padded anew, and heads that the model lacks are left out.
  Positions that the weights lack are drawn, and the console is told.

  Args:
    given: from `open_weights`.
    config: of the model.
    seed: of the positions that are drawn.
  """
  params = given.load()
  _, params = weights.resize_vocabulary(
    given.config, params, multiple=config.vocab_multiple
  )
  there, positions = given.config.max_position_embeddings, config.max_position_embeddings
  if there < positions:
    processes.tell(
      f"{_FIELD}={given.directory} has {there} positions, the run {positions}: drawing the "
      f"last {positions - there} anew"
    )
    params |= {"embeddings": _with_positions(params["embeddings"], config, seed=seed)}
  kept = weights.abstract_params(config, given.head)
  return {name: value for name, value in params.items() if name in kept}


def _with_positions(embeddings, config: model.BertConfig, *, seed: int):
  old = embeddings["position"]["embedding"]
  shape = (config.max_position_embeddings - old.shape[0], old.shape[1])
  draw = jax.nn.initializers.truncated_normal(config.initializer_range)
  new = draw(jax.random.key(seed), shape, old.dtype)
  return embeddings | {"position": {"embedding": jnp.concatenate([old, new])}}
