import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import attention as attention_lib
from model import kernels
from model.attention import (
  alibi_slopes,
  attention,
  dot_product_attention,
  packed_attention_mask,
  padding_attention_mask,
  split_by_token_type,
)
from model.kernels import AttentionError
from tests import packs

# Interpreted, a kernel of the TPU runs anywhere.
FUSED = [("splash_interpret", jnp.float32, 1e-5), ("splash_interpret", jnp.bfloat16, 3e-2)]
ROW_LENGTH = 128  # the smallest that splash takes
ROWS = [[128], [50, 50, 21], [2] * 7, [100, 1], []]


def make_inputs(dtype, num_heads=3, head_size=10):
  segment_ids = np.zeros((len(ROWS), ROW_LENGTH), np.int32)
  for row, lengths in enumerate(ROWS):
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    segment_ids[row, : len(ids)] = ids
  rng = np.random.default_rng(0)
  shape = (len(ROWS), ROW_LENGTH, num_heads, head_size)
  arrays = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(4))
  return *arrays, segment_ids


def test_the_masks_equal_a_triple_loop():
  segment_ids = np.array([[1, 1, 2, 3, 3, 3, 0], [1, 2, 2, 2, 0, 0, 0], [0] * 7])
  packed = np.asarray(packed_attention_mask(segment_ids))
  padding = np.broadcast_to(padding_attention_mask(segment_ids), packed.shape)
  for row, ids in enumerate(segment_ids):
    for query in range(7):
      for key in range(7):
        assert packed[row, 0, query, key] == (ids[query] == ids[key] != 0)
        assert padding[row, 0, query, key] == (ids[key] != 0)


def test_segment_ids_of_another_rank_are_refused():
  with pytest.raises(ValueError, match=r"shape \[B, S\], found \(3,\)"):
    packed_attention_mask(np.array([1, 1, 2]))


def test_sentences_are_numbered_by_sequence_and_token_type():
  segment_ids = np.array([[1, 1, 1, 2, 3, 3, 0]])
  token_type_ids = np.array([[0, 0, 1, 0, 0, 2, 0]])
  ids = split_by_token_type(segment_ids, token_type_ids, token_types=3)
  assert ids.tolist() == [[1, 1, 2, 4, 7, 9, 0]]


def test_what_another_sequence_shouts_is_not_heard():
  """A key that everybody wants to attend to, with a value that everybody would notice."""
  query = key = value = jnp.ones((1, 5, 1, 3))
  key, value = key.at[0, 3].set(100.0), value.at[0, 3].set(300.0)
  heard = attention(query, key, value, jnp.array([[1, 1, 1, 2, 2]]))
  assert (heard[0, :3] == 1).all()
  assert (heard[0, 3:] == 300).all()


@functools.partial(jax.jit, static_argnames=("implementation", "mask", "causal"))
def output_and_gradients(
  query, key, value, weights, segment_ids, *, implementation, mask, causal
):
  real = (segment_ids > 0)[:, :, None, None]

  def total(query, key, value):
    output = attention(
      query,
      key,
      value,
      segment_ids,
      implementation=implementation,
      mask=mask,
      causal=causal,
    )
    output = jnp.where(real, output, 0)
    return (output.astype(jnp.float32) * weights.astype(jnp.float32)).sum(), output

  gradients, output = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(query, key, value)
  return output, gradients


