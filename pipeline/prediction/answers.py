"""Answers from a model's outputs for examples, as objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.batches.packed import PackedBatch
from pipeline.prediction.chunks import CHUNK_SIZE, BatchShape, pack_examples
from pipeline.prediction.examples import Example
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
  """Turns the outputs for each example into its answer, one by one.

  Args:
    task_name: such as "glue/cola".
    examples: from `read_examples`.
    outputs: for each example, the output of the task's head for each of its sequences, in
      the form that `pipeline.score` takes.
    label_names: names of the classes in the order of their numbers, as in the manifest of
      the training data.
    max_answer_length: the longest answer for squad, in tokens.

  Returns:
    For classes `{"id", "label", "probabilities"}`, the likeliest class and the
    probabilities of all by name; for a regression `{"id", "value"}`; for squad `{"id",
    "answer", "probability", "n_best"}`, where `n_best` has `{"text", "probability",
    "score"}`, the likeliest first. A question without windows has the answer "" with
    probability 0 and no `n_best`.

  Raises:
    InputError: the task has no answers.
    ValueError: the outputs have a wrong number or shape, or are not finite.

  Example:
    >>> examples = [Example("7", [([2, 5, 3], 3, 0)], "line 1")]
    >>> list(answer("regression", examples, [[np.array([0.5])]]))
    [{'id': '7', 'value': 0.5}]
  """
  task = TASKS.get(task_name)
  if task is None or task.answer is None:
    raise InputError(f"{short_repr(task_name)} has no answers. Give another task.")
  if task.has_classes and len(label_names) < 2:
    raise ValueError(f"Expected the names of at least two classes; found {label_names}.")
  make_answer = task.answer

  def answers() -> Iterator[dict]:
    for example, logits in zip(examples, outputs, strict=True):
      expected = len(example.sequences)
      if len(logits) != expected:
        raise ValueError(
          f"Example {example.id} has {expected} sequences, but {len(logits)} outputs."
        )
      try:
        found = make_answer(example.sequences, logits, label_names, max_answer_length)
      except ValueError as error:
        raise ValueError(f"Example {example.id}: {error}") from error
      yield {"id": example.id} | found

  return answers()


def answer_examples(
  run: Callable[[Iterator[PackedBatch]], tuple[list[np.ndarray], float]],
  examples: Iterable[Example],
  *,
  task: str,
  shape: BatchShape,
  labels: Sequence[str] = (),
  chunk_size: int = CHUNK_SIZE,
  max_answer_length: int = squad.MAX_ANSWER_LENGTH,
) -> Iterator[dict]:
  """A model's answers to examples, computed on packs, in the order of the examples.

  Args:
    run: the model, as a function from batches to the outputs of all sequences, in the
      order of their numbers, and the mean loss; such as `training.evaluation.predict` with
      a program.
    examples: from `read_examples`; at most one chunk is in memory.
    task: the task that they were read for.
    shape: the shape of the batches.
    labels: names of the classes, in the order of their numbers.
    chunk_size: how many sequences are packed together.
    max_answer_length: the longest answer for squad, in tokens.

  Returns:
    Answers as `answer` gives them.

  Raises:
    InputError: an example is invalid, or an output is not finite.
  """
  schema = TASKS[task].schema
  for chunk in pack_examples(examples, schema, shape=shape, chunk_size=chunk_size):
    outputs: list[np.ndarray] = []
    if chunk.num_packs:
      outputs, loss = run(chunk.batches())
      if not (np.isfinite(loss) and all(np.isfinite(x).all() for x in outputs)):
        raise InputError(
          f"The output for {chunk.examples[0].where} or after is not finite. Try --dtype "
          "float32."
        )
    yield from answer(
      task,
      chunk.examples,
      chunk.by_example(outputs),
      label_names=labels,
      max_answer_length=max_answer_length,
    )


def label_names(
  task_name: str, num_outputs: int, *, given: Sequence[str] = ()
) -> tuple[str, ...]:
  """Names of the classes of a model for a task with sentences.

  Args:
    task_name: such as "glue/cola".
    num_outputs: how many numbers the model outputs for a sequence.
    given: the model's names of the classes, in order. If it has none, (), a task of GLUE
      uses its own names, and other tasks use LABEL_0, LABEL_1 and so on.

  Returns:
    () for a regression.

  Raises:
    InputError: the model is for another task.

  Example:
    >>> label_names("glue/cola", 2), label_names("classification", 2)
    (('unacceptable', 'acceptable'), ('LABEL_0', 'LABEL_1'))
  """
  task = TASKS[task_name]
  if task.has_classes != (num_outputs > 1):
    takes, fitting = "one for each class", "regression"
    if not task.has_classes:
      takes, fitting = "one", "classification"
    raise InputError(
      f"The model gives {num_outputs} numbers; {task_name} takes {takes}. Try {fitting}."
    )
  if not task.has_classes:
    return ()
  made_up = tuple(f"LABEL_{number}" for number in range(num_outputs))
  names = tuple(given) or task.label_names or made_up
  if len(set(names)) < len(names):
    raise InputError(f"Two classes of the model have the same name: {', '.join(names)}.")
  expected = task.label_names or names
  if len(names) != num_outputs or set(names) != set(expected):
    raise InputError(
      f"The model has the classes {', '.join(given or made_up)}; {task_name} has "
      f"{', '.join(expected)}. Use the task classification."
    )
  return names
