import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import attention as attention_lib
from model.attention import (
  alibi_slopes,
  dot_product_attention,
  kernels,
)
from model.attention.block_attention import BLOCK, possible_widths, visits
from model.attention.kernels import AttentionError
from model.config import AttentionSpec
from model.masks import (
  near,
  packed_attention_mask,
  padding_attention_mask,
)
from tests import packs
from training.mesh import make_mesh, split_rows

ROW_LENGTH = 128  # the smallest that splash takes
ROWS = [[128], [50, 50, 21], [2] * 7, [100, 1], []]


def attention(*arrays, **options):
  """`model.attention.attention`, with the fields of its spec among the options."""
  fields = {name: options.pop(name) for name in AttentionSpec._fields if name in options}
  return attention_lib.attention(*arrays, spec=AttentionSpec(**fields), **options)


def make_inputs(dtype, head_size=10):
  segment_ids = np.zeros((len(ROWS), ROW_LENGTH), np.int32)
  for row, lengths in enumerate(ROWS):
    segment_ids[row, : sum(lengths)] = np.repeat(range(1, len(lengths) + 1), lengths)
  rng = np.random.default_rng(0)
  shape = (len(ROWS), ROW_LENGTH, 3, head_size)
  arrays = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(4))
  return *arrays, segment_ids


def test_the_masks_equal_a_triple_loop():
  segment_ids = np.array([[1, 1, 2, 3, 3, 3, 0], [1, 2, 2, 2, 0, 0, 0], [0] * 7])
  packed = np.asarray(packed_attention_mask(segment_ids))
  padding = np.broadcast_to(padding_attention_mask(segment_ids), packed.shape)
  for row, query, key in np.ndindex(3, 7, 7):
    ids = segment_ids[row]
    assert packed[row, 0, query, key] == (ids[query] == ids[key] != 0)
    assert padding[row, 0, query, key] == (ids[key] != 0)


@functools.partial(jax.jit, static_argnames=("implementation", "mask", "causal", "window"))
def output_and_gradients(query, key, value, weights, segment_ids, **options):
  def total(query, key, value):
    output = attention(query, key, value, segment_ids, **options)
    output = jnp.where((segment_ids > 0)[:, :, None, None], output, 0)
    return (output.astype(jnp.float32) * weights.astype(jnp.float32)).sum(), output

  return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(query, key, value)


WINDOWS = (None, 7, 50)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["segment", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
  ("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)]
)
@pytest.mark.parametrize("implementation", ["splash_interpret", "blocks"])
def test_other_implementations_equal_xla(
  implementation, dtype, tolerance, mask, causal, window
):
  """Interpreted, a kernel of the TPU runs anywhere."""
  run = functools.partial(output_and_gradients, *make_inputs(dtype))
  options = {"mask": mask, "causal": causal, "window": window}
  ours, reference = run(implementation=implementation, **options), run(**options)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert np.isfinite(a).all()
    assert np.abs(a - b).max() < tolerance * np.abs(b).max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("row_length", [256, 512])
def test_splash_equals_xla_in_larger_blocks(row_length, causal):
  assert kernels.splash_block(row_length, None) == row_length
  segment_ids = np.repeat([1, 2, 3, 0], [5, row_length - 80, 60, 15])[None]
  rng = np.random.default_rng(0)
  arrays = [
    jnp.asarray(rng.standard_normal((1, row_length, 1, 10)), jnp.float32) for _ in range(4)
  ]
  run = functools.partial(output_and_gradients, *arrays, segment_ids, causal=causal)
  ours, reference = run(implementation="splash_interpret"), run(implementation="xla")
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
    assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("mask", ["segment", "none"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS[1:])
def test_a_window_is_that_of_a_mask(window, causal, mask):
  """7 tokens are computed in blocks, of which rows of 128 are no multiple; 50 are not."""
  query, key, value, _, segment_ids = make_inputs(jnp.float32)
  options = {"window": window, "causal": causal, "mask": mask}
  found = attention(query, key, value, segment_ids, **options)
  ahead = np.arange(ROW_LENGTH)[None] - np.arange(ROW_LENGTH)[:, None]
  allowed = (abs(ahead) <= window) & ((ahead <= 0) | (not causal))
  masks = {"segment": packed_attention_mask, "none": padding_attention_mask}
  expected = dot_product_attention(
    query, key, value, masks[mask](segment_ids) & allowed[None, None]
  )
  real = segment_ids > 0
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-6)
  assert np.isfinite(found).all()


def test_a_local_layer_makes_no_square():
  query = jnp.ones((1, 128, 1, 2))
  run = functools.partial(attention, query, query, query, jnp.ones((1, 128), jnp.int32))
  square = re.compile(r"\[[\d,]*128,128\]")
  assert square.search(str(jax.make_jaxpr(lambda: run(window=64))()))
  assert not square.search(str(jax.make_jaxpr(lambda: run(window=32))()))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("implementation", ["splash_interpret", "blocks"])
def test_without_isolation_padding_between_sequences_is_passed_over(implementation, window):
  query, key, value, _, segment_ids = make_inputs(jnp.float32)
  segment_ids[:, ::5] = 0
  run = functools.partial(attention, query, key, value, segment_ids)
  options = {"mask": "none", "window": window}
  found, expected = run(implementation=implementation, **options), run(**options)
  real = segment_ids > 0
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-4, atol=1e-5)
  assert implementation != "blocks" or not found[~real].any()  # which gives zeros there