@pytest.mark.parametrize(
  ("mask", "causal"),
  [
    ("segment", False),
    pytest.param("none", False, marks=pytest.mark.slow),
    ("segment", True),
    pytest.param("none", True, marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize(("implementation", "dtype", "tolerance"), FUSED)
def test_fused_attention_equals_xla(implementation, dtype, tolerance, mask, causal):
  *inputs, segment_ids = make_inputs(dtype)
  ours, reference = (
    output_and_gradients(
      *inputs, segment_ids, implementation=name, mask=mask, causal=causal
    )
    for name in (implementation, "xla")
  )
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert np.isfinite(a).all()
    assert np.abs(a - b).max() < tolerance * np.abs(b).max()


def test_softmax_is_in_float32_for_bfloat16():
  query = key = jnp.ones((1, 2, 1, 1), jnp.bfloat16)
  program = str(jax.make_jaxpr(attention)(query, key, key, jnp.ones((1, 2), jnp.int32)))
  assert re.findall(r"(\w+)\[1,1,2,2\] = exp ", program) == ["f32"]
  # The scores too: float32 is asked of the product, not made of its rounded result.
  assert re.findall(r"(\w+)\[1,1,2,2\] = dot_general", program) == ["f32"]


def test_dropout_scales_what_it_keeps():
  query, key, value, _, segment_ids = make_inputs(jnp.float32)
  drop = functools.partial(attention, query, key, jnp.ones_like(value), segment_ids)
  kept = drop(dropout_rate=0.25, dropout_key=jax.random.key(0))
  assert (drop(dropout_rate=0.25) == drop()).all()
  assert kept[0].mean() == pytest.approx(1.0, abs=0.02)
  assert kept[0].std() > 0.01


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"attention_impl": "flash"}, "no attention_impl 'flash'; expected one of xla, cudnn"),
    ({"attention_impl": "cudnn"}, "needs NVIDIA GPUs since Ampere, found cpu"),
    ({"attention_impl": "cudnn_packed"}, "needs NVIDIA GPUs since Hopper, found cpu"),
    (
      {"attention_impl": "splash"},
      r"needs TPUs, found cpu\. Use such a device, or attention_impl=xla\.",
    ),
    ({"attention_dropout_rate": 0.1}, "needs an attention dropout of 0, found 0.1"),
    ({"dtype": jnp.float64}, "needs float32 or bfloat16, found float64"),
    ({"row_length": 130}, "needs rows of a multiple of 128 tokens, found 130"),
    ({"positions": "alibi"}, "needs scores without a bias, found ALiBi's"),
  ],
)
def test_what_an_implementation_cannot_do_is_refused(fields, message):
  possible = {"attention_impl": "splash_interpret", "num_heads": 1, "positions": "learned"}
  attention_lib.check(packs.small_gpt2(**possible), ROW_LENGTH)
  fields = {"row_length": ROW_LENGTH} | possible | fields
  row_length = fields.pop("row_length")
  with pytest.raises(AttentionError, match=message):
    attention_lib.check(packs.small_gpt2(**fields), row_length)


def test_head_sizes_are_checked_too(monkeypatch):
  monkeypatch.setattr(jax, "local_devices", lambda: [Device("9.0")])
  config = packs.small_config(attention_impl="cudnn", dtype="bfloat16")
  with pytest.raises(AttentionError, match="heads of a multiple of 8, found 7"):
    attention_lib.check(config, ROW_LENGTH)


def test_a_call_is_checked_too():
  x = jnp.ones((1, 4, 1, 2))
  with pytest.raises(AttentionError, match="multiple of 128 tokens, found 4"):
    attention(x, x, x, jnp.ones((1, 4), jnp.int32), implementation="splash_interpret")


class Device:
  platform = "gpu"
  device_kind = "a GPU"

  def __init__(self, capability):
    self.compute_capability = capability


@pytest.mark.parametrize(
  ("implementation", "capability", "allowed"),
  [
    ("cudnn", "7.5", False),
    ("cudnn", "8.0", True),
    ("cudnn_packed", "8.9", False),
    ("cudnn_packed", "10.0", True),
  ],
)
def test_gpus_are_told_apart(monkeypatch, implementation, capability, allowed):
  monkeypatch.setattr(jax, "local_devices", lambda: [Device(capability)])
  config = packs.small_config(
    hidden_size=64, num_heads=1, attention_impl=implementation, dtype=jnp.bfloat16
  )
  check = functools.partial(attention_lib.check, config, ROW_LENGTH)
  if allowed:
    check()
  else:
    with pytest.raises(AttentionError, match=f"of compute capability {capability}"):
      check()


@pytest.mark.parametrize("max_segments", [1, 7])
def test_the_layout_for_cudnn_equals_a_loop(max_segments):
  rows = [ids for ids in ROWS if len(ids) <= max_segments]
  segment_ids = np.zeros((len(rows), ROW_LENGTH), np.int32)
  width = max(max_segments, 2)
  lengths = np.full((len(rows), width), -1)
  starts = np.full((len(rows), width + 1), -1)
  for row, sizes in enumerate(rows):
    start = 0
    for number, size in enumerate(sizes):
      segment_ids[row, start : start + size] = number + 1
      lengths[row, number], starts[row, number] = size, start
      start += size
  ours = kernels.segment_lengths_and_starts(segment_ids, max_segments)
  assert ours[0].tolist() == lengths.tolist()
  assert ours[1].tolist() == starts.tolist()


