"""Proofs for any model: no sequence of a pack touches another, and packed equals unpacked.

A model is a function from a packed batch to outputs of its tokens, float[B, S, ...] one
of them or several by name, of this project or of another: a JAX function, or a wrapped
PyTorch model that takes and gives arrays. Named in the order of computation, the first
output that leaks tells where in the model to look. A `model.Bert` needs no function
around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import losses
from model.bert import Bert
from model.layout import check_segment_ids, lay_out, sequence_length

Arrays = Mapping[str, Any]
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
PADDING = 0


class Place(NamedTuple):
  """A sequence of a batch, or the padding of a row: `number` 0."""

  row: int
  number: int

  def __str__(self) -> str:
    what = "the padding" if self.number == PADDING else f"sequence {self.number}"
    return f"{what} of row {self.row}"


class Leak(NamedTuple):
  """`source` has an influence on `target`, first seen in `output`.

  `depth` is the number of that output in the order of computation, and `size` the largest
  derivative, or the largest change, whatever its sign.
  """

  source: Place
  target: Place
  output: str
  depth: int
  size: float


class Difference(NamedTuple):
  """Between packed and unpacked: largest difference over largest value.

  `limit` is what is allowed, and `worst` the number of the sequence that differs most.
  """

  output: str
  size: float
  limit: float
  worst: int | None


class LeakError(AssertionError):
  """Sequences of a pack touch each other; `leaks` holds all pairs."""

  def __init__(self, leaks: list[Leak], measure: str):
    self.leaks = leaks
    first = leaks[0]
    more = f" And {len(leaks) - 1} more such pairs." if leaks[1:] else ""
    super().__init__(
      f"{first.target} changes with {first.source}: expected an influence of exactly 0, "
      f"found a {measure} of up to {first.size:.3g}, first in {first.output!r}.{more}"
    )


def assert_no_cross_contamination(
  apply: Callable[[Arrays], Any], batch: Arrays, *, seed: int = 0
):
  """Fails if any sequence has an influence on another, or padding on any.

  With `input_embeddings` in the batch the derivative of every sequence's outputs by
  every other's embeddings must be exactly zero. With `input_ids` each sequence's tokens
  are changed in turn, and all outputs of the others must keep their bits. Other rows
  count as well, and an output that does not depend on its own sequence fails too, since
  it would prove nothing.

  Args:
    apply: from a packed batch to float[B, S, ...], or several of them by name; without
      dropout. Or a `Bert`, whose layers and heads are looked at by derivative.
    batch: a PackedBatch; numbers of sequences in `segment_ids`.
    seed: of the directions, or of the tokens that are put in.

  Raises:
    LeakError: an AssertionError with the pairs of sequences that touch.
    ValueError: a batch or an output of another shape.

  Example: a model that adds the mean of the row to each token.

    >>> def apply(batch):
    ...   x = batch["input_embeddings"]
    ...   return x + x.mean(axis=1, keepdims=True)
    >>> pack = [{"input_embeddings": np.ones((n, 5), np.float32)} for n in (2, 3)]
    >>> assert_no_cross_contamination(apply, lay_out([pack], row_length=7))
    Traceback (most recent call last):
    model.testing.LeakError: sequence 1 of row 0 changes with sequence 2 of row 0: ...
  """
  leaks, measure = find_leaks(apply, batch, seed=seed)
  if leaks:
    raise LeakError(leaks, measure)


def find_leaks(
  apply: Callable[[Arrays], Any], batch: Arrays, *, seed: int = 0
) -> tuple[list[Leak], str]:
  """All pairs that touch, and by which measure; see `assert_no_cross_contamination`.

  Pairs that touch in the first output come first.
  """
  check_segment_ids(batch["segment_ids"])
  if isinstance(apply, Bert):
    if "input_ids" in batch:
      embeddings = apply.embeddings.token(jnp.asarray(batch["input_ids"]))
      batch = {k: v for k, v in batch.items() if k != "input_ids"}
      batch["input_embeddings"] = embeddings
    apply = functools.partial(_layers_and_heads, *nnx.split(apply, nnx.Param))
  find = _derivatives if "input_embeddings" in batch else _changes
  measure = "derivative" if "input_embeddings" in batch else "change"
  found = list(find(apply, batch, np.random.default_rng(seed)))
  first: dict[tuple[Place, Place], Leak] = {}
  for leak in found:
    if leak.source != leak.target:
      first.setdefault((leak.source, leak.target), leak)
  alive = {leak.target for leak in found if leak.source == leak.target}
  silent = [place for place in _places(batch) if place not in alive]
  if silent and not first:
    raise AssertionError(
      f"The outputs of {silent[0]} do not depend on its own tokens, so nothing is proved. "
      "Expected a function of input_ids or input_embeddings."
    )
  # The first output on top, and of those that touch, other sequences before padding.
  order = lambda leak: (leak.depth, leak.source.number == PADDING)  # noqa: E731
  return sorted(first.values(), key=order), measure


def assert_packed_equals_unpacked(
  apply: Callable[..., Any],
  sequences: Sequence[Mapping[str, Any]],
  *,
  params: Any = None,
  row_length: int | None = None,
  tolerance: float | None = None,
):
  """Fails if sequences in packs have other outputs, or gradients, than one a row.

  Args:
    apply: from a packed batch to float[B, S, ...], or several of them by name; without
      dropout. With `params` a differentiable function of params and batch. Or a `Bert`.
    sequences: what `model.layout.lay_out` takes, such as `{"input_ids": int[L]}`. They
      are packed in the order given, each into the first row that has room.
    params: a tree of arrays. The gradients by it, of outputs under random weights, must
      be equal too.
    row_length: S, in tokens; by default the two longest fit one row.
    tolerance: of the largest difference over the largest value, for each output and for
      all gradients together; by default 1e-5 in float32 and 1e-12 in float64.

  Raises:
    AssertionError: names the output, and the sequence that differs most.
    ValueError: no two sequences fit one row.
  """
  for found in differences(
    apply, sequences, params=params, row_length=row_length, tolerance=tolerance
  ):
    if not found.size <= found.limit:
      where = "" if found.worst is None else f", most in sequences[{found.worst}]"
      raise AssertionError(
        f"Packed differs from unpacked in {found.output!r}: relative difference "
        f"{found.size:.3g}, expected at most {found.limit:.3g}{where}."
      )


def differences(
  apply: Callable[..., Any],
  sequences: Sequence[Mapping[str, Any]],
  *,
  params: Any = None,
  row_length: int | None = None,
  tolerance: float | None = None,
) -> list[Difference]:
  """Of each output, in the order of computation, and of the gradients at last.

  Arguments and errors as of `assert_packed_equals_unpacked`.
  """
  function: Callable[..., Any] = apply
  if isinstance(apply, Bert):
    graphdef, state = nnx.split(apply, nnx.Param)
    params = nnx.to_pure_dict(state)
    function = functools.partial(_everything, graphdef)
  packs = first_fit(sequences, row_length)
  row_length = row_length or _room_for_two(sequences)
  order = np.concatenate(packs).astype(int)
  # Both layouts hold the sequences, and so the items of each output, in the same order.
  # They have one shape, and so one compiled function: the packed rows are followed by
  # empty ones.
  packed, unpacked = (
    lay_out(
      [[sequences[i] for i in pack] for pack in rows],
      row_length=row_length,
      max_sequences=max(map(len, packs)),
      max_masked=_most_masked(sequences, packs),
    )
    for rows in (packs + [[]] * (len(sequences) - len(packs)), order[:, None])
  )
  if params is None:
    ours, theirs = _named(function(packed)), _named(function(unpacked))
  else:
    run = _outputs_and_gradients(function)
    ours, our_gradients = run(params, packed)
    theirs, their_gradients = run(params, unpacked)

  result = []
  for name, output in ours.items():
    items = np.asarray(output)[_owners(name, output, packed) > 0]
    is_item = _owners(name, theirs[name], unpacked) > 0
    expected = np.asarray(theirs[name])[is_item]
    limit = tolerance or TOLERANCES[items.dtype.name]
    gap = np.abs(items.astype(np.float64) - expected.astype(np.float64))
    scale = np.abs(expected.astype(np.float64)).max(initial=0) or 1.0
    gap = gap.reshape(len(gap), -1).max(axis=1, initial=0) / scale
    worst = int(order[np.nonzero(is_item)[0][gap.argmax()]]) if gap.size else None
    result.append(Difference(name, float(gap.max(initial=0)), limit, worst))
  if params is not None:
    limit = tolerance or TOLERANCES[jnp.result_type(*ours.values()).name]
    size = relative_difference(our_gradients, their_gradients)
    result.append(Difference("gradients", size, limit, None))
  return result


def relative_difference(a, b) -> float:
  """max|a - b| / max|b| over whole trees; max|a| where b is zero."""
  pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
  pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs]
  scale = max(np.abs(y).max(initial=0) for _, y in pairs)
  return float(max(np.abs(x - y).max(initial=0) for x, y in pairs) / (scale or 1.0))


def first_fit(
  sequences: Sequence[Mapping[str, Any]], row_length: int | None = None
) -> list[list[int]]:
  """Numbers of the sequences in each row, each in the first row with room for it."""
  lengths = [sequence_length(sequence) for sequence in sequences]
  row_length = row_length or _room_for_two(sequences)
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
    raise ValueError(
      f"Expected sequences of which two fit a row of {row_length} tokens, found lengths "
      f"{lengths}. Give more sequences, or a larger row_length."
    )
  return packs


def _room_for_two(sequences) -> int:
  return sum(sorted(map(sequence_length, sequences))[-2:])


def _most_masked(sequences, packs) -> int:
  masked = [len(sequence.get("mlm_positions", ())) for sequence in sequences]
  return max(sum(masked[i] for i in pack) for pack in packs)


# ---- influence -----------------------------------------------------------------------


def _derivatives(apply, batch: Arrays, rng: np.random.Generator) -> Iterator[Leak]:
  """Pulls random weights on each sequence's outputs back to all embeddings."""
  run, names = _in_order(lambda x: apply({**batch, "input_embeddings": x}))
  embeddings = jnp.asarray(batch["input_embeddings"])
  shapes = jax.eval_shape(run, embeddings)
  outputs = dict(zip(names, shapes, strict=True))
  owners = {name: _owners(name, x, batch) for name, x in outputs.items()}
  weights = {name: rng.standard_normal(x.shape) for name, x in outputs.items()}

  @jax.jit
  def pull(embeddings, weights):
    gradients = jax.vjp(run, embeddings)[1](weights)[0]
    return jnp.abs(gradients).max(axis=-1)  # [B, S]

  def sizes(target: Place, names) -> dict[Place, float]:
    chosen = [
      (x * _broadcast(_is(target, owners[name]) & (name in names), x)).astype(
        outputs[name].dtype
      )
      for name, x in weights.items()
    ]
    gradient = np.asarray(pull(embeddings, chosen), np.float64)
    return {
      source: float(gradient[_is(source, batch["segment_ids"])].max())
      for source in _places(batch, padding=True)
    }

  for target in _places(batch):
    touching = {s: size for s, size in sizes(target, outputs).items() if size != 0}
    by_output = []
    if touching.keys() - {target}:
      by_output = [sizes(target, {name}) for name in names]
    for source, size in touching.items():
      depths = [i for i, found in enumerate(by_output) if found[source] != 0] or [0]
      yield Leak(source, target, names[depths[0]], depths[0], size)


