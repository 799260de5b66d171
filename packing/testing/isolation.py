"""Whether a model keeps sequences apart, in the batches that a collator makes.

Here the model and the collator are tried together, as a trainer uses them: what the model
gets is what `collate` returns, and no packed batch of our own form is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from packing.errors import InputError, check, check_integer
from packing.testing.influence import LeakError
from packing.testing.probe import LARGEST, TOLERANCES, as_array, dtype_name

Example = Mapping[str, Any]
_SPECIAL = ("pad", "bos", "eos", "mask", "cls", "sep", "unk", "decoder_start")
LENGTHS = (7, 9, 5)  # of the examples that are tried if none are given
# A larger influence is a leak, in any dtype: where sequences are apart, it is exactly 0.
# Only experts, which multiply the tokens of all sequences together, may round differently.
ROUNDING = 1e-5
_OF_16_BITS = (
  "In 16 bits a model with experts may round differently with other sequences; in float32 "
  "you see whether that is all. "
)
_REMEDY = (
  "Many causal models of transformers keep them apart with use_cache=False and without an "
  "attention_mask. packing.torch.PackedCollator.for_model(model.config, row_length=...) "
  "makes batches in which the types of models that it accepts keep sequences apart."
)


class Influence(NamedTuple):
  """The outputs of example `target` change with the tokens of example `source`.

  `size` is the largest change, divided by the largest output.
  """

  source: int
  target: int
  size: float

  def __str__(self) -> str:
    return (
      f"The outputs of example {self.target} change with the tokens of example "
      f"{self.source}, by up to {self.size:.3g} of the largest output; expected 0."
    )


@dataclasses.dataclass(frozen=True)
class Isolation:
  """What `isolation` found; numbers are relative to the largest output of each alone.

  Attributes:
    influence: the largest change of an output when the tokens of another example change.
    difference: the largest difference of an output from that of its example alone.
    tolerance: the largest difference that rounding may cause in this dtype.
    leaks: the pairs of examples with an influence above `ROUNDING`.
    worst: the number of the example that differs most from itself alone.
  """

  influence: float
  difference: float
  tolerance: float
  leaks: tuple[Influence, ...]
  worst: int

  @property
  def verdict(self) -> Literal["isolated", "differs", "leaks"]:
    """`differs` means that no example influences another, but positions, say, are wrong."""
    if self.leaks:
      return "leaks"
    return "isolated" if self.difference <= self.tolerance else "differs"

  def error(self) -> AssertionError | None:
    """What `assert_isolated` raises; None if sequences are apart."""
    if self.leaks:
      rounding = _OF_16_BITS if self.tolerance > 1e-3 else ""
      return LeakError(self.leaks, rounding + _REMEDY)
    if self.verdict == "isolated":
      return None
    return AssertionError(
      f"No example influences another, but example {self.worst} differs from itself alone "
      f"by {self.difference:.3g} of the largest output; expected at most "
      f"{self.tolerance:.3g}. Look at position_ids: they restart in each sequence, and "
      "some models count from pad_token_id + 1. If the model computes in 16 bits inside, "
      f"it may be rounding; in float32 you see whether that is all. {_REMEDY}"
    )


def assert_isolated(
  model: Any,
  collate: Callable[[list[dict]], Mapping[str, Any]],
  *,
  examples: Sequence[Mapping[str, Any]] | None = None,
  alone: Callable[[Mapping[str, Any]], Any] | None = None,
):
  """Fails if a sequence of a batch influences another, or differs from itself alone.

  Arguments and other errors are as for `isolation`.

  Raises:
    LeakError: an AssertionError with the pairs of examples, source and target.
    AssertionError: nothing leaks, but outputs differ from those of each example alone.

  Example: a model that adds the mean of the row to each token.

    >>> table = np.random.default_rng(0).standard_normal((20, 4))
    >>> def model(input_ids):
    ...   x = table[input_ids]
    ...   return x + x.mean(axis=1, keepdims=True)
    >>> def one_row(examples):
    ...   return {"input_ids": np.concatenate([x["input_ids"] for x in examples])[None]}
    >>> examples = [{"input_ids": [1, 2, 3]}, {"input_ids": [7, 8]}]
    >>> assert_isolated(model, one_row, examples=examples)
    Traceback (most recent call last):
    packing.testing.LeakError: The outputs of example 1 change with the tokens ...
  """
  if error := isolation(model, collate, examples=examples, alone=alone).error():
    raise error


def isolation(
  model: Any,
  collate: Callable[[list[dict]], Mapping[str, Any]] | None = None,
  *,
  examples: Sequence[Mapping[str, Any]] | None = None,
  alone: Callable[[Mapping[str, Any]], Any] | None = None,
  on_failure: Literal["return", "warn", "raise"] = "return",
) -> Isolation:
  """Runs a model on a few short examples, together and alone, and compares.

  It takes eight small forward passes, so that a trainer can call it before its first step.
  The model is in evaluation mode meanwhile, and no gradient is computed.

  Args:
    model: a module of PyTorch, or any function, that takes what `collate` returns as
      arguments. Its output, `logits` or `last_hidden_state`, is [B, S, ...] like
      `input_ids`, or has one answer for each place of the batch's `cls_positions`.
    collate: from a list of examples to a batch with `input_ids`, such as the data collator
      of a trainer. It must not mask or cut tokens. A `PackedCollator` gets all examples as
      one pack, also inside a `MaskingCollator`, whose masking is left out, and inside the
      collator of `packed_trainer`. By default `PackedCollator.for_model(model.config,
      ...)`.
    examples: mappings with `input_ids`, whose token ids are all different; by default
      three, of random ids below `model.config.vocab_size`.
    alone: from an example to the model's output for it; by default
      `model(input_ids=...)` with no other argument.
    on_failure: whether to return what was found, or also to warn, or to raise as
      `assert_isolated`, if sequences are not apart.

  Raises:
    InputError: examples are fewer than two or share token ids, `collate` changes their
      tokens, or outputs have another shape or are not repeatable.
  """
  known = ("return", "warn", "raise")
  check(on_failure in known, "on_failure", on_failure, f"one of {', '.join(known)}")
  modes = [(part, part.training) for part in getattr(model, "modules", list)()]
  try:
    for part, _ in modes:
      part.training = False
    found = _measure(model, collate, examples, alone)
  finally:
    for part, was_training in modes:
      part.training = was_training
  error = found.error()
  if error and on_failure == "raise":
    raise error
  if error and on_failure == "warn":
    warnings.warn(str(error), stacklevel=2)
  return found


def _measure(model, collate, examples, alone) -> Isolation:
  if collate is None:
    from packing.torch import PackedCollator

    if not hasattr(model, "config"):
      raise InputError("The model has no config. Pass collate, such as your trainer's.")
    length = sum(len(x["input_ids"]) for x in examples) if examples else sum(LENGTHS)
    collate = PackedCollator.for_model(model.config, row_length=length)
  together = _of_one_row(collate)
  examples, others = _examples(model, examples)
  if alone is None:
    alone = functools.partial(_plain_call, model, together)
  with _no_gradients():
    before, tolerance = _outputs(model, together, examples)
    again, _ = _outputs(model, together, examples)
    for number, x in enumerate(before):
      if np.isnan(x).any():
        raise InputError(
          f"The output of example {number} has NaN, which proves nothing. Look at the "
          "weights, and at rows that the mask hides completely."
        )
    if any(not np.array_equal(a, b) for a, b in zip(before, again, strict=True)):
      raise InputError(
        "The model has other outputs for the same batch when it is called again. Turn off "
        "what is random in it, such as dropout."
      )
    expected = [
      _of_example(alone(example), x.shape)
      for example, x in zip(examples, before, strict=True)
    ]
    scale = max(map(_largest, expected)) or 1.0
    found = list[Influence]()
    for source, other in enumerate(others):
      changed = [*examples[:source], other, *examples[source + 1 :]]
      after, _ = _outputs(model, together, changed)
      for target, pair in enumerate(zip(before, after, strict=True)):
        found.append(Influence(source, target, _gap(*pair) / scale))
  for own in found:
    if own.source == own.target and not own.size:
      raise InputError(
        f"The outputs of example {own.source} do not depend on its tokens, so nothing "
        "would be proved. Look at the model's weights."
      )
  foreign = [pair for pair in found if pair.source != pair.target]
  gaps = [_gap(*pair) / scale for pair in zip(before, expected, strict=True)]
  worst = int(np.argmax(gaps))
  return Isolation(
    influence=float(np.max([pair.size for pair in foreign])),
    difference=gaps[worst],
    tolerance=tolerance,
    leaks=tuple(pair for pair in foreign if not pair.size <= ROUNDING),
    worst=worst,
  )


def _no_gradients() -> contextlib.AbstractContextManager:
  """PyTorch's, if the program has loaded it; other libraries compute none unasked."""
  torch = sys.modules.get("torch")
  return contextlib.nullcontext() if torch is None else torch.no_grad()


