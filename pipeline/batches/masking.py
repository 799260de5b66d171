"""Masked language modelling: which tokens of a batch are masked, and how."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from packing.errors import check
from packing.splitmix import GAMMA, mix
from pipeline.batches.packed import PackedBatch
from pipeline.tokenizer import MASK, NEVER_MASKED, ids_by_role, require_roles


@dataclasses.dataclass(frozen=True)
class Masking:
  """How tokens are masked.

  Attributes:
    rate: the fraction of a sequence's tokens that are masked.
    seed: every draw depends only on it, the epoch, the sequence's number and the token's
      position in the sequence.
    mask_id: id of [MASK], or <mask>.
    special_ids: ids that are never masked.
    vocab_size: V, the number of ids to draw random tokens from.

  Raises:
    InputError: the rate is not in (0, 1).
  """

  rate: float
  seed: int
  mask_id: int
  special_ids: tuple[int, ...]
  vocab_size: int

  def __post_init__(self):
    check(0 < self.rate < 1, "mask_rate", self.rate, "a fraction in (0, 1)")

  @classmethod
  def for_vocabulary(cls, vocabulary: list[str], *, rate: float, seed: int) -> Masking:
    """The masking for a vocabulary with BERT's special tokens, or RoBERTa's.

    Raises:
      InputError: the vocabulary lacks one; or the rate is not in (0, 1).
    """
    found = ids_by_role(vocabulary, NEVER_MASKED)
    require_roles(found)
    return cls(
      rate=rate,
      seed=seed,
      mask_id=found[MASK][0],
      special_ids=tuple(itertools.chain(*found.values())),
      vocab_size=len(vocabulary),
    )

  def max_masked(self, row_length: int, max_sequences: int) -> int:
    """P: the most masked tokens that a row of `max_sequences` sequences can have."""
    return math.floor(self.rate * row_length) + max_sequences


def mask_tokens(batch: PackedBatch, masking: Masking, *, epochs: np.ndarray) -> PackedBatch:
  """Masks tokens as BERT does.

  In each sequence round(rate x length) tokens are drawn, at least one and never special
  tokens. Of these 80 % become [MASK], 10 % become a random token and 10 % stay the same.

  Args:
    batch: rows from `pack_rows`.
    masking: the rate, the seed and the vocabulary.
    epochs: int[B]; the epoch of each row. Each epoch masks other tokens.

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

  choice = mix(bits[rows, columns])
  fraction = (choice >> np.uint64(40)).astype(np.float64) / 2**24
  random_ids = (mix(choice) % np.uint64(masking.vocab_size)).astype(np.int32)
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
  """uint64[B, S]: random bits for each token.

  They depend only on the seed, the epoch, the sequence's number and the position in the
  sequence; not on the row, the neighbours or the order of work.
  """
  epochs = epochs.reshape(len(epochs), -1).astype(np.uint64)
  epoch_key = mix(np.uint64(seed) ^ mix(epochs))
  sequence_key = mix(batch["sequence_ids"].astype(np.uint64) ^ epoch_key)
  slot = np.maximum(batch["segment_ids"] - 1, 0)
  token_key = np.take_along_axis(sequence_key, slot, axis=1)
  return mix(token_key + batch["position_ids"].astype(np.uint64) * np.uint64(GAMMA))


def _draw_positions(
  batch: PackedBatch, masking: Masking, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the tokens to mask: int32[B, P], ascending; and bool[B, P], the slots in use."""
  input_ids, segment_ids = batch["input_ids"], batch["segment_ids"]
  num_rows, row_length = input_ids.shape
  max_sequences = batch["sequence_ids"].shape[1]
  real = segment_ids > 0
  special = np.zeros(masking.vocab_size, bool)
  special[list(masking.special_ids)] = True
  maskable = real & ~special[input_ids]

  # How many tokens to draw from each sequence; then, for each token, from its sequence.
  slot = np.maximum(segment_ids - 1, 0)
  index = (np.arange(num_rows)[:, None] * max_sequences + slot)[real]
  tokens, maskable_tokens = (
    np.bincount(index, weights=weight[real], minlength=num_rows * max_sequences)
    for weight in (real, maskable)
  )
  num_drawn = np.minimum(np.maximum(1, np.rint(masking.rate * tokens)), maskable_tokens)
  num_drawn_here = np.take_along_axis(
    num_drawn.reshape(num_rows, max_sequences), slot, axis=1
  )

  # Sort each row by sequence, then maskable tokens first, then at random. Sequences and the
  # padding after each stay in place, and the first tokens of each are drawn. The three keys
  # share one integer: bits 33 to 63, bit 32 and bits 0 to 31.
  place = 2 * np.maximum.accumulate(segment_ids, axis=1) + ~real
  keys = place.astype(np.uint64) << np.uint64(33)
  keys |= (~maskable).astype(np.uint64) << np.uint64(32)
  keys |= bits >> np.uint64(32)
  order = _stable_argsort(keys)
  drawn = real & (batch["position_ids"] < num_drawn_here)

  num_masked = masking.max_masked(row_length, max_sequences)
  in_use = np.arange(num_masked) < drawn.sum(axis=1, keepdims=True)
  positions = np.full(in_use.shape, row_length, np.int32)  # empty slots sort to the end
  positions[in_use] = order[drawn]
  positions.sort(axis=1)
  return positions, in_use


def _stable_argsort(keys: np.ndarray) -> np.ndarray:
  """uint64[B, S] -> int[B, S]: the columns of each row, sorted by key and then column.

  If key and column fit into 64 bits, sorting both as one integer is several times faster.
  """
  columns = np.arange(keys.shape[1], dtype=np.uint64)
  bits = keys.shape[1].bit_length()
  if int(keys.max(initial=0)).bit_length() + bits > 64:
    return np.argsort(keys, axis=1, kind="stable")
  order = (keys << np.uint64(bits)) | columns
  order.sort(axis=1)
  order &= np.uint64(2**bits - 1)
  return order.view(np.int64)
