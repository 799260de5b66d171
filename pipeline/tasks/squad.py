"""SQuAD 1.1: questions with windows of their context, and answers decoded to text."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document, text_in
from pipeline.sources.document_shards import DocumentShard
from pipeline.tasks.encoder import Encoder

MAX_ANSWER_LENGTH = 30  # in tokens, as in run_squad.py


class Window(NamedTuple):
  """A sequence with the fields of `store.QUESTION_SCHEMA`, described there."""

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
    text: exactly as in the context.
    probability: relative to the n best answers, a fraction.
    score: the sum of its start and end logits.
  """

  text: str
  probability: float
  score: float


def limits(max_sequence_length: int) -> tuple[int, int]:
  """The longest question, and the stride from window to window, both in tokens.

  64 and 128 as in BERT's code for SQuAD; in sequences of fewer than its 384 tokens, as
  large a part of them.

  Example:
    >>> limits(384), limits(512), limits(128)
    ((64, 128), (64, 128), (21, 42))
  """
  return min(64, max_sequence_length // 6), min(128, max_sequence_length // 3)


def texts(document: Document, settings: DatasetSettings) -> list[str]:
  """The texts to learn a vocabulary from."""
  del settings
  return [text_in(document, field) for field in ("question", "context")]


def spans(count: int, *, room: int, stride: int) -> Iterator[tuple[int, int]]:
  """Start and end of the windows of `count` tokens, each of at most `room` tokens.

  Example:
    >>> list(spans(9, room=4, stride=2))
    [(0, 4), (2, 6), (4, 8), (6, 9)]
  """
  for start in range(0, max(count - room, 0) + stride, stride):
    yield start, min(start + room, count)


def labelled_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[Window]:
  """Windows of each question's context, each a stride after the previous one.

  The label is the first answer; in a window that does not hold all of it, position 0.
  `limits` has the stride, and the length to which questions are truncated.

  Raises:
    InputError: a field is invalid; an answer is not at its stated place in the context; or
      two questions of a shard have one id.

  References:
    Devlin et al., https://github.com/google-research/bert, run_squad.py.
  """
  seen: set[str] = set()
  for document in shard.documents:
    if (name := str(document.fields["id"])) in seen:
      raise InputError(f"{document.where}: the id {short_repr(name)} occurs twice.")
    seen.add(name)
    texts(document, encoder.settings)  # raises
    answers, span = _answers(document)
    if not answers:
      encoder.tally["questions_without_answers"] += 1
    yield from _windows(document, answers, span, encoder)


def unlabelled_sequences(
  documents: Iterable[Document], encoder: Encoder
) -> Iterator[tuple[Document, list[Window]]]:
  """Each question and its windows, without answers; none if its context is empty.

  Raises:
    InputError: a field is invalid; or a context is too long, if the settings forbid it.
  """
  for document in documents:
    yield document, list(_windows(document, [], None, encoder))


def _windows(
  document: Document,
  answers: list[str],
  span: tuple[int, int] | None,
  encoder: Encoder,
) -> Iterator[Window]:
  """The windows of one question.

  Args:
    document: the question.
    answers: texts to store with each window.
    span: start and end of the answer to learn, in characters; None for no answer.
    encoder: how to make sequences.
  """
  settings, tally = encoder.settings, encoder.tally
  asked, context = texts(document, settings)
  name = str(document.fields["id"])
  (question,) = encoder.encode([asked])
  longest, stride = limits(settings.max_sequence_length)
  if len(question) > longest:
    tally["truncated_questions"] += 1
    question = question[:longest]
  ids, offsets = encoder.encode_with_offsets(context)
  if not ids:
    tally["empty_contexts"] += 1  # no window, so no score counts the question
    return
  tally["documents_used"] += 1
  offsets = [_without_space(context, *offset) for offset in offsets]
  room = settings.max_sequence_length - len(question) - encoder.special_in_pair
  if len(ids) > room:
    what = f"{document.where}: The context"
    encoder.count_too_long(what, len(ids), room, choices="split")
  answer = _token_span(offsets, span)
  if span and not answer:  # such as an accent, which the tokenizer drops
    tally["answers_without_tokens"] += 1
  prefix = [encoder.cls, *question, *encoder.separators]
  for start, stop in spans(len(ids), room=room, stride=stride):
    places = 0, 0
    if answer is not None and start <= answer[0] and answer[1] < stop:
      places = tuple(len(prefix) + token - start for token in answer)  # type: ignore[assignment]
    elif answer is not None:
      tally["windows_without_answer"] += 1
    first = offsets[start][0]
    yield Window(
      [*prefix, *ids[start:stop], encoder.sep],
      len(prefix),
      0,
      *places,
      name,
      context[first : offsets[stop - 1][1]],
      [begin - first for begin, _ in offsets[start:stop]],
      [end - first for _, end in offsets[start:stop]],
      start,
      answers,
    )
    if settings.too_long == "truncate":
      break


def _answers(document: Document) -> tuple[list[str], tuple[int, int] | None]:
  """All answers, and where the first one starts and ends, in characters."""
  where, given = document.where, document.fields["answers"]
  try:
    if isinstance(given["text"], str):
      raise TypeError("text is not a list")
    answers = [str(text) for text in given["text"]]
    start = int(given["answer_start"][0]) if answers else 0
  except (TypeError, LookupError, ValueError, OverflowError) as error:
    raise InputError(
      f"{where}: answers is {short_repr(given)}; expected "
      '{"text": [...], "answer_start": [...]}.'
    ) from error
  if not answers:
    return [], None
  answer = answers[0]
  if not answer.strip():
    raise InputError(f"{where}: the answer is {short_repr(answer)}; expected words or [].")
  text = document.fields["context"][start : start + len(answer)]
  if start < 0 or text != answer:
    raise InputError(
      f"{where}: answer {short_repr(answer)} is not at {start}; found {short_repr(text)}."
    )
  return answers, (start, start + len(answer))


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
  """The place of a token without spaces in front: that before its word is no answer."""
  if text[start : start + 1].isspace():
    start = end - len(text[start:end].lstrip())
  return start, end


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
  windows: Iterable[Mapping], outputs: Iterable[np.ndarray]
) -> Iterator[tuple[list[Mapping], list[np.ndarray]]]:
  """The windows of each question, which are consecutive, and their outputs."""
  held: list[Mapping] = []
  logits: list[np.ndarray] = []
  for window, output in zip(windows, outputs, strict=True):
    if held and window["window_start"] == 0:
      yield held, logits
      held, logits = [], []
    held.append(window)
    logits.append(output)
  if held:
    yield held, logits


