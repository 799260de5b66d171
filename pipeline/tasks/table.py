"""Tasks: from a shard of documents to sequences.

| task          | a document has                      | a sequence is                     |
|---------------|-------------------------------------|-----------------------------------|
| `pretraining` | text                                | [CLS] A [SEP] B [SEP], B the next |
|               |                                     | segment or a random one           |
| `sentences`   | text                                | [CLS] whole sentences [SEP], as   |
|               |                                     | many of the document as fit       |
| `text`        | text                                | its tokens and an end token       |
| `tokens`      | input_ids; token_type_ids and label | its tokens as they are            |
|               | where it has them                   |                                   |
| `glue/NAME`   | a sentence or two, and a label      | [CLS] A [SEP] or a pair           |
| `classification`, `regression` | sentence, perhaps sentence2, label | as of GLUE's  |
| `squad`       | id, question, context, answers      | [CLS] question [SEP] window [SEP] |
"""

from __future__ import annotations

import array
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from packing import InputError
from packing.errors import short_repr
from pipeline import bpe, wordpiece
from pipeline.settings import DatasetSettings
from pipeline.sources import stdlib
from pipeline.sources.document_shards import DocumentShard
from pipeline.sources.partitions import Document, DocumentFields
from pipeline.store import (
  QUESTION_SCHEMA,
  REGRESSION_SCHEMA,
  SCHEMA,
  SequenceStore,
  StoredSequence,
)
from pipeline.tasks import causal, glue, pretraining, scores, squad
from pipeline.tasks.causal import Tally
from pipeline.tokenizer import Tokenizer

MakeSequences = Callable[
  [DocumentShard, DatasetSettings, Tokenizer, Tally], Iterator[Sequence]
]


@dataclasses.dataclass(frozen=True)
class Task:
  """How a kind of sequences is made.

  Attributes:
    fields: what a document must have.
    optional: what it may have.
    cut: from a shard of documents to rows of the schema.
    texts: of a document, to learn a vocabulary from; None where one must be given.
    byte_level: whether that is a byte-level BPE, as GPT-2's, and not a WordPiece.
    too_long: what may be done with sequences over the limit, the usual first.
    special_tokens: that the vocabulary must have.
    schema: of the store.
    label_names: of the classes, in the order of their numbers; () for none.
    head: the model that learns the task, as `model.MODELS` names it; "" for none.
    score: what `pipeline.score` does for it; None where there is no such thing.
    metrics: names of what `score` gives, beside `score` itself.
  """

  fields: tuple[str, ...]
  make_sequences: MakeSequences
  texts: Callable[[Document, DatasetSettings], Iterable[str]] | None
  too_long: tuple[str, ...]
  optional: tuple[str, ...] = ()
  special_tokens: tuple[str, ...] = (wordpiece.CLS, wordpiece.SEP)
  byte_level: bool = False
  schema: pa.Schema = SCHEMA
  label_names: tuple[str, ...] = ()
  head: str = ""
  score: Callable[[SequenceStore, Sequence[np.ndarray]], dict[str, float]] | None = None
  metrics: tuple[str, ...] = ()

  def wanted(self, settings: DatasetSettings) -> DocumentFields:
    """What to read of each document."""
    columns = settings.column_names()
    known = (*self.fields, *self.optional)
    for field, _ in columns:
      if field not in known:
        raise InputError(
          f"columns names {short_repr(field)}; the task {settings.task} has the fields "
          f"{', '.join(known)}."
        )
    named = tuple(field for field, _ in columns if field in self.optional)
    optional = tuple(field for field in self.optional if field not in named)
    return DocumentFields((*self.fields, *named), optional, columns, settings.documents)


