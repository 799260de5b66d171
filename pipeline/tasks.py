"""Tasks: from a shard of documents to sequences.

| task          | a document has                      | a sequence is                     |
|---------------|-------------------------------------|-----------------------------------|
| `pretraining` | text                                | [CLS] A [SEP] B [SEP], B the next |
|               |                                     | segment or a random one           |
| `text`        | text                                | its tokens and an end token       |
| `tokens`      | input_ids; token_type_ids and label | its tokens as they are            |
|               | where it has them                   |                                   |
| `glue/NAME`   | a sentence or two, and a label      | [CLS] A [SEP] or a pair           |
| `squad`       | id, question, context, answers      | [CLS] question [SEP] window [SEP] |
"""

from __future__ import annotations

import array
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from packing import InputError
from packing.errors import shown
from pipeline import corpus, glue, pretraining, squad, wordpiece
from pipeline.documents import DocumentShard
from pipeline.settings import Settings
from pipeline.sources import Document, Wanted
from pipeline.store import (
  QUESTION_SCHEMA,
  REGRESSION_SCHEMA,
  SCHEMA,
  StoredSequence,
)
from pipeline.tokenizer import Tokenizer

Tally = collections.Counter[str]  # what happened to documents, for the manifest
Cut = Callable[[DocumentShard, Settings, Tokenizer, Tally], Iterator[Sequence]]


@dataclasses.dataclass(frozen=True)
class Task:
  """How a kind of sequences is made.

  Attributes:
    fields: what a document must have.
    optional: what it may have.
    cut: from a shard of documents to rows of the schema.
    texts: of a document, to learn a vocabulary from; None where one must be given.
    too_long: what may be done with sequences over the limit, the usual first.
    special_tokens: that the vocabulary must have.
    schema: of the store.
    label_names: of the classes, in the order of their numbers; () for none.
  """

  fields: tuple[str, ...]
  cut: Cut
  texts: Callable[[Document, Settings], Iterable[str]] | None
  too_long: tuple[str, ...]
  optional: tuple[str, ...] = ()
  special_tokens: tuple[str, ...] = (wordpiece.CLS, wordpiece.SEP)
  schema: pa.Schema = SCHEMA
  label_names: tuple[str, ...] = ()

  def wanted(self, settings: Settings) -> Wanted:
    """What to read of each document."""
    columns = settings.column_names()
    known = (*self.fields, *self.optional)
    for field, _ in columns:
      if field not in known:
        raise InputError(
          f"columns names {shown(field)}; the task {settings.task} has the fields "
          f"{', '.join(known)}."
        )
    return Wanted(self.fields, self.optional, columns, settings.documents)


def find_task(settings: Settings) -> tuple[Task, Settings]:
  """The task of some settings, and the settings with what the task leaves open.

  Raises:
    InputError: no such task, or it cannot do what the settings ask for.
  """
  task = TASKS.get(settings.task)
  if task is None:
    raise InputError(
      f"There is no task {shown(settings.task)}; expected one of {', '.join(TASKS)}."
    )
  if not settings.too_long:
    settings = dataclasses.replace(settings, too_long=task.too_long[0])
  if settings.too_long not in task.too_long:
    raise InputError(
      f"too_long is {settings.too_long!r}; {settings.task} can do "
      f"{' or '.join(task.too_long)} with what is too long."
    )
  if settings.held_out_source:
    settings = dataclasses.replace(settings, held_out_fraction=0.0)
  if task.texts is None and not settings.vocab_file:
    raise InputError(
      f"{settings.task} takes tokens as they are; expected the vocabulary they belong to. "
      "Give it with --vocab-file (vocab.txt or tokenizer.json)."
    )
  if settings.task == "squad":
    squad.check(settings)
  return task, settings


# ---- pretraining -----------------------------------------------------------------------


def sentences_of(document: Document, settings: Settings) -> list[str]:
  """The sentences of a document, none where there are too few."""
  found = document.get("sentences")
  if found is None:
    found = corpus.split_sentences(text_of(document))
  return found if len(found) >= settings.min_sentences else []


def _cut_pairs(
  shard: DocumentShard, settings: Settings, tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredSequence]:
  most = settings.max_sequence_length - pretraining.SPECIAL_TOKENS_IN_PAIR - 1
  documents = []
  for document in shard.documents:
    sentences: list[Sequence[int]] = []
    for ids in tokenizer.encode(sentences_of(document, settings)):
      if len(ids) > most:
        tally["too_long"] += 1
        if settings.too_long == "error":
          raise too_long_error(document, "A sentence", len(ids), most)
      pieces = [ids]
      if settings.too_long == "split":
        pieces = [ids[i : i + most] for i in range(0, len(ids), most)]
      sentences += [array.array("i", piece) for piece in pieces if piece]
    if sentences:
      documents.append(sentences)
  tally["documents_used"] += len(documents)
  cls, sep = tokenizer.id_of(wordpiece.CLS), tokenizer.id_of(wordpiece.SEP)
  for repeat in range(settings.dupe_factor):
    for index in range(len(documents)):
      for pair in pretraining.segment_pairs(
        documents,
        index,
        max_sequence_length=settings.max_sequence_length,
        short_sequence_probability=settings.short_sequence_probability,
        seed=(settings.seed, *shard.key, repeat),
      ):
        tally["random_next"] += pair.is_random_next
        tally["truncated_pairs"] += pair.lost_tokens > 0
        input_ids = [cls, *pair.a, sep, *pair.b, sep]
        yield StoredSequence(input_ids, len(pair.a) + 2, pair.is_random_next)


# ---- causal text and tokens ------------------------------------------------------------


