"""Answers: what a model's outputs say of examples, as objects for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.prediction.examples import Example
from pipeline.store import REGRESSION_SCHEMA
from pipeline.tasks import squad
from pipeline.tasks.table import TASKS


def answer(
  task_name: str,
  examples: Iterable[Example],
  outputs: Iterable[Sequence[np.ndarray]],
  *,
  label_names: Sequence[str] = (),
  max_answer_length: int = squad.MAX_ANSWER_LENGTH,
) -> Iterator[dict]:
  """What the outputs say of each example, one by one.

  Args:
    task_name: such as "glue/cola".
    examples: of `read_examples`.
    outputs: of each example, what the task's head gave for each of its rows, as
      `pipeline.score` takes it.
    label_names: of the classes, in the order of their numbers; those that the manifest
      of the training data has.
    max_answer_length: of squad, in tokens.

  Returns:
    Of classes `{"id", "label", "probabilities"}`, the likeliest class and all of them by
    name; of a regression `{"id", "value"}`; of squad `{"id", "answer", "probability",
    "n_best"}`, where `n_best` has `{"text", "probability", "score"}`, the likeliest first.
    A question without windows has the answer "" with probability 0 and no `n_best`.

  Raises:
    InputError: the task has no answers.
    ValueError: outputs of another number or shape, or not finite.

  Example:
    >>> examples = [Example("7", [([2, 5, 3], 3, 0)], "line 1")]
    >>> list(answer("regression", examples, [[np.array([0.5])]]))
    [{'id': '7', 'value': 0.5}]
  """
  task = TASKS.get(task_name)
  if task is None or task.score is None:
    raise InputError(
      f"{short_repr(task_name)} has no answers; expected classification, regression, "
      "squad or "
      "a task of GLUE."
    )
  has_classes = task.head == "sequence_classification" and task.schema != REGRESSION_SCHEMA
  width = len(label_names) if has_classes else 1
  if has_classes and width < 2:
    raise ValueError(f"Expected the names of at least two classes; found {label_names}.")

  def answers() -> Iterator[dict]:
    for example, found in zip(examples, outputs, strict=True):
      if len(found) != len(example.rows):
        raise ValueError(
          f"Expected {len(example.rows)} outputs for example {example.id}, as it has rows; "
          f"found {len(found)}."
        )
      if task_name == "squad":
        yield {"id": example.id} | _answer_of_question(example, found, max_answer_length)
      else:
        numbers = _numbers(example, found[0], width)
        yield {"id": example.id} | (
          _answer_of_classes(numbers, label_names)
          if has_classes
          else {"value": float(numbers[0])}
        )

  return answers()


def label_names(
  task_name: str, num_outputs: int, *, given: Sequence[str] = ()
) -> tuple[str, ...]:
  """Names of the classes of a model that is to answer a task of sentences.

  Args:
    task_name: such as "glue/cola".
    num_outputs: numbers that the model gives for a sequence.
    given: names that it has for them, in their order; () for none. A task of GLUE then
      has its own, and others LABEL_0 and so on.

  Returns:
    () for a regression.

  Raises:
    InputError: the model is of another task.

  Example:
    >>> label_names("glue/cola", 2), label_names("classification", 2)
    (('unacceptable', 'acceptable'), ('LABEL_0', 'LABEL_1'))
  """
  task = TASKS[task_name]
  has_classes = task.schema != REGRESSION_SCHEMA
  if has_classes != (num_outputs > 1):
    fitting = "regression" if has_classes else "classification"
    raise InputError(
      f"The model gives {num_outputs} number{'s' * (num_outputs > 1)} a sequence; "
      f"{task_name} takes {'one a class' if has_classes else 'one'}. Give another model, "
      f"or the task {fitting}."
    )
  if not has_classes:
    return ()
  made_up = tuple(f"LABEL_{number}" for number in range(num_outputs))
  names = tuple(given) or task.label_names or made_up
  if len(set(names)) < len(names):
    raise InputError(f"The model has two classes of one name: {', '.join(names)}.")
  expected = task.label_names or names
  if len(names) != num_outputs or set(names) != set(expected):
    raise InputError(
      f"The model tells {', '.join(given or made_up)}; {task_name} has "
      f"{', '.join(expected)}. Give a model of this task, or the task classification."
    )
  return names


def _numbers(example: Example, output: np.ndarray, width: int) -> np.ndarray:
  numbers = np.asarray(output, np.float64)
  if numbers.shape != (width,) or not np.isfinite(numbers).all():
    raise ValueError(
      f"The output for example {example.id} is {short_repr(np.asarray(output).tolist())}; "
      f"expected {width} finite numbers."
    )
  return numbers


def _answer_of_classes(logits: np.ndarray, label_names: Sequence[str]) -> dict:
  weights = np.exp(logits - logits.max())
  probabilities = (weights / weights.sum()).tolist()
  return {
    "label": label_names[int(logits.argmax())],
    "probabilities": dict(zip(label_names, probabilities, strict=True)),
  }


def _answer_of_question(
  example: Example, outputs: Sequence[np.ndarray], max_answer_length: int
) -> dict:
  windows = [row._asdict() for row in example.rows]  # type: ignore[attr-defined]
  starts, ends = squad.start_and_end(windows, outputs)
  best = squad.n_best(windows, starts, ends, max_answer_length=max_answer_length)
  return {
    "answer": best[0].text if best else "",
    "probability": best[0].probability if best else 0.0,
    "n_best": [found._asdict() for found in best],
  }
