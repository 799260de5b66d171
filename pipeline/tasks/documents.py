"""Running text as sequences: tokenised here, or given as tokens."""

from __future__ import annotations

from collections.abc import Iterator

from packing import InputError
from packing.errors import short_repr
from packing.row import check_no_padding, check_not_packed
from pipeline.sources.document import Document, text_in
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import StoredSequence
from pipeline.tasks.encoder import Encoder
from pipeline.tokenizer import Tokenizer


def text_of(document: Document) -> str:
  """The text of a document.

  Raises:
    InputError: the field is not text.
  """
  if "sentences" in document.fields:
    return " ".join(document.fields["sentences"])
  if document.fields["text"] is None:
    return ""
  return text_in(document, "text")


def text_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """The tokens of each text and an end token."""
  end = encoder.tokenizer.end_id
  for document, ids in _tokenised(shard, encoder):
    for piece in _pieces([*ids, end], document, encoder, last=end):
      yield StoredSequence(piece, len(piece), 0)


def document_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """[CLS] text [SEP]: documents for an encoder; long ones are split or truncated."""
  for document, ids in _tokenised(shard, encoder):
    for piece in _pieces(ids, document, encoder, reserved=encoder.special_in_text):
      sequence = encoder.enclosed(piece)
      yield StoredSequence(sequence, len(sequence), 0)


def _tokenised(
  shard: DocumentShard, encoder: Encoder
) -> Iterator[tuple[Document, list[int]]]:
  """Documents of at least `min_words` words, and the tokens of their text."""
  tally, min_words = encoder.tally, encoder.settings.min_words
  for document in shard.documents:
    text = text_of(document)
    if not text.strip():
      continue
    if min_words:
      is_short = len(text.split()) < min_words
      tally["too_short"] += is_short
      if is_short:
        continue
    (ids,) = encoder.encode([text])
    if not ids:  # such as a zero-width space
      continue
    tally["documents_used"] += 1
    yield document, ids


def token_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """The tokens that each document gives.

  Raises:
    InputError: a field is invalid, some tokens are padding, or a row is packed already.
  """
  for document in shard.documents:
    ids = document.fields["input_ids"]
    if not ids:
      continue
    _check_tokens(document, encoder.tokenizer)
    encoder.tally["documents_used"] += 1
    first_type = _first_type_length(document, len(ids))
    label = document.fields.get("label")
    labels = document.fields.get("labels")  # of the sequence, or of its tokens
    if isinstance(labels, list):
      encoder.tally["labels_of_tokens_left_out"] += 1
    elif label is None:
      label = labels
    label = 0 if label is None else label
    if not isinstance(label, int) or not -(2**31) <= label < 2**31:
      raise InputError(
        f"{document.where}: label is {short_repr(label)}; expected a 32-bit integer."
      )
    start = 0
    for piece in _pieces(ids, document, encoder):
      yield StoredSequence(piece, min(max(first_type - start, 0), len(piece)), int(label))
      start += len(piece)


def _pieces(
  ids: list[int],
  document: Document,
  encoder: Encoder,
  *,
  last: int | None = None,
  reserved: int = 0,
) -> list[list[int]]:
  """Sequences of at most S - `reserved` tokens; a truncated one ends with `last`."""
  most = encoder.settings.max_sequence_length - reserved
  if len(ids) <= most:
    return [ids]
  encoder.count_too_long(f"{document.where}: A sequence", len(ids), most)
  if encoder.settings.too_long == "truncate":
    return [ids[:most] if last is None else [*ids[: most - 1], last]]
  return [ids[i : i + most] for i in range(0, len(ids), most)]


def _check_tokens(document: Document, tokenizer: Tokenizer):
  """Rejects anything but a list of tokens without padding, not yet packed."""
  where, ids = document.where, document.fields["input_ids"]
  if not isinstance(ids, list) or not all(type(n) is int for n in ids):
    raise InputError(
      f"{where}: input_ids is {short_repr(ids)}; expected a list of integers."
    )
  size = len(tokenizer.vocabulary)
  for place, token in enumerate(ids):
    if not 0 <= token < size:
      raise InputError(
        f"{where}: token {place} is {token}; the vocabulary has the ids 0 to {size - 1}."
      )
  if (mask := document.fields.get("attention_mask")) is not None:
    check_no_padding(f"{where}: The sequence", mask)
    if mask != [1] * len(ids):
      raise InputError(
        f"{where}: attention_mask is {short_repr(mask)}; expected {len(ids)} ones."
      )
  elif tokenizer.padding_id in ids:
    raise InputError(
      f"{where}: token {ids.index(tokenizer.padding_id)} is padding. Tokenize with "
      "padding=False; if it is a real token, give an attention_mask."
    )
  if (positions := document.fields.get("position_ids")) is not None:
    if not isinstance(positions, list) or {*map(type, positions)} != {int}:
      raise InputError(
        f"{where}: position_ids is {short_repr(positions)}; expected a list of integers."
      )
    check_not_packed(f"{where}: The sequence", positions, [len(positions)])
  if len(parts := document.fields.get("seq_lengths") or ()) > 1:  # TRL's name
    raise InputError(
      f"{where}: seq_lengths is {short_repr(parts)}: the row is packed already. Give each "
      "of its sequences alone."
    )


def _first_type_length(document: Document, length: int) -> int:
  types = document.fields.get("token_type_ids")
  if types is None:
    return length
  ones = types.count(1) if isinstance(types, list) else 0
  if types != [0] * (length - ones) + [1] * ones:
    raise InputError(
      f"{document.where}: token_type_ids is {short_repr(types)}; expected {length} "
      "numbers, zeros and then ones."
    )
  return length - ones
