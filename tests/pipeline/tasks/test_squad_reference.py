"""Windows and answers of real questions, as transformers and BERT's own rule have them.

The golden files have 53 questions; SQUAD_GOLDEN names a folder with all of them, which
`make_squad_golden --all` wrote.
"""

import itertools
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.settings import DatasetSettings
from pipeline.sources import textfiles
from pipeline.sources.document import DocumentFields
from pipeline.sources.document_shards import DocumentShard
from pipeline.tasks import squad
from pipeline.tasks.encoder import Encoder
from pipeline.tokenizer import Tokenizer
from tests import shared_data
from tests.pipeline.make_squad_golden import (
  FOLDER,
  MAX_ANSWER_LENGTH,
  NUM_ANSWERS,
  SCALE,
  SETTINGS,
  digest,
)

pytestmark = pytest.mark.extra


class Question(NamedTuple):
  """A question under one setting: ours, and what transformers has of it."""

  name: str
  context: str
  windows: list[dict]
  expected_windows: list[dict]
  expected_answer: dict[str, Any]
  logits: list[np.ndarray]  # of each window float[length, 2]


@pytest.fixture(scope="module")
def tokenizer():
  return Tokenizer(shared_data.needed("bert-base-uncased-vocab.txt"))


@pytest.fixture(scope="module")
def questions(tokenizer):
  source = shared_data.needed("squad/xquad.en.json")
  wanted = DocumentFields(("id", "question", "context", "answers"))
  documents = {item.fields["id"]: item for item in textfiles.read_squad(source, wanted)}
  folder = pathlib.Path(os.environ.get("SQUAD_GOLDEN", FOLDER))
  with np.load(folder / "logits.npz") as arrays:
    left = arrays["logits"] / SCALE
  found = []
  for line in (folder / "reference.jsonl").read_text().splitlines():
    setting, name, expected, answer, lengths = json.loads(line)
    length, step, most = SETTINGS[setting]
    encoder = Encoder(DatasetSettings(str(source), length, task="squad"), tokenizer)
    shard = DocumentShard("train", 0, 0, [documents[name]])
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(squad, "limits", lambda _, limits=(most, step): limits)
      windows = [window._asdict() for window in squad.labelled_sequences(shard, encoder)]
    *logits, left = np.split(left, np.cumsum(lengths))
    context = documents[name].fields["context"]
    found.append(
      Question(f"{name} in {setting}", context, windows, expected, answer, logits)
    )
  assert not left.size
  return found


def max_context_of(windows: list[dict]) -> list[list[int]]:
  """The places in each window at which an answer may start: no other has more around."""

  def context(window, token):
    place, count = token - window["window_start"], len(window["token_starts"])
    return min(place, count - 1 - place) + 0.01 * count if 0 <= place < count else -1

  found = []
  for number, window in enumerate(windows):
    tokens = [window["window_start"] + i for i in range(len(window["token_starts"]))]
    best = [int(np.argmax([context(w, token) for w in windows])) for token in tokens]
    first = window["first_type_length"]
    found.append([first + i for i, other in enumerate(best) if other == number])
  return found


def by_bert_rule(
  windows: list[dict],
  logits: list[np.ndarray],
  context: str,
  tokenizer: Tokenizer,
  *,
  alignment: str = "exact",
) -> list[tuple[str, float]]:
  """Texts and scores of the n best, by plain loops.

  `alignment` is "exact" for the characters of the tokens; "words" for what transformers
  answers where it cannot find the tokens in the text, since the first continues a word
  (BERT itself finds these) or one is unknown: all words that they touch.
  """
  _, offsets = tokenizer.encode_with_offsets(context)
  places = max_context_of(windows)
  found = []
  for window, both, allowed in zip(windows, logits, places, strict=True):
    first, ids = window["first_type_length"], window["input_ids"]
    starts, ends = (
      sorted(range(len(ids)), key=kind.__getitem__, reverse=True)[:NUM_ANSWERS]
      for kind in both.T.tolist()
    )
    for i, j in itertools.product(starts, ends):
      if i not in allowed or not i <= j < min(len(ids) - 1, i + MAX_ANSWER_LENGTH):
        continue
      tokens = [tokenizer.vocabulary[token] for token in ids[i : j + 1]]
      begin = offsets[window["window_start"] + i - first][0]
      end = offsets[window["window_start"] + j - first][1]
      lost = tokens[0].startswith("##") or "[UNK]" in tokens
      if alignment == "words" and lost:
        while begin and not context[begin - 1].isspace():
          begin -= 1
        while end < len(context) and not context[end].isspace():
          end += 1
      score = float(both[i, 0]) + float(both[j, 1])
      found.append((context[begin:end], score))
  best: dict[str, float] = {}
  for text, score in sorted(found, key=lambda pair: pair[1], reverse=True):
    best.setdefault(text, score)
  return list(best.items())[:NUM_ANSWERS]


def test_windows_and_labels_are_those_of_transformers(questions):
  other_labels = []
  for one in questions:
    places = max_context_of(one.windows)
    found = [
      {
        "input_ids": digest(window["input_ids"]),
        "first_type_length": window["first_type_length"],
        "max_context": digest(max_context),
      }
      for window, max_context in zip(one.windows, places, strict=True)
    ]
    labels = [[w["start_position"], w["end_position"]] for w in one.windows]
    expected = [window["label"] for window in one.expected_windows]
    other_labels += [one.name] if labels != expected else []
    assert found == [
      {name: value for name, value in window.items() if name != "label"}
      for window in one.expected_windows
    ], one.name
  # Where an answer ends inside a number, transformers labels all of it.
  assert len(other_labels) <= len(questions) / 500, other_labels


def test_the_n_best_are_those_of_bert(questions, tokenizer):
  """Also with equal logits, and with spans from the question."""
  rng = np.random.default_rng(0)
  for one in questions:
    noise = [rng.standard_normal(both.shape).round(1) for both in one.logits]
    for logits in (one.logits, noise):
      starts, ends = ([both[:, kind] for both in logits] for kind in (0, 1))
      limits = {"num_answers": NUM_ANSWERS, "max_answer_length": MAX_ANSWER_LENGTH}
      best = squad.n_best(one.windows, starts, ends, **limits)
      expected = by_bert_rule(one.windows, logits, one.context, tokenizer)
      assert expected, one.name
      assert [(answer.text, answer.score) for answer in best] == expected, one.name


def test_transformers_differs_only_where_it_loses_answers_in_the_text(questions, tokenizer):
  """Then it gives whole words; with these, its text and the scores of all 20 are equal."""
  for one in questions:
    given = one.windows, one.logits, one.context, tokenizer
    best = by_bert_rule(*given, alignment="words")
    found = {
      "text": " ".join(best[0][0].split()),
      "scores": digest([score for _, score in best]),
    }
    assert found == one.expected_answer, one.name