def _largest(x: np.ndarray) -> float:
  """The largest number; numbers beyond `LARGEST` fill masked entries and do not count."""
  sizes = np.abs(x)
  return float(sizes[sizes <= LARGEST].max(initial=0))


def _gap(a: np.ndarray, b: np.ndarray) -> float:
  """The largest difference; infinities and NaN that are equal do not differ."""
  different = (a != b) & ~((a != a) & (b != b))
  return float(np.abs(a[different] - b[different]).max(initial=0))


def _of_one_row(collate: Callable) -> Callable[[list[Example]], Mapping[str, Any]]:
  """`collate` of examples; a collator of packs, which is one of ours, gets one pack."""
  ours = sys.modules.get("packing.torch")
  if ours is None:
    return collate
  inner: Any = collate
  # The collators of `packed_trainer` and of masked tokens. Others may change the batch.
  while type(inner).__module__.startswith(f"{ours.__name__}.") and hasattr(
    inner, "collator"
  ):
    inner = inner.collator
  if not isinstance(inner, ours.PackedCollator):
    return collate

  def one_row(examples: list[Example]) -> Mapping[str, Any]:
    # The rows of a plan may be too short, or have too few places, for these examples.
    gaps = len(examples) * (inner.separator_tokens + 2 * inner.length_multiple)
    needed = sum(len(example["input_ids"]) for example in examples) + gaps
    wide = max(inner.row_length, needed)
    return dataclasses.replace(inner, row_length=wide, max_sequences=None)([examples])

  return one_row


