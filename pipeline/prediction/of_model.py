"""How a trained model takes text: its task, settings and tokenizer."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer

LONGEST_WINDOW = 384  # tokens by default, as for BERT on SQuAD


def default_task(head: str, num_labels: int) -> str | None:
  """The task of a model without a run; None if the head answers nothing.

  Example:
    >>> default_task("sequence_classification", 1)
    'regression'
  """
  if head == "question_answering":
    return "squad"
  if head == "sequence_classification":
    return "regression" if num_labels == 1 else "classification"
  return None


def settings_to_read(
  settings: DatasetSettings,
  changes: Mapping[str, Any],
  *,
  positions: int,
  num_labels: int,
) -> DatasetSettings:
  """The settings of `read_examples` for a model.

  Args:
    settings: of the training data, or defaults.
    changes: fields to change; None to keep one.
    positions: of the model, in tokens.
    num_labels: of the model.

  Raises:
    InputError: sequences may be longer than the model's positions; or a value is invalid.
  """
  changed = {name: value for name, value in changes.items() if value is not None}
  settings = dataclasses.replace(settings, **changed)
  if settings.max_sequence_length > positions:
    raise InputError(
      f"--max-sequence-length is {settings.max_sequence_length}; expected at most "
      f"{positions}, the positions of the model."
    )
  # The reader needs names of classes but uses none; the model's own may have commas.
  names = ",".join(f"LABEL_{number}" for number in range(max(num_labels, 2)))
  labels = names if settings.task == "classification" else ""
  return dataclasses.replace(settings, labels=labels)


def open_tokenizer(
  folder: pathlib.Path, vocabulary: Any, *, vocab_file: str = ""
) -> Tokenizer:
  """The tokenizer of a model.

  Args:
    folder: of the model.
    vocabulary: of the model, a `model.weights.Vocabulary`; None if it has none.
    vocab_file: of the dataset that it was trained on.

  Raises:
    InputError: the model has no vocabulary, or a cased one; or the file in its folder has
      other tokens.
  """
  if vocabulary is None:
    raise InputError(
      f"{folder} has no vocabulary; expected {VOCABULARY_FILE} there. Copy the one that "
      "the model was trained with into it."
    )
  if not vocabulary.lowercase:
    raise InputError(
      f"{folder} is cased; expected an uncased model, since text is lower-cased here. Give "
      "another model."
    )
  path = folder / VOCABULARY_FILE
  if vocab_file.endswith(".json"):  # may have its own way to split text
    path = pathlib.Path(vocab_file)
  elif not path.exists():
    path = folder / TOKENIZER_FILE
  tokenizer = Tokenizer(path)
  if tuple(tokenizer.vocabulary) != tuple(vocabulary.tokens):
    raise InputError(
      f"The vocabulary of {path} ({len(tokenizer.vocabulary)} tokens) differs from that "
      f"of {folder} ({len(vocabulary.tokens)} tokens). Restore the one that the model was "
      "trained with."
    )
  return tokenizer