def test_cudnn_still_takes_offsets():
  """`cudnn_packed` calls a private function of JAX."""
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  parameters = inspect.signature(cudnn.dot_product_attention).parameters
  assert {"q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets", "mask_type"} <= set(
    parameters
  )
  assert cudnn.MaskType.PADDING


def kernel_with_a_mask(query, key, value, *, bias, mask, implementation):
  assert implementation == "cudnn"
  assert bias is None or bias.dtype == query.dtype
  return dot_product_attention(query, key, value, mask, bias=bias)


def kernel_with_offsets(
  query, key, value, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type
):
  """Leaves padding as it finds it, as cuDNN does."""
  assert scale == pytest.approx(query.shape[-1] ** -0.5)
  assert (q_seqlen == kv_seqlen).all()
  assert (q_offsets == kv_offsets).all()
  lengths, starts = np.asarray(q_seqlen), np.asarray(q_offsets)
  ids = np.zeros(query.shape[:2], np.int32)
  for row, slot in np.argwhere(lengths > 0):
    start = starts[row, slot]
    ids[row, start : start + lengths[row, slot]] = slot + 1
  padding = (ids == 0)[:, :, None, None]
  for x in (query, key, value):
    assert not np.asarray(x)[ids == 0].any()
  mask = packed_attention_mask(ids)
  if mask_type.name != "PADDING":
    assert mask_type.name == "PADDING_CAUSAL"
    mask &= np.tri(ids.shape[1], dtype=bool)[None, None]
  attended = dot_product_attention(query, key, value, mask)
  return jnp.where(padding, jnp.nan, attended)


@pytest.mark.parametrize(
  ("implementation", "options"),
  [
    ("cudnn", {}),
    ("cudnn", {"causal": True, "slopes": alibi_slopes(3)}),
    ("cudnn_packed", {}),
    ("cudnn_packed", {"causal": True}),
  ],
)
def test_cudnn_is_told_of_segments_and_its_padding_is_not_read(
  monkeypatch, implementation, options
):
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  monkeypatch.setattr(jax.nn, "dot_product_attention", kernel_with_a_mask)
  monkeypatch.setattr(cudnn, "dot_product_attention", kernel_with_offsets)
  query, key, value, _, segment_ids = make_inputs(jnp.float32)
  expected = np.asarray(attention(query, key, value, segment_ids, **options))
  if slopes := options.pop("slopes", None):
    options["bias"] = attention_lib.alibi_bias(slopes, ROW_LENGTH)
  attend = kernels.KERNELS[implementation].attend
  found = np.asarray(attend(query, key, value, jnp.asarray(segment_ids), 7, **options))
  real = segment_ids > 0
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-6)
  assert (found[~real] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", ["cudnn", "cudnn_packed"])
def test_cudnn_attention_compiles_to_its_kernel(monkeypatch, implementation, causal):
  """Lowered for a GPU that is not here: shapes, types and the call are right."""
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
  monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
  query, key, value, weights, segment_ids = make_inputs(jnp.bfloat16, head_size=16)
  attend = functools.partial(kernels.KERNELS[implementation].attend, causal=causal)
  if causal and implementation == "cudnn":
    bias = attention_lib.alibi_bias(alibi_slopes(3), ROW_LENGTH).astype(jnp.bfloat16)
    attend = functools.partial(attend, bias=bias)

  def gradients(query, key, value):
    total = lambda *x: (attend(*x, segment_ids, 7) * weights).sum()  # noqa: E731
    return jax.grad(total, argnums=(0, 1, 2))(query, key, value)

  traced = jax.jit(gradients).trace(query, key, value)
  assert [x.shape for x in traced.out_info] == [query.shape] * 3
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert "__cudnn$fmhaSoftmax" in text or "__cudnn$fmhaScaleBiasSoftmax" in text
  assert text.count("__cudnn$fmha") >= 2  # forward and backward
