"""Metrics, compared with numbers computed by hand and with plain formulas."""

import numpy as np
import pytest

import pipeline
from packing import InputError
from pipeline.store import REGRESSION_SCHEMA, SCHEMA, SequenceStore, StoredSequence
from pipeline.tasks import scores
from pipeline.tasks.table import TASKS

# 7 examples: true positives 2, false negatives 1, false positives 1, true negatives 3.
LABELS = np.array([1, 1, 1, 0, 0, 0, 0], np.int32)
PREDICTIONS = np.array([1, 1, 0, 1, 0, 0, 0])


def test_metrics_of_classes_by_hand():
  assert scores.accuracy(LABELS, PREDICTIONS) == pytest.approx(5 / 7)
  assert scores.f1(LABELS, PREDICTIONS) == pytest.approx(2 / 3)
  expected = (2 * 3 - 1 * 1) / np.sqrt(3 * 3 * 4 * 4)
  assert scores.matthews(LABELS, PREDICTIONS) == pytest.approx(expected)
  assert scores.matthews(LABELS, 1 - LABELS) == pytest.approx(-1)


def test_correlations_by_hand():
  labels, found = np.array([0, 1, 2, 3, 4.0]), np.array([0, 1, 4, 9, 16.0])
  assert scores.pearson(labels, found) == pytest.approx(40 / np.sqrt(10 * 174))
  assert scores.spearman(labels, found) == pytest.approx(1)
  assert scores.spearman(labels, -found) == pytest.approx(-1)
  ties = np.array([0, 1, 1, 3, 4.0])  # ranks 1, 2.5, 2.5, 4, 5
  assert scores.spearman(labels, ties) == pytest.approx(9.5 / np.sqrt(10 * 9.5))


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
@pytest.mark.parametrize(
  ("labels", "found"), [([0, 1, 1], [1, 1, 1]), ([2, 2, 2], [0, 1, 5]), ([1], [3])]
)
def test_constant_values_have_a_correlation_of_0(name, labels, found):
  assert getattr(scores, name)(np.array(labels), np.array(found)) == 0


def test_numbers_that_differ_by_the_least_float32_still_correlate():
  labels, found = np.arange(97.0), np.full(97, 4, np.float32)
  found[50:] = np.nextafter(np.float32(4), np.float32(5))
  assert scores.pearson(labels, found) == pytest.approx(0.866, abs=0.01)


def test_f1_without_any_of_class_1_is_0():
  assert scores.f1(np.zeros(3, int), np.zeros(3, int)) == 0
  assert scores.f1(np.ones(3, int), np.zeros(3, int)) == 0


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The cat, the hat", "cat hat"),
    ("U.S.A.", "usa"),  # punctuation inside goes without leaving a space
    ("well-known", "wellknown"),
    ("a.m.", "am"),
    ("an", ""),
    ("Theatre and a banana", "theatre and banana"),  # articles are whole words
    ("the-end", "theend"),
    ("ÉCOLE  \t\n d\u2019été", "école d\u2019été"),  # punctuation beyond ASCII stays
    ("l'a b", "la b"),
    ("“a”", "“ ”"),  # a word ends at a quote that stays
    ("", ""),
    ("...", ""),
  ],
)
def test_answers_are_normalized_as_the_benchmark_does(text, expected):
  assert scores.normalized(text) == expected


@pytest.mark.parametrize(
  ("prediction", "answers", "exact", "f1"),
  [
    ("The Denver Broncos!", ["Denver Broncos"], 1, 1),
    ("Broncos", ["Denver Broncos", "the Broncos"], 1, 1),  # the best of both
    ("Broncos of Denver", ["Denver Broncos"], 0, 4 / 5),
    ("to to be", ["to be to be"], 0, 6 / 7),  # words as often as both have them
    ("be", ["to be or not to be"], 0, 2 / 7),
    ("", ["Denver"], 0, 0),
    ("Denver", [], 0, 0),
    ("", [], 0, 0),
    ("the", ["a"], 1, 0),  # nothing is left of either: equal, but no word in common
    ("24\u201310", ["24-10"], 0, 0),
    ("café", ["Café."], 1, 1),
  ],
)
def test_answers_by_hand(prediction, answers, exact, f1):
  assert scores.exact_match(prediction, answers) == exact
  assert scores.answer_f1(prediction, answers) == pytest.approx(f1)