def start_and_end(
  windows: Sequence[Mapping], outputs: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Start logits and end logits, each float[length] for each window.

  Raises:
    ValueError: an output is not float[length, 2], or not finite.
  """
  for window, output in zip(windows, outputs, strict=True):
    expected = len(window["input_ids"]), 2
    if np.shape(output) != expected or not np.isfinite(output).all():
      raise ValueError(
        f"The output for question {window['example_id']} has the shape {np.shape(output)}; "
        f"expected {expected}."
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

  Each window contributes its `num_answers` likeliest starts and as many ends, anywhere in
  the sequence. A start and an end make a span if both are in the context, this window
  shows the most context around the first token, and the span has at most
  `max_answer_length` tokens.

  Args:
    windows: of one question, with the fields of `store.QUESTION_SCHEMA`.
    start_logits: float[length] for each window; how likely the answer starts at a token.
    end_logits: float[length] for each window; how likely it ends there.
    num_answers: the most answers to return.
    max_answer_length: in tokens.

  Returns:
    Answers with different texts, the likeliest first. Empty if no start and end make a
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
  candidates: list[tuple[float, str]] = []
  for number, window in enumerate(windows):
    ends = _highest(end_logits[number], window, num_answers=num_answers)
    for i, start in _highest(start_logits[number], window, num_answers=num_answers).items():
      if _widest(spans, window["window_start"] + i) != number:
        continue
      for j, end in ends.items():
        if i <= j < i + max_answer_length:
          text = window["text"][window["token_starts"][i] : window["token_ends"][j]]
          candidates.append((start + end, text))
  scores: dict[str, float] = {}
  for score, text in sorted(candidates, key=lambda pair: -pair[0]):
    scores.setdefault(text, score)
  best = list(scores.items())[:num_answers]
  weights = [math.exp(score - best[0][1]) for _, score in best]
  return [
    Answer(text, weight / sum(weights), score)
    for (text, score), weight in zip(best, weights, strict=True)
  ]


def _highest(logits: np.ndarray, window: Mapping, *, num_answers: int) -> dict[int, float]:
  """The highest logits by token of the context, without those outside of it."""
  first, count = window["first_type_length"], len(window["token_starts"])
  places = np.argsort(-np.asarray(logits), kind="stable")[:num_answers].tolist()
  return {i - first: float(logits[i]) for i in places if first <= i < first + count}


def _widest(spans: list[tuple[int, int]], token: int) -> int:
  """The window in which a token has the most tokens before and after it.

  As in BERT, the smaller side counts, plus a hundredth of the window's length; the first
  window wins a tie.
  """

  def context(number: int) -> float:
    start, count = spans[number]
    if not start <= token < start + count:
      return -1.0
    return min(token - start, start + count - 1 - token) + 0.01 * count

  return max(range(len(spans)), key=lambda number: (context(number), -number))
