"""`config.json` of a Hugging Face directory, both ways."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import jax.numpy as jnp

from model.bert import MODELS
from model.config import BertConfig
from model.tokenizer_files import SPECIAL_TOKENS
from model.weights import MODEL, Vocabulary, WeightsError

CONFIG, WEIGHTS = "config.json", "model.safetensors"

_HEADS = {model.__name__: head for head, model in MODELS.items()}
_HEADS |= {"BertForMaskedLM": "pretraining"}

# Ours: theirs. What config.json leaves out has the same default in both.
_FIELDS = {
  "vocab_size": "vocab_size",
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "intermediate_size": "intermediate_size",
  "max_position_embeddings": "max_position_embeddings",
  "type_vocab_size": "type_vocab_size",
  "dropout_rate": "hidden_dropout_prob",
  "attention_dropout_rate": "attention_probs_dropout_prob",
  "layer_norm_epsilon": "layer_norm_eps",
  "initializer_range": "initializer_range",
}
# Values that mean a model as ours; the first is the default.
_SUPPORTED: dict[str, tuple] = {
  "model_type": ("bert",),
  "hidden_act": ("gelu",),
  "position_embedding_type": ("absolute",),
  "is_decoder": (False,),
  "is_encoder_decoder": (False,),
  "add_cross_attention": (False,),
  "pruned_heads": (None, {}),
  "quantization_config": (None,),
  "problem_type": (None, "single_label_classification", "regression"),
}


def read_config(directory: pathlib.Path) -> tuple[str, BertConfig, tuple[str, ...]]:
  """The head, a key of `model.MODELS`; the config; and the names of the classes.

  Names that transformers makes up, LABEL_0 and so on, are none.

  Raises:
    WeightsError: names the value that this model cannot have.
  """
  path = directory / CONFIG
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
    given = {ours: value[theirs] for ours, theirs in _FIELDS.items() if theirs in value}
    architectures = value.get("architectures")
  except OSError as error:
    raise WeightsError(
      f"Expected a Hugging Face directory with {CONFIG} and {WEIGHTS}, or a run's folder "
      f"with {MODEL}: {path} cannot be read ({error.strerror})."
    ) from error
  except (ValueError, TypeError, AttributeError) as error:
    raise WeightsError(f"{path} is not the config of a model: {error}.") from error
  for name, supported in _SUPPORTED.items():
    _refuse_unless(path, name, value.get(name, supported[0]), supported)
  known = [[name] for name in _HEADS]
  _refuse_unless(path, "architectures", architectures, known)
  dropouts = (None, value.get("hidden_dropout_prob", 0.1))
  _refuse_unless(path, "classifier_dropout", value.get("classifier_dropout"), dropouts)
  labels = value.get("id2label")
  named = isinstance(labels, dict)
  given["num_labels"] = len(labels) if named else value.get("num_labels", 2)
  names = _label_names(labels) if named else ()
  if value.get("problem_type") == "regression":
    _refuse_unless(path, "num_labels", given["num_labels"], (1,))
  for field in dataclasses.fields(BertConfig):
    name = _FIELDS.get(field.name, field.name)
    if field.name not in given:
      if field.default is dataclasses.MISSING:
        raise WeightsError(f"{path} has no {name}; expected a number. Complete it.")
      continue
    numbers = (int,) if field.type == "int" else (int, float)
    if type(given[field.name]) not in numbers:
      kind = "a whole number" if field.type == "int" else "a number"
      raise WeightsError(
        f"{path}: {name} is {given[field.name]!r}; expected {kind}. Correct it."
      )
  given["next_sentence"] = architectures != ["BertForMaskedLM"]
  try:
    return _HEADS[architectures[0]], BertConfig(**given), names
  except ValueError as error:
    raise WeightsError(f"{path}: {error}") from error


def _label_names(labels: dict) -> tuple[str, ...]:
  numbers = [str(number) for number in range(len(labels))]
  if len(numbers) < 2 or labels.keys() != set(numbers):  # of a regression, there are none
    return ()
  names = tuple(str(labels[number]) for number in numbers)
  return () if names == _made_up(len(names)) else names


def _made_up(number: int) -> tuple[str, ...]:
  """What transformers calls classes without names."""
  return tuple(f"LABEL_{i}" for i in range(number))


def _refuse_unless(path: pathlib.Path, name: str, found, supported):
  if found not in supported:
    expected = " or ".join(json.dumps(value) for value in supported)
    raise WeightsError(
      f"{path}: {name} is {json.dumps(found)}, which this model cannot do; expected "
      f"{expected}. Choose another model."
    )


def config_of(
  config: BertConfig, head: str, vocabulary: Vocabulary | None, labels: Sequence[str] = ()
) -> dict:
  """The `config.json` of a model; the opposite of `read_config`."""
  architecture = MODELS[head].__name__
  if head == "pretraining" and not config.next_sentence:
    architecture = "BertForMaskedLM"
  # What answers a question has two outputs there, start and end.
  num_labels = 2 if head == "question_answering" else config.num_labels
  names = {str(i): name for i, name in enumerate(labels or _made_up(num_labels))}
  value = {
    "architectures": [architecture],
    "dtype": jnp.dtype(config.param_dtype).name,
    "id2label": names,
    "label2id": {name: int(i) for i, name in names.items()},
    "tie_word_embeddings": True,
  }
  value |= {theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()}
  value |= {name: _SUPPORTED[name][0] for name in ("model_type", "hidden_act")}
  if vocabulary:
    value["pad_token_id"] = vocabulary.tokens.index(SPECIAL_TOKENS["pad_token"])
  if head == "sequence_classification" and config.num_labels == 1:
    value["problem_type"] = "regression"
  return value
