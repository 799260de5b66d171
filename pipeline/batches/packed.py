"""PackedBatch: sequences of tokens laid into rows of one length, and masked.

A PackedBatch is a dict of arrays whose names and shapes are the contract between the
pipeline and the model. B packs, S tokens a row, M sequences a pack at most, P masked
tokens a row at most:

| field                                                     | shape       |
|-----------------------------------------------------------|-------------|
| input_ids, token_type_ids, segment_ids, position_ids      | int32[B, S] |
| mlm_positions, mlm_labels, mlm_segment_ids                | int32[B, P] |
| cls_positions, sequence_labels                            | int32[B, M] |
| sequence_mask                                             | bool[B, M]  |
| sequence_ids (stays on the host; -1 where a slot is empty)| int64[B, M] |
| start_positions, end_positions, where the store has spans | int32[B, M] |
| token_labels, where the store has labels of tokens        | int32[B, S] |
| loss_mask, where not every token is to be predicted       | bool[B, S]  |
| real_tokens, where tokens pad, of each row                | int32[B]    |

`segment_ids` and `mlm_segment_ids` number the sequences of a row 1, 2, ...; 0 is
padding. Every other entry of padding or of an empty slot is 0. `sequence_labels` are
float32 where the store's are fractions.

Of a next-token loss, the token at t + 1 is predicted if it is of the same segment as the
one at t, not 0, and `loss_mask` is True at t + 1; without that field every token is.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from packing import InputError
from packing.errors import check_integer
from pipeline.store import SequenceStore
from pipeline.tokenizer import MASK, NEVER_MASKED

PackedBatch = dict[str, np.ndarray]


def rows_per_process(batch_size: int, *, process_index: int, process_count: int) -> int:
  """Rows that each host makes of a batch.

  Raises:
    InputError: a value out of its range, or hosts that do not divide the batch.
  """
  check_integer("batch_size", batch_size, at_least=1)
  check_integer("process_count", process_count, at_least=1)
  check_integer("process_index", process_index, at_least=0, at_most=process_count - 1)
  if batch_size % process_count:
    raise InputError(
      f"batch_size is {batch_size}; expected a multiple of the {process_count} "
      "processes, so that each has as many rows."
    )
  return batch_size // process_count


@dataclasses.dataclass(frozen=True)
class Masking:
  """How tokens are hidden for masked language modelling.

  Attributes:
    rate: masked tokens of a sequence / its tokens, a fraction.
    seed: with the epoch, the sequence's number and the token's position it fixes
      every draw.
    mask_id: id of [MASK].
    special_ids: ids that are never masked.
    vocab_size: V, the number of ids to draw random tokens from.
  """

  rate: float
  seed: int
  mask_id: int
  special_ids: tuple[int, ...]
  vocab_size: int

  @classmethod
  def for_vocabulary(cls, vocabulary: list[str], *, rate: float, seed: int) -> Masking:
    return cls(
      rate=rate,
      seed=seed,
      mask_id=vocabulary.index(MASK),
      special_ids=tuple(vocabulary.index(token) for token in NEVER_MASKED),
      vocab_size=len(vocabulary),
    )

  def max_masked(self, row_length: int, max_sequences: int) -> int:
    """P: no row of `max_sequences` sequences has more masked tokens."""
    return math.floor(self.rate * row_length) + max_sequences


def pack_rows(
  store: SequenceStore, sequence_ids: np.ndarray, *, row_length: int
) -> PackedBatch:
  """Lays sequences into rows, without masking.

  Args:
    store: the sequences. Of a task it may have `answer_starts` and `answer_ends`,
      int[num_sequences], first and last token of an answer counted from the sequence's
      own start; and `gather_token_labels(ids)`, as `gather`.
    sequence_ids: int64[B, M]; sequence numbers of each row from the left, then -1.
    row_length: S, in tokens.

  Returns:
    A PackedBatch without the `mlm_` fields. Answers are counted from the row's start.

  Example: sequences of 2 and 3 tokens in a row of 6.

    input_ids     [[11, 12, 21, 22, 23, 0]]
    segment_ids   [[ 1,  1,  2,  2,  2, 0]]
    position_ids  [[ 0,  1,  0,  1,  2, 0]]
    cls_positions [[0, 2]]
  """
  num_rows, max_sequences = sequence_ids.shape
  sequence_mask = sequence_ids >= 0
  ids = sequence_ids[sequence_mask]
  lengths = store.lengths[ids].astype(np.int64)
  slot_lengths = np.zeros(sequence_ids.shape, np.int64)
  slot_lengths[sequence_mask] = lengths
  row_ends = np.cumsum(slot_lengths, axis=1)
  if row_ends[:, -1].max(initial=0) > row_length:
    raise ValueError(f"A pack has {row_ends.max()} tokens; the row has {row_length}.")

  starts = np.cumsum(lengths) - lengths  # of each sequence among all the tokens
  positions = np.arange(lengths.sum()) - np.repeat(starts, lengths)
  slots = np.broadcast_to(np.arange(1, max_sequences + 1), sequence_ids.shape)[
    sequence_mask
  ]
  occupied = np.arange(row_length) < row_ends[:, -1:]

  def rows(values) -> np.ndarray:
    field = np.zeros((num_rows, row_length), np.int32)
    field[occupied] = values
    return field

  def slots_of(values, dtype=np.int32) -> np.ndarray:
    field = np.zeros(sequence_ids.shape, dtype)
    field[sequence_mask] = values
    return field

  cls_positions = np.where(sequence_mask, row_ends - slot_lengths, 0).astype(np.int32)
  is_fraction = store.sequence_labels.dtype.kind == "f"
  task = {}
  for name, column in (
    ("start_positions", "answer_starts"),
    ("end_positions", "answer_ends"),
  ):
    if (answers := getattr(store, column, None)) is not None:
      task[name] = slots_of(cls_positions[sequence_mask] + answers[ids])
  if (gather_token_labels := getattr(store, "gather_token_labels", None)) is not None:
    task["token_labels"] = rows(gather_token_labels(ids))
  return {
    "input_ids": rows(store.gather(ids)),
    "token_type_ids": rows(positions >= np.repeat(store.first_type_lengths[ids], lengths)),
    "segment_ids": rows(np.repeat(slots, lengths)),
    "position_ids": rows(positions),
    "cls_positions": cls_positions,
    "sequence_labels": slots_of(
      store.sequence_labels[ids], np.float32 if is_fraction else np.int32
    ),
    "sequence_mask": sequence_mask,
    "sequence_ids": sequence_ids,
    **task,
  }


def mask_tokens(batch: PackedBatch, masking: Masking, *, epochs: np.ndarray) -> PackedBatch:
  """Hides tokens for masked language modelling, as BERT does.

  Of each sequence round(rate x length) tokens are drawn, at least one, never special
  ones. Of these 80 % become [MASK], 10 % a random token, 10 % stay.

  Args:
    batch: rows from `pack_rows`.
    masking: what to draw and from which seed.
    epochs: int[B]; the epoch of each row. Another epoch is another draw.

  Returns:
    The batch with `input_ids` masked and `mlm_positions`, `mlm_labels` and
    `mlm_segment_ids` added, in the order of the row.

  References:
    Devlin et al., https://arxiv.org/abs/1810.04805, section 3.1 and appendix A.1.
  """
  input_ids = batch["input_ids"]
  bits = _bits_of_tokens(batch, masking.seed, epochs)
  positions, in_use = _draw_positions(batch, masking, bits)
  rows = np.broadcast_to(np.arange(len(positions))[:, None], positions.shape)[in_use]
  columns = positions[in_use]

  mlm_labels = np.zeros(positions.shape, np.int32)
  mlm_labels[in_use] = input_ids[rows, columns]
  mlm_segment_ids = np.zeros(positions.shape, np.int32)
  mlm_segment_ids[in_use] = batch["segment_ids"][rows, columns]

  choice = _mix(bits[rows, columns])
  fraction = (choice >> np.uint64(40)).astype(np.float64) / 2**24
  random_ids = (_mix(choice) % np.uint64(masking.vocab_size)).astype(np.int32)
  masked_ids = input_ids.copy()
  masked_ids[rows, columns] = np.select(
    [fraction < 0.8, fraction < 0.9], [masking.mask_id, random_ids], mlm_labels[in_use]
  )
  return batch | {
    "input_ids": masked_ids,
    "mlm_positions": np.where(in_use, positions, 0),
    "mlm_labels": mlm_labels,
    "mlm_segment_ids": mlm_segment_ids,
  }


def _bits_of_tokens(batch: PackedBatch, seed: int, epochs: np.ndarray) -> np.ndarray:
  """uint64[B, S]: random bits that depend on where a token comes from, and nothing else.

  That is the seed, the epoch, the sequence's number and the position in the sequence;
  not the row, the neighbours or the order of work.
  """
  epoch_key = _mix(np.uint64(seed) ^ _mix(epochs.astype(np.uint64)))[:, None]
  sequence_key = _mix(batch["sequence_ids"].astype(np.uint64) ^ epoch_key)
  slot = np.maximum(batch["segment_ids"] - 1, 0)
  token_key = np.take_along_axis(sequence_key, slot, axis=1)
  return _mix(token_key + batch["position_ids"].astype(np.uint64) * _GOLDEN)


def _draw_positions(
  batch: PackedBatch, masking: Masking, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the tokens to hide: int32[B, P], ascending, and bool[B, P], which are in use."""
  input_ids, segment_ids = batch["input_ids"], batch["segment_ids"]
  num_rows, row_length = input_ids.shape
  max_sequences = batch["sequence_ids"].shape[1]
  real = segment_ids > 0
  special = np.zeros(masking.vocab_size, bool)
  special[list(masking.special_ids)] = True
  maskable = real & ~special[input_ids]

  # How many of each sequence, and for each token how many of its own sequence.
  slot = np.maximum(segment_ids - 1, 0)
  index = (np.arange(num_rows)[:, None] * max_sequences + slot)[real]
  tokens, hideable_tokens = (
    np.bincount(index, weights=weight[real], minlength=num_rows * max_sequences)
    for weight in (real, maskable)
  )
  wanted = np.minimum(np.maximum(1, np.rint(masking.rate * tokens)), hideable_tokens)
  wanted_here = np.take_along_axis(wanted.reshape(num_rows, max_sequences), slot, axis=1)

  # Sort each row by (sequence, maskable first, random). Sequences stay where they are,
  # the tokens drawn come first in each. One integer holds the three keys: bits 33 to 63,
  # 32 and 0 to 31.
  keys = np.where(real, slot, max_sequences).astype(np.uint64) << np.uint64(33)
  keys |= (~maskable).astype(np.uint64) << np.uint64(32)
  keys |= bits >> np.uint64(32)
  order = _stable_argsort(keys)
  drawn = real & (batch["position_ids"] < wanted_here)

  num_masked = masking.max_masked(row_length, max_sequences)
  in_use = np.arange(num_masked) < drawn.sum(axis=1, keepdims=True)
  positions = np.full(in_use.shape, row_length, np.int32)  # the unused sort to the end
  positions[in_use] = order[drawn]
  positions.sort(axis=1)
  return positions, in_use


def _stable_argsort(keys: np.ndarray) -> np.ndarray:
  """uint64[B, S] -> int[B, S]: the columns of each row, sorted by key and then column.

  Where the column fits beside the key, one sort of both is several times faster.
  """
  columns = np.arange(keys.shape[1], dtype=np.uint64)
  bits = keys.shape[1].bit_length()
  if int(keys.max(initial=0)).bit_length() + bits > 64:
    return np.argsort(keys, axis=1, kind="stable")
  order = (keys << np.uint64(bits)) | columns
  order.sort(axis=1)
  order &= np.uint64(2**bits - 1)
  return order.view(np.int64)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
  """SplitMix64 (Steele, Lea and Flood, 2014): 64 well-mixed bits from 64 given ones."""
  x = np.atleast_1d(x) + _GOLDEN
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
