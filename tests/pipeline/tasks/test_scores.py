"""Metrics, compared with numbers computed by hand and with plain formulas."""

import numpy as np
import pytest

import model
import pipeline
from packing import InputError
from pipeline.store import REGRESSION_SCHEMA, SCHEMA, SequenceStore, StoredSequence
from pipeline.tasks import scores
from pipeline.tasks.registry import TASKS

# 7 examples: true positives 2, false negatives 1, false positives 1, true negatives 3.
LABELS = np.array([1, 1, 1, 0, 0, 0, 0], np.int32)
PREDICTIONS = np.array([1, 1, 0, 1, 0, 0, 0])


@pytest.mark.parametrize(
  ("metric", "labels", "found", "expected"),
  [
    ("matthews", LABELS, 1 - LABELS, -1),
    ("f1", [0, 0, 0], [0, 0, 0], 0),  # there is none of class 1
    ("f1", [1, 1, 1], [0, 0, 0], 0),
    ("spearman", [0, 1, 2, 3, 4], [0, -1, -4, -9, -16], -1),
    # ties: ranks 1, 2.5, 2.5, 4, 5
    ("spearman", [0, 1, 2, 3, 4], [0, 1, 1, 3, 4], 9.5 / np.sqrt(10 * 9.5)),
    *(  # of constant values
      (metric, labels, found, 0)
      for metric in ("matthews", "pearson", "spearman")
      for labels, found in (([0, 1, 1], [1, 1, 1]), ([2, 2, 2], [0, 1, 5]), ([1], [3]))
    ),
  ],
)
def test_metrics_by_hand(metric, labels, found, expected):
  value = getattr(scores, metric)(np.array(labels), np.array(found))
  assert value == pytest.approx(expected)


def test_numbers_that_differ_by_the_least_float32_still_correlate():
  labels, found = np.arange(97.0), np.full(97, 4, np.float32)
  found[50:] = np.nextafter(np.float32(4), np.float32(5))
  assert scores.pearson(labels, found) == pytest.approx(0.866, abs=0.01)


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The cat, the hat", "cat hat"),
    ("U.S.A.", "usa"),  # punctuation inside goes without leaving a space
    ("an", ""),
    ("Theatre and a banana", "theatre and banana"),  # articles are whole words
    ("ÉCOLE  \t\n d\u2019été", "école d\u2019été"),  # punctuation beyond ASCII stays
    ("“a”", "“ ”"),  # a word ends at a quote that stays
  ],
)
def test_answers_are_normalized_as_the_benchmark_does(text, expected):
  assert scores.normalized(text) == expected


@pytest.mark.parametrize(
  ("prediction", "answers", "exact", "f1"),
  [
    ("The Denver Broncos!", ["Denver Broncos"], 1, 1),
    ("Broncos", ["Denver Broncos", "the Broncos"], 1, 1),  # the best of both
    ("Broncos of Denver", ["Denver Broncos", "x"], 0, 4 / 5),
    ("to to be", ["to be to be"], 0, 6 / 7),  # words as often as both have them
    ("", [], 0, 0),
    ("the", ["a"], 1, 0),  # nothing is left of either: equal, but no word in common
  ],
)
def test_answers_by_hand(prediction, answers, exact, f1):
  assert scores.exact_match(prediction, answers) == exact
  assert scores.answer_f1(prediction, answers) == pytest.approx(f1)


def store_of(labels, schema=SCHEMA):
  made = [StoredSequence([2, 3], 2, n) for n in labels]
  return SequenceStore.from_sequences(made, schema)


@pytest.mark.parametrize(
  ("task", "expected"),
  [
    ("glue/cola", {"matthews": (2 * 3 - 1 * 1) / np.sqrt(3 * 3 * 4 * 4)}),
    ("glue/mrpc", {"f1": 2 / 3, "accuracy": 5 / 7}),
    ("glue/qqp", {"f1": 2 / 3, "accuracy": 5 / 7}),
    *((f"glue/{n}", {"accuracy": 5 / 7}) for n in ("sst2", "mnli", "qnli", "rte", "wnli")),
    ("classification", {"accuracy": 5 / 7}),
  ],
)
def test_each_task_of_classes_has_its_metrics_and_their_mean(task, expected):
  logits = [np.eye(3, dtype=np.float32)[n] * 3 - 1 for n in PREDICTIONS]
  found = pipeline.score(task, store_of(LABELS), logits)
  mean = np.mean(list(expected.values()))
  assert found == pytest.approx({"score": mean} | expected)
  assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize("task", ["glue/stsb", "regression"])
def test_tasks_of_numbers_have_both_correlations(task):
  outputs = [np.array([value], np.float32) for value in (0, 1, 4, 9, 16)]
  store = store_of([0.0, 1.0, 2.0, 3.0, 4.0], REGRESSION_SCHEMA)
  pearson = 40 / np.sqrt(10 * 174)
  expected = {"score": (pearson + 1) / 2, "pearson": pearson, "spearman": 1}
  assert pipeline.score(task, store, outputs) == pytest.approx(expected)


def test_the_heads_are_those_of_the_model():
  heads = {name: task.head for name, task in TASKS.items()}
  named = {"squad": "question_answering", "text": "causal", "tokens": ""}
  named |= {"tagging": "token_classification"}
  named |= dict.fromkeys(("pretraining", "sentences", "documents"), "pretraining")
  named |= dict.fromkeys(("pairs", "scored_pairs"), "encoder")
  others = dict.fromkeys(heads.keys() - named.keys(), "sequence_classification")
  assert heads == named | others
  assert set(heads.values()) - {""} <= {
    head for models in model.MODELS.values() for head in models
  }


def test_tasks_without_a_score_say_which_have_one():
  with pytest.raises(InputError, match="'text' has no score; expected one of squad"):
    pipeline.score("text", store_of([0]), [np.zeros(2)])


@pytest.mark.parametrize(
  ("task", "outputs"),
  [
    ("cola", [np.zeros(3)] * 6),
    ("cola", [np.zeros((3, 2))] * 7),
    ("cola", [np.zeros(3)] * 6 + [np.array([0, np.nan, 0])]),
    ("cola", [np.zeros(1)] * 7),
    ("stsb", [np.zeros(3)] * 7),
  ],
)
def test_invalid_outputs_are_refused(task, outputs):
  store = store_of(LABELS, REGRESSION_SCHEMA if task == "stsb" else SCHEMA)
  with pytest.raises(ValueError, match=r"outputs have the shape .*; expected 7 times"):
    pipeline.score(f"glue/{task}", store, outputs)
