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

from packing.errors import InputError, check
from packing.testing.influence import LeakError
from packing.testing.probe import TOLERANCES, as_array, dtype_name

Example = Mapping[str, Any]
LENGTHS = (7, 9, 5)  # of the examples that are tried if none are given
# A larger influence is a leak, in any dtype: where sequences are apart, it is exactly 0.
# Only experts, which multiply the tokens of all sequences together, may round differently.
ROUNDING = 1e-5
_OF_16_BITS = (
  "In 16 bits a model with experts may round differently with other sequences; in float32 "
  "you see whether that is all. "
)
_REMEDY = (
  "packing.torch.PackedCollator.for_model(model.config, row_length=...) makes batches in "
  "which the types of models that it accepts keep sequences apart."
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
      f"{self.source}, by up to {self.size:.3g} of the largest output; expected no change."
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
      f"some models count from pad_token_id + 1. {_REMEDY}"
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

    >>> import torch
    >>> class Mean(torch.nn.Module):
    ...   def __init__(self):
    ...     super().__init__()
    ...     self.table = torch.nn.Embedding(50, 4)
    ...   def forward(self, input_ids):
    ...     x = self.table(input_ids)
    ...     return x + x.mean(1, keepdim=True)
    >>> def one_row(examples):
    ...   ids = [x for example in examples for x in example["input_ids"]]
    ...   return {"input_ids": torch.tensor([ids])}
    >>> examples = [{"input_ids": [1, 2, 3]}, {"input_ids": [7, 8]}]
    >>> assert_isolated(Mean(), one_row, examples=examples)
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
      `input_ids`, or has one answer for each place of the batch's `sequence_starts`.
    collate: from a list of examples to a batch with `input_ids`, such as the data collator
      of a trainer. A `PackedCollator` gets all examples as one pack. It must not mask or
      cut tokens. By default `PackedCollator.for_model(model.config, ...)`.
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
  was_training = getattr(model, "training", False)
  if was_training:
    model.eval()
  try:
    found = _measure(model, collate, examples, alone)
  finally:
    if was_training:
      model.train()
  error = found.error()
  if error and on_failure == "raise":
    raise error
  if error and on_failure == "warn":
    warnings.warn(str(error), stacklevel=2)
  return found


def _measure(model, collate, examples, alone) -> Isolation:
  if collate is None:
    from packing.torch import PackedCollator

    length = sum(len(x["input_ids"]) for x in examples) if examples else sum(LENGTHS)
    collate = PackedCollator.for_model(model.config, row_length=length)
  together = _of_one_row(collate)
  examples, others = _examples(model, examples)
  if alone is None:
    alone = functools.partial(_plain_call, model)
  with _no_gradients():
    before, tolerance = _outputs(model, together, examples)
    again, _ = _outputs(model, together, examples)
    if any(not np.array_equal(a, b) for a, b in zip(before, again, strict=True)):
      raise InputError(
        "The model has other outputs for the same batch when it is called again. Turn off "
        "what is random in it, such as dropout."
      )
    expected = [
      _of_example(alone(example), x.shape)
      for example, x in zip(examples, before, strict=True)
    ]
    scale = max(float(np.abs(x).max(initial=0)) for x in expected) or 1.0
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
        "would be proved. Give the model weights that are not zero."
      )
  foreign = [pair for pair in found if pair.source != pair.target]
  gaps = [_gap(*pair) / scale for pair in zip(before, expected, strict=True)]
  worst = int(np.argmax(gaps))
  return Isolation(
    influence=max(pair.size for pair in foreign),
    difference=gaps[worst],
    tolerance=tolerance,
    leaks=tuple(pair for pair in foreign if not pair.size <= ROUNDING),
    worst=worst,
  )


def _no_gradients() -> contextlib.AbstractContextManager:
  """PyTorch's, if the program has loaded it; other libraries compute none unasked."""
  torch = sys.modules.get("torch")
  return contextlib.nullcontext() if torch is None else torch.no_grad()


def _gap(a: np.ndarray, b: np.ndarray) -> float:
  """The largest difference; infinities and NaN that are equal do not differ."""
  different = (a != b) & ~((a != a) & (b != b))
  return float(np.abs(a[different] - b[different]).max(initial=0))


def _of_one_row(collate: Callable) -> Callable[[list[Example]], Mapping[str, Any]]:
  """`collate` of examples; a `PackedCollator`, which takes packs, gets one."""
  if hasattr(collate, "row_length"):
    return lambda examples: collate([examples])
  return collate


def _examples(
  model: Any, examples: Sequence[Example] | None
) -> tuple[list[Example], list[Example]]:
  """The examples, and for each another one with tokens that no example has."""
  longest = max(LENGTHS)
  if examples is None:
    config = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    size, needed = getattr(config, "vocab_size", None), sum(LENGTHS) + longest
    if not isinstance(size, int) or size < needed:
      raise InputError(
        f"model.config.vocab_size is {size}; expected {needed} or more. Pass "
        "examples=[...] with token ids that are all different."
      )
    first = min(size // 4, size - needed)  # special tokens stand in front
    ids = first + np.random.default_rng(0).permutation(size - first)[:needed]
    parts = np.split(ids[:-longest], np.cumsum(LENGTHS)[:-1])
    examples, unused = [{"input_ids": part.tolist()} for part in parts], ids[-longest:]
  else:
    examples = [dict(example) for example in examples]
    used = np.concatenate([np.asarray(x["input_ids"], int) for x in examples] or [[]])
    if len(examples) < 2 or len(np.unique(used)) < len(used):
      raise InputError(
        f"The {len(examples)} examples have {len(used)} tokens, {len(np.unique(used))} of "
        "them different. Expected two examples or more, in which no token comes twice, so "
        "that each is found in a batch."
      )
    unused = np.setdiff1d(np.arange(used.max()), used)[::-1]
    longest = max(len(example["input_ids"]) for example in examples)
    if len(unused) < longest:
      raise InputError(
        f"Below the largest token id, {used.max()}, {len(unused)} are not used; expected "
        f"{longest} or more, by which an example is replaced. Use other token ids."
      )
  others = [
    {**example, "input_ids": unused[: len(example["input_ids"])].tolist()}
    for example in examples
  ]
  return examples, others


def _outputs(
  model: Any, collate: Callable, examples: list[Example]
) -> tuple[list[np.ndarray], float]:
  """The outputs of each example in a batch of all, and what rounding may change."""
  batch = dict(collate(examples))
  batch.pop("labels", None)
  ids = as_array("input_ids", batch["input_ids"])
  output = _output_of(model(**_on_device(batch, model)))
  tolerance = TOLERANCES.get(dtype_name(output), 0.0)
  array = as_array("output", output)
  starts = batch.get("sequence_starts")
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
      item = int(np.flatnonzero(as_array("sequence_starts", starts)[row] == first)[0])
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


def _plain_call(model: Any, example: Example) -> Any:
  ids = np.asarray(example["input_ids"])[None]
  torch = sys.modules.get("torch")
  if torch is not None and isinstance(model, torch.nn.Module):
    ids = torch.as_tensor(ids)
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
    if getattr(output, name, None) is not None:
      return getattr(output, name)
  return output[0] if isinstance(output, tuple | list) else output


def _on_device(value: Any, model: Any) -> Any:
  """Tensors, also in dictionaries, on the device of the model."""
  if isinstance(value, Mapping):
    return {name: _on_device(x, model) for name, x in value.items()}
  if not hasattr(value, "to") or not hasattr(model, "parameters"):
    return value
  device = next((x.device for x in model.parameters()), None)
  return value if device is None else value.to(device)
