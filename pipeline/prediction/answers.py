"""Answers from a model's outputs for examples, as objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from packing import InputError
from pipeline.batches.packed import PackedBatch
from pipeline.prediction.chunks import CHUNK_SIZE, BatchShape, pack_examples
from pipeline.prediction.examples import Example
from pipeline.tasks import squad
from pipeline.tasks.registry import TASKS


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
    For classes `{"id", "label", "probabilities"}`, the likeliest class and the
    probabilities of all by name; for several classes an example `labels`, a list, instead
    of `label`; for tagging `{"id", "tokens", "tags", "probabilities"}`, lists with an entry
    for each word; for a regression `{"id", "value"}`; for squad `{"id", "answer",
    "probability", "n_best"}`, where `n_best` has `{"text", "probability", "score"}`, the
    likeliest first. A question without windows has the answer "" with probability 0 and no
    `n_best`.

  Raises:
    InputError: the task has no answers, an example is invalid, or an output is not finite.
  """
  make_answer, schema = TASKS[task].answer, TASKS[task].schema
  if make_answer is None:
    raise InputError(f"{task} has no answers. Give another task.")
  for chunk in pack_examples(examples, schema, shape=shape, chunk_size=chunk_size):
    outputs: list[np.ndarray] = []
    if chunk.packs:
      outputs, _ = run(chunk.batches())
      if not all(np.isfinite(x).all() for x in outputs):
        raise InputError(
          f"The output for {chunk.examples[0].where} or after is not finite. Use float32."
        )
    for example, logits in zip(chunk.examples, chunk.by_example(outputs), strict=True):
      found = make_answer(example.sequences, logits, labels, max_answer_length)
      yield {"id": example.id} | found


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
