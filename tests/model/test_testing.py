"""The proofs themselves: they pass what is right, and name what is broken."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.masks import packed_attention_mask
from model.testing import (
  LeakError,
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
  relative_difference,
)
from packing.testing import lay_out
from packing.testing.influence import METHODS, find_leaks

WIDTH = 5
LENGTHS = (4, 3, 2, 1)


def embedded(lengths=LENGTHS):
  rng = np.random.default_rng(0)
  return [
    {"input_embeddings": rng.standard_normal((n, WIDTH)).astype(np.float32)}
    for n in lengths
  ]


def tokens(lengths=LENGTHS):
  rng = np.random.default_rng(0)
  return [{"input_ids": rng.integers(1, 11, n)} for n in lengths]


def make_batch(sequences):
  return lay_out([sequences[:3], sequences[3:], []], row_length=11)


EMBEDDED, TOKENS = make_batch(embedded()), make_batch(tokens())


def attend(batch, mask, x=None, forbidden=-jnp.inf):
  x = batch["input_embeddings"] if x is None else x
  scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", x, x), forbidden)
  probabilities = jax.nn.softmax(jnp.where(is_real(batch), scores, 0))
  return jnp.einsum("bqk,bkd->bqd", probabilities, x)


def is_real(batch):
  return (jnp.asarray(batch["segment_ids"]) > 0)[:, :, None]


def mask_of(batch, shift=0):
  ids = jnp.roll(jnp.asarray(batch["segment_ids"]), shift, axis=1)
  return packed_attention_mask(ids)[:, 0]


def isolated(batch):
  x = batch["input_embeddings"]
  x += jnp.asarray(batch["position_ids"], x.dtype)[:, :, None]
  return attend(batch, mask_of(batch), x)


# Every way to get it wrong that we have seen or could think of.
def no_mask(batch):
  return attend(batch, is_real(batch).swapaxes(1, 2))


def a_mask_that_is_not_low_enough(batch):
  return attend(batch, mask_of(batch), forbidden=-5.0)


def a_mask_that_is_one_token_off(batch):
  return attend(batch, mask_of(batch, shift=1))


def statistics_of_the_row(batch):
  x = batch["input_embeddings"]
  return x - jnp.where(is_real(batch), x, 0).sum(axis=1, keepdims=True)


def statistics_of_the_batch(batch):
  x = batch["input_embeddings"]
  return x - x.mean(axis=(0, 1), keepdims=True)


def a_convolution_over_the_row(batch):
  x = batch["input_embeddings"]
  return x + jnp.roll(x, 1, axis=1)


BROKEN = {
  no_mask: (1, 2),
  a_mask_that_is_not_low_enough: (1, 2),
  a_mask_that_is_one_token_off: (1, 2),
  statistics_of_the_row: (1, 2),
  statistics_of_the_batch: (1, 2),
  a_convolution_over_the_row: (2, 1),
}


def through_ids(apply):
  """As a function of ids that JAX cannot see into, as of another framework."""
  table = np.random.default_rng(0).standard_normal((11, WIDTH)).astype(np.float32)
  compiled = jax.jit(apply)

  def opaque(batch):
    fields = {k: np.asarray(v) for k, v in batch.items() if k != "input_ids"}
    fields["input_embeddings"] = table[np.asarray(batch["input_ids"])]
    return jax.tree.map(np.asarray, compiled(fields))

  return opaque


def test_what_is_right_passes_by_derivative_and_by_change():
  assert_no_cross_contamination(isolated, EMBEDDED)
  assert_no_cross_contamination(through_ids(isolated), TOKENS)
  assert_packed_equals_unpacked(isolated, embedded())
  assert_packed_equals_unpacked(through_ids(isolated), tokens())


@pytest.mark.parametrize("apply", BROKEN)
def test_what_is_broken_is_caught_by_derivative_by_change_and_by_comparison(apply):
  target, source = BROKEN[apply]
  pair = f"sequence {target} of row 0 changes with sequence {source} of row 0"
  with pytest.raises(AssertionError, match=f"{pair}.* derivative of up to"):
    assert_no_cross_contamination(apply, EMBEDDED, methods=("derivative",))
  with pytest.raises(
    AssertionError, match=r"row \d changes with .* change of up to|NaN at"
  ):
    assert_no_cross_contamination(through_ids(apply), TOKENS)
  if apply is not statistics_of_the_batch:
    with pytest.raises(AssertionError, match="Packed differs from unpacked in 'output'"):
      assert_packed_equals_unpacked(apply, embedded())


def positions_of_the_row(batch):
  x = batch["input_embeddings"]
  return x * jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)[None, :, None]


def test_positions_that_run_on_are_not_equal_though_nothing_leaks():
  assert_no_cross_contamination(positions_of_the_row, EMBEDDED)
  with pytest.raises(AssertionError, match=r"most in sequences\[\d\]"):
    assert_packed_equals_unpacked(positions_of_the_row, embedded())


def test_all_pairs_are_told_and_no_others():
  """Only the second sequence of a row hears, and only the first."""

  def apply(batch):
    x, ids = batch["input_embeddings"], jnp.asarray(batch["segment_ids"])[:, :, None]
    heard = jnp.where(ids == 1, x, 0).sum(1, keepdims=True)
    return jnp.where(ids == 2, x + heard, x)

  for method in METHODS:
    (leak,) = find_leaks(apply, EMBEDDED, methods=(method,))
    assert (leak.source, leak.target, leak.measure) == ((0, 1), (0, 2), method)
    assert leak.size > 0


def test_the_first_output_that_leaks_is_named():
  def apply(batch):
    first, second = isolated(batch), no_mask(batch)
    return {"z first": first, "second": second, "last": first + second}

  with pytest.raises(AssertionError, match="first in 'second'"):
    assert_no_cross_contamination(apply, EMBEDDED)
  found = differences(apply, embedded())
  assert [d.output for d in found if d.size > d.limit] == ["second", "last"]


def test_gradients_are_compared_too():
  """Equal outputs, other gradients: a stop in one layout alone."""
  params = np.ones((WIDTH, WIDTH), np.float32)

  def apply(params, batch, broken=True):
    x = batch["input_embeddings"] @ params
    is_stopped = jnp.asarray(batch["segment_ids"]) > int(broken)
    return jnp.where(is_stopped[:, :, None], jax.lax.stop_gradient(x), x)

  right = functools.partial(apply, broken=9)
  assert_packed_equals_unpacked(right, embedded(), params=params)
  with pytest.raises(AssertionError, match="differs from unpacked in 'gradients'"):
    assert_packed_equals_unpacked(apply, embedded(), params=params)


def test_equality_is_tested_in_full_precision():
  """Of what accelerators compute with fewer bits by default."""
  found = []

  def apply(params, batch):
    found.append(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
    return batch["input_embeddings"] @ params

  params = np.ones((WIDTH, WIDTH), np.float32)
  differences(apply, embedded(), params=params)
  assert found.pop() == "highest"
  differences(lambda *x: apply(*x).astype(jnp.bfloat16), embedded(), params=params)
  assert found.pop() is None


def test_parameters_that_are_whole_numbers_have_no_gradient():
  params = {"scale": np.ones(WIDTH, np.float32), "step": np.int32(3)}

  def apply(params, batch):
    return batch["input_embeddings"] * params["scale"][None, None]

  assert_packed_equals_unpacked(apply, embedded(), params=params)


# ---- values that are not numbers, or not compared --------------------------------------


def test_values_that_are_not_numbers_prove_nothing():
  def apply(batch):
    return isolated(batch) * jnp.where(batch["segment_ids"] == 2, jnp.nan, 1)[:, :, None]

  with pytest.raises(AssertionError, match="NaN at real tokens"):
    assert_no_cross_contamination(apply, EMBEDDED)
  with pytest.raises(AssertionError, match="derivative of up to nan"):
    assert_no_cross_contamination(apply, EMBEDDED, methods=("derivative",))
  with pytest.raises(AssertionError, match="relative difference nan"):
    assert_packed_equals_unpacked(apply, embedded())


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("leaf", ["first", "last"])
def test_nan_anywhere_is_no_small_difference(where, leaf):
  trees = {name: {"first": np.ones(2), "last": np.ones(3)} for name in "ab"}
  assert relative_difference(**trees) == 0
  trees[where][leaf][1] = np.nan
  assert np.isnan(relative_difference(**trees))


def test_the_tolerance_is_the_users():
  def apply(batch):
    return batch["input_embeddings"] + 3e-6 * positions_of_the_row(batch)

  assert_packed_equals_unpacked(apply, embedded(), tolerance=1e-4)
  for tolerance in (1e-6, 0):
    with pytest.raises(AssertionError, match=f"expected at most {tolerance:.3g}"):
      assert_packed_equals_unpacked(apply, embedded(), tolerance=tolerance)


@pytest.mark.parametrize("value", [-1e9, -jnp.inf])
def test_what_masks_put_in_does_not_hide_the_rest(value):
  def with_column(apply):
    return lambda batch: apply(batch).at[..., 0].set(value)

  assert_packed_equals_unpacked(with_column(isolated), embedded())
  for broken in (with_column(no_mask), lambda batch: 1e6 * no_mask(batch)):
    with pytest.raises(AssertionError, match="differs from unpacked"):
      assert_packed_equals_unpacked(broken, embedded())


def test_whole_numbers_must_be_equal():
  right = lambda batch: (isolated(batch)[..., 0] > 0, isolated(batch))  # noqa: E731
  assert_packed_equals_unpacked(right, embedded())
  wrong = lambda batch: (isolated(batch), 3 + jnp.asarray(batch["segment_ids"]))  # noqa: E731
  with pytest.raises(AssertionError, match="'output 1': relative difference 1"):
    assert_packed_equals_unpacked(wrong, embedded())


@pytest.mark.parametrize("name", ["sequence_output", "token_embeddings", "mlm_logits"])
def test_names_of_our_heads_mean_nothing_in_other_models(name):
  right = lambda batch: {name: isolated(batch)}  # noqa: E731
  assert_no_cross_contamination(right, EMBEDDED)
  assert_packed_equals_unpacked(right, embedded())
  # As many slots as tokens: a guess at whose an output is would go unnoticed.
  full = make_batch(embedded((1,) * 11)) | {"sequence_mask": np.ones((3, 11), bool)}
  with pytest.raises(AssertionError, match="changes with"):
    assert_no_cross_contamination(lambda batch: {name: no_mask(batch)}, full)


# ---- what would prove nothing ----------------------------------------------------------


def a_constant(batch):
  return jnp.ones_like(batch["input_embeddings"]) + 0 * batch["input_embeddings"][0, 0, 0]


def one_output_dead(batch):
  return {"live": isolated(batch), "dead": 0 * no_mask(batch)}


@pytest.mark.parametrize(
  ("apply", "message"),
  [
    (a_constant, "do not depend on its own tokens"),
    (one_output_dead, "'dead' depends on no token"),
  ],
)
def test_what_depends_on_nothing_proves_nothing(apply, message):
  for function, batch in ((apply, EMBEDDED), (through_ids(apply), TOKENS)):
    with pytest.raises(AssertionError, match=message):
      assert_no_cross_contamination(function, batch)


def test_what_depends_on_nothing_is_not_called_causal():
  for function, batch in ((through_ids(a_constant), TOKENS), (a_constant, EMBEDDED)):
    with pytest.raises(AssertionError, match="depend on no token"):
      assert_causal(function, batch)


IDS = EMBEDDED["segment_ids"]
ALIKE = make_batch([{"input_ids": [7] * n} for n in LENGTHS])


def with_ids(segment_ids):
  return EMBEDDED | {"segment_ids": segment_ids}


def the_mean_of_a_row(batch):
  return batch["input_embeddings"].mean(1)


PROVE_NOTHING = {
  "one a row": (isolated, lay_out([[s] for s in embedded()], row_length=5), "found none"),
  "padding alone": (isolated, jax.tree.map(np.zeros_like, EMBEDDED), "two .* found none"),
  "padding in front": (isolated, with_ids(np.roll(IDS, 1, axis=1)), "0 for padding after"),
  "one axis": (isolated, with_ids(IDS[0]), r"shape \[B, S\]"),
  "not of tokens": (the_mean_of_a_row, EMBEDDED, r"\(3, 5\); expected .* \(3, 11\)"),
  "tokens all alike": (through_ids(isolated), ALIKE, "two kinds of tokens .* found 1"),
}


@pytest.mark.parametrize("case", PROVE_NOTHING)
def test_what_cannot_prove_anything_is_refused(case):
  apply, batch, message = PROVE_NOTHING[case]
  with pytest.raises(ValueError, match=message):
    assert_no_cross_contamination(apply, batch)


def test_dropout_is_told_from_a_leak():
  rng = np.random.default_rng(0)
  with pytest.raises(ValueError, match="Turn dropout off"):
    assert_no_cross_contamination(lambda batch: rng.standard_normal((3, 11, 2)), TOKENS)


def test_outputs_that_are_all_alike_prove_nothing():
  alike = np.ones((4, 7, 2), np.float32)
  with pytest.raises(ValueError, match="all alike, which proves nothing"):
    assert_packed_equals_unpacked(lambda batch: alike, embedded())


def the_two_largest_of_the_row(batch):
  x = batch["input_embeddings"]
  chosen = jax.lax.top_k(jnp.where(batch["segment_ids"] > 0, x[..., 0], -9.0), 2)[1]
  return x + jax.nn.one_hot(chosen, x.shape[1]).sum(1)[:, :, None]


def a_stopped_sum_of_the_row(batch):
  x = batch["input_embeddings"]
  return x + jax.lax.stop_gradient(x.sum(1, keepdims=True))


@pytest.mark.parametrize("apply", [the_two_largest_of_the_row, a_stopped_sum_of_the_row])
def test_what_has_no_derivative_is_found_by_change(apply):
  assert_no_cross_contamination(apply, EMBEDDED, methods=("derivative",))
  with pytest.raises(AssertionError, match="a change of up to"):
    assert_no_cross_contamination(apply, EMBEDDED)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ["the padding of row 0", "row 2"])
def test_padding_and_other_rows_are_looked_at_as_sources(method, source):
  def apply(batch):
    x = batch["input_embeddings"]
    heard = x[::-1] if source == "row 2" else jnp.where(is_real(batch), 0, x)
    return isolated(batch) + 1e-3 * heard.sum(1, keepdims=True)

  with pytest.raises(LeakError) as caught:
    assert_no_cross_contamination(apply, EMBEDDED, methods=(method,))
  assert source in " ".join(str(leak.source) for leak in caught.value.leaks)


# ---- the order of tokens -----------------------------------------------------------------


def causal(batch):
  length = batch["input_embeddings"].shape[1]
  return attend(batch, mask_of(batch) & np.tri(length, dtype=bool)[None])


def test_a_causal_model_passes_by_derivative_and_by_change():
  assert_causal(causal, EMBEDDED)
  assert_causal(through_ids(causal), TOKENS)


def hears_the_third_token_before(batch):
  return causal(batch) + 1e-30 * jnp.roll(batch["input_embeddings"], -3, axis=1)


def hears_the_next_token(batch):
  return batch["input_embeddings"] + jnp.roll(batch["input_embeddings"], -1, axis=1)


@pytest.mark.parametrize(
  ("apply", "batch", "methods", "measure"),
  [
    (isolated, EMBEDDED, ("derivative",), "derivative"),
    (isolated, EMBEDDED, None, "change"),
    (hears_the_third_token_before, EMBEDDED, None, "derivative"),  # too small to change
    (hears_the_next_token, EMBEDDED, ("derivative",), "derivative"),
    (hears_the_next_token, EMBEDDED, ("change",), "change"),
    (through_ids(isolated), TOKENS, None, "change"),
  ],
)
def test_tokens_that_see_what_comes_after_them_are_found(apply, batch, methods, measure):
  expected = f"before position 1 of row 0 changes .* a {measure} of up to"
  with pytest.raises(AssertionError, match=expected):
    assert_causal(apply, batch, methods=methods)
