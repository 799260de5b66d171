"""Answers from outputs."""

import json
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.prediction.examples import Example
from pipeline.store import SequenceStore, StoredSequence
from pipeline.tasks import squad
from pipeline.tasks.registry import TASKS


def examples(count):
  row = StoredSequence([2, 3], 2, 0)
  return [Example(str(n), [row], f"line {n + 1}") for n in range(count)]


def answer(task, examples, outputs, *, labels=()):
  """The answers, as `answer_examples` makes them of a model's outputs."""
  make: Any = TASKS[task].answer
  return [
    {"id": one.id} | make(one.sequences, of_one, labels, 30)
    for one, of_one in zip(examples, outputs, strict=True)
  ]


def test_classes_have_names_and_probabilities():
  logits = [[np.log([1.0, 2.0, 5.0])], [np.float32([1e4, -1e4, 0])]]
  found = answer("glue/mnli", examples(2), logits, labels=("no", "so", "yes"))
  assert found[0] == {
    "id": "0",
    "label": "yes",
    "probabilities": pytest.approx({"no": 0.125, "so": 0.25, "yes": 0.625}),
  }
  assert found[1]["probabilities"] == {"no": 1, "so": 0, "yes": 0}
  assert json.loads(json.dumps(found)) == found


def test_several_classes_are_those_above_one_half():
  logits = [[np.log([1 / 3, 1.0, 3.0])], [np.float32([1e4, -1e4, 1e4])]]
  one, other = answer("multi_label", examples(2), logits, labels=("a", "b", "c"))
  assert one["probabilities"] == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.75})
  assert (one["labels"], other["labels"]) == (["c"], ["a", "c"])
  assert other["probabilities"] == {"a": 1, "b": 0, "c": 1}


@pytest.mark.parametrize(
  ("task", "output", "width"),
  [
    ("glue/cola", np.zeros(3), 2),
    ("glue/cola", np.array([0, np.nan]), 2),
    ("regression", np.zeros(2), 1),
  ],
)
def test_invalid_outputs_are_refused(task, output, width):
  with pytest.raises(ValueError, match=f"expected {width} finite numbers"):
    answer(task, examples(1), [[output]], labels=("a", "b"))


def test_windows_make_one_answer_with_the_score_of_the_store():
  """If the likeliest start of a window is not usable, the next one gives the score."""
  tokens, places = [2, 9, 3, 5, 6, 7, 3], ([0, 2, 4], [1, 3, 5])
  windows = [
    squad.Window(tokens, 3, 0, 0, 0, "q", "a b c", *places, start, ["c"])
    for start in (0, 2)
  ]
  outputs = [np.zeros((7, 2)), np.zeros((7, 2))]
  outputs[1][3, 0] = 9  # token 2 is the first window's, which comes first
  outputs[0][4] = 3  # "b"
  outputs[1][5] = 4  # "c", by the window that is left
  store = SequenceStore.from_sequences(windows, TASKS["squad"].schema)
  assert pipeline.score("squad", store, outputs)["exact_match"] == 1
  asked = [Example("q", windows, ""), Example("none", [], "")]
  answers = answer("squad", asked, [outputs, []])
  assert answers[1] == {"id": "none", "answer": "", "probability": 0.0, "n_best": []}
  assert (answers[0]["id"], answers[0]["answer"]) == ("q", "c")
  n_best = answers[0]["n_best"]
  assert n_best[0]["text"] == "c"
  assert sum(best["probability"] for best in n_best) == pytest.approx(1)
