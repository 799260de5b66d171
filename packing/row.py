"""Rows: the arrays that a model needs to read a pack."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from packing.errors import InputError, as_array, check_integer, short_repr

IGNORED = -100  # losses skip this label, as in PyTorch
LABELS = ("label", "labels")
_INTEGERS = {"input_ids", "attention_mask", "token_type_ids", *LABELS}
_COMPUTED = {"segment_ids", "position_ids", "cls_positions", "sequence_mask"}
_INT32 = np.iinfo(np.int32)


def length_of(example: Any, name: str = "An example") -> int:
  """The number of tokens of an example; all that packs examples counts them here.

  Args:
    example: a mapping with `input_ids`.
    name: what to call it in a message.

  Raises:
    InputError: there are no `input_ids`, they are not a list, some are padding, or they are
      those of several sequences.
  """
  if not isinstance(example, Mapping) or "input_ids" not in example:
    found = list(example) if isinstance(example, Mapping) else example
    raise InputError(
      f"{name} has no input_ids; found {short_repr(found)}. Rename its tokens."
    )
  tokens = example["input_ids"]
  is_text = isinstance(tokens, str | bytes)
  if is_text or not hasattr(tokens, "__len__") or getattr(tokens, "ndim", 1) != 1:
    raise InputError(
      f"{name} has {short_repr(tokens)} as input_ids; expected a list of integers."
    )
  check_no_padding(name, example.get("attention_mask", ()))
  check_not_packed(name, example.get("position_ids", ()), [len(tokens)])
  return len(tokens)


def check_no_padding(name: str, attention_mask: Any):
  """Refuses sequences that were padded before; the padding would be packed as text.

  Args:
    name: what to call the sequences in the message.
    attention_mask: a tokenizer's, of any shape: 1 at tokens, 0 at padding.

  Raises:
    InputError: there are zeros in the mask.
  """
  if (as_array(attention_mask) == 0).any():
    raise InputError(
      f"{name} has zeros in attention_mask, which are padding. Tokenize with padding=False."
    )


def check_not_packed(name: str, position_ids: Any, lengths: Any):
  """Refuses rows of several sequences, which would attend to one another.

  Args:
    name: what to call the sequences in the message.
    position_ids: of all tokens, the sequences end to end; other values are not checked.
    lengths: of the sequences, each at least 1 if there are several.

  Raises:
    InputError: positions begin again inside a sequence.
  """
  positions = as_array(position_ids)
  if positions.ndim != 1 or positions.dtype.kind not in "iu":
    return  # no positions of tokens
  steps = np.diff(positions.astype(np.int64))  # differences of unsigned numbers wrap
  steps[np.cumsum(lengths)[:-1] - 1] = 1  # from a sequence to the next
  if (steps <= 0).any():
    raise InputError(
      f"{name} has position_ids that begin again inside a row, which is packed already. "
      "Give each of its sequences alone."
    )


def make_row(
  sequences: Sequence[Any],
  row_length: int,
  *,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> dict[str, np.ndarray]:
  """Lays out the sequences of a pack in a row, from the left.

  Args:
    sequences: the token ids of each sequence, in any form that NumPy converts to an array.
    row_length: S, in tokens.
    length_multiple: each sequence starts at a multiple of this many tokens.
    separator_tokens: the least number of padding tokens between two sequences.

  Returns:
    int32[S] each: `input_ids`; `segment_ids`, which number the sequences from 1; and
    `position_ids`, which start at 0 in each sequence. Padding is 0 in all of them.

  Raises:
    InputError: there is no sequence, a sequence is empty or not a list, the sequences have
      more tokens than the row holds, tokens are not 32-bit integers, or an argument is out
      of range.

  >>> make_row([[5, 6], [4, 4, 4]], row_length=8)["segment_ids"]
  array([1, 1, 2, 2, 2, 0, 0, 0], dtype=int32)
  >>> make_row([[5, 6], [4, 4, 4]], row_length=8, length_multiple=4)["input_ids"]
  array([5, 6, 0, 0, 4, 4, 4, 0], dtype=int32)
  """
  sequences = list(sequences)
  if wrong := [x for x in sequences if not hasattr(x, "__len__")]:
    raise InputError(
      f"A sequence is {short_repr(wrong[0])}; expected a list of tokens. Put a single "
      "sequence in a list."
    )
  layout = _lay_out_packs(
    [[len(sequence) for sequence in sequences]],
    row_length,
    length_multiple=length_multiple,
    separator_tokens=separator_tokens,
  )
  row = {"input_ids": _filled("Tokens", sequences, layout.occupied)}
  row |= {"segment_ids": layout.segment_ids, "position_ids": layout.position_ids}
  return {name: values[0] for name, values in row.items()}


class Layout(NamedTuple):
  """Where sequences stand in their rows.

  Attributes:
    starts: int64[B, M]; the place of the first token of each sequence, 0 in empty slots.
    occupied: bool[B, S]; whether a place has a token. `field[layout.occupied] = values`
      lays out the values of all tokens, the sequences end to end.
    segment_ids, position_ids: int32[B, S]; as in `make_row`.
  """

  starts: np.ndarray
  occupied: np.ndarray
  segment_ids: np.ndarray
  position_ids: np.ndarray


def lay_out(
  lengths: np.ndarray,
  row_length: int,
  *,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> Layout:
  """Lays out sequences in rows, from the left.

  Args:
    lengths: int64[B, M]; tokens in each slot, 0 in an empty one. Empty slots are the last
      ones of a row.
    row_length: S, in tokens.
    length_multiple, separator_tokens: as in `make_row`.

  Raises:
    InputError: a row has more tokens than S, or an argument is out of range.

  Example:
    >>> layout = lay_out(np.array([[2, 3], [4, 0]]), 6)
    >>> layout.starts.tolist(), layout.segment_ids.tolist()
    ([[0, 2], [0, 0]], [[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0]])
  """
  check_integer("row_length", row_length, at_least=1)
  multiple = check_integer("length_multiple", length_multiple, at_least=1)
  gap = check_integer("separator_tokens", separator_tokens, at_least=0)
  used = lengths > 0
  sizes = -(-lengths // multiple) * multiple - (-gap // multiple) * multiple
  starts = np.where(used, np.cumsum(sizes, axis=-1) - sizes, 0)
  ends = (starts + lengths).max(initial=0)
  if ends > row_length:
    raise InputError(
      f"A pack has {ends} tokens; expected 1 to {row_length}, the length of its row. Put "
      "fewer or shorter sequences into it, or set a larger row_length."
    )
  counts = lengths[used]
  first = np.cumsum(counts) - counts  # of each sequence, among all tokens
  in_batch = np.nonzero(used)[0] * row_length + starts[used]  # its start, rows end to end
  numbers = np.arange(counts.sum())
  occupied = np.zeros((len(lengths), row_length), bool)
  occupied.reshape(-1)[numbers + np.repeat(in_batch - first, counts)] = True

  def rows(values: np.ndarray) -> np.ndarray:
    field = np.zeros(occupied.shape, np.int32)
    field[occupied] = values
    return field

  segments = np.nonzero(used)[1] + 1
  return Layout(
    starts,
    occupied,
    segment_ids=rows(np.repeat(segments, counts)),
    position_ids=rows(numbers - np.repeat(first, counts)),
  )


def _lay_out_packs(lengths: list[list[int]], row_length: int, **geometry: int) -> Layout:
  """`lay_out` of packs of any number of sequences.

  Raises:
    InputError: as `lay_out`, or a pack or a sequence is empty.
  """
  for of_pack in lengths:
    if not sum(of_pack):
      check_integer("row_length", row_length, at_least=1)
      raise InputError(
        f"A pack has 0 tokens; expected 1 to {row_length}, the length of its row. Leave "
        "out packs without tokens."
      )
    if not all(of_pack):
      raise InputError(
        f"The sequences of a pack have {of_pack} tokens; expected at least one in each. "
        "Drop empty sequences."
      )
  slots = np.zeros((len(lengths), max(map(len, lengths))), np.int64)
  for row, of_pack in zip(slots, lengths, strict=True):
    row[: len(of_pack)] = of_pack
  return lay_out(slots, row_length, **geometry)


def _filled(
  name: str,
  values: Sequence[Any],
  occupied: np.ndarray,
  padding: int = 0,
  *,
  floats: bool = False,
) -> np.ndarray:
  """int32[B, S], or float32[B, S]; the values of all sequences at their places."""
  arrays = list(map(as_array, values))
  if wrong := [x for x in arrays if x.ndim != 1]:
    raise InputError(f"{name} have shape {wrong[0].shape}; expected one axis.")
  kinds = {x.dtype.kind for x in arrays}
  numbers = np.concatenate(arrays)
  if floats and kinds == {"f"}:
    rows = np.full(occupied.shape, padding, np.float32)
    rows[occupied] = numbers
    return rows
  if not kinds <= {"i", "u"}:
    also = ", or floats in all sequences" if floats else ""
    raise InputError(f"{name} are {numbers.dtype}; expected integers{also}.")
  rows = np.full(occupied.shape, padding, np.int32)
  rows[occupied] = _check_int32(name, numbers)
  return rows


def _check_int32(name: str, numbers: np.ndarray) -> np.ndarray:
  """Returns integers after checking that they fit in 32 bits."""
  if not np.can_cast(numbers.dtype, np.int32):
    beyond = (numbers > _INT32.max) | (numbers < _INT32.min)
    if beyond.any():
      raise InputError(f"{name} hold {numbers[beyond][0]}; expected 32-bit integers.")
  return numbers


def make_rows(
  packs: Sequence[Sequence[Mapping[str, Any]]],
  row_length: int,
  *,
  max_sequences: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> dict[str, np.ndarray]:
  """Lays out packs of examples in a batch of rows.

  Args:
    packs: B packs. An example has `input_ids`. It may have other lists of as many integers,
      such as `token_type_ids` or `labels`, or of as many floats, such as `advantages`; and
      single numbers, such as a sequence's class.
    row_length: S, in tokens.
    max_sequences: M; by default the number of sequences in the fullest pack.
    length_multiple, separator_tokens: as in `make_row`.

  Returns:
    `segment_ids`, `position_ids` and the lists of the examples, each int32[B, S], or
    float32 if its values are floats; padding is 0, or -100 in `labels`. If examples have
    single numbers, these become [B, M], and a `label` is renamed `labels`. Integers become
    int32, with -100 in empty places, and floats float32, with NaN. Then there are also
    `cls_positions` int32[B, M], the place of the first token of each sequence, and
    `sequence_mask` bool[B, M], True where there is a sequence.

  Raises:
    InputError: a pack does not fit or is not a list of examples; examples have different
      fields, both `label` and `labels`, integers and floats in one field, floats as tokens
      or labels of tokens, or zeros in their `attention_mask`; or integers do not fit in 32
      bits.

  Example:
    >>> pack = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [4, 4], "label": 0}]
    >>> rows = make_rows([pack, pack[:1]], row_length=5)
    >>> rows["input_ids"].tolist(), rows["labels"].tolist()
    ([[5, 6, 4, 4, 0], [5, 6, 0, 0, 0]], [[1, 0], [1, -100]])
  """
  tokens, sequences = lay_out_packs(
    packs,
    row_length,
    max_sequences,
    length_multiple=length_multiple,
    separator_tokens=separator_tokens,
  )
  return tokens | sequences


def lay_out_packs(
  packs: Sequence[Sequence[Mapping[str, Any]]],
  row_length: int,
  max_sequences: int | None,
  *,
  answers: Literal["token", "sequence"] = "token",
  **geometry: int,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """The fields of `make_rows` of tokens, [B, S], and those of sequences, [B, M].

  With answers by `sequence`, there are always `cls_positions` and `sequence_mask`, and
  labels that are lists of floats are those of sequences, float32[B, M, L].
  """
  for pack in packs:
    if isinstance(pack, Mapping | str) or not hasattr(pack, "__len__"):
      raise InputError(f"A pack is {short_repr(pack)}; expected a list of examples.")
  lengths = [[length_of(example) for example in pack] for pack in packs]
  examples = [example for pack in packs for example in pack]
  if not examples:
    raise InputError("Expected packs of examples, found none.")
  fields = set(examples[0])
  for example in examples:
    if set(example) != fields:
      raise InputError(
        f"Examples differ in fields: {sorted(fields)} and {sorted(example)}."
      )
  by_sequence = answers == "sequence"
  first = {name: as_array(examples[0][name]) for name in fields}
  single = {name for name, x in first.items() if not x.ndim}
  if by_sequence:
    single |= {name for name in fields & {*LABELS} if first[name].dtype.kind == "f"}
  if "label" in single and "labels" in fields:
    raise InputError(
      "Examples have both label and labels, which become one field. Rename one of them."
    )
  if own := sorted(fields & _COMPUTED):
    raise InputError(f"Examples have a field {own[0]}, which is computed here. Remove it.")
  depth = max(map(len, packs))
  if max_sequences is None:
    width = depth
  else:
    width = check_integer("max_sequences", max_sequences, at_least=1)
  if depth > width:
    raise InputError(f"A pack has {depth} sequences; expected at most {width}.")
  layout = _lay_out_packs(lengths, row_length, **geometry)
  tokens = {
    name: _of_tokens(name, examples, lengths, layout.occupied)
    for name in sorted(fields - single)  # input_ids among them
  }
  tokens |= {"segment_ids": layout.segment_ids, "position_ids": layout.position_ids}
  if not single and not by_sequence:
    return tokens, {}
  return tokens, _of_sequences(packs, sorted(single), layout.starts, width)


def _of_tokens(
  name: str, examples: list, lengths: list[list[int]], occupied: np.ndarray
) -> np.ndarray:
  """A field that has an entry for each token, [B, S]."""
  values = [as_array(example[name]) for example in examples]
  found = iter(len(x) if x.ndim == 1 else x.shape for x in values)
  for expected in lengths:
    if (of_pack := list(itertools.islice(found, len(expected)))) != expected:
      raise InputError(
        f"{name} has {of_pack} values in the sequences of a pack; expected {expected}, one "
        "for each token."
      )
  padding = IGNORED if name in LABELS else 0
  is_number = name not in _INTEGERS
  return _filled(f"Values of {name}", values, occupied, padding, floats=is_number)


def _of_sequences(
  packs, names: list[str], starts: np.ndarray, width: int
) -> dict[str, np.ndarray]:
  """The fields of a batch that have an entry for each sequence, [B, `width`]."""
  is_used = np.arange(width) < np.array([len(pack) for pack in packs])[:, None]
  all_starts = np.zeros(is_used.shape, np.int32)
  all_starts[:, : starts.shape[1]] = starts
  fields: dict[str, np.ndarray] = {"cls_positions": all_starts, "sequence_mask": is_used}
  for name in names:
    given = [example[name] for pack in packs for example in pack]
    arrays = list(map(as_array, given))
    if arrays[0].ndim:
      fields["labels"] = _vectors(name, arrays, is_used)
      continue
    kinds = ["list" if x.ndim else x.dtype.kind for x in arrays]
    if wrong := [x for x, kind in zip(given, kinds, strict=True) if kind not in "iubf"]:
      raise InputError(
        f"{name} is {short_repr(wrong[0])}; expected one number in each example. Remove it."
      )
    if "f" in kinds and {*kinds} != {"f"}:
      raise InputError(f"{name} has integers and floats. Convert all to float, or to int.")
    values = np.array(given)  # floats also for uint64 and int64 together
    if "f" in kinds:
      entries = np.full(is_used.shape, np.nan, np.float32)
    else:
      values = _check_int32(f"Values of {name}", values)
      entries = np.full(is_used.shape, IGNORED, np.int32)
    entries[is_used] = values
    fields["labels" if name in LABELS else name] = entries
  return fields


def _vectors(name: str, arrays: list[np.ndarray], is_used: np.ndarray) -> np.ndarray:
  """float32[B, M, L] of as many floats in each sequence, with NaN in empty places."""
  shapes = {x.shape for x in arrays}
  if len(shapes) > 1 or arrays[0].ndim != 1 or {x.dtype.kind for x in arrays} != {"f"}:
    found = sorted({f"{x.dtype}{[*x.shape]}" for x in arrays})
    raise InputError(
      f"{name} of sequences are {', '.join(found)}; expected as many floats in each "
      "example. Convert all to float, and give one for each class."
    )
  entries = np.full((*is_used.shape, *arrays[0].shape), np.nan, np.float32)
  entries[is_used] = arrays
  return entries


class SameTypes:
  """Refuses rows with a field of another type than in the rows before.

  The numbers of examples in Python may be 5 in one row and 3.5 in the next.
  """

  def __init__(self):
    self._types: dict[str, np.dtype] = {}

  def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows.

    Raises:
      InputError: a field has another type than before.
    """
    for name, values in rows.items():
      before = self._types.setdefault(name, values.dtype)
      if values.dtype != before:
        raise InputError(f"{name} is {values.dtype} and was {before} before. Use one type.")
    return rows
