"""Turns a model's outputs for one example into an answer, as an object for JSON.

Each function takes the example's sequences, its outputs, the names of the classes and the
longest answer in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packing.errors import short_repr
from pipeline.tasks import squad, tagging

Outputs = Sequence[np.ndarray]  # of the sequences of one example


def answer_class(_, outputs: Outputs, label_names: Sequence[str], __) -> dict:
  """The likeliest class, and the probabilities of all by name."""
  logits = _numbers(outputs[0], len(label_names))
  weights = np.exp(logits - logits.max())
  probabilities = (weights / weights.sum()).tolist()
  return {
    "label": label_names[int(logits.argmax())],
    "probabilities": dict(zip(label_names, probabilities, strict=True)),
  }


def answer_classes(_, outputs: Outputs, label_names: Sequence[str], __) -> dict:
  """The classes with a probability above 0.5, and the probabilities of all by name."""
  # The logistic function, without the overflow of an exponential.
  probabilities = (1 + np.tanh(_numbers(outputs[0], len(label_names)) / 2)) / 2
  named = dict(zip(label_names, probabilities.tolist(), strict=True))
  return {"labels": [name for name, p in named.items() if p > 0.5], "probabilities": named}


def answer_tags(windows: Sequence, outputs: Outputs, label_names: Sequence[str], _) -> dict:
  """The words with their likeliest tags, and the probabilities of these.

  A word without tokens has None instead of a tag and a probability.
  """
  if not windows:
    return {"tokens": [], "tags": [], "probabilities": []}
  words = [word for window in windows for word in window.words]
  has_tag = np.array([not isinstance(word, tagging.UntaggedWord) for word in words])
  _, logits = tagging.of_words([window.token_labels for window in windows], outputs)
  weights = np.exp(np.float64(logits) - np.float64(logits).max(axis=1, keepdims=True))
  tags, probabilities = np.full((2, len(words)), None)
  tags[has_tag] = [label_names[number] for number in logits.argmax(axis=1)]
  probabilities[has_tag] = (weights.max(axis=1) / weights.sum(axis=1)).tolist()
  return {"tokens": words, "tags": tags.tolist(), "probabilities": probabilities.tolist()}


def answer_value(_, outputs: Outputs, *__) -> dict:
  """The predicted number."""
  return {"value": float(_numbers(outputs[0], 1)[0])}


def answer_question(windows: Sequence, outputs: Outputs, _, max_answer_length: int) -> dict:
  """The likeliest answer, and the n best."""
  fields = [window._asdict() for window in windows]
  starts, ends = squad.start_and_end(fields, outputs)
  best = squad.n_best(fields, starts, ends, max_answer_length=max_answer_length)
  return {
    "answer": best[0].text if best else "",
    "probability": best[0].probability if best else 0.0,
    "n_best": [answer._asdict() for answer in best],
  }


def _numbers(output: np.ndarray, width: int) -> np.ndarray:
  numbers = np.asarray(output, np.float64)
  if numbers.shape != (width,) or not np.isfinite(numbers).all():
    raise ValueError(
      f"the output is {short_repr(output.tolist())}; expected {width} finite numbers."
    )
  return numbers
