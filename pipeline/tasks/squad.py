"""SQuAD 1.1: questions on windows of a context, and answers decoded back to text."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline import wordpiece
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import DocumentShard
from pipeline.sources.partitions import Document
from pipeline.tokenizer import Tokenizer

_SPECIAL_TOKENS = 3  # [CLS] question [SEP] window [SEP]
MAX_ANSWER_LENGTH = 30  # in tokens, as in run_squad.py


class Window(NamedTuple):
  """One sequence: a row of `store.QUESTION_SCHEMA`, which says what the fields are."""

  input_ids: Sequence[int]
  first_type_length: int
  sequence_label: int
  start_position: int
  end_position: int
  example_id: str
  text: str
  token_starts: Sequence[int]
  token_ends: Sequence[int]
  window_start: int
  answers: Sequence[str]


class Answer(NamedTuple):
  """A span of the context.

  Attributes:
    text: as it stands in the context.
    probability: among the n best, a fraction.
    score: sum of the two logits.
  """

  text: str
  probability: float
  score: float


def check(settings: DatasetSettings):
  """Refuses windows that would leave out tokens between them.

  Raises:
    InputError: the stride is longer than a window.
  """
  room = settings.max_sequence_length - settings.max_question_length - _SPECIAL_TOKENS
  if settings.doc_stride > room:
    raise InputError(
      f"doc_stride is {settings.doc_stride}; a question of {settings.max_question_length} "
      f"tokens leaves windows of {room} in sequences of {settings.max_sequence_length}, so "
      "tokens would be left out. Expected at most so many."
    )


def texts(example: Document, settings: DatasetSettings) -> list[str]:
  """What a vocabulary is learned from."""
  del settings
  return [example["question"], example["context"]]


def cut(
  shard: DocumentShard, settings: DatasetSettings, tokenizer: Tokenizer, tally
) -> Iterator[Window]:
  """Windows of each example's context, each `doc_stride` tokens after the one before.

  The answer is the first one given. A window that does not hold all of it has the answer
  at position 0. Questions are truncated to `max_question_length` tokens.

  Raises:
    InputError: an example that is none, or whose answer does not stand in the context
      where it says; two with one id in a shard.

  References:
    Devlin et al., https://github.com/google-research/bert, run_squad.py.
  """
  seen: set[str] = set()
  for example in shard.documents:
    if (name := str(example["id"])) in seen:
      raise InputError(
        f"{example['where']}: the id {short_repr(name)} is that of a question before; "
        "expected "
        "one of its own for each."
      )
    seen.add(name)
    yield from windows(example, *_answers(example), settings, tokenizer, tally)


def windows(
  example: Document,
  answers: list[str],
  span: tuple[int, int] | None,
  settings: DatasetSettings,
  tokenizer: Tokenizer,
  tally,
) -> Iterator[Window]:
  """The windows of one example; none where its context is empty.

  Args:
    example: question and context, which `check_texts` found to be texts.
    answers: texts to keep with each window.
    span: where the answer to learn starts and ends, in characters; None for none.
    settings, tokenizer, tally: as of `cut`.

  Raises:
    InputError: the context is too long, where settings ask for it.
  """
  cls, sep = tokenizer.id_of(wordpiece.CLS), tokenizer.id_of(wordpiece.SEP)
  (question,) = tokenizer.encode([example["question"]])
  if len(question) > settings.max_question_length:
    tally["truncated_questions"] += 1
    question = question[: settings.max_question_length]
  ids, offsets = tokenizer.encode_with_offsets(example["context"])
  if not ids:
    tally["empty_contexts"] += 1  # no row, so no score of the dataset counts the question
    return
  tally["documents_used"] += 1
  room = settings.max_sequence_length - len(question) - _SPECIAL_TOKENS
  if len(ids) > room:
    tally["too_long"] += 1
    if settings.too_long == "error":
      raise InputError(
        f"{example['where']}: The context has {len(ids)} tokens; expected at most "
        f"{room}. Raise --max-sequence-length, or choose --too-long split."
      )
  answer = _token_span(offsets, span)
  prefix = [cls, *question, sep]
  start = 0
  while True:
    stop = min(start + room, len(ids))
    places = 0, 0
    if answer is not None and start <= answer[0] and answer[1] < stop:
      places = tuple(len(prefix) + token - start for token in answer)  # type: ignore[assignment]
    elif answer is not None:
      tally["windows_without_answer"] += 1
    first = offsets[start][0]
    yield Window(
      [*prefix, *ids[start:stop], sep],
      len(prefix),
      0,
      *places,
      str(example["id"]),
      example["context"][first : offsets[stop - 1][1]],
      [begin - first for begin, _ in offsets[start:stop]],
      [end - first for _, end in offsets[start:stop]],
      start,
      answers,
    )
    if stop == len(ids) or settings.too_long == "truncate":
      break
    start += min(settings.doc_stride, room)


def check_texts(example: Document):
  """Refuses a question or a context that is no text.

  Raises:
    InputError: one is none.
  """
  for field in ("question", "context"):
    if not isinstance(example[field], str):
      raise InputError(
        f"{example['where']}: {field} is {short_repr(example[field])}; expected a text."
      )


def _answers(example: Document) -> tuple[list[str], tuple[int, int] | None]:
  """All answers, and where the first one starts and ends, in characters."""
  check_texts(example)
  try:
    answers = [str(text) for text in example["answers"]["text"]]
    starts = [int(start) for start in example["answers"]["answer_start"]]
  except (TypeError, LookupError, ValueError) as error:
    raise InputError(
      f"{example['where']}: answers is {short_repr(example['answers'])}; expected "
      '{"text": [...], "answer_start": [...]}.'
    ) from error
  if not answers:
    return [], None
  start, answer = starts[0], answers[0]
  if not answer.strip():
    raise InputError(
      f"{example['where']}: the answer is {short_repr(answer)}; expected words of the "
      "context. "
      "Give one, or an empty list of answers where there is none."
    )
  found = example["context"][start : start + len(answer)]
  if start < 0 or found != answer:
    raise InputError(
      f"{example['where']}: expected the answer {short_repr(answer)} at character "
      f"{start} of "
      f"the context; found {short_repr(found)}. Correct answer_start, or leave the "
      "question out."
    )
  return answers, (start, start + len(answer))


def _token_span(
  offsets: list[tuple[int, int]], span: tuple[int, int] | None
) -> tuple[int, int] | None:
  """The first and the last token that a span of characters touches."""
  if span is None:
    return None
  first = bisect.bisect_right(offsets, span[0], key=lambda offset: offset[1])
  last = bisect.bisect_left(offsets, span[1], key=lambda offset: offset[0]) - 1
  return (first, last) if first <= last else None


def questions(
  rows: Iterable[Mapping], outputs: Iterable[np.ndarray]
) -> Iterator[tuple[list[Mapping], list[np.ndarray]]]:
  """The windows of each question, which follow each other, and their outputs."""
  windows: list[Mapping] = []
  logits: list[np.ndarray] = []
  for row, output in zip(rows, outputs, strict=True):
    if windows and row["window_start"] == 0:
      yield windows, logits
      windows, logits = [], []
    windows.append(row)
    logits.append(output)
  if windows:
    yield windows, logits


def start_and_end(
  windows: Sequence[Mapping], outputs: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Start and end logits apart, each float[length] of each window.

  Raises:
    ValueError: an output is no float[length, 2], or not finite.
  """
  for window, output in zip(windows, outputs, strict=True):
    expected = len(window["input_ids"]), 2
    if np.shape(output) != expected or not np.isfinite(output).all():
      raise ValueError(
        f"The output for a window of question {window['example_id']} has the shape "
        f"{np.shape(output)}; expected {expected} and finite numbers."
      )
  return [output[:, 0] for output in outputs], [output[:, 1] for output in outputs]


