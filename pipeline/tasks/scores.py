"""The metrics of GLUE, SQuAD and tags, as fractions."""

from __future__ import annotations

import collections
import functools
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from packing.errors import check
from pipeline.store import SequenceStore
from pipeline.tasks import squad, tagging

# scikit-learn and SciPy take a second to import, and workers that tokenise need neither.


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """The fraction of correct predictions; of bool[N, C], those of all C classes."""
  from sklearn.metrics import accuracy_score

  return float(accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray, average: str = "binary") -> float:
  """Harmonic mean of precision and recall for class 1; 0 if it never occurs.

  With several classes a sequence, bool[N, C], `average` is "micro", over all N x C answers,
  or "macro", the mean over classes.
  """
  from sklearn.metrics import f1_score

  return float(f1_score(labels, predictions, average=average, zero_division=0.0))


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
  "micro_f1": functools.partial(f1, average="micro"),
  "macro_f1": functools.partial(f1, average="macro"),
  "subset_accuracy": accuracy,
}


def score_sequences(
  store: SequenceStore,
  outputs: Sequence[np.ndarray],
  *,
  metrics: Sequence[str],
  others: Sequence[str] = (),
) -> dict[str, float]:
  """Metrics of the likeliest classes or of predicted numbers, and their mean as `score`.

  Of several classes a sequence, those with a probability above 0.5 are predicted.

  Args:
    store: sequences with classes, or with numbers to predict.
    outputs: of each sequence float[num_labels] logits, or float[1].
    metrics: names of metrics.
    others: names of metrics that do not count in `score`.

  Raises:
    ValueError: the outputs have wrong shapes or are not finite.
  """
  labels, found = store.sequence_labels, np.stack(outputs)  # type: ignore[arg-type]
  if labels.dtype.kind == "f":
    fits, what = found.shape == (len(store), 1), "one finite number"
  elif labels.dtype.kind == "b":
    fits, what = found.shape == labels.shape, f"{labels.shape[1]} finite logits"
  else:
    fits = found.ndim == 2 and len(found) == len(store) and found.shape[1] > labels.max()
    what = f"{labels.max() + 1} or more finite logits"
  if not (fits and np.isfinite(found).all()):
    raise ValueError(
      f"The outputs have the shape {found.shape}; expected {len(store)} times {what}."
    )
  predicted = found[:, 0] if labels.dtype.kind == "f" else found.argmax(axis=1)
  predicted = found > 0 if labels.dtype.kind == "b" else predicted
  values = {name: _METRICS[name](labels, predicted) for name in (*metrics, *others)}
  return {"score": sum(values[name] for name in metrics) / len(metrics)} | values


def score_answers(store: SequenceStore, outputs: Sequence[np.ndarray]) -> dict[str, float]:
  """Exact match and F1 of the likeliest answers, each question once; `score` is F1.

  Args:
    store: windows of questions.
    outputs: float[length, 2] start and end logits of each window.

  Raises:
    ValueError: the outputs have wrong shapes or are not finite.
  """
  exact, shared = [], []
  for windows, logits in squad.questions(store.records(), outputs):
    best = squad.n_best(windows, *squad.start_and_end(windows, logits))
    text, answers = best[0].text if best else "", windows[0]["answers"]
    exact.append(exact_match(text, answers))
    shared.append(answer_f1(text, answers))
  f1 = float(np.mean(shared))
  return {"score": f1, "exact_match": float(np.mean(exact)), "f1": f1}


def score_tags(
  store: SequenceStore, outputs: Sequence[np.ndarray], labels: Sequence[str] = ()
) -> dict[str, float]:
  """Accuracy of the words' tags, each word once; also scores of the entities they mark.

  An entity is right if its kind and both ends are. `score` is then F1, of all entities
  together, otherwise the accuracy. `strict_f1` counts only entities whose tags follow the
  scheme, as `tagging.strict_entities`.

  Args:
    store: windows of sentences.
    outputs: float[length, num_labels] logits of each window.
    labels: names of the tags, in the order of their numbers.

  Raises:
    InputError: there are no labels.
    ValueError: the outputs have wrong shapes or are not finite.

  References:
    Tjong Kim Sang and De Meulder, https://aclanthology.org/W03-0419; conlleval, seqeval.
  """
  check(len(labels) > 0, "labels", labels, "the names of the tags: labels=dataset.labels")
  has_entities = tagging.mark_entities(labels)
  words = hits = 0
  true, said = [], []  # the tags of each sentence
  for windows, logits in squad.questions(store.records(), outputs):
    marks, found = tagging.of_words([w["token_labels"] for w in windows], logits)
    tags = found.argmax(axis=1)
    words += marks.size
    hits += int((tags == marks).sum())
    true.append([labels[n] for n in marks])
    said.append([labels[n] for n in tags])
  accuracy = hits / max(words, 1)
  if not has_entities:
    return {"score": accuracy, "accuracy": accuracy}
  scheme = tagging.find_scheme(true, labels)
  of_all = _score_entities(true, said, tagging.entities)
  strict = functools.partial(tagging.strict_entities, scheme=scheme)
  strict_f1 = _score_entities(true, said, strict)["f1"]
  return {"score": of_all["f1"], **of_all, "strict_f1": strict_f1, "accuracy": accuracy}


def _score_entities(
  true: Sequence[list[str]],
  said: Sequence[list[str]],
  entities: Callable[[list[str]], set[tuple[str, int, int]]],
) -> dict[str, float]:
  """Precision, recall and F1 of the entities in the tags of each sentence."""
  right = expected = predicted = 0
  for pair in zip(true, said, strict=True):
    there, found = map(entities, pair)
    right += len(there & found)
    expected += len(there)
    predicted += len(found)
  return {
    "precision": right / max(predicted, 1),
    "recall": right / max(expected, 1),
    "f1": 2 * right / max(predicted + expected, 1),
  }