def _examples(
  model: Any, examples: Sequence[Example] | None
) -> tuple[list[Example], list[Example]]:
  """The examples, and for each another one with tokens that no example has."""
  longest = max(LENGTHS)
  if examples is None:
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    size, needed = getattr(config, "vocab_size", None), sum(LENGTHS) + longest
    special = [getattr(config, f"{name}_token_id", None) for name in _SPECIAL]
    known = np.setdiff1d(np.arange(size or 0), [x for x in special if isinstance(x, int)])
    known = known[-max(3 * len(known) // 4, needed) :]  # most special tokens are in front
    if len(known) < needed:
      raise InputError(
        f"model.config.vocab_size is {size}; expected {needed} or more besides special "
        "tokens. Pass examples=[...] with token ids that are all different."
      )
    ids = np.random.default_rng(0).permutation(known)[:needed]
    parts = np.split(ids[:-longest], np.cumsum(LENGTHS)[:-1])
    examples, unused = [{"input_ids": part.tolist()} for part in parts], ids[-longest:]
  else:
    examples = [dict(example) for example in examples]
    check_integer("The number of examples", len(examples), at_least=2)
    for number, example in enumerate(examples):
      if not len(example.get("input_ids", ())):
        raise InputError(f"Example {number} has no input_ids; expected a token or more.")
    used = np.concatenate([np.asarray(x["input_ids"], int) for x in examples])
    ids, counts = np.unique(used, return_counts=True)
    if (counts > 1).any():
      raise InputError(
        f"Token {ids[counts > 1][0]} comes twice in the examples; expected tokens that are "
        "all different, so that each example is found in a batch. Leave out [CLS] and the "
        "like."
      )
    unused = np.setdiff1d(np.arange(used.max()), used)[::-1]
    longest = max(len(example["input_ids"]) for example in examples)
    if len(unused) < longest:
      raise InputError(
        f"The largest token id is {used.max()}, and {len(unused)} smaller ids are free; "
        f"expected {longest} or more, to replace an example by. Use larger ids."
      )
  others: list[Example] = [
    {**example, "input_ids": unused[: len(example["input_ids"])].tolist()}
    for example in examples
  ]
  return list(examples), others


def _outputs(
  model: Any, collate: Callable, examples: list[Example]
) -> tuple[list[np.ndarray], float]:
  """The outputs of each example in a batch of all, and what rounding may change."""
  batch = collate(examples)
  if not isinstance(batch, Mapping) or "input_ids" not in batch:
    told = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
    raise InputError(
      f"collate returned {told}; expected a mapping of the model's arguments, input_ids "
      "among them."
    )
  batch = {name: value for name, value in batch.items() if name != "labels"}
  ids = as_array("input_ids", batch["input_ids"])
  output = _output_of(model(**_on_device(batch, model)))
  dtypes = {dtype_name(output), *(dtype_name(x) for x in _parameters(model))}
  tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)
  array = as_array("output", output)
  starts = batch.get("cls_positions")
  of_sequences = starts is not None and array.shape[:2] == tuple(starts.shape)
  if not of_sequences and array.shape[:2] != ids.shape:
    raise InputError(
      f"The model's output has shape {array.shape}; expected one that begins with that of "
      f"input_ids, {ids.shape}."
    )
  found = []
  for number, example in enumerate(examples):
    row, first = _find(ids, np.asarray(example["input_ids"]), number)
    if of_sequences:
      item = int(np.flatnonzero(as_array("cls_positions", starts)[row] == first)[0])
      found.append(array[row, item : item + 1])
    else:
      found.append(array[row, first : first + len(example["input_ids"])])
  return found, tolerance


def _find(ids: np.ndarray, tokens: np.ndarray, number: int) -> tuple[int, int]:
  """The row of an example, and the place of its first token."""
  for row, first in zip(*np.nonzero(ids == tokens[0]), strict=True):
    if np.array_equal(ids[row, first : first + len(tokens)], tokens):
      return int(row), int(first)
  raise InputError(
    f"The tokens of example {number} are not in the batch as they were given. Use a "
    "collate that neither masks nor cuts them."
  )


def _plain_call(model: Any, collate: Callable, example: Example) -> Any:
  ids = np.asarray(example["input_ids"])[None]
  of_torch = hasattr(collate([example])["input_ids"], "detach")
  if of_torch:
    ids = sys.modules["torch"].as_tensor(ids)
  return model(**_on_device({"input_ids": ids}, model))


def _of_example(output: Any, shape: tuple[int, ...]) -> np.ndarray:
  """The output of an example alone, in the shape that it has in a batch."""
  array = as_array("output", _output_of(output))
  if array.size != np.prod(shape):
    raise InputError(
      f"The output of an example alone has shape {array.shape}; expected (1, *{shape})."
    )
  return array.reshape(shape)


def _output_of(output: Any) -> Any:
  """The tensor of a model's output."""
  for name in ("logits", "last_hidden_state"):
    of_mapping = output.get(name) if isinstance(output, Mapping) else None
    if (found := getattr(output, name, of_mapping)) is not None:
      return found
  first = output[0] if isinstance(output, tuple | list) and output else output
  if not hasattr(first, "shape"):
    raise InputError(
      f"The model returns a {type(output).__name__}; expected an array, or an object with "
      "logits or last_hidden_state."
    )
  return first


def _on_device(value: Any, model: Any) -> Any:
  """Tensors, also in dictionaries, on the device of the model."""
  if isinstance(value, Mapping):
    return {name: _on_device(x, model) for name, x in value.items()}
  if not hasattr(value, "to"):
    return value
  device = next((x.device for x in _parameters(model)), None)
  return value if device is None else value.to(device)


def _parameters(model: Any) -> list[Any]:
  return list(model.parameters()) if hasattr(model, "parameters") else []
