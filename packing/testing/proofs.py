"""The assertions that prove isolation: influence, equality, causality."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packing.testing.causality import find_lookahead
from packing.testing.frameworks import outputs_and_gradients
from packing.testing.influence import LeakError, find_leaks
from packing.testing.layout import lay_out, sequence_length
from packing.testing.probe import (
  LARGEST,
  TOLERANCES,
  Arrays,
  Probe,
  as_array,
  dtype_name,
  is_floating,
  make_probe,
  named,
)


class Difference(NamedTuple):
  """The difference of an output, packed to unpacked.

  `size` is the largest difference divided by the largest value, `limit` the largest size
  allowed, and `worst` the number of the sequence that differs most.
  """

  output: str
  size: float
  limit: float
  worst: int | None


def assert_no_cross_contamination(
  apply: Callable[[Arrays], Any],
  batch: Arrays,
  *,
  methods: tuple[str, ...] | None = None,
):
  """Fails if a sequence, or padding, influences another sequence in any row.

  The method `change` replaces the tokens or embeddings of each sequence in turn; no output
  of another sequence may change at all. It works with any function. With the method
  `derivative`, the derivatives of each sequence's outputs with respect to the embeddings of
  every other must be exactly zero. This detects an influence too small to change a bit, but
  not an influence through a choice, a rounding or a stopped gradient. An influence of token
  types or lengths alone is not tested.

  Args:
    apply: a function from a packed batch to an output [B, S, ...], or to several by name;
      without dropout.
    batch: a PackedBatch with `segment_ids` and either `input_ids` or `input_embeddings`,
      with two sequences or more in some row.
    methods: `change`, `derivative` or both. By default both, if the function takes
      `input_embeddings` and is written in JAX or PyTorch; otherwise `change`.

  Raises:
    LeakError: an AssertionError with the pairs of sequences, source and target.
    AssertionError: an output is NaN or depends on no token, so nothing would be proved.
    ValueError: the batch or an output has the wrong shape.

  Example: a model that adds the mean of the row to each token.

    >>> def apply(batch):
    ...   x = batch["input_embeddings"]
    ...   return x + x.mean(axis=1, keepdims=True)
    >>> pack = [{"input_embeddings": np.ones((n, 5), np.float32)} for n in (2, 3)]
    >>> assert_no_cross_contamination(apply, lay_out([pack], row_length=7))
    Traceback (most recent call last):
    packing.testing.LeakError: sequence 1 of row 0 changes with sequence 2 of row 0: ...
  """
  if leaks := find_leaks(apply, batch, methods=methods):
    raise LeakError(leaks)


def assert_causal(
  apply: Callable[[Arrays], Any],
  batch: Arrays,
  *,
  methods: tuple[str, ...] | None = None,
):
  """Fails if any token influences an earlier token of its row.

  Arguments are as for `assert_no_cross_contamination`, but one sequence per row is enough.
  Outputs that belong to sequences, not to tokens, are ignored.

  Raises:
    AssertionError: a token depends on later ones, or the outputs depend on no token.
    ValueError: the batch or an output has the wrong shape.

  Example: a model that adds the next token to each token.

    >>> def apply(batch):
    ...   x = batch["input_embeddings"]
    ...   return x + np.roll(x, -1, axis=1)
    >>> pack = [{"input_embeddings": np.ones((3, 5), np.float32)}]
    >>> assert_causal(apply, lay_out([pack], row_length=4))
    Traceback (most recent call last):
    AssertionError: A token before position 1 of row 0 changes with those from there on: ...
  """
  if lookahead := find_lookahead(apply, batch, methods=methods):
    raise AssertionError(str(lookahead))


def assert_packed_equals_unpacked(
  apply: Callable[..., Any],
  sequences: Sequence[Mapping[str, Any]],
  *,
  params: Any = None,
  row_length: int | None = None,
  tolerance: float | None = None,
  reference: Callable[[Mapping[str, Any]], Any] | None = None,
):
  """Fails if outputs or gradients in packs differ from those with one sequence per row.

  A mask that is wrong in the same way in both, such as too large a window, passes unless a
  `reference` is given.

  Values that are equal in both, and infinite or larger than 1,000, come from masks; they do
  not count in the scale. Integers must be equal.

  Args:
    apply: a function from a packed batch to an output [B, S, ...], or to several by name;
      without dropout. If `params` is given, a function of params and batch.
    sequences: the arguments of `lay_out`, such as `{"input_ids": int[L]}`. They are packed
      in the given order, each into the first row with room.
    params: a tree of JAX arrays, or a dict or list of PyTorch tensors. The gradients of the
      randomly weighted outputs with respect to them must be equal too.
    row_length: S, in tokens; by default such that the two longest sequences fit in a row.
    tolerance: the largest difference allowed, divided by the largest value, for each output
      and for all gradients together; by default 1e-5 in float32 and 1e-12 in float64.
    reference: the model as its authors call it, without a mask or positions of a packer: a
      function from one of the sequences to its output [L, ...], or to several by name, as
      of `apply`. Outputs in packs are compared with it instead, and gradients as without.

  Raises:
    AssertionError: names the output, and the sequence that differs most.
    ValueError: no two sequences fit in a row, the outputs do not depend on them, or those
      of the reference have other names or shapes.
  """
  for output, size, limit, worst in differences(
    apply,
    sequences,
    params=params,
    row_length=row_length,
    tolerance=tolerance,
    reference=reference,
  ):
    if not size <= limit:
      where = "" if worst is None else f", most in sequences[{worst}]"
      other = "unpacked" if reference is None or worst is None else "the reference"
      raise AssertionError(
        f"Packed differs from {other} in {output!r}: relative difference {size:.3g}, "
        f"expected at most {limit:.3g}{where}."
      )


def differences(
  apply: Callable[..., Any],
  sequences: Sequence[Mapping[str, Any]],
  *,
  params: Any = None,
  row_length: int | None = None,
  tolerance: float | None = None,
  reference: Callable[[Mapping[str, Any]], Any] | None = None,
) -> list[Difference]:
  """The difference of each output, in the order of computation, then of the gradients.

  Arguments and errors are as for `assert_packed_equals_unpacked`.
  """
  probe = make_probe(apply, params)
  if row_length is None:
    row_length = _room_for_two(sequences)
  packs = first_fit(sequences, row_length)
  order = np.concatenate(packs).astype(int)
  # Both layouts hold the sequences in the same order, and so the items of each output too.
  # Empty rows after the packs give both the same shape, and so one compiled function.
  masked = [len(sequence.get("mlm_positions", ())) for sequence in sequences]
  batches = [
    lay_out(
      [[sequences[i] for i in pack] for pack in rows],
      row_length=row_length,
      max_sequences=max(map(len, packs)),
      max_masked=max(sum(masked[i] for i in pack) for pack in packs),
    )
    for rows in (packs + [[]] * (len(sequences) - len(packs)), order[:, None])
  ]
  if probe.params is None:
    outputs = [probe.apply(None, batch) for batch in batches]
    gradients = []
  else:
    run = outputs_and_gradients(probe.apply, probe.params, functools.partial(_weigh, probe))
    outputs, gradients = map(list, zip(*map(run, batches), strict=True))

  alone = None if reference is None else [named(reference(sequences[i])) for i in order]
  result, any_differ = [], False
  for name in outputs[0]:
    owners = [probe.owners(name, x[name], b) for x, b in zip(outputs, batches, strict=True)]
    items, expected = (
      as_array(name, x[name])[owner > 0] for x, owner in zip(outputs, owners, strict=True)
    )
    if alone is not None:
      counts = (owners[1] > 0).sum(axis=1)[: len(alone)].tolist()
      expected = _of_reference(name, alone, counts, items.shape[1:])
    any_differ |= len(expected) > 0 and bool((expected != expected[:1]).any())
    gaps = _gaps(items, expected)
    rows = np.nonzero(owners[1] > 0)[0]
    worst = int(order[rows[gaps.argmax()]]) if gaps.size else None
    limit = _limit(outputs[0][name], tolerance)
    result.append(Difference(name, float(gaps.max(initial=0)), limit, worst))
  if not any_differ:
    raise ValueError("The outputs of tokens are all alike, which proves nothing.")
  if gradients:
    limit = min(_limit(x, tolerance) for x in gradients[1])
    result.append(Difference("gradients", relative_difference(*gradients), limit, None))
  return result


def _of_reference(
  name: str, alone: list[dict[str, Any]], counts: list[int], shape: tuple[int, ...]
) -> np.ndarray:
  """An output of the reference for all sequences, one after the other."""
  found = []
  for outputs, count in zip(alone, counts, strict=True):
    if name not in outputs:
      raise ValueError(f"The reference has no output {name!r}, only {', '.join(outputs)}.")
    found.append(as_array(name, outputs[name]))
    if found[-1].shape != (count, *shape):
      raise ValueError(
        f"The reference's {name!r} has shape {found[-1].shape}; expected {(count, *shape)}."
      )
  return np.concatenate(found)


def relative_difference(a: Sequence[Any], b: Sequence[Any]) -> float:
  """max|a - b| / max|b| over lists of arrays; max|a| if b is zero; NaN if any is NaN."""
  pairs = [
    (np.asarray(x, np.float64), np.asarray(y, np.float64))
    for x, y in zip(a, b, strict=True)
  ]
  scale = np.max([np.abs(y).max(initial=0) for _, y in pairs])
  gap = np.max([np.abs(x - y).max(initial=0) for x, y in pairs])
  return float(gap / (scale or 1.0))


def _gaps(items: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """float64[items]: each item's largest difference, divided by the largest value of all."""
  if not is_floating(items):
    return (items != expected).reshape(len(items), -1).any(axis=1).astype(np.float64)
  ours, theirs = items.astype(np.float64), expected.astype(np.float64)
  masked = (ours == theirs) & ~(np.abs(theirs) <= LARGEST)
  ours, theirs = (np.where(masked, 0.0, x) for x in (ours, theirs))
  scale = np.abs(theirs).max(initial=0) or 1.0
  return np.abs(ours - theirs).reshape(len(items), -1).max(axis=1, initial=0) / scale