def _changes(apply, batch: Arrays, rng: np.random.Generator) -> Iterator[Leak]:
  """Puts other tokens in each place in turn, and compares the bits of all outputs."""
  before, again = (
    {name: np.asarray(x) for name, x in _named(apply(batch)).items()} for _ in range(2)
  )
  owners = {name: _owners(name, x, batch) for name, x in before.items()}
  if any(before[name].tobytes() != again[name].tobytes() for name in before):
    raise ValueError("Expected the same outputs for the same batch. Turn dropout off.")
  for source in _places(batch, padding=True):
    after = _named(apply(_with_other_tokens(batch, source, rng)))
    for depth, (name, old) in enumerate(before.items()):
      new = np.asarray(after[name])
      for target in _places(batch):
        mine = _is(target, owners[name])
        if old[mine].tobytes() != new[mine].tobytes():
          size = np.abs(old[mine].astype(np.float64) - new[mine].astype(np.float64)).max()
          yield Leak(source, target, name, depth, float(size))


def _with_other_tokens(batch: Arrays, place: Place, rng: np.random.Generator) -> Arrays:
  ids = np.array(batch["input_ids"])
  known = np.unique(ids[np.asarray(batch["segment_ids"]) > 0])
  if known.size < 2:
    raise ValueError(f"Expected at least two kinds of tokens to swap, found {known.size}.")
  here = _is(place, batch["segment_ids"])
  shift = rng.integers(1, known.size, size=here.sum())
  ids[here] = known[(np.searchsorted(known, ids[here]) + shift) % known.size]
  return {**batch, "input_ids": ids}


