"""Our windows and answers against those of transformers.

  python -m tests.pipeline.compare_squad FOLDER --data=DATA

FOLDER was written by `python -m tests.pipeline.make_squad_golden --all=FOLDER`, which says
what DATA is. It holds a model, with which ours reads the windows, packed.
"""

import argparse
import itertools
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import flax.nnx as nnx
import jax
import numpy as np

from model import hf, layout
from pipeline.settings import DatasetSettings
from pipeline.sources import textfiles
from pipeline.sources.document import Document, DocumentFields
from pipeline.sources.document_shards import DocumentShard
from pipeline.tasks import squad
from pipeline.tasks.encoder import Encoder
from pipeline.tokenizer import Tokenizer
from tests.model import ours
from tests.pipeline.squad_reference import (
  MAX_ANSWER_LENGTH,
  NUM_ANSWERS,
  SETTINGS,
  Expected,
  digest,
  read,
)

# What `differences` compares; "padded" is theirs with padding and without. What is before
# the pipeline is listed one by one.
CHECKS = (
  "fast windows",
  "fast labels",
  "legacy windows",
  "legacy labels",
  "n best, by BERT's rule",
  "n best, aligned as there",
  "best score",
  "best answer",
  "best answer, padded",
  "pipeline",
  "pipeline, whole words",
  "pipeline, by its rule",
  "pipeline, whole words, by its rule",
)
_LISTED = (*CHECKS[: CHECKS.index("pipeline")], *CHECKS[-2:])
_PIPELINE_CANDIDATES = 12  # of a window, where it stretches them to whole words
_ROW_LENGTH, _ROWS, _MAX_SEQUENCES = 768, 16, 8


class Compared(NamedTuple):
  """One question under one setting.

  Attributes:
    expected: what transformers makes of it.
    document: the question.
    windows: ours.
    best: our answers, from the same logits.
  """

  expected: Expected
  document: Document
  windows: list[dict]
  best: list[squad.Answer]


def compare(folder: pathlib.Path, data: pathlib.Path) -> Iterator[Compared]:
  """Our windows and answers, beside those in a folder."""
  source = data / "squad" / "xquad.en.json"
  wanted = DocumentFields(("id", "question", "context", "answers"))
  documents = {item.fields["id"]: item for item in textfiles.read_squad(source, wanted)}
  tokenizer = Tokenizer(data / "bert-base-uncased-vocab.txt")
  for expected in read(folder):
    length, step, most = SETTINGS[expected.setting]
    settings = DatasetSettings(
      str(source), length, task="squad", doc_stride=step, max_question_length=most
    )
    document = documents[expected.question]
    shard = DocumentShard("train", 0, 0, [document])
    made = squad.labelled_sequences(shard, Encoder(settings, tokenizer))
    windows = [window._asdict() for window in made]
    best = decode(windows, expected.logits)
    yield Compared(expected, document, windows, best)


def decode(windows: list[dict], logits: list[np.ndarray]) -> list[squad.Answer]:
  starts, ends = ([both[:, kind] for both in logits] for kind in (0, 1))
  return squad.n_best(
    windows, starts, ends, num_answers=NUM_ANSWERS, max_answer_length=MAX_ANSWER_LENGTH
  )


def described(windows: list[dict], how: str) -> list[dict]:
  """Our windows as the reference has those of the "fast" tokenizer or "legacy" features."""
  found = []
  for window, places in zip(windows, _max_context(windows), strict=True):
    offsets = zip(window["token_starts"], window["token_ends"], strict=True)
    own = {"offsets": digest([*offsets]), "text": digest([*map(ord, window["text"])])}
    found.append(
      {
        "input_ids": digest(window["input_ids"]),
        "first_type_length": window["first_type_length"],
        "label": [window["start_position"], window["end_position"]],
        **(own if how == "fast" else {"max_context": digest(places)}),
      }
    )
  return found


def _max_context(windows: list[dict]) -> list[list[int]]:
  """The places in each window at which an answer may start."""
  spans = [(w["window_start"], len(w["token_starts"])) for w in windows]
  return [
    [
      window["first_type_length"] + i
      for i in range(count)
      if squad._widest(spans, start + i) == number
    ]
    for number, (window, (start, count)) in enumerate(zip(windows, spans, strict=True))
  ]