def _limit(output: Any, tolerance: float | None) -> float:
  return TOLERANCES.get(dtype_name(output), 0.0) if tolerance is None else tolerance


def first_fit(
  sequences: Sequence[Mapping[str, Any]], row_length: int | None = None
) -> list[list[int]]:
  """The numbers of the sequences in each row; each goes into the first row with room."""
  lengths = [sequence_length(sequence) for sequence in sequences]
  row_length = _room_for_two(sequences) if row_length is None else row_length
  packs: list[list[int]] = []
  for number, length in enumerate(lengths):
    if length > row_length:
      raise ValueError(f"sequences[{number}] has {length} tokens, the row {row_length}.")
    for pack in packs:
      if sum(lengths[i] for i in pack) + length <= row_length:
        pack.append(number)
        break
    else:
      packs.append([number])
  if all(len(pack) == 1 for pack in packs):
    raise ValueError(f"No two of the lengths {lengths} fit in row_length={row_length}.")
  return packs


def _room_for_two(sequences) -> int:
  return sum(sorted(map(sequence_length, sequences))[-2:])


def _weigh(probe: Probe, outputs: Arrays, batch: Arrays) -> dict[str, np.ndarray]:
  """Random weights of floating outputs, which do not depend on an item's place."""
  weights = {}
  for name, x in outputs.items():
    if is_floating(x):
      mine = probe.owners(name, x, batch) > 0
      rng = np.random.default_rng(list(name.encode()))
      weights[name] = np.zeros(tuple(x.shape), np.float64)
      weights[name][mine] = rng.standard_normal((mine.sum(), *x.shape[2:]))
  return weights
