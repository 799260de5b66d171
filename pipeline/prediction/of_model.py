"""How a trained model reads text: its task, settings and tokenizer."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from packing import InputError
from packing.errors import check, check_integer
from pipeline.settings import DatasetSettings
from pipeline.tasks.glue import MULTI_LABEL
from pipeline.tasks.registry import TASK_HEADS, TASKS
from pipeline.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer

LONGEST_WINDOW = 384  # tokens, by default, as in BERT's code for SQuAD


def default_task(head: str, num_labels: int, *, multi_label: bool = False) -> str | None:
  """The task of a model without a run; None if the head answers nothing.

  Example:
    >>> default_task("sequence_classification", 1)
    'regression'
    >>> default_task("sequence_classification", 3, multi_label=True)
    'multi_label'
  """
  if head == "question_answering":
    return "squad"
  if head == "token_classification":
    return "tagging"
  if head == "sequence_classification":
    one = "regression" if num_labels == 1 else "classification"
    return MULTI_LABEL if multi_label else one
  return None


def settings_to_read(
  source: str,
  head: str,
  *,
  trained_on: DatasetSettings | None,
  task: str | None,
  changes: Mapping[str, Any],
  positions: int,
  num_labels: int = 2,
  multi_label: bool = False,
) -> DatasetSettings:
  """The settings with which a model reads and cuts examples.

  Args:
    source: the source of the examples.
    head: the model's head, a key of `model.MODELS`; "" for embeddings, which take one
      sentence or two, whatever the model was trained on.
    trained_on: the settings of its training data; None for a model without a run.
    task: the task of a model without a run; of one with a run, the user's choice or None.
    changes: settings that the user chose; a value of None keeps the setting, and columns
      are added to those of `trained_on`.
    positions: how many the model has.
    num_labels: how many numbers it outputs for a sequence or a word.
    multi_label: whether the model gives a sentence several classes.

  Raises:
    InputError: the task does not fit; sequences may be longer than the model's positions;
      or a value is invalid.
  """
  chosen = {name: value for name, value in changes.items() if value is not None}
  if not head:
    vocab_file = trained_on.vocab_file if trained_on else ""
    longest = trained_on.max_sequence_length if trained_on else positions
    settings = DatasetSettings(
      source, longest, task="classification", vocab_file=vocab_file
    )
  elif trained_on:
    settings = trained_on
    check(task in (None, settings.task), "--task", task, f"the model's, {settings.task}")
  else:
    longest = min(positions, LONGEST_WINDOW) if task == "squad" else positions
    settings = DatasetSettings(source, longest, task=task or "")
  several = [name for name in TASK_HEADS if (name == MULTI_LABEL) == multi_label]
  fitting = [name for name in several if TASK_HEADS[name] == head]
  kind = f"{head} with several classes an example" if multi_label else head
  fits = not head or settings.task in fitting
  check(fits, "task", settings.task, f"{' or '.join(fitting)} for {kind}")
  of_run = dict(settings.column_names())
  settings = dataclasses.replace(settings, **chosen)
  columns = of_run | dict(settings.column_names())  # the user's names replace others
  named = ",".join(f"{field}={name}" for field, name in columns.items())
  settings = dataclasses.replace(settings, columns=named)
  check_integer(
    "--max-sequence-length", settings.max_sequence_length, at_least=1, at_most=positions
  )
  # The reader needs as many names as there are classes; the model's own may have commas.
  names = ",".join(f"LABEL_{number}" for number in range(max(num_labels, 2)))
  labels = names if TASKS[settings.task].names_labels else ""
  return dataclasses.replace(settings, labels=labels)


def open_tokenizer(
  folder: pathlib.Path, vocabulary: Any, *, vocab_file: str = ""
) -> Tokenizer:
  """The tokenizer of a model.

  Args:
    folder: the model's folder.
    vocabulary: the model's `model.weights.Vocabulary`; None if it has none.
    vocab_file: the `vocab_file` of the dataset that it was trained on.

  Raises:
    InputError: the model has no vocabulary, a cased one, or no tokenizer.json although it
      needs one; or the file in its folder has other tokens.
  """
  remedy = (
    "Copy the model's own there. If it has none, save its tokenizer as "
    f"{TOKENIZER_FILE} with transformers."
  )
  if vocabulary is None:
    raise InputError(f"{folder} has no {VOCABULARY_FILE} or {TOKENIZER_FILE}. {remedy}")
  given, own = pathlib.Path(vocab_file), folder / TOKENIZER_FILE
  # Either may say how to split text; the given one may be gone or have changed.
  by_given = given.suffix == ".json"
  path = given if by_given and not own.exists() else own
  by_json = by_given or (own.exists() and vocabulary.by_json)
  if vocabulary.by_json and not by_json:
    raise InputError(f"{folder} has no {TOKENIZER_FILE}. {remedy}")
  if not vocabulary.lowercase and not by_json:
    raise InputError(f"{folder} is cased; text is lower-cased. Give its {TOKENIZER_FILE}.")
  if not by_json and (folder / VOCABULARY_FILE).exists():
    path = folder / VOCABULARY_FILE
  tokenizer = Tokenizer(path)
  if tuple(tokenizer.vocabulary) != tuple(vocabulary.tokens):
    raise InputError(f"{path} has other tokens than {folder}. Restore the model's own.")
  return tokenizer