# ---- of a task -------------------------------------------------------------------------


def store_of(labels, schema=SCHEMA):
  return SequenceStore.from_sequences(
    [StoredSequence([2, 3], 2, n) for n in labels], schema
  )


def logits_of(predictions, width):
  return [np.eye(width, dtype=np.float32)[n] * 3 - 1 for n in predictions]


@pytest.mark.parametrize(
  ("task", "expected"),
  [
    ("glue/cola", {"matthews": 5 / 12}),
    ("glue/sst2", {"accuracy": 5 / 7}),
    ("glue/mrpc", {"f1": 2 / 3, "accuracy": 5 / 7}),
    ("glue/qqp", {"f1": 2 / 3, "accuracy": 5 / 7}),
    ("glue/mnli", {"accuracy": 5 / 7}),
    ("glue/qnli", {"accuracy": 5 / 7}),
    ("glue/rte", {"accuracy": 5 / 7}),
    ("glue/wnli", {"accuracy": 5 / 7}),
    ("classification", {"accuracy": 5 / 7}),
  ],
)
def test_each_task_of_classes_has_its_metrics_and_their_mean(task, expected):
  found = pipeline.score(task, store_of(LABELS), logits_of(PREDICTIONS, 3))
  mean = np.mean(list(expected.values()))
  assert found == pytest.approx({"score": mean} | expected)
  assert TASKS[task].metrics == tuple(expected)
  assert TASKS[task].head == "sequence_classification"
  assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize("task", ["glue/stsb", "regression"])
def test_tasks_of_numbers_have_both_correlations(task):
  labels, values = [0.0, 1.0, 2.0, 3.0, 4.0], [0, 1, 4, 9, 16.0]
  outputs = [np.array([value], np.float32) for value in values]
  found = pipeline.score(task, store_of(labels, REGRESSION_SCHEMA), outputs)
  pearson = 40 / np.sqrt(10 * 174)
  expected = {"score": (pearson + 1) / 2, "pearson": pearson, "spearman": 1}
  assert found == pytest.approx(expected)
  assert TASKS[task].metrics == ("pearson", "spearman")


def test_the_heads_are_those_of_the_model():
  import model

  heads = {name: task.head for name, task in TASKS.items()}
  assert heads["squad"] == "question_answering"
  assert heads["pretraining"] == heads["sentences"] == "pretraining"
  assert (heads["text"], heads["tokens"]) == ("causal", "")
  assert set(heads.values()) - {""} <= set(model.MODELS)


@pytest.mark.parametrize("task", ["pretraining", "sentences", "text", "tokens", "glue/ax"])
def test_tasks_without_a_score_say_which_have_one(task):
  with pytest.raises(InputError, match=rf"'{task}' has no score; expected one of squad"):
    pipeline.score(task, store_of([0]), [np.zeros(2)])


@pytest.mark.parametrize(
  ("outputs", "message"),
  [
    ([np.zeros(3)] * 6, "an output for each of 7 sequences, at least one; found 6"),
    ([np.zeros((3, 2))] * 7, "a vector for each sequence"),
    ([np.zeros(3)] * 6 + [np.zeros(2)], "all of one length"),
    ([np.zeros(3)] * 6 + [np.array([0, np.nan, 0])], "output of sequence 6 is not finite"),
    ([np.zeros(1)] * 7, "logits of at least 2 classes"),
  ],
)
def test_invalid_outputs_are_refused(outputs, message):
  with pytest.raises(ValueError, match=message):
    pipeline.score("glue/cola", store_of(LABELS), outputs)
  with pytest.raises(ValueError, match=r"one number a sequence; found 3"):
    pipeline.score("glue/stsb", store_of([0.5] * 7, REGRESSION_SCHEMA), [np.zeros(3)] * 7)
