"""Batches sorted by length; the cost of a row; and batches of equal cost."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import numbers
from typing import Any, Protocol

import numpy as np

from packing.errors import (
  InputError,
  check,
  check_integer,
  check_numbers,
  multiples_near,
)
from packing.histogram import Histogram


@dataclasses.dataclass(frozen=True)
class SortedBatches:
  """The cost of sorted batching.

  Attributes:
    batch_size: sequences in a batch.
    num_batches: the number of batches; the last batch may be smaller.
    num_shapes: the number of different lengths that batches are padded to, each of which
      is a shape to compile.
    num_tokens: tokens of all batches, padding included.
    num_padding_tokens: how many of them are padding.
    efficiency: real tokens / all tokens, a fraction.
    packing_factor: tokens with full padding / `num_tokens`, comparable to a plan's.
    sequences_by_length: the number of sequences that are padded to each length.
  """

  batch_size: int
  num_batches: int
  num_shapes: int
  num_tokens: int
  num_padding_tokens: int
  efficiency: float
  packing_factor: float
  sequences_by_length: dict[int, int]


def sorted_batches(
  histogram: Histogram, *, batch_size: int = 256, length_multiple: int = 1
) -> SortedBatches:
  """Counts sorted batches: sequences in order of length, padded to the longest in a batch.

  Args:
    histogram: the lengths.
    batch_size: sequences in a batch.
    length_multiple: batches are padded to a multiple of this many tokens.

  Returns:
    The number of batches, tokens, padding tokens and shapes.

  Raises:
    InputError: batch_size or length_multiple below 1.

  Example:
    >>> histogram = Histogram.from_lengths([3, 5, 2, 5], max_sequence_length=8)
    >>> batches = sorted_batches(histogram, batch_size=2)
    >>> batches.num_shapes, batches.num_padding_tokens, batches.packing_factor
    (2, 1, 2.0)

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, Table 1 (SORT).
  """
  for name, value in (("batch_size", batch_size), ("length_multiple", length_multiple)):
    check_integer(name, value, at_least=1)
  n = histogram.num_sequences
  num_batches = -(-n // batch_size)
  ranks = np.cumsum(histogram.counts)
  # A batch is padded to the length of its last sequence. Count batches by that length:
  last_full = ranks // batch_size  # full batches that end within the first `rank` sequences
  batches = np.diff(last_full, prepend=0)
  lengths = np.arange(1, ranks.size + 1)
  padded = -(-lengths // length_multiple) * length_multiple
  by_length: collections.Counter[int] = collections.Counter()
  for index in np.flatnonzero(batches).tolist():
    by_length[int(padded[index])] += int(batches[index]) * batch_size
  rest = n % batch_size
  if rest:
    by_length[-(-histogram.longest // length_multiple) * length_multiple] += rest
  num_tokens = sum(length * count for length, count in by_length.items())
  return SortedBatches(
    batch_size=batch_size,
    num_batches=num_batches,
    num_shapes=len(by_length),
    num_tokens=num_tokens,
    num_padding_tokens=num_tokens - histogram.num_tokens,
    efficiency=histogram.num_tokens / num_tokens,
    packing_factor=n * histogram.max_sequence_length / num_tokens,
    sequences_by_length=dict(by_length),
  )


class Layers(Protocol):
  """The fields of an encoder's config that determine the cost of a token and of a pair."""

  hidden_size: int
  intermediate_size: int


