"""Words with tags: each word is scored at its first piece, and once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import UNLABELLED
from pipeline.tasks import glue, squad
from pipeline.tasks.encoder import Encoder

# By scheme, the entities among the prefixes of neighbouring words of one kind. BILOU has
# other letters for those of BIOES.
SCHEMES = {
  "IOB1": "(?!^)BI*|I+",  # B only right after an entity of the same kind
  "IOB2": "BI*",
  "IOE1": "(I+|(?<=E))E(?!$)|I+$",  # E only right before an entity of the same kind
  "IOE2": "I*E",
  "BIOES": "S|BI*E",
  "BIOS": "S|BI*",
}


class TaggedWindow(NamedTuple):
  """A sequence with the fields of `store.TAGGING_SCHEMA`, described there."""

  input_ids: Sequence[int]
  first_type_length: int
  sequence_label: int
  token_labels: Sequence[int]
  words: Sequence[str]
  window_start: int


class UntaggedWord(str):
  """A word without tokens, among the `words` of a window to predict: it gets no tag."""


def words_of(document: Document) -> list[str]:
  """The words of a document, a list of texts; a text is split at white space.

  Raises:
    InputError: the field is something else.
  """
  words = document.fields["tokens"]
  words = words.split() if isinstance(words, str) else words
  if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
    raise InputError(
      f"{document.where}: tokens is {short_repr(words)}; expected a list of words."
    )
  return words


def tags_of(document: Document) -> list:
  """The tags of a document, a list with one for each word.

  Raises:
    InputError: the field is something else.
  """
  words, tags = words_of(document), document.fields["tags"]
  if not isinstance(tags, list) or len(tags) != len(words):
    found = f"{len(tags)} tags" if isinstance(tags, list) else f"tags {short_repr(tags)}"
    remedy = (
      "" if isinstance(tags, list) else " Give a list with a tag for each, as .jsonl."
    )
    raise InputError(f"{document.where} has {found} for {len(words)} tokens.{remedy}")
  return tags


def texts(document: Document, settings: DatasetSettings) -> list[str]:
  """The texts to learn a vocabulary from."""
  del settings
  return [" ".join(words_of(document))]


def labelled_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[TaggedWindow]:
  """Windows of each sentence; of its words, each has a label in one window.

  Raises:
    InputError: a field is invalid, a word has no tag or no piece, or a tag is not a class;
      or a sentence is too long, if the settings forbid it.
  """
  names = encoder.settings.label_names()
  numbers: dict[str, int] = {}
  for document in shard.documents:
    words, tags = words_of(document), tags_of(document)
    labels = glue.parse_labels(tags, names, numbers, field="tag", where=document.where)
    yield from _windows(document, words, labels, encoder)


def unlabelled_sequences(
  documents: Iterable[Document], encoder: Encoder
) -> Iterator[tuple[Document, list[TaggedWindow]]]:
  """Each document and its windows, with label 0 for its words; none without words.

  A word without pieces is an `UntaggedWord` of a window.

  Raises:
    InputError: `tokens` is invalid; or a sentence is too long, if the settings forbid it.
  """
  for document in documents:
    words = words_of(document)
    yield document, list(_windows(document, words, None, encoder))


def _windows(
  document: Document, words: list[str], labels: list[int] | None, encoder: Encoder
) -> Iterator[TaggedWindow]:
  """The windows of a sentence, each half a window after the previous one.

  Where two windows overlap, each scores the words that have more context in it. A window
  that would score none, inside a very long word, is left out. Without labels, words
  without pieces are allowed, and belong to the window of the next word.
  """
  if not words:
    encoder.tally["empty_sentences"] += 1
    return
  ids, offsets = encoder.encode_with_offsets(" ".join(words))
  starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
  # By its last character, since a piece may begin with the space before its word. One that
  # is only this space is the first of the word, as transformers has it.
  begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
  is_space = np.isin(ends, starts[1:]) & (begins >= ends - 1)
  owners = np.searchsorted(starts, ends - 1 + is_space, side="right") - 1  # words of pieces
  owners = np.maximum(owners, 0)  # the space that a tokenizer puts before the first word
  is_first = np.diff(owners, prepend=-1) > 0
  if (untagged := np.setdiff1d(np.arange(len(words)), owners)).size:
    if labels is not None:
      word = ascii(words[untagged[0]])  # which may be invisible
      raise InputError(
        f"{document.where}: the word {word} has no tokens. Omit it and its tag."
      )
    encoder.tally["untagged_words"] += untagged.size
    words = list(words)
    for number in untagged:
      words[number] = UntaggedWord(words[number])
  values = np.zeros(len(words), int) if labels is None else np.array(labels)
  encoder.tally["documents_used"] += 1
  room = encoder.settings.max_sequence_length - encoder.special_in_text
  if len(ids) > room:
    what = f"{document.where}: The sentence"
    encoder.count_too_long(what, len(ids), room, choices="split")
  spans = list(squad.spans(len(ids), room=room, stride=room // 2))
  middles = [(start + stop) // 2 for (_, stop), (start, _) in itertools.pairwise(spans)]
  bounds = itertools.pairwise([0, *middles, len(ids)])
  done = 0  # words of earlier windows
  last_word = int(owners[-1]) if len(ids) else -1
  for (start, stop), (low, high) in zip(spans, bounds, strict=True):
    place = np.arange(start, stop)
    is_scored = is_first[start:stop] & (place >= low) & (place < high)
    if not is_scored.any() and len(ids):
      continue
    scored = owners[start:stop]
    marks = np.where(is_scored, values[scored], UNLABELLED).tolist()
    end = int(scored[is_scored].max()) if is_scored.any() else last_word
    begin, done = done, len(words) if end == last_word else end + 1
    yield TaggedWindow(
      encoder.enclosed(ids[start:stop]),
      len(marks) + encoder.special_in_text,
      0,
      [UNLABELLED, *marks, UNLABELLED],
      words[begin:done],
      start,
    )


def of_words(
  token_labels: Sequence[Sequence[int]], outputs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """The label of each word of a sentence, int[W], and its logits, float[W, num_labels].

  Args:
    token_labels: of each window.
    outputs: float[length, num_labels] for each window.

  Raises:
    ValueError: an output has another length, or is not finite.
  """
  for labels, output in zip(token_labels, outputs, strict=True):
    shape = np.shape(output)
    if len(shape) != 2 or shape[0] != len(labels) or not np.isfinite(output).all():
      raise ValueError(
        f"An output has shape {shape}; expected finite logits of {len(labels)} tokens."
      )
  marks = np.concatenate([np.asarray(labels) for labels in token_labels])
  return marks[marks >= 0], np.concatenate(outputs)[marks >= 0]


def mark_entities(names: Sequence[str]) -> bool:
  """Whether tags are of a scheme of entities, with kinds as in B-PER, or without.

  The schemes are IOB1 and IOB2, IOE1 and IOE2, BIOES (also called IOBES) and BILOU.
  """
  prefixes = {name.partition("-")[0] for name in names}
  return bool(prefixes - {"O"}) and any(prefixes <= set(s) for s in ("BIOES", "BILOU"))


def entities(tags: Iterable[str]) -> set[tuple[str, int, int]]:
  """Kind, first word and end of each entity in a sentence with tags of any scheme.

  An I or E that continues nothing begins an entity, as in CoNLL's script and in seqeval
  without its strict mode.

  Example:
    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 3, 4), ('LOC', 4, 5), ('PER', 0, 2)]
    >>> sorted(entities(["B-PER", "E-PER", "S-LOC"]))
    [('LOC', 2, 3), ('PER', 0, 2)]

  References:
    seqeval 1.2.2, https://github.com/chakki-works/seqeval, get_entities.
  """
  found = set()
  before, kind, start = "O", "", 0
  for place, tag in enumerate([*tags, "O"]):
    prefix, name = _parts(tag)
    ends = before != "O" and (before in "ES" or prefix in "BSO" or name != kind)
    if ends:
      found.add((kind, start, place))
    if ends or before == "O":
      start = place
    before, kind = prefix, name
  return found


def find_scheme(sentences: Iterable[Sequence[str]], names: Sequence[str]) -> str:
  """The scheme that tags follow, a key of `SCHEMES`.

  Whether B begins each entity, or E ends it, is as in most of the sentences.

  Args:
    sentences: the tags of each.
    names: all tags; `mark_entities` of them is true.

  Example:
    >>> find_scheme([["I-A", "B-A", "O"]], ["O", "B-A", "I-A"])
    'IOB1'
    >>> find_scheme([["B-A", "I-A", "S-A"]], ["O", "B-A", "I-A", "S-A"])
    'BIOS'
  """
  letters = {_parts(name)[0] for name in names}
  if "S" in letters or {"B", "E"} <= letters:
    return "BIOES" if "E" in letters else "BIOS"
  runs = [run for tags in sentences for _, _, run in _runs(tags)]
  if "E" in letters:
    return "IOE2" if 2 * sum(run.endswith("E") for run in runs) > len(runs) else "IOE1"
  return "IOB2" if 2 * sum(run.startswith("B") for run in runs) > len(runs) else "IOB1"


def strict_entities(tags: Sequence[str], scheme: str) -> set[tuple[str, int, int]]:
  """Kind, first word and end of each entity whose tags all follow a scheme.

  Example:
    >>> strict_entities(["B-A", "I-A", "I-A", "O", "I-B"], "IOB2")
    {('A', 0, 3)}
    >>> sorted(strict_entities(["B-A", "E-A", "B-A", "I-A", "S-B"], "BIOES"))
    [('A', 0, 2), ('B', 4, 5)]

  References:
    seqeval 1.2.2, its strict mode.
  """
  return {
    (kind, start + match.start(), start + match.end())
    for kind, start, run in _runs(tags)
    for match in re.finditer(SCHEMES[scheme], run)
  }


def _runs(tags: Sequence[str]) -> list[tuple[str, int, str]]:
  """Kind, first word and prefixes of each run of neighbouring words of one kind."""
  runs, start = [], 0
  for (outside, kind), group in itertools.groupby(
    map(_parts, tags), key=lambda parts: (parts[0] == "O", parts[1])
  ):
    run = "".join(prefix for prefix, _ in group)
    if not outside:
      runs.append((kind, start, run))
    start += len(run)
  return runs


def _parts(tag: str) -> tuple[str, str]:
  """The prefix of a tag, by BIOES's letters, and its kind."""
  prefix, _, kind = tag.partition("-")
  return {"L": "E", "U": "S"}.get(prefix, prefix), kind