def find_task(settings: DatasetSettings) -> tuple[Task, DatasetSettings]:
  """The task of some settings, and the settings with what the task leaves open.

  A classification has the names of its classes from the settings.

  Raises:
    InputError: no such task, or it cannot do what the settings ask for.
  """
  task = TASKS.get(settings.task)
  if task is None:
    raise InputError(
      f"There is no task {short_repr(settings.task)}; expected one of {', '.join(TASKS)}."
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
  if task.byte_level and not settings.vocab_file and settings.vocab_size < bpe.SMALLEST:
    raise InputError(
      f"vocab_size is {settings.vocab_size}; expected at least {bpe.SMALLEST} for "
      f"{settings.task}: each byte and the end token. Raise it, or give a vocabulary with "
      "--vocab-file."
    )
  if settings.min_words and settings.task != "text":
    raise InputError(
      f"min_words is {settings.min_words}; expected 0 for {settings.task}, only text "
      "leaves short documents out by their words. Leave it out."
    )
  if settings.task == "squad":
    squad.check(settings)
  names = settings.label_names()
  if settings.task == "classification":
    if not names:
      raise InputError(
        "classification needs the names of its classes, in the order of their numbers. "
        "Give them with --labels, such as --labels no,yes."
      )
    task = dataclasses.replace(task, label_names=names)
  elif names:
    raise InputError(
      f"labels is {short_repr(settings.labels)}; expected none for {settings.task}, only "
      "for "
      "classification. Leave it out."
    )
  return task, settings


# ---- pretraining -----------------------------------------------------------------------


def sentences_of(document: Document, settings: DatasetSettings) -> list[str]:
  """The sentences of a document, none where there are too few."""
  found = document.get("sentences")
  if found is None:
    found = stdlib.split_sentences(causal.text_of(document))
  return found if len(found) >= settings.min_sentences else []


def _tokenised(
  shard: DocumentShard,
  settings: DatasetSettings,
  tokenizer: Tokenizer,
  tally: Tally,
  *,
  most: int,
) -> Iterator[pretraining.Document]:
  """Sentences of each document, those over `most` tokens split or as they are."""
  for document in shard.documents:
    sentences: list[Sequence[int]] = []
    for ids in tokenizer.encode(sentences_of(document, settings)):
      if len(ids) > most:
        tally["too_long"] += 1
        if settings.too_long == "error":
          raise causal.too_long_error(document, "A sentence", len(ids), most)
      pieces = [ids]
      if settings.too_long == "split":
        pieces = [ids[i : i + most] for i in range(0, len(ids), most)]
      sentences += [array.array("i", piece) for piece in pieces if piece]
    if sentences:
      tally["documents_used"] += 1
      yield sentences


def _cut_sentences(
  shard: DocumentShard, settings: DatasetSettings, tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredSequence]:
  most = settings.max_sequence_length - pretraining.SPECIAL_TOKENS
  cls, sep = tokenizer.id_of(wordpiece.CLS), tokenizer.id_of(wordpiece.SEP)
  for document in _tokenised(shard, settings, tokenizer, tally, most=most):
    for run in pretraining.whole_sentences(document, max_tokens=most):
      yield StoredSequence([cls, *run, sep], len(run) + 2, 0)


def _cut_pairs(
  shard: DocumentShard, settings: DatasetSettings, tokenizer: Tokenizer, tally: Tally
) -> Iterator[StoredSequence]:
  most = settings.max_sequence_length - pretraining.SPECIAL_TOKENS_IN_PAIR - 1
  documents = list(_tokenised(shard, settings, tokenizer, tally, most=most))
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


# ---- the table -------------------------------------------------------------------------


def _one_text(document: Document, settings: DatasetSettings) -> list[str]:
  del settings
  return [causal.text_of(document)]


def _sentence_task(
  fields: tuple[str, ...],
  metrics: tuple[str, ...],
  *,
  optional: tuple[str, ...] = (),
  has_classes: bool = True,
) -> Task:
  scored = scores.score_classes if has_classes else scores.score_values
  return Task(
    fields=(*fields, "label"),
    optional=optional,
    make_sequences=glue.cut,
    texts=glue.sentences,
    too_long=("truncate", "error"),
    schema=SCHEMA if has_classes else REGRESSION_SCHEMA,
    head="sequence_classification",
    score=functools.partial(scored, metrics=metrics),
    metrics=metrics,
  )


TASKS = {
  "pretraining": Task(
    fields=("text",),
    make_sequences=_cut_pairs,
    texts=sentences_of,
    too_long=("truncate", "split", "error"),
    special_tokens=wordpiece.SPECIAL_TOKENS,
    label_names=("next", "random"),
    head="pretraining",
  ),
  "sentences": Task(
    fields=("text",),
    make_sequences=_cut_sentences,
    texts=sentences_of,
    too_long=("truncate", "split", "error"),
    special_tokens=wordpiece.SPECIAL_TOKENS,
    head="pretraining",
  ),
  "text": Task(
    fields=("text",),
    make_sequences=causal.cut_text,
    texts=_one_text,
    too_long=("split", "truncate", "error"),
    special_tokens=(),
    byte_level=True,
    head="causal",
  ),
  "tokens": Task(
    fields=("input_ids",),
    optional=("token_type_ids", "label"),
    make_sequences=causal.cut_tokens,
    texts=None,
    too_long=("error", "truncate", "split"),
    special_tokens=(),
  ),
  "squad": Task(
    fields=("id", "question", "context", "answers"),
    make_sequences=squad.cut,
    texts=squad.texts,
    too_long=("split", "truncate", "error"),
    schema=QUESTION_SCHEMA,
    head="question_answering",
    score=scores.score_answers,
    metrics=("exact_match", "f1"),
  ),
  "classification": _sentence_task(glue.OWN[:1], ("accuracy",), optional=glue.OWN[1:]),
  "regression": _sentence_task(
    glue.OWN[:1], ("pearson", "spearman"), optional=glue.OWN[1:], has_classes=False
  ),
} | {
  f"glue/{name}": dataclasses.replace(
    _sentence_task(fields, glue.METRICS[name], has_classes=bool(labels)),
    label_names=labels,
  )
  for name, (fields, labels) in glue.TASKS.items()
}
# Of the tasks that a model is trained on, the head that learns each.
TASK_HEADS = {name: task.head for name, task in TASKS.items() if task.head}


def is_masked(task_name: str) -> bool:
  """Whether tokens are hidden, and to be told, where a model is trained on a task."""
  return TASK_HEADS.get(task_name) == "pretraining"


def score(
  task_name: str, store: SequenceStore, outputs: Sequence[np.ndarray]
) -> dict[str, float]:
  """How good a model's outputs are, by the metrics of a task.

  Args:
    task_name: such as "glue/cola".
    store: sequences of the task.
    outputs: what the task's head gave for each: float[num_labels] logits, float[1] for a
      regression; float[length, 2] start and end logits for squad.

  Returns:
    `score`, the benchmark's number, more is better: the mean of the task's metrics, for
    squad F1. And the metrics by name, fractions: correlations in [-1, 1], others in [0, 1].

  Raises:
    InputError: no such task, or one without metrics.
    ValueError: outputs of another number or shape, or not finite.
  """
  task = TASKS.get(task_name)
  if task is None or task.score is None:
    known = ", ".join(name for name, task in TASKS.items() if task.score)
    raise InputError(f"{short_repr(task_name)} has no score; expected one of {known}.")
  return task.score(store, outputs)
