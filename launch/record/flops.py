"""Matrix-product operations of a training step, and the peak rate of the devices."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import packing
from model import SKIPPING, BertConfig, EncoderConfig, ModelConfig, ModernBertConfig
from model.attention import window_pairs
from model.attention.kernels import is_local
from model.masks import pairs_within
from model.products import multiplies_bfloat16


def training_flops(
  config: ModelConfig,
  *,
  rows: int,
  row_length: int,
  mlm_slots: int,
  max_sequences: int,
  head: str = "pretraining",
  pairs: int | None = None,
) -> int:
  """Floating-point operations of the matrix products of one training step.

  A product of [a, b] with [b, c] is 2abc operations; the backward pass has two products for
  each of the forward pass. Padding tokens count too. What is computed twice to save memory
  counts once.

  Args:
    config: the model's config.
    rows: B, packs per step, over all devices.
    row_length: S, in tokens.
    mlm_slots: P, the most masked tokens of a row.
    max_sequences: M, the most sequences of a row.
    head: the model's head; a key of `model.MODELS`.
    pairs: pairs of tokens in attention, over all rows and layers. None for B x S x S in
      each layer, also of a causal model, or in local layers the pairs that `xla` computes.

  Example:
    >>> base = BertConfig.from_size("base", vocab_size=30522, max_position_embeddings=512)
    >>> flops = training_flops(base, rows=1, row_length=128, mlm_slots=20, max_sequences=1)
    >>> f"{flops / 1e9:.1f} GFLOP a row"
    '69.9 GFLOP a row'

  References:
    Chowdhery et al., https://arxiv.org/abs/2204.02311, appendix B.
  """
  width, tokens = config.hidden_size, row_length
  projections = 2 * tokens * width * (4 * width)  # query, key, value and output
  if pairs is None:
    pairs = rows * _pairs(config, row_length)
  attention = 2 * (2 * pairs * width)  # the scores, and their product with the values
  feed_forward = 2 * tokens * width * _feed_forward_widths(config)
  layers = config.num_layers * (projections + feed_forward)
  if config.embedding_width != width:
    layers += 2 * tokens * config.embedding_width * width
  # Of the vectors of pairs, the products with each other are not counted.
  heads = {"causal": 2 * tokens * width * config.vocab_size, "encoder": 0}
  if isinstance(config, EncoderConfig):
    of_classes = width * (width + config.num_labels)
    of_tags = width * config.num_labels if isinstance(config, BertConfig) else of_classes
    narrow = config.embedding_width
    heads |= {
      "pretraining": 2 * mlm_slots * narrow * (width + config.vocab_size),
      "sequence_classification": 2 * max_sequences * of_classes,
      "token_classification": 2 * tokens * of_tags,
      "question_answering": 2 * tokens * width * 2,
    }
    if isinstance(config, BertConfig) and config.next_sentence:
      heads["pretraining"] += 2 * max_sequences * width * (width + 2)
  # The gradient of the vocabulary's bias is a product with ones.
  bias = 2 * mlm_slots * config.vocab_size if head == "pretraining" else 0
  return rows * (3 * (layers + heads[head]) + bias) + 3 * attention


def _pairs(config: ModelConfig, row_length: int) -> int:
  """Pairs of tokens in the attention of one row, over all layers."""
  windows = map(config.window_of, range(config.num_layers))
  return sum(window_pairs(row_length, window) for window in windows)


def _feed_forward_widths(config: ModelConfig) -> int:
  """The width of the feed-forward layer times its number of matrix products."""
  return (3 if isinstance(config, ModernBertConfig) else 2) * config.intermediate_size


def attended_pairs(
  config: ModelConfig,
  plan: packing.Plan,
  *,
  rows: int,
  texts: np.ndarray | None = None,
) -> int | None:
  """Pairs of tokens that attention computes in a step, on average, over all layers.

  In local layers, these are the pairs within the window.

  Args:
    config: the model's config.
    plan: of the training sequences.
    rows: packs per step, over all devices.
    texts: int[T]; the lengths of all texts, if the plan packs records of several.

  Returns:
    None if attention computes all pairs of a row, not only those within sequences.
  """
  if config.attention_impl not in SKIPPING or config.attention_mask == "none":
    return None
  lengths = [np.array(strategy) for strategy in plan.strategies]

  def of_a_row(window: int | None) -> float:
    if window is not None and not is_local(config.attention_impl):
      return window_pairs(plan.row_length, window)  # xla computes this layer
    if texts is not None:
      return float(pairs_within(texts, window).sum() / plan.num_packs)
    each = [pairs_within(x, window).sum() for x in lengths]
    return float(np.average(each, weights=plan.repeat_counts))

  return round(rows * sum(of_a_row(config.window_of(i)) for i in range(config.num_layers)))


# The vendors' peak rates by device_kind, in TFLOP/s of one device without sparsity: for
# bfloat16, and for float32 as XLA computes it by default, in TF32 on NVIDIA and in bfloat16
# on TPUs.
_A100, _HOPPER = (312.0, 156.0), (989.4, 494.7)
PEAKS = {
  "NVIDIA A100-SXM4-40GB": _A100,
  "NVIDIA A100-SXM4-80GB": _A100,
  "NVIDIA A100-PCIE-40GB": _A100,
  "NVIDIA A100 80GB PCIe": _A100,
  "NVIDIA H100 80GB HBM3": _HOPPER,
  "NVIDIA H200": _HOPPER,
  "TPU v4": (275.0, 275.0),
  "TPU v5 lite": (197.0, 197.0),
  "TPU v5": (459.0, 459.0),
  "TPU v5p": (459.0, 459.0),
  "TPU v6 lite": (918.0, 918.0),
}


@dataclasses.dataclass(frozen=True)
class Peak:
  """The peak rate of several devices together.

  Attributes:
    flops: operations of matrix products per second.
    source: "table", the vendors' figures; "measured", if the table lacks the
      device.
  """

  flops: float
  source: str


class Cost(NamedTuple):
  """What a step has to compute, and the devices' peak rate.

  Attributes:
    packs: rows, over all devices.
    tokens: all tokens of these rows, including padding.
    flops: operations of the step's matrix products.
    peak: the peak rate of all devices.
  """

  packs: int
  tokens: int
  flops: float
  peak: Peak


def peak_of(devices: Sequence[jax.Device], *, dtype: str) -> Peak:
  """The peak rate of matrix products of several devices of one kind.

  Args:
    devices: the devices of the mesh, including those of other processes.
    dtype: dtype of the computation, "float32" or "bfloat16".
  """
  if devices[0].device_kind in PEAKS:
    rate = PEAKS[devices[0].device_kind][("bfloat16", "float32").index(dtype)]
    return Peak(1e12 * rate * len(devices), "table")
  local = [device for device in devices if device.process_index == jax.process_index()]
  return Peak(_measure(local, dtype) * len(devices) / len(local), "measured")


@jax.jit
def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
  """float[M, N] and float[N, K] -> float[M, K], as fast as the model's products can be.

  CPUs with instructions for bfloat16 have them only for results in float32, for which the
  model asks; see `model.products`.
  """
  wide = a.dtype == jnp.bfloat16 and multiplies_bfloat16()
  return jnp.matmul(a, b, preferred_element_type=jnp.float32 if wide else None)


def _measure(devices: Sequence[jax.Device], dtype: str) -> float:
  """The best rate of five products, run on all devices at once since they may share cores.

  The matrices grow until a product takes long enough for the clock.
  """
  for size in itertools.accumulate(itertools.repeat(2), int.__mul__, initial=512):
    ones = [jax.device_put(jnp.ones((size, size), dtype), device) for device in devices]

    def seconds(ones=ones) -> float:
      start = time.perf_counter()
      jax.block_until_ready([multiply(x, x) for x in ones])
      return time.perf_counter() - start

    seconds()  # compiles
    best = min(seconds() for _ in range(5))
    if best > 0.01:
      break
  return len(devices) * 2 * size**3 / best
