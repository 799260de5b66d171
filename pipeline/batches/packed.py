"""PackedBatch: sequences of tokens laid into rows of one length.

A PackedBatch is a dict of arrays. Their names and shapes are the contract between the
pipeline and the model. B packs, S tokens per row, M sequences per pack at most, P masked
tokens per row at most:

| field                                                     | shape       |
|-----------------------------------------------------------|-------------|
| input_ids, token_type_ids, segment_ids, position_ids      | int32[B, S] |
| mlm_positions, mlm_labels, mlm_segment_ids                | int32[B, P] |
| cls_positions, sequence_labels                            | int32[B, M] |
| sequence_mask                                             | bool[B, M]  |
| sequence_ids (stays on the host; -1 where a slot is empty)| int64[B, M] |
| start_positions, end_positions, for question answering    | int32[B, M] |
| token_labels, for tagging; below 0 without a label        | int32[B, S] |
| text_numbers, for pairs: 1 the anchor, 2 the positive, ...| int32[B, M] |
| loss_mask, where some tokens are not targets              | bool[B, S]  |
| real_tokens of each row, where end tokens fill rows       | int32[B]    |

`segment_ids` and `mlm_segment_ids` number the sequences of a row 1, 2, ...; 0 is
padding. Every other entry of padding or of an empty slot is 0. `sequence_labels` are
float32 for regression, and for several classes a sequence bool[B, M, num_labels]. The texts
of a pair are sequences, one after the other; their slots have the `sequence_ids` and
`sequence_labels` of the pair.

A next-token loss predicts the token at t + 1 if it has the same segment as the token at t,
not 0, and `loss_mask` is True at t + 1. Without `loss_mask` it predicts every token.
"""

from __future__ import annotations

import numpy as np

from packing import row
from pipeline.store import SequenceStore, ranges

PackedBatch = dict[str, np.ndarray]


def lay_out(
  tokens: np.ndarray,
  lengths: np.ndarray,
  sequence_ids: np.ndarray,
  *,
  row_length: int,
  **spacing: int,
) -> PackedBatch:
  """Lays sequences into rows, from the left.

  Args:
    tokens: int32[T]; the tokens of all sequences end to end, row by row.
    lengths: int64[B, M]; tokens in each slot, 0 in an empty one.
    sequence_ids: int64[B, M]; sequence numbers, -1 in an empty slot.
    row_length: S, in tokens.
    spacing: `length_multiple` and `separator_tokens`, as in `packing.make_row`.

  Returns:
    The fields that every PackedBatch has. Token types and labels are 0.

  Raises:
    InputError: a pack has more tokens than the row.

  Example: sequences of 2 and 3 tokens in a row of 6.
    >>> tokens, lengths = np.array([11, 12, 21, 22, 23]), np.array([[2, 3]])
    >>> batch = lay_out(tokens, lengths, np.array([[7, 4]]), row_length=6)
    >>> for name in ("input_ids", "segment_ids", "position_ids", "cls_positions"):
    ...   print(name, batch[name].tolist())
    input_ids [[11, 12, 21, 22, 23, 0]]
    segment_ids [[1, 1, 2, 2, 2, 0]]
    position_ids [[0, 1, 0, 1, 2, 0]]
    cls_positions [[0, 2]]
  """
  layout = row.lay_out(lengths, row_length, **spacing)
  input_ids = np.zeros(layout.occupied.shape, np.int32)
  input_ids[layout.occupied] = tokens
  return {
    "input_ids": input_ids,
    "token_type_ids": np.zeros_like(input_ids),
    "segment_ids": layout.segment_ids,
    "position_ids": layout.position_ids,
    "cls_positions": layout.starts.astype(np.int32),
    "sequence_labels": np.zeros(sequence_ids.shape, np.int32),
    "sequence_mask": sequence_ids >= 0,
    "sequence_ids": sequence_ids,
  }


def pack_rows(
  store: SequenceStore, sequence_ids: np.ndarray, *, row_length: int, **spacing: int
) -> PackedBatch:
  """Lays stored sequences into rows, without masking.

  Args:
    store: the sequences. If it has `answer_starts` and `answer_ends`, they are the first
      and last token of each answer, counted from the sequence's own start. If it
      `has_token_labels`, they are laid out like the tokens.
    sequence_ids: int64[B, M]; sequence numbers of each row from the left, then -1. If the
      store has `texts`, these are records, and the batch has `texts.slots(M, S)` slots.
    row_length: S, in tokens.
    spacing: `length_multiple` and `separator_tokens`, as in `lay_out`.

  Returns:
    A PackedBatch without the `mlm_` fields. Answers are counted from the row's start.

  Raises:
    InputError: a pack has more tokens than the row.
  """
  used = sequence_ids >= 0
  ids = sequence_ids[used]
  tokens, counts = store.gather(ids), store.lengths[ids]
  if texts := store.texts:
    records, of_record = ids, texts.counts[ids]
    counts = texts.lengths[ranges(texts.ends[records], of_record)]
    ids = np.repeat(records, of_record)
    in_row = np.bincount(np.nonzero(used)[0], of_record, len(used))
    used = np.arange(texts.slots(used.shape[1], row_length)) < in_row[:, None]
    sequence_ids = np.full(used.shape, -1, np.int64)
    sequence_ids[used] = ids
  lengths = np.zeros(sequence_ids.shape, np.int64)
  lengths[used] = counts
  batch = lay_out(tokens, lengths, sequence_ids, row_length=row_length, **spacing)
  if texts:
    batch["text_numbers"] = np.zeros(used.shape, np.int32)
    batch["text_numbers"][used] = ranges(1, of_record)

  real = batch["segment_ids"] > 0
  first_type_lengths = np.repeat(store.first_type_lengths[ids], lengths[used])
  batch["token_type_ids"][real] = batch["position_ids"][real] >= first_type_lengths
  labels = store.sequence_labels
  batch["sequence_labels"] = np.zeros((*used.shape, *labels.shape[1:]), labels.dtype)
  batch["sequence_labels"][used] = labels[ids]
  if store.has_token_labels:
    batch["token_labels"] = np.zeros_like(batch["input_ids"])
    batch["token_labels"][real] = store.gather(ids, labels=True)
  for name, answers in (
    ("start_positions", store.answer_starts),
    ("end_positions", store.answer_ends),
  ):
    if answers is not None:
      batch[name] = batch["cls_positions"].copy()
      batch[name][used] += answers[ids]
  return batch