@pytest.mark.parametrize("window", [None, 1, 70, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_visit_all_that_is_needed_and_little_else(causal, window):
  lengths = [[640], [100, 100, 300], [64] * 9, [1] * 90 + [200], [], [33, 31, 576]]
  segment_ids = np.zeros((len(lengths), 640), np.int32)
  for row, of_row in enumerate(lengths):
    segment_ids[row, : sum(of_row)] = np.repeat(range(1, len(of_row) + 1), of_row)
  places = jnp.arange(640)
  allowed = packed_attention_mask(segment_ids)[:, 0]
  allowed &= near(places, places, window, causal=causal)[None]
  starts, indices = visits(jnp.asarray(segment_ids), causal=causal, window=window)
  size = 640 // BLOCK
  widths = np.array(possible_widths(size))[np.asarray(indices)]
  needed = np.array(allowed.reshape(-1, size, BLOCK, size, BLOCK).any((2, 4)))
  for row, block in np.ndindex(widths.shape):
    which, start, width = needed[row, block], starts[row, block], widths[row, block]
    if which.any():
      assert start == which.argmax(), (row, block)
      assert which.sum() <= width <= max(4 / 3 * which.sum(), 2), (row, block)
    else:
      assert width == 0, (row, block)


@pytest.mark.parametrize("implementation", ["splash_interpret", "blocks"])
def test_each_device_attends_in_its_own_rows(implementation):
  """As on one device, and without a row that travels."""
  *arrays, segment_ids = (x[:4] for x in make_inputs(jnp.float32))
  mesh = make_mesh(4)
  sharded = jax.device_put((*arrays, segment_ids), split_rows(mesh))

  def run(*inputs):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return output_and_gradients(*inputs, implementation=implementation)

  step = jax.jit(run).lower(*sharded).compile()
  assert not re.search("all-gather|all-to-all|collective-permute", step.as_text())
  together = output_and_gradients(*arrays, segment_ids, implementation=implementation)
  for a, b in zip(jax.tree.leaves(step(*sharded)), jax.tree.leaves(together), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_softmax_is_in_float32_for_bfloat16():
  query = key = jnp.ones((1, 2, 1, 1), jnp.bfloat16)
  program = str(jax.make_jaxpr(attention)(query, key, key, jnp.ones((1, 2), jnp.int32)))
  # The scores too: float32 is asked of the product, not made of its rounded result.
  for operation in ("exp", "dot_general"):
    found = re.findall(rf"(\w+)\[1,1,2,2\] = {operation}\b", program)
    assert found == ["f32"], operation


@pytest.mark.parametrize("window", [None, 7])
def test_dropout_scales_what_it_keeps(window):
  query, key, value, _, segment_ids = make_inputs(jnp.float32)
  inputs = query, key, jnp.ones_like(value), segment_ids
  drop = functools.partial(attention, *inputs, window=window)
  kept = drop(dropout_rate=0.25, dropout_key=jax.random.key(0))
  assert (drop(dropout_rate=0.25) == drop()).all()
  assert kept[0].mean() == pytest.approx(1.0, abs=0.03 if window else 0.02)
  assert kept[0].std() > 0.01


# ---- what an implementation cannot do --------------------------------------------------


class Device:
  platform = "gpu"
  device_kind = "a GPU"

  def __init__(self, capability):
    self.compute_capability = capability


def as_if_on(monkeypatch, device, *, wrong=()):
  """Replaces the device; its kernels agree with xla, except those in `wrong`."""
  real = jax.local_devices
  devices = lambda backend=None: real(backend=backend) if backend else [device]  # noqa: E731
  monkeypatch.setattr(jax, "local_devices", devices)
  disagreement = lambda name, needs: "it is wrong" if name in wrong else ""  # noqa: E731
  monkeypatch.setattr(attention_lib, "_disagreement", disagreement)


@pytest.mark.parametrize(
  ("capability", "fields", "message"),
  [
    (None, {"attention_impl": "flash"}, "attention_impl is 'flash'; expected xla"),
    (
      None,
      {"attention_impl": "splash"},
      r"only on TPUs; this is a CPU\. Set .* or attention_imp",
    ),
    (None, {"attention_dropout_rate": 0.1}, "needs an attention dropout of 0, found 0.1"),
    (None, {"positions": "alibi"}, "needs scores without a bias, found ALiBi's"),
    ("7.5", {"attention_impl": "cudnn"}, "of compute capability 7.5"),
    ("8.9", {"attention_impl": "cudnn_packed"}, "of compute capability 8.9"),
    ("9.0", {"attention_impl": "cudnn", "num_heads": 16}, "multiple of 8, found 4"),
  ],
)
def test_what_an_implementation_cannot_do_is_refused(
  monkeypatch, capability, fields, message
):
  possible = {"attention_impl": "splash_interpret", "num_heads": 1, "positions": "learned"}
  possible |= {"hidden_size": 64, "dtype": jnp.bfloat16}
  attention_lib.check_model(packs.small_gpt2(**possible), ROW_LENGTH)
  if capability:
    as_if_on(monkeypatch, Device(capability))
  with pytest.raises(AttentionError, match=message):
    attention_lib.check_model(packs.small_gpt2(**possible | fields), ROW_LENGTH)


@pytest.mark.parametrize("implementation", ["blocks", "cudnn_packed"])
def test_token_types_that_may_alternate_are_refused_where_tokens_must_be_adjacent(
  monkeypatch, implementation
):
  as_if_on(monkeypatch, Device("9.0"))
  needs = kernels.Needs("bfloat16", 64, 128, AttentionSpec(mask="token_type"))
  with pytest.raises(AttentionError, match=r"needs attention_mask=segment.* token_type"):
    kernels.check_kernel(implementation, needs)
  kernels.check_kernel("cudnn", needs)


# ---- auto ------------------------------------------------------------------------------


HOPPER, AMPERE, VOLTA, TPU = Device("9.0"), Device("8.0"), Device("7.0"), Device("")
CPU = jax.local_devices()[0]
TPU.platform = "tpu"
WIDE = {"hidden_size": 64, "num_heads": 1}


@pytest.mark.parametrize(
  ("device", "fields", "implementation", "why"),
  [
    (HOPPER, {}, "cudnn_packed", "fastest"),
    (AMPERE, {}, "cudnn", "fastest"),
    (VOLTA, {}, "xla", "no faster kernel"),
    (TPU, {}, "splash", "fastest"),
    (CPU, {}, "xla", "no faster kernel"),
    (HOPPER, {"attention_mask": "token_type"}, "cudnn", "fastest"),  # ids are not adjacent
    (HOPPER, {"attention_mask": "none"}, "cudnn", "fastest"),  # padding inside of a row
    (HOPPER, {"dtype": "float32"}, "xla", "needs bfloat16 or float16, found float32"),
    (HOPPER, {"num_heads": 16}, "xla", "found 4"),
    (HOPPER, {"attention_dropout_rate": 0.1}, "xla", "found 0.1.* xla is slower"),
    (HOPPER, {"attention_impl": "blocks"}, "blocks", "as the config says"),
  ],
)
def test_auto_takes_the_fastest_that_device_and_model_allow(
  monkeypatch, device, fields, implementation, why
):
  as_if_on(monkeypatch, device)
  fields = WIDE | {"dtype": "auto", "attention_dropout_rate": 0.0} | fields
  config = packs.small_config(**fields)
  is_slow = device in (VOLTA, CPU) or fields["dtype"] == "float32"
  assert config.dtype.name == ("float32" if is_slow else "bfloat16")
  choice = attention_lib.choose(config, [128])
  assert choice.implementation == implementation
  assert re.search(why, choice.why)


def test_auto_passes_over_a_kernel_that_is_wrong_on_the_device(monkeypatch):
  fields = WIDE | {"dtype": jnp.bfloat16, "attention_dropout_rate": 0.0}
  as_if_on(monkeypatch, HOPPER, wrong=["cudnn_packed"])
  choice = attention_lib.choose(packs.small_config(**fields), [128])
  assert choice.implementation == "cudnn"
  assert "cudnn_packed it is wrong, here in rows of 128 tokens" in choice.why
  as_if_on(monkeypatch, HOPPER, wrong=["cudnn_packed", "cudnn"])
  assert attention_lib.choose(packs.small_config(**fields), [128]).implementation == "xla"
  named = packs.small_config(**fields, attention_impl="cudnn")
  with pytest.raises(AttentionError, match="cudnn it is wrong, here"):
    attention_lib.check_model(named, 128)


def test_a_kernel_is_compared_with_xla_before_its_first_use(monkeypatch):
  """Also in a program that is being traced."""
  kernel = kernels.KERNELS["splash_interpret"]._replace(platform="cpu")
  monkeypatch.setitem(kernels.KERNELS, "splash_interpret", kernel)
  attention_lib._disagreement.cache_clear()
  query, key, value, _, segment_ids = (x[:2, :128] for x in make_inputs(jnp.float32))
  attend = functools.partial(attention, implementation="splash_interpret")
  found = jax.jit(attend)(query, key, value, segment_ids)
  expected = attention(query, key, value, segment_ids, implementation="xla")
  real = segment_ids > 0
  np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-5)
  assert attention_lib._disagreement.cache_info().misses == 1

  right = kernels.attend
  monkeypatch.setattr(kernels, "attend", lambda *x, **options: 1.1 * right(*x, **options))
  attention_lib._disagreement.cache_clear()
  with pytest.raises(AttentionError, match=r"differs from xla by .*, more than 1e-05"):
    attend(query, key, value, segment_ids)
  attention_lib._disagreement.cache_clear()


def test_local_layers_beside_a_kernel_without_windows_are_computed_by_xla(monkeypatch):
  as_if_on(monkeypatch, HOPPER)
  query, key, value, _, segment_ids = make_inputs(jnp.bfloat16, head_size=8)
  local = functools.partial(attention, query, key, value, segment_ids, window=7)
  found = local(implementation="cudnn_packed")
  assert (found == local(implementation="xla")).all()
  config = packs.small_modern_bert(**WIDE, dtype=jnp.bfloat16)
  assert attention_lib.choose(config, [128]).implementation == "cudnn_packed"


# ---- cuDNN, where there is no GPU ------------------------------------------------------


def test_the_layout_for_cudnn_has_at_least_two_segments():
  lengths, starts = kernels.segment_lengths_and_starts(jnp.array([[1, 1, 0]]), 1)
  assert (lengths.tolist(), starts.tolist()) == ([[2, -1]], [[0, -1, -1]])


def kernel_with_a_mask(query, key, value, *, bias, mask, implementation):
  assert implementation == "cudnn"
  assert bias is None or bias.dtype == query.dtype
  return dot_product_attention(query, key, value, mask, bias=bias)


def kernel_with_offsets(
  query, key, value, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type
):
  """Its output and its gradients at padding are NaN: cuDNN does not write them."""
  assert scale == pytest.approx(query.shape[-1] ** -0.5)
  assert (q_seqlen == kv_seqlen).all()
  assert (q_offsets == kv_offsets).all()
  lengths, starts = np.asarray(q_seqlen), np.asarray(q_offsets)
  ids = np.zeros(query.shape[:2], np.int32)
  for row, slot in np.argwhere(lengths > 0):
    start = starts[row, slot]
    ids[row, start : start + lengths[row, slot]] = slot + 1
  padding = (ids == 0)[:, :, None, None]

  @jax.custom_vjp
  def poison_gradient(x):
    return x

  poison_gradient.defvjp(
    lambda x: (x, None), lambda _, g: (jnp.where(padding, jnp.nan, g),)
  )
  query, key, value = (poison_gradient(x) for x in (query, key, value))
  mask = packed_attention_mask(ids)
  if mask_type.name != "PADDING":
    assert mask_type.name == "PADDING_CAUSAL"
    mask &= np.tri(ids.shape[1], dtype=bool)[None, None]
  return jnp.where(padding, jnp.nan, dot_product_attention(query, key, value, mask))


@pytest.mark.parametrize(
  ("implementation", "options"),
  [
    ("cudnn", {}),
    ("cudnn", {"causal": True, "slopes": alibi_slopes(3)}),
    ("cudnn_packed", {}),
    ("cudnn_packed", {"causal": True}),
  ],
)
def test_cudnn_is_told_of_segments_and_what_it_leaves_at_padding_is_not_read(
  monkeypatch, implementation, options
):
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  monkeypatch.setattr(jax.nn, "dot_product_attention", kernel_with_a_mask)
  monkeypatch.setattr(cudnn, "dot_product_attention", kernel_with_offsets)
  query, key, value, weights, segment_ids = make_inputs(jnp.float32)
  real = segment_ids > 0
  weights = np.where(real[:, :, None, None], weights, 0)
  bias = {k: v for k, v in options.items() if k != "slopes"}
  if "slopes" in options:
    bias["bias"] = attention_lib.alibi_bias(options["slopes"], ROW_LENGTH)
  attend = kernels.KERNELS[implementation].attend

  def by_xla(*inputs):
    query, key, value = inputs
    return attention(query, key, value, segment_ids, **options)

  def by_kernel(*inputs):
    return attend(*inputs, jnp.asarray(segment_ids), 7, **bias)

  (expected, expected_pull), (found, pull) = (
    jax.vjp(run, query, key, value) for run in (by_xla, by_kernel)
  )
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-6)
  assert (np.asarray(found)[~real] == 0).all()
  for x, wanted in zip(pull(weights), expected_pull(weights), strict=True):
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-6)


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

  def total(*inputs):
    return (attend(*inputs, segment_ids, 7) * weights).sum()

  traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(query, key, value)
  assert [x.shape for x in traced.out_info] == [query.shape] * 3
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert "__cudnn$fmhaSoftmax" in text or "__cudnn$fmhaScaleBiasSoftmax" in text
  assert text.count("__cudnn$fmha") >= 2  # forward and backward
