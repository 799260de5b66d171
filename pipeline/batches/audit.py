"""Proof that batches hold the data: each sequence once, each token where it belongs.

Nothing here shares code with what lays the rows out: the rows are read backwards, from
the tokens to the sequences they claim to be of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tqdm

import packing
from pipeline.batches.loader import PackedLoader
from pipeline.batches.packed import Masking, PackedBatch
from pipeline.store import SequenceStore


class AuditError(Exception):
  """A batch is not what it should be. The message says which row, and what is wrong."""


def audit(loader: PackedLoader, *, epoch: int | None = 0) -> dict:
  """Runs through an epoch, of all hosts together, and proves that it is right.

  Memory is that of one batch and some 50 bytes a sequence, however long the sequences.

  Args:
    loader: whose batches to look at.
    epoch: from 0; None for the evaluation batches, whose last rows may be empty.

  Returns:
    `certificate` of the plan; what was counted: `batches`, `rows`, `sequences`, `tokens`,
    `padding_tokens`, `masked_tokens`; and how random the neighbours are, None where no
    pack has two sequences: `length_correlation` of the sequences of a pack, over all
    pairs; `shuffled_length_correlation`, the same with the lengths dealt out at random;
    `number_correlation` of their places in the dataset; `neighbours_kept`, the fraction
    of pairs side by side that share a pack in the next epoch as well.

  Raises:
    AuditError: something is wrong.
  """
  store, plan = loader.store, loader.plan
  lengths = store.lengths
  seen = np.zeros(len(store), bool)
  shuffled = np.random.default_rng(0).permuted(lengths)
  pairs = {"length": _Pairs(lengths), "shuffled": _Pairs(shuffled)}
  pairs["number"] = _Pairs(np.arange(len(store)))
  counts = dict.fromkeys(("batches", "rows", "sequences", "tokens", "masked_tokens"), 0)
  depths = np.zeros(plan.packing_depth + 1, np.int64)
  contract = _contract(loader)

  for batch in _global_batches(loader, epoch):
    found = {name: (field.dtype.name, field.shape[1:]) for name, field in batch.items()}
    for name in sorted(found.keys() | contract.keys()):
      if found.get(name) != contract.get(name):
        raise AuditError(
          f"Field {name} of batch {counts['batches']}: expected {contract.get(name)}, type "
          f"and shape of a row, found {found.get(name)}."
        )
    check_rows(batch, store, masking=loader.masking, first_row=counts["rows"])
    ids = batch["sequence_ids"]
    used = ids >= 0
    _check_new(ids[used], seen)
    seen[ids[used]] = True
    of_rows = used.sum(axis=1)
    if (of_rows == 0).any() and epoch is not None:
      row = counts["rows"] + int((of_rows == 0).argmax())
      raise AuditError(f"Row {row} is padding alone; expected a pack.")
    depths += np.bincount(of_rows, minlength=depths.size)
    for pair in pairs.values():
      pair.add(ids)
    counts["batches"] += 1
    counts["rows"] += len(ids)
    counts["sequences"] += int(used.sum())
    counts["tokens"] += int((batch["segment_ids"] > 0).sum())
    if loader.masking is not None:
      counts["masked_tokens"] += int((batch["mlm_segment_ids"] > 0).sum())

  if not seen.all():
    raise AuditError(
      f"{(~seen).sum()} of {seen.size} sequences never came; expected each once. The first "
      f"is number {(~seen).argmax()}."
    )
  certificate = plan.certificate()
  packs_by_depth = {n: int(depths[n]) for n in range(1, depths.size) if depths[n]}
  expected = {n: packs for n, packs in certificate.packs_by_depth.items() if packs}
  if packs_by_depth != expected:
    raise AuditError(
      f"Expected {expected} packs of so many sequences, as planned, found {packs_by_depth}."
    )
  return {
    "epoch": epoch,
    "hosts": loader.process_count,
    **counts,
    "padding_tokens": counts["rows"] * plan.row_length - counts["tokens"],
    "length_correlation": pairs["length"].correlation(),
    "shuffled_length_correlation": pairs["shuffled"].correlation(),
    "number_correlation": pairs["number"].correlation(),
    "neighbours_kept": None if epoch is None else _neighbours_kept(loader, epoch),
    "certificate": certificate.as_dict(),
  }


def _contract(loader: PackedLoader) -> dict[str, tuple[str, tuple[int, ...]]]:
  """Type and shape of a row of every field that a batch has."""
  store, row, depth = loader.store, loader.plan.row_length, loader.plan.packing_depth
  tokens, slots = ("int32", (row,)), ("int32", (depth,))
  names = ("input_ids", "token_type_ids", "segment_ids", "position_ids")
  fields: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(names, tokens)
  labels = "float32" if store.sequence_labels.dtype.kind == "f" else "int32"
  fields |= {
    "cls_positions": slots,
    "sequence_labels": (labels, (depth,)),
    "sequence_mask": ("bool", (depth,)),
    "sequence_ids": ("int64", (depth,)),
  }
  if loader.masking is not None:
    masked = ("int32", (loader.masking.max_masked(row, depth),))
    fields |= dict.fromkeys(("mlm_positions", "mlm_labels", "mlm_segment_ids"), masked)
  if getattr(store, "answer_starts", None) is not None:
    fields |= {"start_positions": slots, "end_positions": slots}
  if getattr(store, "gather_token_labels", None) is not None:
    fields["token_labels"] = tokens
  return fields


def _global_batches(loader: PackedLoader, epoch: int | None) -> Iterator[PackedBatch]:
  """The batches of an epoch, hosts joined, without the rows of other epochs."""
  one = loader.process_count == 1
  hosts = (
    [loader]
    if one
    else [loader.for_process(h, loader.process_count) for h in range(loader.process_count)]
  )
  size, num_packs = loader.batch_size, loader.plan.num_packs

  def joined(blocks) -> PackedBatch:
    blocks = list(blocks)
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}

  def bar(steps, total):
    return tqdm.tqdm(steps, "auditing", total, unit=" batches", disable=None)

  if epoch is None:
    evaluation = zip(*(host.evaluation_batches() for host in hosts), strict=True)
    yield from map(joined, bar(evaluation, loader.num_evaluation_batches))
    return
  first, end = epoch * num_packs, (epoch + 1) * num_packs
  steps = range(first // size, -(-end // size))
  for step in bar(steps, len(steps)):
    rows = slice(max(first - step * size, 0), min(end - step * size, size))
    batch = joined(host[step] for host in hosts)
    yield {name: field[rows] for name, field in batch.items()}


def _check_new(ids: np.ndarray, seen: np.ndarray):
  """Each sequence once: not in the batch before, not twice in it."""
  again = ids[seen[ids]]
  if not again.size:
    ordered = np.sort(ids)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
  if again.size:
    raise AuditError(f"Sequence {again[0]} came twice; expected each once an epoch.")


def check_rows(
  batch: PackedBatch, store: SequenceStore, *, masking: Masking | None, first_row: int = 0
):
  """Proves that the rows hold the sequences that `sequence_ids` names, and nothing else.

  Args:
    batch: a PackedBatch.
    store: the sequences.
    masking: with which it was made, or None.
    first_row: the number of its first row, for messages.

  Raises:
    AuditError: the first thing that is wrong.
  """
  ids, segment_ids = batch["sequence_ids"], batch["segment_ids"]
  position_ids = batch["position_ids"]
  num_rows, num_slots = ids.shape

  def equal(what: str, found: np.ndarray, expected):
    expected = np.broadcast_to(expected, found.shape)
    if (found != expected).any():
      row, *rest = np.argwhere(found != expected)[0].tolist()
      place = "".join(f", column {column}" for column in rest)
      raise AuditError(
        f"{what} in row {first_row + row}{place}: expected "
        f"{expected[(row, *rest)]}, found {found[(row, *rest)]}."
      )

  def holds(what: str, condition: np.ndarray):
    if not condition.all():
      row, column = np.argwhere(~condition)[0].tolist()
      raise AuditError(f"{what} in row {first_row + row}, column {column}.")

  # Sequences stand in the first slots.
  used = ids >= 0
  holds("There is no such sequence number", (ids >= -1) & (ids < len(store)))
  holds("A slot is used after an empty one", used[:, 1:] <= used[:, :-1])
  equal("sequence_mask", batch["sequence_mask"], used)
  holds("segment_ids beyond the slots", (segment_ids >= 0) & (segment_ids <= num_slots))

  # Segments follow each other, each counts its positions up from 0, then padding.
  real = segment_ids > 0
  slot = np.where(real, segment_ids - 1, 0)
  left = np.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  left_position = np.pad(position_ids, ((0, 0), (1, 0)))[:, :-1]
  begins = real & (segment_ids != left)
  begins[:, 0] = real[:, 0]
  holds("A token stands after padding", real[:, 1:] <= real[:, :-1])
  equal("segment_ids", segment_ids, np.where(begins, left + 1, segment_ids))
  equal("position_ids", position_ids, np.where(begins | ~real, 0, left_position + 1))

  # As many tokens as the sequence has; with the positions that makes each exactly once.
  index = (np.arange(num_rows)[:, None] * num_slots + slot)[real]
  tokens = np.bincount(index, minlength=ids.size).reshape(ids.shape)
  equal("Tokens of the sequence", tokens, np.where(used, store.lengths[ids], 0))
  starts = np.zeros_like(batch["cls_positions"])
  rows, columns = np.nonzero(begins)
  starts[rows, slot[begins]] = columns
  equal("cls_positions", batch["cls_positions"], starts)

  # The tokens themselves, with what was hidden put back.
  input_ids = batch["input_ids"]
  if masking is not None:
    input_ids = _unmasked(batch, masking, equal=equal, holds=holds)
  owners = np.where(real, np.take_along_axis(ids, slot, axis=1), 0)
  expected = np.zeros_like(input_ids)
  expected[real] = store.gather(ids[used])
  equal("input_ids, unmasked,", input_ids, expected)
  equal(
    "token_type_ids",
    batch["token_type_ids"],
    (real & (position_ids >= store.first_type_lengths[owners])).astype(np.int32),
  )
  labels = np.where(used, store.sequence_labels[ids], 0)
  equal(
    "sequence_labels",
    batch["sequence_labels"],
    labels.astype(batch["sequence_labels"].dtype),
  )
  for name, column in (
    ("start_positions", "answer_starts"),
    ("end_positions", "answer_ends"),
  ):
    if name in batch:
      answers = getattr(store, column)[ids] + starts
      equal(name, batch[name], np.where(used, answers, 0))
  if "token_labels" in batch:
    expected = np.zeros_like(batch["token_labels"])
    expected[real] = store.gather_token_labels(ids[used])  # type: ignore[attr-defined]
    equal("token_labels", batch["token_labels"], expected)
  if masking is not None:
    special = np.isin(input_ids, masking.special_ids)
    maskable = np.bincount(index, weights=~special[real], minlength=ids.size)
    wanted = np.maximum(1, np.rint(masking.rate * tokens))
    hidden = np.zeros_like(tokens)
    rows, columns = np.nonzero(batch["mlm_segment_ids"])
    np.add.at(hidden, (rows, batch["mlm_segment_ids"][rows, columns] - 1), 1)
    wanted = np.minimum(wanted, maskable.reshape(ids.shape)).astype(np.int64)
    equal("Masked tokens of the sequence", hidden, wanted)


def _unmasked(batch: PackedBatch, masking: Masking, *, equal, holds) -> np.ndarray:
  """`input_ids` as they were; raises where the `mlm_` fields contradict the row."""
  segment_ids, positions = batch["segment_ids"], batch["mlm_positions"]
  in_use = batch["mlm_segment_ids"] > 0
  holds("A masked slot is used after an empty one", in_use[:, 1:] <= in_use[:, :-1])
  holds(
    "mlm_positions outside the row", (positions >= 0) & (positions < segment_ids.shape[1])
  )
  holds("mlm_positions not ascending", ~in_use[:, 1:] | (np.diff(positions) > 0))
  there = np.take_along_axis(segment_ids, positions, axis=1)
  equal("mlm_segment_ids", batch["mlm_segment_ids"], np.where(in_use, there, 0))
  for name in ("mlm_positions", "mlm_labels"):
    equal(f"{name} of an empty slot", np.where(in_use, 0, batch[name]), 0)
  is_special = np.isin(batch["mlm_labels"], masking.special_ids)
  holds("A special token was masked", ~in_use | ~is_special)
  now = np.take_along_axis(batch["input_ids"], positions, axis=1)
  holds("A token beyond the vocabulary", (now >= 0) & (now < masking.vocab_size))
  restored = batch["input_ids"].copy()
  rows, columns = np.nonzero(in_use)
  restored[rows, positions[rows, columns]] = batch["mlm_labels"][rows, columns]
  return restored


class _Pairs:
  """The correlation of a number of the sequences over all pairs that share a pack.

  Args:
    values: of each sequence.
  """

  def __init__(self, values: np.ndarray):
    self._values, self._mean = values, values.mean()
    self._sums = np.zeros(4)  # over ordered pairs: their number, x, x^2, xy

  def add(self, ids: np.ndarray):
    """Counts the packs of int64[B, M], sequence numbers or -1."""
    used = ids >= 0
    x = np.where(used, self._values[ids] - self._mean, 0)
    others = np.maximum(used.sum(axis=1) - 1, 0)
    sums, squares = x.sum(axis=1), (x * x).sum(axis=1)
    products = (sums * sums - squares).sum()
    self._sums += [
      (others * used.sum(axis=1)).sum(),
      others @ sums,
      others @ squares,
      products,
    ]

  def correlation(self) -> float | None:
    """None where there are no pairs, or no two different numbers."""
    pairs, sums, squares, products = self._sums
    if not pairs:
      return None
    mean = sums / pairs
    variance = squares / pairs - mean**2
    return float((products / pairs - mean**2) / variance) if variance > 0 else None


def _neighbours_kept(loader: PackedLoader, epoch: int) -> float | None:
  """The fraction of pairs side by side that share a pack in the next epoch as well."""
  now, then = (loader.epochs.assignment(e) for e in (epoch, epoch + 1))
  pack_of = np.empty(len(loader.store), np.int64)
  pack_of[then.sequence_ids] = np.repeat(np.arange(then.num_packs), np.diff(then.offsets))
  same = pack_of[now.sequence_ids[1:]] == pack_of[now.sequence_ids[:-1]]
  side_by_side = np.ones(same.size, bool)
  side_by_side[now.offsets[1:-1] - 1] = False
  return float(same[side_by_side].mean()) if side_by_side.any() else None


def report(result: dict, certificate: packing.Certificate) -> str:
  """What `audit` found, for people."""

  def shown(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"

  kept = result["neighbours_kept"]
  what = "evaluation" if result["epoch"] is None else f"epoch {result['epoch']}"
  lines = [
    str(certificate),
    "",
    f"audit of {what}, {result['hosts']} host{'s' * (result['hosts'] > 1)}: right",
    f"sequences {result['sequences']:>20,} each exactly once",
    f"tokens    {result['tokens']:>20,} each where it belongs",
    f"masked    {result['masked_tokens']:>20,} each undone by its label",
    f"rows      {result['rows']:>20,} in {result['batches']:,} batches",
    "neighbours in a pack, correlation over all pairs:",
    f"  lengths {shown(result['length_correlation']):>20} "
    f"(dealt out at random: {shown(result['shuffled_length_correlation'])})",
    f"  numbers {shown(result['number_correlation']):>20} (places in the dataset)",
  ]
  if kept is not None:
    lines.append(
      f"  kept    {kept:>20.2%} of neighbours share a pack in the next epoch too"
    )
  return "\n".join(lines)
