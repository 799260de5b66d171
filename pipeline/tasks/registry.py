"""The tasks: each makes sequences from documents; some also score and answer.

| task          | a document has                      | a sequence is                     |
|---------------|-------------------------------------|-----------------------------------|
| `pretraining` | text                                | [CLS] A [SEP] B [SEP], B the next |
|               |                                     | segment or a random one           |
| `sentences`   | text                                | [CLS] whole sentences [SEP], as   |
|               |                                     | many of the document as fit       |
| `documents`   | text                                | [CLS] text [SEP]                  |
| `text`        | text                                | its tokens and an end token       |
| `tokens`      | input_ids; perhaps attention_mask,  | its tokens                        |
|               | token_type_ids and label            |                                   |
| `glue/NAME`   | a sentence or two, and a label      | [CLS] A [SEP] or a pair           |
| `classification`, `regression` | sentence, perhaps sentence2, label | as in GLUE    |
| `multi_label` | the same, label being a list        | the same                          |
| `tagging`     | tokens, tags                        | [CLS] window [SEP]                |
| `pairs`       | anchor, positive, negatives         | several in a record, each         |
|               |                                     | [CLS] text [SEP]                  |
| `scored_pairs` | sentence1, sentence2, score        | the same                          |
| `squad`       | id, question, context, answers      | [CLS] question [SEP] window [SEP] |

[CLS] and [SEP] stand for the vocabulary's own tokens: in RoBERTa's, A and B have two
separators between them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from packing import InputError
from packing.errors import check, short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources.document import IDS, Document, DocumentFields
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import (
  MULTI_LABEL_SCHEMA,
  PAIR_SCHEMA,
  QUESTION_SCHEMA,
  REGRESSION_SCHEMA,
  SCHEMA,
  SCORED_PAIR_SCHEMA,
  TAGGING_SCHEMA,
  SequenceStore,
)
from pipeline.tasks import (
  answering,
  documents,
  glue,
  pairs,
  pretraining,
  scores,
  squad,
  tagging,
)
from pipeline.tasks.encoder import Encoder
from pipeline.tokenizer import CLS, NUM_BYTES, SEP, SPECIAL_TOKENS


@dataclasses.dataclass(frozen=True)
class Task:
  """The rules of one task.

  Attributes:
    fields: the fields that a document must have.
    make_sequences: turns a shard of documents into tuples with the fields of `schema`.
    texts: the texts of a document, to learn a vocabulary from; None if a vocabulary must
      be given.
    too_long: the values that the setting `too_long` may have, the default first.
    optional: the fields that a document may also have.
    similar: a pattern of other names that probably mean one of its fields; "" for none.
    filter: the setting that leaves out short documents; "" if none does.
    min_documents: the fewest documents that a split must have.
    names_labels: whether the setting `labels`, or else the data, names the classes.
    special_tokens: roles, keys of `tokenizer.NAMES`, for which a vocabulary must have a
      token. A learned vocabulary has tokens of these very names.
    byte_level: whether to learn a byte-level BPE like GPT-2's instead of word pieces.
    schema: the schema of the store.
    label_names: names of the classes in the order of their numbers; () for none.
    tallied_shares: names in the tally whose counts the manifest gives per sequence.
    head: the model that learns the task, as `model.MODELS` names it; "" for none.
    score: computes the task's scores for `pipeline.score` from a store, outputs and
      options; None if it has none.
    make_unlabelled: turns documents to predict into pairs of a document and its
      sequences, without labels; None if the task predicts nothing.
    line_fields: the fields on each line of a text file of examples to predict; () if text
      files are refused.
    answer: turns sequences and outputs of one example, names of classes and the longest
      answer in tokens into an object for JSON.
  """

  fields: tuple[str, ...]
  make_sequences: Callable[[DocumentShard, Encoder], Iterator[Sequence]]
  texts: Callable[[Document, DatasetSettings], Iterable[str]] | None
  too_long: tuple[str, ...]
  optional: tuple[str, ...] = ()
  similar: str = ""
  filter: str = ""
  min_documents: int = 1
  names_labels: bool = False
  special_tokens: tuple[str, ...] = (CLS, SEP)
  byte_level: bool = False
  schema: pa.Schema = SCHEMA
  label_names: tuple[str, ...] = ()
  tallied_shares: tuple[str, ...] = ()
  head: str = ""
  score: Callable[..., dict[str, float]] | None = None
  make_unlabelled: (
    Callable[[Iterable[Document], Encoder], Iterator[tuple[Document, list]]] | None
  ) = None
  line_fields: tuple[str, ...] = ()
  answer: Callable[[Sequence, Sequence[np.ndarray], Sequence[str], int], dict] | None = None

  @property
  def has_classes(self) -> bool:
    """Whether the model predicts named classes."""
    is_classifier = self.head in ("sequence_classification", "token_classification")
    return is_classifier and self.schema != REGRESSION_SCHEMA

  def document_fields(self, settings: DatasetSettings) -> DocumentFields:
    """The fields to read from each document.

    Raises:
      InputError: `columns` names a field that the task does not have, or one column for two
        fields.
    """
    columns = settings.column_names()
    known = (*self.fields, *self.optional)
    for field, _ in columns:
      check(field in known, "A field in columns", field, f"one of {', '.join(known)}")
    named = tuple(field for field, _ in columns if field in self.optional)
    optional = tuple(field for field in self.optional if field not in named)
    readers: dict[str, str] = {}
    for field in (*self.fields, *named):
      column = dict(columns).get(field, field)
      other = readers.setdefault(column, field)
      if other != field and "id" not in (field, other):
        raise InputError(
          f"{other} and {field} are both column {column!r}. Name another with --columns."
        )
    # An optional field is not read from a column of its name that is another field's.
    optional = tuple(x for x in optional if x in IDS or x not in readers)
    return DocumentFields(
      (*self.fields, *named),
      optional,
      columns,
      settings.documents,
      classes=("label", "tags") if self.has_classes else (),
      similar=self.similar,
    )


def find_task(settings: DatasetSettings) -> tuple[Task, DatasetSettings]:
  """The task of some settings, and the settings with the task's defaults filled in.

  A task that takes the names of its classes from the settings has them as `label_names`.

  Raises:
    InputError: there is no such task, or the settings do not fit it.
  """
  check(settings.task in TASKS, "task", settings.task, f"one of {', '.join(TASKS)}")
  task = TASKS[settings.task]
  if not settings.too_long:
    settings = dataclasses.replace(settings, too_long=task.too_long[0])
  if settings.held_out_source:
    settings = dataclasses.replace(settings, held_out_fraction=0.0)
  name, label_names = settings.task, settings.label_names()
  least = NUM_BYTES + max(len(task.special_tokens), 1)
  learns_bytes = task.byte_level and not settings.vocab_file
  for is_wrong, message in (
    (
      settings.too_long not in task.too_long,
      f"too_long is {settings.too_long!r}; {name} takes {' or '.join(task.too_long)}",
    ),
    (
      task.texts is None and not settings.vocab_file,
      f"{name} needs the vocabulary that the tokens were made with. Give vocab_file",
    ),
    (
      learns_bytes and settings.vocab_size < least,
      f"vocab_size is {settings.vocab_size}; expected at least {least} for {name}: all "
      "bytes and the special tokens",
    ),
    (
      settings.cross_documents and name != "sentences",
      f"cross_documents is True; expected False for {name}",
    ),
    (
      settings.min_words and task.filter != "min_words",
      f"min_words is {settings.min_words}; expected 0 for {name}",
    ),
    (
      label_names and not task.names_labels,
      f"labels is {short_repr(settings.labels)}; expected none for {name}, which has no "
      "classes of your own. Leave it out",
    ),
  ):
    if is_wrong:
      raise InputError(f"{message}.")
  if task.names_labels:
    task = dataclasses.replace(task, label_names=label_names)
  return task, settings


def _one_text(document: Document, settings: DatasetSettings) -> list[str]:
  del settings
  return [documents.text_of(document)]


def _sentence_task(
  fields: tuple[str, ...],
  metrics: tuple[str, ...],
  *,
  others: tuple[str, ...] = (),
  answer: Callable[..., dict] = answering.answer_class,
  **options,
) -> Task:
  """A task with a class, several, or a number for one sentence or two."""
  return Task(
    fields=(*fields, "label"),
    make_sequences=glue.labelled_sequences,
    texts=glue.sentences,
    too_long=("truncate", "error"),
    head="sequence_classification",
    score=functools.partial(scores.score_sequences, metrics=metrics, others=others),
    make_unlabelled=glue.unlabelled_sequences,
    line_fields=(*fields, *options.get("optional", ())),
    answer=answer,
    **options,
  )


def _pair_task(fields: tuple[str, ...], schema: pa.Schema, **options) -> Task:
  """A task whose records have several texts, from which a model learns embeddings."""
  return Task(
    fields=fields,
    make_sequences=pairs.sequences,
    texts=pairs.texts,
    too_long=("truncate", "error"),
    schema=schema,
    head="encoder",
    score=pairs.score,
    **options,
  )


_NUMBERS: dict = {"schema": REGRESSION_SCHEMA, "answer": answering.answer_value}
TASKS = {
  "pretraining": Task(
    fields=("text",),
    make_sequences=pretraining.pair_sequences,
    texts=pretraining.sentences_of,
    too_long=("truncate", "split", "error"),
    filter="min_sentences",
    min_documents=2,
    special_tokens=SPECIAL_TOKENS,
    label_names=("next", "random"),
    tallied_shares=("random_next",),
    head="pretraining",
  ),
  "sentences": Task(
    fields=("text",),
    make_sequences=pretraining.sentence_sequences,
    texts=pretraining.sentences_of,
    too_long=("truncate", "split", "error"),
    filter="min_sentences",
    special_tokens=SPECIAL_TOKENS,
    head="pretraining",
  ),
  "documents": Task(
    fields=("text",),
    make_sequences=documents.document_sequences,
    texts=_one_text,
    too_long=("split", "truncate", "error"),
    filter="min_words",
    special_tokens=SPECIAL_TOKENS,
    byte_level=True,
    head="pretraining",
  ),
  "text": Task(
    fields=("text",),
    make_sequences=documents.text_sequences,
    texts=_one_text,
    too_long=("split", "truncate", "error"),
    filter="min_words",
    special_tokens=(),
    byte_level=True,
    head="causal",
  ),
  "tokens": Task(
    fields=("input_ids",),
    optional=(
      *("attention_mask", "token_type_ids", "label", "labels"),
      *("position_ids", "seq_lengths"),  # which rows have that are packed already
    ),
    make_sequences=documents.token_sequences,
    texts=None,
    too_long=("error", "truncate", "split"),
    special_tokens=(),
  ),
  "squad": Task(
    fields=("id", "question", "context", "answers"),
    make_sequences=squad.labelled_sequences,
    texts=squad.texts,
    too_long=("split", "truncate", "error"),
    schema=QUESTION_SCHEMA,
    head="question_answering",
    score=scores.score_answers,
    make_unlabelled=squad.unlabelled_sequences,
    answer=answering.answer_question,
  ),
  "tagging": Task(
    fields=("tokens", "tags"),
    make_sequences=tagging.labelled_sequences,
    texts=tagging.texts,
    too_long=("split", "error"),
    names_labels=True,
    schema=TAGGING_SCHEMA,
    head="token_classification",
    score=scores.score_tags,
    make_unlabelled=tagging.unlabelled_sequences,
    line_fields=("tokens",),
    answer=answering.answer_tags,
  ),
  "pairs": _pair_task(
    pairs.RANKED, PAIR_SCHEMA, optional=pairs.NEGATIVES, similar=pairs.SIMILAR
  ),
  "scored_pairs": _pair_task((*pairs.SCORED, "score"), SCORED_PAIR_SCHEMA),
  "classification": _sentence_task(
    glue.OWN[:1],
    ("accuracy",),
    optional=glue.OWN[1:],
    similar=glue.SIMILAR,
    names_labels=True,
  ),
  glue.MULTI_LABEL: _sentence_task(
    glue.OWN[:1],
    ("micro_f1",),
    others=("macro_f1", "subset_accuracy"),
    optional=glue.OWN[1:],
    similar=glue.SIMILAR,
    names_labels=True,
    schema=MULTI_LABEL_SCHEMA,
    answer=answering.answer_classes,
  ),
  "regression": _sentence_task(
    glue.OWN[:1],
    ("pearson", "spearman"),
    optional=glue.OWN[1:],
    similar=glue.SIMILAR,
    **_NUMBERS,
  ),
  **{
    f"glue/{name}": _sentence_task(
      task.fields,
      task.metrics,
      label_names=task.labels,
      **({} if task.labels else _NUMBERS),
    )
    for name, task in glue.TASKS.items()
  },
}
# For each task that a model can be trained on, the head that learns it.
TASK_HEADS = {name: task.head for name, task in TASKS.items() if task.head}


def is_masked(task_name: str) -> bool:
  """Whether the task trains with masked tokens."""
  return TASK_HEADS.get(task_name) == "pretraining"


def score(
  task_name: str, store: SequenceStore, outputs: Sequence[np.ndarray], **options
) -> dict[str, float]:
  """Scores a model's outputs by the metrics of a task.

  Args:
    task_name: such as "glue/cola".
    store: sequences of the task.
    outputs: the head's output for each sequence: float[num_labels] logits; float[1] for a
      regression; float[length, 2] start and end logits for squad; float[length,
      num_labels] for tagging; for pairs, float[D] for each text of each record.
    options: for pairs, the `temperature` of the loss; tagging needs the `labels`, names of
      the tags: entities are scored if these mark them.

  Returns:
    `score`, the benchmark's number, higher is better: the mean of the task's metrics, F1
    for squad and entities, `mrr` or `spearman` for pairs. Then each metric by name:
    correlations in [-1, 1], fractions otherwise. For pairs also `loss`, and `sequences`,
    the number of records.

  Raises:
    InputError: there is no such task, it has no metrics, or tagging has no labels.
    ValueError: the outputs have a wrong number or shape, or are not finite.
  """
  task = TASKS.get(task_name)
  if task is None or task.score is None:
    known = ", ".join(name for name, task in TASKS.items() if task.score)
    raise InputError(f"{short_repr(task_name)} has no score; expected one of {known}.")
  return task.score(store, outputs, **options)