# ---- outputs and whose they are ------------------------------------------------------


def _layers_and_heads(graphdef, params, batch: Arrays) -> dict[str, jax.Array]:
  model = nnx.merge(graphdef, params)
  states = model.hidden_states(batch)
  logits = model.heads(list(states.values())[-1], batch)
  if "mlm_logits" in logits:  # without those that `vocab_multiple` adds
    logits["mlm_logits"] = logits["mlm_logits"][..., : model.config.vocab_size]
  return states | logits


def _everything(graphdef, params, batch: Arrays) -> dict[str, jax.Array]:
  """Layers, logits, and what the losses make of each sequence where it has labels."""
  outputs = _layers_and_heads(graphdef, params, batch)
  heads = losses.heads_of(outputs)
  if all(label in batch for head in heads for label in losses.HEADS[head].labels):
    each = losses.per_sequence(outputs, batch)
    outputs |= {name: values for name, (values, _) in each.items()}
  return outputs


def _outputs_and_gradients(apply):
  """apply -> params, batch -> its outputs, and the gradients of them weighted at random.

  A weight hangs on the sequence and the item, not on the place in the batch.
  """

  def total(params, batch, weights):
    outputs = _named(apply(params, batch))
    names[:] = outputs
    value = sum((x * weights[name]).sum() for name, x in outputs.items())
    return value, list(outputs.values())

  names: list[str] = []
  compiled = jax.jit(jax.grad(total, has_aux=True))

  def run(params, batch):
    weights = {}
    for name, x in _named(jax.eval_shape(apply, params, batch)).items():
      mine = _owners(name, x, batch) > 0
      rng = np.random.default_rng(list(name.encode()))
      weights[name] = np.zeros(x.shape, x.dtype)
      weights[name][mine] = rng.standard_normal((mine.sum(), *x.shape[2:]))
    gradients, values = compiled(params, batch, weights)
    return dict(zip(names, values, strict=True)), gradients

  return run