# Types of transformers whose layers are BERT's, and those of which all layers have Llama's
# gated feed-forward part, with three matrices, and full causal attention.
_AS_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie")
_AS_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "gemma", "olmo", "olmo2", "granite")


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a row: `linear` for each token, `quadratic` for each pair of tokens.

  Only pairs within a sequence count, so their number is the sum of squared lengths. (Where
  attention computes whole rows, it is the squared row length instead.)

  Attributes:
    linear: the cost of a token of the row, padding included.
    quadratic: the cost of a pair of tokens, in the same unit.

  Raises:
    InputError: one of them is negative or not a finite number, or both are zero.

  Example:
    >>> Cost(linear=1.0, quadratic=0.01).of([(100,), (50, 50)], row_length=100).tolist()
    [200.0, 150.0]
  """

  linear: float = 1.0
  quadratic: float = 0.0

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      number = math.nan
      if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
          number = float(value)  # products of integers of small types overflow
      check(0 <= number < math.inf, name, value, "a number, at least 0")
      object.__setattr__(self, name, number)
    if not self.linear and not self.quadratic:
      raise InputError("linear and quadratic are 0; expected one of them above 0.")

  @classmethod
  def of_bert(cls, config: Layers) -> Cost:
    """Counts the operations of an encoder layer; the unit is the cost of one token.

    A token is multiplied by the query, key, value and output matrices and by the two of the
    feed-forward layer. A pair takes one product of head vectors for its score and one for
    its value.

    Raises:
      InputError: the config is of a type of transformers with other layers.

    Example:
      >>> import types
      >>> base = types.SimpleNamespace(hidden_size=768, intermediate_size=3072)
      >>> round(1 / Cost.of_bert(base).quadratic)  # pairs that cost as much as a token
      4608
    """
    model_type = getattr(config, "model_type", "bert")
    if model_type not in _AS_BERT:
      raise InputError(
        f"{model_type} does not have BERT's layers. Use Cost.of_model(config), or give "
        "Cost the price of a token and of a pair."
      )
    width, inner = config.hidden_size, config.intermediate_size
    return cls(1.0, 2 * width / (4 * width**2 + 2 * width * inner))

  @classmethod
  def of_model(cls, config: Any) -> Cost:
    """Counts the operations of a layer of a model of transformers, as `of_bert` does.

    Gated feed-forward parts have three matrices; key and value matrices are as small as
    grouped queries make them; and of causal attention only half of the pairs are computed.

    Args:
      config: that of the model, such as `model.config`.

    Raises:
      InputError: the type is none of those that are counted (BERT and Llama, and others
        with the same layers), or its attention has a window.

    Example:
      >>> import types
      >>> llama = types.SimpleNamespace(model_type="llama", hidden_size=4096, head_dim=128,
      ...   num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336)
      >>> round(1 / Cost.of_model(llama).quadratic)  # Llama-3-8B
      53248
    """
    model_type = getattr(config, "model_type", None)
    if model_type in _AS_BERT:
      return cls.of_bert(config)
    window = getattr(config, "sliding_window", None)
    if model_type not in _AS_LLAMA or window is not None:
      what = f"{model_type} with a window of {window}" if window else model_type
      raise InputError(
        f"The operations of {what} are not counted; expected one of "
        f"{', '.join((*_AS_BERT, *_AS_LLAMA))}. Give Cost the price of a token and a pair."
      )
    width, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or width // heads
    token = 2 * width * size * (heads + groups) + 3 * width * inner
    return cls(1.0, heads * size / token)  # half of 2 x heads x size

  def of(self, packs, *, row_length: int) -> np.ndarray:
    """float[N]; the cost of a row of this length, for each of some packs of lengths."""
    squares = [sum(int(length) ** 2 for length in pack) for pack in packs]
    return self.of_squares(squares, row_length=row_length)

  def of_squares(self, squares, *, row_length: int) -> np.ndarray:
    """float[...]; the cost of rows, given the sums of their squared lengths."""
    return self.linear * row_length + self.quadratic * np.asarray(squares, float)


def _check_step(packs: int, parts: int, name: str):
  check_integer("The number of packs of a step", packs, at_least=1)
  check_integer(f"The number of {name}", parts, at_least=1)
  if packs % parts:
    raise InputError(
      f"A step has {packs} packs; expected a multiple of the number of {name}, {parts}, "
      f"such as {multiples_near(packs, parts)}."
    )


def deal(costs, devices: int) -> np.ndarray:
  """Orders the packs of a step: the same number and nearly the same cost for each device.

  The packs are dealt in rounds, the costliest first: in each round the device with the
  lowest cost so far takes the costliest pack.

  Args:
    costs: float or int[B]; the costs of the packs of a step.
    devices: the number of devices, each of which takes an equal block; a divisor of B.

  Returns:
    int64[B]; the numbers of the packs of the first device, then those of the next.

  Raises:
    InputError: the devices do not divide the packs, or a cost is negative or not finite.

  Example:
    >>> deal([9, 1, 5, 6], devices=2).tolist()  # 9 + 1 and 6 + 5
    [0, 1, 3, 2]
  """
  costs = check_numbers("costs", costs, axes=1)
  _check_step(costs.size, devices, "devices")
  rounds = np.argsort(-costs, kind="stable").reshape(-1, devices)
  dealt = np.empty_like(rounds)
  so_far = np.zeros(devices, costs.dtype)
  for number, packs in enumerate(rounds):
    order = np.argsort(so_far, kind="stable")
    dealt[number, order] = packs
    so_far[order] += costs[packs]
  return dealt.T.ravel()


def balanced_order(
  costs, *, batch_size: int, group: int, first_row: int, rng: np.random.Generator
) -> np.ndarray:
  """A random order of the packs of an epoch, with nearly equal cost per step or device.

  The packs are sorted by cost, with ties in random order, and cut into groups of
  neighbours. The groups are cut into as many strata as a step has groups, and each step
  takes one random group of every stratum. Some packs are left over because steps reach
  across the ends of epochs; these are spread evenly over all costs.

  With groups of one pack, all steps cost nearly the same. With one pack per device in a
  group, `deal` gives all devices of a step nearly the same cost, however few rows each of
  them has, but steps differ more.

  Args:
    costs: float or int[P]; the costs of the packs.
    batch_size: B, the number of packs in a step.
    group: the number of packs of similar cost that stay together; a divisor of B.
    first_row: the number of rows of all earlier epochs; steps begin at multiples of B.
    rng: the source of randomness.

  Returns:
    int64[P]; the numbers of the packs.

  Raises:
    InputError: the group does not divide the batch, or a cost is negative or not finite.

  Example:
    >>> rng = np.random.default_rng(0)
    >>> options = {"batch_size": 2, "first_row": 0, "rng": rng}
    >>> order = balanced_order([1, 2, 8, 9], group=1, **options).reshape(2, 2)
    >>> np.sort(order // 2).tolist()  # each step has one of the two costlier packs
    [[0, 1], [0, 1]]
    >>> order = balanced_order([1, 2, 8, 9], group=2, **options).reshape(2, 2)
    >>> order[:, 0] // 2 == order[:, 1] // 2  # one step has both
    array([ True,  True])
  """
  _check_step(batch_size, group, "packs of a group")
  costs = check_numbers("costs", costs, axes=1)
  number, strata = costs.size, batch_size // group
  by_cost = rng.permutation(number)
  by_cost = by_cost[np.argsort(costs[by_cost], kind="stable")]
  head = min(-first_row % batch_size, number)
  steps, tail = divmod(number - head, batch_size)
  over = head + tail
  is_over = np.zeros(number, bool)
  is_over[((np.arange(over) + rng.random()) * number / max(over, 1)).astype(int)] = True
  groups = by_cost[~is_over].reshape(strata, steps, group)
  chosen = rng.permuted(np.tile(np.arange(steps), (strata, 1)), axis=1)
  whole = groups[np.arange(strata), chosen.T].ravel()
  left = by_cost[is_over]
  is_head = np.diff(np.arange(over + 1) * head // max(over, 1)) > 0
  return np.concatenate([left[is_head], whole, left[~is_head]])


def waiting(costs, *, devices: int) -> float:
  """The share of time that devices wait for the slowest device, averaged over steps.

  Args:
    costs: float or int[steps, B]; the costs of the packs, the first device's first.
    devices: the number of devices, each of which has an equal block of a step.

  Raises:
    InputError: the devices do not divide the packs of a step, there is no step, or a cost
      is negative or not finite.

  Example:
    >>> waiting([[3, 1, 2, 2], [4, 4, 1, 1]], devices=2)  # 0, then 3/8
    0.1875
  """
  costs = check_numbers("costs", costs, axes=2)
  check_integer("The number of steps", len(costs), at_least=1)
  _check_step(costs.shape[1], devices, "devices")
  of_devices = costs.reshape(len(costs), devices, -1).sum(axis=2)
  slowest = of_devices.max(axis=1)
  busy = of_devices.mean(axis=1) / np.where(slowest > 0, slowest, 1)
  return float(np.where(slowest > 0, 1 - busy, 0).mean())