def by_bert_rule(
  compared: Compared, tokenizer: Tokenizer, *, alignment: str
) -> list[tuple[str, float]]:
  """Texts and scores of the n best, by plain loops.

  Args:
    compared: a question.
    tokenizer: with the vocabulary.
    alignment: "exact" for the characters of the tokens; "words" for what transformers
      answers where it cannot find the tokens in the text, since the first continues a word
      (BERT itself finds these) or one is unknown: all words that they touch.
  """
  context = compared.document.fields["context"]
  _, offsets = tokenizer.encode_with_offsets(context)
  max_context = _max_context(compared.windows)
  found = []
  for number, (window, logits) in enumerate(
    zip(compared.windows, compared.expected.logits, strict=True)
  ):
    first, ids = window["first_type_length"], window["input_ids"]
    starts, ends = (
      sorted(range(len(ids)), key=kind.__getitem__, reverse=True)[:NUM_ANSWERS]
      for kind in logits.T.tolist()
    )
    for i, j in itertools.product(starts, ends):
      if i not in max_context[number] or not i <= j < len(ids) - 1:
        continue
      if j - i + 1 > MAX_ANSWER_LENGTH:
        continue
      tokens = [tokenizer.vocabulary[ids[place]] for place in range(i, j + 1)]
      begin = offsets[window["window_start"] + i - first][0]
      end = offsets[window["window_start"] + j - first][1]
      lost = tokens[0].startswith("##") or "[UNK]" in tokens
      if alignment == "words" and lost:
        while begin and not context[begin - 1].isspace():
          begin -= 1
        while end < len(context) and not context[end].isspace():
          end += 1
      text = context[begin:end]
      found.append((text, float(logits[i, 0]) + float(logits[j, 1])))
  best: dict[str, float] = {}
  for text, score in sorted(found, key=lambda pair: pair[1], reverse=True):
    best.setdefault(text, score)
  return list(best.items())[:NUM_ANSWERS]


def by_pipeline_rule(
  compared: Compared, tokenizer: Tokenizer | None = None, *, candidates: int = 1
) -> str:
  """The answer of transformers' pipeline, from our windows; explains where it differs.

  Probabilities are of one window and of its context (and [CLS], which may not be chosen),
  every pair within reach counts, and equal texts add up, also over windows.

  Args:
    compared: a question.
    tokenizer: to stretch spans to whole words; None for not.
    candidates: spans of each window.
  """
  scores: dict[str, float] = {}
  texts: dict[str, str] = {}
  for window, logits in zip(compared.windows, compared.expected.logits, strict=True):
    first, count = window["first_type_length"], len(window["token_starts"])
    inside = np.r_[0, first : first + count]
    chances = np.exp(np.float64(logits[inside]) - logits[inside].max(0))
    start, end = (chances / chances.sum(0))[1:].T
    pairs = np.tril(np.triu(np.outer(start, end)), MAX_ANSWER_LENGTH - 1)
    for place in np.argsort(-pairs, axis=None, kind="stable")[:candidates].tolist():
      i, j = divmod(place, count)
      score = pairs[i, j]
      if tokenizer:
        ids = window["input_ids"][first : first + count]
        goes_on = [tokenizer.vocabulary[number].startswith("##") for number in ids]
        while i and goes_on[i]:
          i -= 1
        while j + 1 < count and goes_on[j + 1]:
          j += 1
      text = window["text"][window["token_starts"][i] : window["token_ends"][j]]
      texts.setdefault(text.lower(), text)
      scores[text.lower()] = scores.get(text.lower(), 0.0) + score
  return texts[max(scores, key=lambda text: scores[text])]