def _in_order(apply) -> tuple[Callable[..., list], list[str]]:
  """Outputs as a list, and the list of their names, which is filled in by a call.

  A compiled function would give them in the order of their names.
  """
  names: list[str] = []

  def run(*args):
    outputs = _named(apply(*args))
    names[:] = outputs
    return list(outputs.values())

  return run, names


def _named(outputs: Any) -> dict[str, Any]:
  return dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}


def _owners(name: str, output: Any, batch: Arrays) -> np.ndarray:
  """int[B, K]: whose each item of an output is; what our heads give has its own."""
  head, _, kind = name.rpartition("_")
  if head not in losses.HEADS or (kind == "logits" and head in ("token", "answer")):
    owners = batch["segment_ids"]
  elif kind == "logits":
    owners = losses.HEADS[head].owners(batch)
  else:
    owners = losses.sequence_numbers(batch)
  owners = np.asarray(owners)
  if tuple(output.shape[:2]) != owners.shape:
    raise ValueError(
      f"Expected output {name!r} to have a value for each token, [B, S, ...] = "
      f"[{owners.shape[0]}, {owners.shape[1]}, ...], found {tuple(output.shape)}."
    )
  return owners


def _places(batch: Arrays, *, padding: bool = False) -> list[Place]:
  found = np.asarray(batch["segment_ids"])
  return [
    Place(row, int(number))
    for row, ids in enumerate(found)
    for number in np.unique(ids)
    if number != PADDING or padding
  ]


def _is(place: Place, owners) -> np.ndarray:
  """bool[B, K], which items are of a place."""
  owners = np.asarray(owners)
  rows = np.arange(len(owners))[:, None]
  return (rows == place.row) & (owners == place.number)


def _broadcast(mask: np.ndarray, x) -> np.ndarray:
  return mask.reshape(*mask.shape, *[1] * (x.ndim - 2))
