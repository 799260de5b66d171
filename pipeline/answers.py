"""Answers: what a model's outputs say of examples, as objects for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from packing import InputError
from packing.errors import shown
from pipeline import squad
from pipeline.examples import Example
from pipeline.store import REGRESSION_SCHEMA
from pipeline.tasks import TASKS


def answer(
  task_name: str,
  examples: Iterable[Example],
  outputs: Iterable[Sequence[np.ndarray]],
  *,
  label_names: Sequence[str] = (),
) -> Iterator[dict]:
  """What the outputs say of each example, one by one.

  Args:
    task_name: such as "glue/cola".
    examples: of `read_examples`.
    outputs: of each example, what the task's head gave for each of its rows, as
      `pipeline.score` takes it.
    label_names: of the classes, in the order of their numbers; those that the manifest
      of the training data has.

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
      f"{shown(task_name)} has no answers; expected classification, regression, squad or "
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
        yield {"id": example.id} | _answer_of_question(example, found)
      else:
        numbers = _numbers(example, found[0], width)
        yield {"id": example.id} | (
          _answer_of_classes(numbers, label_names)
          if has_classes
          else {"value": float(numbers[0])}
        )

  return answers()


def _numbers(example: Example, output: np.ndarray, width: int) -> np.ndarray:
  numbers = np.asarray(output, np.float64)
  if numbers.shape != (width,) or not np.isfinite(numbers).all():
    raise ValueError(
      f"The output for example {example.id} is {shown(np.asarray(output).tolist())}; "
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


def _answer_of_question(example: Example, outputs: Sequence[np.ndarray]) -> dict:
  windows = [row._asdict() for row in example.rows]  # type: ignore[attr-defined]
  best = squad.n_best(windows, *squad.start_and_end(windows, outputs))
  return {
    "answer": best[0].text if best else "",
    "probability": best[0].probability if best else 0.0,
    "n_best": [found._asdict() for found in best],
  }