def differences(compared: Compared, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
  """What is not equal: the name of a check, and ours and theirs in words."""
  expected = compared.expected
  for how, theirs in expected.windows.items():
    mine = described(compared.windows, how)
    if len(mine) != len(theirs):
      yield f"{how} windows", f"{len(mine)} | {len(theirs)}"
      continue
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
      label, other = a.pop("label"), b["label"]
      if label != other:
        yield f"{how} labels", f"window {number}: {label} | {other}"
      if a != {name: value for name, value in b.items() if name != "label"}:
        yield f"{how} windows", f"{a} | {b}"
  text, score = ("empty", 0.0) if not compared.best else compared.best[0][::2]
  answers = expected.answers
  exact = by_bert_rule(compared, tokenizer, alignment="exact")
  words = by_bert_rule(compared, tokenizer, alignment="words")
  pairs = {
    "n best, by BERT's rule": ([(a.text, a.score) for a in compared.best], exact),
    "n best, aligned as there": (
      (" ".join(words[0][0].split()), digest([score for _, score in words])),
      (answers["bert"]["text"], answers["bert"]["scores"]),
    ),
    "best score": (score, answers["bert"]["score"]),
    "best answer": (text, answers["bert"]["text"]),
    "best answer, padded": (answers["bert"]["text"], answers["bert_padded"]["text"]),
    "pipeline": (text, answers["pipeline"]),
    "pipeline, whole words": (text, answers["pipeline_words"]),
    "pipeline, by its rule": (by_pipeline_rule(compared), answers["pipeline"]),
    "pipeline, whole words, by its rule": (
      by_pipeline_rule(compared, tokenizer, candidates=_PIPELINE_CANDIDATES),
      answers["pipeline_words"],
    ),
  }
  for name, (mine_too, other) in pairs.items():
    if mine_too != other:
      yield name, f"{mine_too!r} | {other!r}"


def by_check(found: Iterable[Compared], tokenizer: Tokenizer) -> dict[str, list[str]]:
  """All differences by the name of the check, each with its question."""
  unequal: dict[str, list[str]] = {name: [] for name in CHECKS}
  for compared in found:
    for name, text in differences(compared, tokenizer):
      unequal[name].append(f"{compared.expected.question}: {text}")
  return unequal


def packed_difference(folder: pathlib.Path, found: list[Compared]) -> float:
  """The largest between PyTorch's logits of windows alone and ours of packed rows."""
  config, params = hf.import_bert(folder)
  graphdef = ours.graphdef_of(config, "question_answering")
  forward = jax.jit(lambda batch: nnx.merge(graphdef, params)(batch)["answer_logits"])
  rows: list[list[tuple[dict, np.ndarray]]] = [[]]
  for compared in found:
    for window, logits in zip(compared.windows, compared.expected.logits, strict=True):
      used = sum(len(logits) for _, logits in rows[-1])
      if used + len(logits) > _ROW_LENGTH or len(rows[-1]) == _MAX_SEQUENCES:
        rows.append([])
      ids = np.array(window["input_ids"])
      types = np.arange(len(ids)) >= window["first_type_length"]
      rows[-1].append(({"input_ids": ids, "token_type_ids": types}, logits))
  rows += [[]] * (-len(rows) % _ROWS)
  most = 0.0
  for first in range(0, len(rows), _ROWS):
    part = rows[first : first + _ROWS]
    packs = [[sequence for sequence, _ in row] for row in part]
    batch = layout.lay_out(packs, row_length=_ROW_LENGTH, max_sequences=_MAX_SEQUENCES)
    answers = np.asarray(forward(batch))
    for row, of_row in zip(part, answers, strict=True):
      theirs = np.concatenate([logits for _, logits in row] or [of_row[:0]])
      most = max(most, np.abs(of_row[: len(theirs)] - theirs).max(initial=0.0))
  return float(most)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--data", type=pathlib.Path, required=True, help="the data folder")
  options = parser.parse_args()
  tokenizer = Tokenizer(options.data / "bert-base-uncased-vocab.txt")
  found = list(compare(options.folder, options.data))
  for setting, (length, step, asked) in SETTINGS.items():
    mine = [compared for compared in found if compared.expected.setting == setting]
    windows = sum(len(compared.windows) for compared in mine)
    print(f"windows of {length} tokens, {step} apart, questions of at most {asked}:")
    print(f"  {len(mine)} questions, {windows} windows")
    for name, texts in by_check(mine, tokenizer).items():
      print(f"  {name}: {len(texts)} differ")
      for text in texts if name in _LISTED else ():
        print(f"    {text}")
  print(
    f"largest difference of a logit, packed: {packed_difference(options.folder, found)}"
  )


if __name__ == "__main__":
  main()