def n_best(
  windows: Sequence[Mapping],
  start_logits: Sequence[np.ndarray],
  end_logits: Sequence[np.ndarray],
  *,
  num_answers: int = 20,
  max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[Answer]:
  """The likeliest answers to one question, over all windows of its context.

  Of each window the `num_answers` likeliest starts and as many ends count, wherever in the
  sequence they are. They make a span where both are in the context, the first token has
  the most context in this window, and there are at most `max_answer_length` tokens.

  Args:
    windows: of one example, with the fields of `store.QUESTION_SCHEMA`.
    start_logits: of each window float[length]; how likely the answer starts at a token.
    end_logits: of each window float[length]; how likely it ends there.
    num_answers: how many are wanted.
    max_answer_length: in tokens.

  Returns:
    Answers with different texts, the likeliest first. None where no start and end make a
    span; BERT answers "empty" then.

  Example:
    >>> window = {"input_ids": [2, 9, 3, 5, 6, 3], "first_type_length": 3,
    ...           "window_start": 0, "text": "in 1871", "token_starts": [0, 3],
    ...           "token_ends": [2, 7]}
    >>> start, end = np.array([0, 0, 0, 1, 5, 0]), np.array([0, 0, 0, 0, 4, 0])
    >>> [answer.text for answer in n_best([window], [start], [end], num_answers=2)]
    ['1871', 'in 1871']

  References:
    Devlin et al., https://github.com/google-research/bert, run_squad.py.
  """
  spans = [(w["window_start"], len(w["token_starts"])) for w in windows]
  found: list[tuple[float, str]] = []
  for number, window in enumerate(windows):
    ends = _highest(end_logits[number], window, num_answers=num_answers)
    for i, start in _highest(start_logits[number], window, num_answers=num_answers).items():
      if _widest(spans, window["window_start"] + i) != number:
        continue
      for j, end in ends.items():
        if i <= j < i + max_answer_length:
          text = window["text"][window["token_starts"][i] : window["token_ends"][j]]
          found.append((start + end, text))
  scores: dict[str, float] = {}
  for score, text in sorted(found, key=lambda pair: -pair[0]):
    scores.setdefault(text, score)
  best = list(scores.items())[:num_answers]
  weights = [math.exp(score - best[0][1]) for _, score in best]
  return [
    Answer(text, weight / sum(weights), score)
    for (text, score), weight in zip(best, weights, strict=True)
  ]


def _highest(logits: np.ndarray, window: Mapping, *, num_answers: int) -> dict[int, float]:
  """The highest logits, by token of the context; those elsewhere are left out."""
  first, count = window["first_type_length"], len(window["token_starts"])
  places = np.argsort(-np.asarray(logits), kind="stable")[:num_answers].tolist()
  return {i - first: float(logits[i]) for i in places if first <= i < first + count}


def _widest(spans: list[tuple[int, int]], token: int) -> int:
  """The window in which a token has the most tokens before and after it.

  The smaller of both sides counts, then a hundredth of the window's length, as in BERT;
  the first window wins a tie.
  """

  def context(number: int) -> float:
    start, count = spans[number]
    if not start <= token < start + count:
      return -1.0
    return min(token - start, start + count - 1 - token) + 0.01 * count

  return max(range(len(spans)), key=lambda number: (context(number), -number))
