"""Lays out packed batches sequence by sequence, for tests, proofs and examples.

For training, a pipeline lays out thousands of sequences at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_TOKEN_FIELDS = ("input_ids", "input_embeddings", "token_type_ids", "token_labels")
_MASKED_FIELDS = ("mlm_positions", "mlm_labels", "mlm_segment_ids")
_ANSWER_FIELDS = ("start_position", "end_position")


def lay_out(
  packs: Sequence[Sequence[Mapping[str, Any]]],
  *,
  row_length: int,
  max_sequences: int | None = None,
  max_masked: int | None = None,
) -> dict[str, np.ndarray]:
  """Lays out sequences in rows, in the given order.

  Args:
    packs: the sequences of each row. A sequence holds `input_ids` int[L] or
      `input_embeddings` float[L, D], and optionally `token_type_ids` and `token_labels`
      int[L], `mlm_positions` and `mlm_labels` int[K], `sequence_label` (a number, or
      bool[num_labels]), `start_position` and `end_position`. Positions count from the start
      of the sequence.
    row_length: S, in tokens.
    max_sequences: M; by default the number of sequences in the fullest row.
    max_masked: P; by default the number of masked tokens in the fullest row.

  Returns:
    A PackedBatch of numpy arrays with the fields that the first sequence holds. Positions
    count from the start of the row.

  Raises:
    ValueError: a row does not fit, or a pack is not a list.

  Example:
    >>> batch = lay_out([[{"input_ids": [7, 8]}, {"input_ids": [9]}]], row_length=4)
    >>> batch["segment_ids"].tolist(), batch["position_ids"].tolist()
    ([[1, 1, 2, 0]], [[0, 1, 0, 0]])
  """
  for pack in packs:
    if isinstance(pack, Mapping):
      raise ValueError(
        "A pack is a sequence; expected a list of sequences. Put a single one in a list."
      )
  sequences = [sequence for pack in packs for sequence in pack]
  if not sequences:
    raise ValueError("Expected at least one sequence, found none.")
  fields = set(sequences[0])
  if max_sequences is None:
    max_sequences = max(len(pack) for pack in packs)
  if max_masked is None:
    masked = (sum(len(s.get("mlm_positions", ())) for s in pack) for pack in packs)
    max_masked = max(masked)

  def zeros(width: int, dtype=np.int32, *more: int) -> np.ndarray:
    return np.zeros((len(packs), width, *more), dtype)

  always = {"segment_ids", "position_ids", "token_type_ids"}
  batch = {name: zeros(row_length) for name in always | ({*_TOKEN_FIELDS} & fields)}
  if "input_embeddings" in fields:
    first = np.asarray(sequences[0]["input_embeddings"])
    batch["input_embeddings"] = zeros(row_length, first.dtype, first.shape[1])
  if "mlm_positions" in fields:
    batch |= {name: zeros(max_masked) for name in _MASKED_FIELDS}
  batch["cls_positions"] = zeros(max_sequences)
  batch["sequence_mask"] = zeros(max_sequences, bool)
  if "sequence_label" in fields:
    labels = [np.asarray(s["sequence_label"]) for s in sequences]
    kinds = {"b": bool, "i": np.int32, "u": np.int32}
    dtype = kinds.get(np.result_type(*labels).kind, np.float32)
    batch["sequence_labels"] = zeros(max_sequences, dtype, *labels[0].shape)
  answers = [name for name in _ANSWER_FIELDS if name in fields]
  batch |= {f"{name}s": zeros(max_sequences) for name in answers}

  for row, pack in enumerate(packs):
    start = used = 0
    for slot, sequence in enumerate(pack):
      length = sequence_length(sequence)
      if start + length > row_length or slot >= max_sequences:
        raise ValueError(
          f"Row {row} has room for {row_length} tokens and {max_sequences} sequences; its "
          f"sequences have {[sequence_length(s) for s in pack]} tokens. Give a larger "
          "row_length or max_sequences, or split the pack."
        )
      here = slice(start, start + length)
      batch["segment_ids"][row, here] = slot + 1
      batch["position_ids"][row, here] = np.arange(length)
      for name in _TOKEN_FIELDS:
        if name in batch and name in sequence:
          batch[name][row, here] = sequence[name]
      if "mlm_positions" in fields:
        positions = np.asarray(sequence["mlm_positions"], np.int32)
        there = slice(used, used := used + len(positions))
        batch["mlm_positions"][row, there] = start + positions
        batch["mlm_labels"][row, there] = sequence["mlm_labels"]
        batch["mlm_segment_ids"][row, there] = slot + 1
      batch["cls_positions"][row, slot] = start
      batch["sequence_mask"][row, slot] = True
      if "sequence_label" in fields:
        batch["sequence_labels"][row, slot] = sequence["sequence_label"]
      for name in answers:
        batch[f"{name}s"][row, slot] = start + sequence[name]
      start += length
  return batch


def sequence_length(sequence: Mapping[str, Any]) -> int:
  """The number of tokens of a sequence that is an argument of `lay_out`."""
  field = "input_ids" if "input_ids" in sequence else "input_embeddings"
  return len(sequence[field])


def check_segment_ids(segment_ids: np.ndarray):
  """Rejects rows that no packer of this project makes.

  Args:
    segment_ids: int[B, S]; each row should be 1 ... 1, 2 ... 2, and so on, with zeros for
      padding between sequences or at the end, but not in front.

  Raises:
    ValueError: names the first row that is different.
  """
  segment_ids = np.asarray(segment_ids)
  if segment_ids.ndim != 2:
    raise ValueError(f"Expected segment_ids of shape [B, S], found {segment_ids.shape}.")
  for number, row in enumerate(segment_ids):
    starts = row[(np.diff(row, prepend=0) != 0) & (row != 0)]  # one entry per sequence
    in_front = row[0] == 0 and starts.size
    if in_front or not np.array_equal(starts, np.arange(1, starts.size + 1)):
      raise ValueError(
        "Expected each row's segment_ids to be 1, ..., 1, 2, ..., 2, ... with 0 for "
        f"padding after sequences, found {row.tolist()} in row {number}."
      )