def text_of(document: Document) -> str:
  """The text of a document.

  Raises:
    InputError: it is no text.
  """
  if "sentences" in document:
    return " ".join(document["sentences"])
  text = document["text"]
  if text is None:
    return ""
  if not isinstance(text, str):
    raise InputError(
      f"{document['where']}: text is {shown(text)}; expected a string. Name another "
      "column with --columns text=NAME."
    )
  return text


def _cut_text(
  shard: DocumentShard, settings: Settings, tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredSequence]:
  end = tokenizer.end_id
  for document in shard.documents:
    text = text_of(document)
    if not text.strip():
      continue
    (ids,) = tokenizer.encode([text])
    tally["documents_used"] += 1
    for piece in _fit([*ids, end], document, settings, tally, last=end):
      yield StoredSequence(piece, len(piece), 0)


def _cut_tokens(
  shard: DocumentShard, settings: Settings, tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredSequence]:
  for document in shard.documents:
    ids = _checked_tokens(document, tokenizer)
    if not ids:
      continue
    tally["documents_used"] += 1
    first_type = _first_type_length(document, len(ids))
    label = document.get("label") or 0
    if not isinstance(label, int) or not -(2**31) <= label < 2**31:
      raise InputError(
        f"{document['where']}: label is {shown(label)}; expected a whole number of 32 bits."
      )
    start = 0
    for piece in _fit(ids, document, settings, tally):
      yield StoredSequence(piece, min(max(first_type - start, 0), len(piece)), int(label))
      start += len(piece)


def _fit(
  ids: list[int], document: Document, settings: Settings, tally: Tally, *, last=None
) -> list[list[int]]:
  """The tokens as sequences of at most S."""
  most = settings.max_sequence_length
  if len(ids) <= most:
    return [ids]
  tally["too_long"] += 1
  if settings.too_long == "error":
    raise too_long_error(document, "A sequence", len(ids), most)
  if settings.too_long == "truncate":
    return [ids[:most] if last is None else [*ids[: most - 1], last]]
  return [ids[i : i + most] for i in range(0, len(ids), most)]


def _checked_tokens(document: Document, tokenizer: Tokenizer) -> list[int]:
  """Tokens without the padding at their end."""
  where, ids = document["where"], document["input_ids"]
  if not ids:
    return []
  if not isinstance(ids, list) or not all(type(n) is int for n in ids):
    raise InputError(f"{where}: input_ids is {shown(ids)}; expected a list of integers.")
  size = len(tokenizer.vocabulary)
  for place, token in enumerate(ids):
    if not 0 <= token < size:
      raise InputError(
        f"{where}: token {place} is {token}; {tokenizer.path.name} has the ids 0 to "
        f"{size - 1}. Give the vocabulary that the tokens were made with."
      )
  padding = tokenizer.padding_id
  if padding is None:
    return ids
  end = len(ids)
  while end and ids[end - 1] == padding:
    end -= 1
  if padding in ids[:end]:
    raise InputError(
      f"{where}: token {ids.index(padding)} of {end} is {padding}, which is padding; "
      "expected padding at the end only. Take it out, or give the vocabulary that the "
      "tokens were made with."
    )
  return ids[:end]


def _first_type_length(document: Document, length: int) -> int:
  types = document.get("token_type_ids")
  if types is None:
    return length
  if not isinstance(types, list) or len(types) < length:
    raise InputError(
      f"{document['where']}: token_type_ids is {shown(types)}; expected {length} numbers, "
      "one for each token."
    )
  ones = types[:length].count(1)
  if types[:length] != [0] * (length - ones) + [1] * ones:
    raise InputError(
      f"{document['where']}: token_type_ids is {shown(types)}; expected zeros and then "
      "ones."
    )
  return length - ones


def too_long_error(document: Document, what: str, found: int, most: int) -> InputError:
  return InputError(
    f"{document['where']}: {what} has {found} tokens; expected at most {most}. Raise "
    "--max-sequence-length, or choose --too-long truncate or split."
  )


# ---- the table -------------------------------------------------------------------------


def _one_text(document: Document, settings: Settings) -> list[str]:
  del settings
  return [text_of(document)]


def _glue_task(name: str) -> Task:
  fields, labels = glue.TASKS[name]

  def texts(document: Document, settings: Settings) -> list[str]:
    del settings
    return [glue.sentence(document, field) for field in fields]

  return Task(
    fields=(*fields, "label"),
    cut=glue.cut,
    texts=texts,
    too_long=("truncate", "error"),
    schema=SCHEMA if labels else REGRESSION_SCHEMA,
    label_names=labels,
  )


TASKS = {
  "pretraining": Task(
    fields=("text",),
    cut=_cut_pairs,
    texts=sentences_of,
    too_long=("truncate", "split", "error"),
    special_tokens=wordpiece.SPECIAL_TOKENS,
    label_names=("next", "random"),
  ),
  "text": Task(
    fields=("text",),
    cut=_cut_text,
    texts=_one_text,
    too_long=("split", "truncate", "error"),
    special_tokens=(),
  ),
  "tokens": Task(
    fields=("input_ids",),
    optional=("token_type_ids", "label"),
    cut=_cut_tokens,
    texts=None,
    too_long=("error", "truncate", "split"),
    special_tokens=(),
  ),
  "squad": Task(
    fields=("id", "question", "context", "answers"),
    cut=squad.cut,
    texts=squad.texts,
    too_long=("split", "truncate", "error"),
    schema=QUESTION_SCHEMA,
  ),
} | {f"glue/{name}": _glue_task(name) for name in glue.TASKS}
