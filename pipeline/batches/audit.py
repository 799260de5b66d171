"""Proof that batches hold the data: each sequence once, each token where it belongs.

Each row is compared with a row that is laid out here, one sequence after the other, in a
plain loop. Of the loader's code it uses only the store.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tqdm

import packing
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.batches.packed import PackedBatch
from pipeline.store import SequenceStore


class AuditError(Exception):
  """A batch is wrong. The message names the row and the first difference."""


def audit(loader: PackedLoader, *, epoch: int = 0) -> dict:
  """Reads all batches of an epoch, of all processes, and proves that they are right.

  It needs memory for one batch and at most 50 bytes per sequence, whatever their lengths.

  Args:
    loader: makes the batches.
    epoch: from 0.

  Returns:
    `certificate`, the plan's; and the counts `batches`, `rows`, `sequences`, `tokens`,
    `padding_tokens` and `masked_tokens`.

  Raises:
    AuditError: something is wrong.
  """
  store, plan = loader.store, loader.plan
  seen = np.zeros(len(store), np.int8)  # how often each sequence came
  counts = dict.fromkeys(("batches", "rows", "sequences", "tokens", "masked_tokens"), 0)
  depths = np.zeros(plan.packing_depth + 1, np.int64)
  contract = _contract(loader)

  for batch in _global_batches(loader, epoch):
    types = {name: (field.dtype.name, field.shape[1:]) for name, field in batch.items()}
    for name in sorted(types.keys() | contract.keys()):
      if types.get(name) != contract.get(name):
        raise AuditError(
          f"Field {name} of batch {counts['batches']}: expected {contract.get(name)}, type "
          f"and shape in a row; found {types.get(name)}."
        )
    _check_rows(batch, loader, first_row=counts["rows"])
    ids = batch["sequence_ids"]
    used = ids >= 0
    if store.texts is not None:  # of the texts of a pair, the first counts
      used &= batch["text_numbers"] == 1
    np.add.at(seen, ids[used], 1)
    if (again := seen[ids[used]] > 1).any():
      number = ids[used][again.argmax()]
      raise AuditError(f"Sequence {number} occurs twice; expected each once an epoch.")
    depths_here = used.sum(axis=1)
    if (depths_here == 0).any():
      row = counts["rows"] + int((depths_here == 0).argmax())
      raise AuditError(f"Row {row} is padding alone; expected a pack.")
    depths += np.bincount(depths_here, minlength=depths.size)
    counts["batches"] += 1
    counts["rows"] += len(ids)
    counts["sequences"] += int(used.sum())
    counts["tokens"] += int((batch["segment_ids"] > 0).sum())
    if loader.masking is not None:
      counts["masked_tokens"] += int((batch["mlm_segment_ids"] > 0).sum())

  if not seen.all():
    raise AuditError(
      f"{(seen == 0).sum()} sequences are missing; the first is {seen.argmin()}."
    )
  certificate = plan.certificate()
  packs_by_depth = {n: int(depths[n]) for n in range(1, depths.size) if depths[n]}
  if packs_by_depth != certificate.packs_by_depth:
    raise AuditError(
      f"Packs by depth are {packs_by_depth}; planned are {certificate.packs_by_depth}."
    )
  return {
    "epoch": epoch,
    "hosts": loader.process_count,
    **counts,
    "padding_tokens": counts["rows"] * plan.row_length - counts["tokens"],
    "certificate": certificate.as_dict(),
  }


def _contract(loader: PackedLoader) -> dict[str, tuple[str, tuple[int, ...]]]:
  """Type and shape of a row, for every field of a batch."""
  depth = loader.plan.packing_depth
  if texts := loader.store.texts:
    depth = texts.slots(depth, loader.plan.row_length)
  empty = _row(loader.store, loader.plan, np.full(depth, -1))
  fields = {name: (field.dtype.name, field.shape) for name, field in empty.items()}
  if loader.masking is not None:
    names = ("mlm_positions", "mlm_labels", "mlm_segment_ids")
    fields |= dict.fromkeys(names, ("int32", (loader.max_masked,)))
  return fields


def _global_batches(loader: PackedLoader, epoch: int) -> Iterator[PackedBatch]:
  """The batches of an epoch, joined over processes, without rows of other epochs."""
  count = loader.process_count
  blocks = [loader.for_process(index, count) for index in range(count)]
  size, num_packs = loader.batch_size, loader.plan.num_packs
  first, end = epoch * num_packs, (epoch + 1) * num_packs
  steps = range(first // size, -(-end // size))
  for step in tqdm.tqdm(steps, "auditing", unit=" batches", disable=None):
    parts = [block[step] for block in blocks]
    rows = loader.epochs_of(step) == epoch
    yield {n: np.concatenate([part[n] for part in parts])[rows] for n in parts[0]}


def _row(
  store: SequenceStore, plan: packing.Plan, ids: np.ndarray
) -> dict[str, np.ndarray]:
  """The row that a pack should have, without masks, from int64[M] `sequence_ids`."""
  used, row_length = ids[ids >= 0], plan.row_length
  if texts := store.texts:
    records = used[np.diff(used, prepend=-1) != 0]
    used = np.repeat(records, texts.counts[records])
    sequences = [text for number in records for text in _texts(store, number)]
    if used.size > ids.size:
      raise packing.InputError(f"{used.size} texts; expected at most {ids.size}.")
    ids = np.pad(used, (0, ids.size - used.size), constant_values=-1)
  else:
    sequences = [store.gather(np.array([number])) for number in used]
  names = ["input_ids", "segment_ids", "position_ids", "token_type_ids"]
  names += ["token_labels"] * store.has_token_labels
  row = {name: np.zeros(row_length, np.int32) for name in names}
  multiple, gap = plan.length_multiple, plan.separator_tokens
  starts: list[int] = []
  start = 0
  for segment, (number, tokens) in enumerate(zip(used, sequences, strict=True), start=1):
    end = start + len(tokens)
    if end > row_length:
      raise packing.InputError(f"A pack has {end} tokens; expected at most {row_length}.")
    starts.append(start)
    row["input_ids"][start:end] = tokens
    row["segment_ids"][start:end] = segment
    row["position_ids"][start:end] = np.arange(len(tokens))
    row["token_type_ids"][start + store.first_type_lengths[number] : end] = 1
    if store.has_token_labels:
      row["token_labels"][start:end] = store.gather(np.array([number]), labels=True)
    # Both the sequence and the gap after it take whole multiples.
    start = end + -end % multiple + gap + -gap % multiple

  def slots(values, dtype=np.int32, *more: int) -> np.ndarray:
    field = np.zeros((ids.size, *more), dtype)
    field[: used.size] = values
    return field

  labels = store.sequence_labels
  row["cls_positions"] = slots(starts)
  row["sequence_labels"] = slots(labels[used], labels.dtype, *labels.shape[1:])
  row["sequence_mask"] = slots(True, bool)
  if store.answer_starts is not None and store.answer_ends is not None:
    row["start_positions"] = slots(np.add(starts, store.answer_starts[used]))
    row["end_positions"] = slots(np.add(starts, store.answer_ends[used]))
  if texts:
    numbers = [n for record in records for n in range(1, 1 + texts.counts[record])]
    row["text_numbers"] = slots(numbers)
  return row | {"sequence_ids": ids}


def _texts(store: SequenceStore, record: int) -> list[np.ndarray]:
  """The tokens of each text of a record."""
  assert store.texts is not None
  first, last = store.texts.ends[record : record + 2]
  ends = np.cumsum(store.texts.lengths[first:last])
  return np.split(store.gather(np.array([record])), ends[:-1])


def _check_rows(batch: PackedBatch, loader: PackedLoader, *, first_row: int):
  """Checks that rows hold the sequences that `sequence_ids` names, and nothing else.

  Raises:
    AuditError: the first difference. `first_row` is the number of the first row.
  """
  store, masking, ids = loader.store, loader.masking, batch["sequence_ids"]

  def equal(what: str, found: np.ndarray, expected: np.ndarray):
    if (found != expected).any():
      row, column = np.argwhere(found != expected)[0, :2].tolist()
      raise AuditError(
        f"{what} in row {first_row + row}, column {column}: expected "
        f"{expected[row, column]}, found {found[row, column]}."
      )

  def holds(what: str, condition: np.ndarray):
    if not condition.all():
      row, column = np.argwhere(~condition)[0].tolist()
      raise AuditError(f"{what} in row {first_row + row}, column {column}.")

  used = ids >= 0
  holds("There is no such sequence number", (ids >= -1) & (ids < len(store)))
  holds("A slot is used after an empty one", used[:, 1:] <= used[:, :-1])
  rows = []
  for row, pack in enumerate(ids):
    try:
      rows.append(_row(store, loader.plan, pack))
    except packing.InputError as error:
      raise AuditError(f"sequence_ids in row {first_row + row}: {error}") from error
  expected = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  unmasked = expected.pop("input_ids")
  for name, field in expected.items():
    equal(name, batch[name], field)
  if masking is None:
    equal("input_ids", batch["input_ids"], unmasked)
    return

  equal("input_ids, unmasked,", _unmasked(batch, masking, equal, holds), unmasked)
  maskable = ~np.isin(unmasked, masking.special_ids)
  num_masked, planned = np.zeros_like(ids), np.zeros_like(ids)
  for slot in range(ids.shape[1]):
    here = batch["segment_ids"] == slot + 1
    drawn = np.maximum(1, np.rint(masking.rate * here.sum(axis=1)))
    planned[:, slot] = np.minimum(drawn, (here & maskable).sum(axis=1))
    num_masked[:, slot] = (batch["mlm_segment_ids"] == slot + 1).sum(axis=1)
  equal("Masked tokens of the sequence", num_masked, planned)


def _unmasked(batch: PackedBatch, masking: Masking, equal, holds) -> np.ndarray:
  """`input_ids` before masking; raises if the `mlm_` fields contradict the row."""
  segment_ids, positions = batch["segment_ids"], batch["mlm_positions"]
  in_use = batch["mlm_segment_ids"] > 0
  holds("A masked slot is used after an empty one", in_use[:, 1:] <= in_use[:, :-1])
  holds(
    "mlm_positions outside the row", (positions >= 0) & (positions < segment_ids.shape[1])
  )
  holds("mlm_positions not ascending", ~in_use[:, 1:] | (np.diff(positions) > 0))
  segments = np.where(in_use, np.take_along_axis(segment_ids, positions, axis=1), 0)
  equal("mlm_segment_ids", batch["mlm_segment_ids"], segments)
  for name in ("mlm_positions", "mlm_labels"):
    unused = np.where(in_use, 0, batch[name])
    equal(f"{name} of an empty slot", unused, np.zeros_like(unused))
  is_special = np.isin(batch["mlm_labels"], masking.special_ids)
  holds("A special token was masked", ~in_use | ~is_special)
  token_ids = np.take_along_axis(batch["input_ids"], positions, axis=1)
  holds(
    "A token beyond the vocabulary", (token_ids >= 0) & (token_ids < masking.vocab_size)
  )
  unmasked = batch["input_ids"].copy()
  rows, columns = np.nonzero(in_use)
  unmasked[rows, positions[rows, columns]] = batch["mlm_labels"][rows, columns]
  return unmasked


def report(result: dict, plan: packing.Plan) -> str:
  """The result of `audit` as text."""
  hosts = result["hosts"]
  lines = [
    str(plan.certificate()),
    "",
    f"audit of epoch {result['epoch']}, {hosts} host{'s' * (hosts > 1)}: right",
    f"sequences {result['sequences']:>20,} each exactly once",
    f"tokens    {result['tokens']:>20,} each where it belongs",
  ]
  if result["masked_tokens"]:
    lines.append(f"masked    {result['masked_tokens']:>20,} each undone by its label")
  lines.append(f"rows      {result['rows']:>20,} in {result['batches']:,} batches")
  return "\n".join(lines)
