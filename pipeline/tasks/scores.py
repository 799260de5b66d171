"""The metrics of GLUE and SQuAD, as fractions."""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.store import SequenceStore
from pipeline.tasks import squad

# scikit-learn and SciPy take a second to import, and workers that tokenise need neither.


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The fraction of correct predictions."""
  from sklearn.metrics import accuracy_score

  return float(accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Harmonic mean of precision and recall for class 1; 0 if it never occurs."""
  from sklearn.metrics import f1_score

  return float(f1_score(labels, predictions, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Matthews' correlation in [-1, 1]; 0 if labels or predictions are all the same.

  References:
    Matthews, 1975; CoLA's metric, Warstadt et al., https://arxiv.org/abs/1805.12471.
  """
  from sklearn.metrics import matthews_corrcoef

  if _constant(labels) or _constant(predictions):
    return 0.0
  return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Pearson's correlation in [-1, 1]; 0 if labels or predictions are all the same."""
  import scipy.stats

  if _constant(labels) or _constant(predictions):
    return 0.0
  # In float64, SciPy does not mistake close float32 values for a constant.
  return float(scipy.stats.pearsonr(*map(np.float64, (labels, predictions))).statistic)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Pearson's correlation of the ranks; 0 if labels or predictions are all the same."""
  import scipy.stats

  if _constant(labels) or _constant(predictions):
    return 0.0
  return float(scipy.stats.spearmanr(labels, predictions).statistic)


def _constant(values: np.ndarray) -> bool:
  return bool((values == values[0]).all())


# ---- SQuAD -----------------------------------------------------------------------------

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
  """Lower case, without ASCII punctuation and articles, one space between words.

  Example:
    >>> normalized("The  U.S. 'An-swer'")
    'us answer'
  """
  lowered = text.lower().translate(_NO_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", lowered).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
  """1 if the normalized prediction equals a normalized answer, otherwise 0.

  References:
    Rajpurkar et al., https://arxiv.org/abs/1606.05250, section 6.1; evaluate-v1.1.py.
  """
  return float(normalized(prediction) in map(normalized, answers))


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
  """F1 of the words that prediction and answer share, the best over the answers.

  Words count as often as they occur. 0 if there is no answer.

  Example:
    >>> answer_f1("the cat sat", ["a cat", "dogs"])
    0.6666666666666666

  References:
    See `exact_match`.
  """
  predicted = normalized(prediction).split()

  def one(answer: str) -> float:
    expected = normalized(answer).split()
    same = (collections.Counter(predicted) & collections.Counter(expected)).total()
    return 2 * same / (len(predicted) + len(expected)) if same else 0.0

  return max(map(one, answers), default=0.0)


# ---- scores of a task ------------------------------------------------------------------

_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": accuracy,
  "f1": f1,
  "matthews": matthews,
  "pearson": pearson,
  "spearman": spearman,
}


def score_classes(
  store: SequenceStore, outputs: Sequence[np.ndarray], *, metrics: Sequence[str]
) -> dict[str, float]:
  """Metrics of the likeliest classes, and their mean as `score`.

  Args:
    store: sequences with classes.
    outputs: float[num_labels] logits of each sequence.
    metrics: names of metrics.

  Raises:
    ValueError: the outputs have wrong shapes or are not finite.
  """
  logits = _stacked(store, outputs)
  labels = store.sequence_labels
  if logits.shape[1] <= labels.max():
    raise ValueError(
      f"Expected logits of at least {labels.max() + 1} classes; found {logits.shape[1]}."
    )
  return _with_mean({m: _METRICS[m](labels, logits.argmax(axis=1)) for m in metrics})


def score_values(
  store: SequenceStore, outputs: Sequence[np.ndarray], *, metrics: Sequence[str]
) -> dict[str, float]:
  """Metrics of predicted numbers, and their mean as `score`.

  Args:
    store: sequences with numbers to predict.
    outputs: float[1] of each sequence.
    metrics: names of metrics.

  Raises:
    ValueError: the outputs have wrong shapes or are not finite.
  """
  values = _stacked(store, outputs)
  if values.shape[1] != 1:
    raise ValueError(f"Expected one number a sequence; found {values.shape[1]}.")
  return _with_mean({m: _METRICS[m](store.sequence_labels, values[:, 0]) for m in metrics})


def score_answers(store: SequenceStore, outputs: Sequence[np.ndarray]) -> dict[str, float]:
  """Exact match and F1 of the likeliest answers, each question once; `score` is F1.

  Args:
    store: windows of questions.
    outputs: float[length, 2] start and end logits of each window.

  Raises:
    ValueError: the outputs have wrong shapes or are not finite.
  """
  _check_count(store, outputs)
  exact, shared = [], []
  for windows, logits in squad.questions(store.records(), outputs):
    best = squad.n_best(windows, *squad.start_and_end(windows, logits))
    text, answers = best[0].text if best else "", windows[0]["answers"]
    exact.append(exact_match(text, answers))
    shared.append(answer_f1(text, answers))
  f1 = float(np.mean(shared))
  return {"score": f1, "exact_match": float(np.mean(exact)), "f1": f1}


def _stacked(store: SequenceStore, outputs: Sequence[np.ndarray]) -> np.ndarray:
  """The outputs as float[num_sequences, width]."""
  _check_count(store, outputs)
  shapes = {np.shape(output) for output in outputs}
  if len(shapes) > 1 or len(shape := shapes.pop()) != 1 or not shape[0]:
    raise ValueError("Expected a vector for each sequence, all of one length.")
  stacked = np.stack(outputs)  # type: ignore[arg-type]
  if not np.isfinite(stacked).all():
    raise ValueError(
      f"The output of sequence {int((~np.isfinite(stacked)).any(axis=1).argmax())} is not "
      "finite."
    )
  return stacked


def _check_count(store: SequenceStore, outputs: Sequence[np.ndarray]):
  if len(outputs) != len(store) or not len(store):
    raise ValueError(
      f"Expected an output for each of {len(store)} sequences; found {len(outputs)}."
    )


def _with_mean(values: dict[str, float]) -> dict[str, float]:
  return {"score": sum(values.values()) / len(values)} | values
