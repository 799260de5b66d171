"""The proofs themselves: they pass what is right, and name what is broken."""

import functools

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention import packed_attention_mask
from model.layout import lay_out
from model.testing import (
  LeakError,
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
  first_fit,
  relative_difference,
)
from model.testing.influence import METHODS, find_leaks

WIDTH = 5
LENGTHS = (4, 3, 2, 1)


def embedded(lengths=LENGTHS, seed=0):
  rng = np.random.default_rng(seed)
  return [
    {"input_embeddings": rng.standard_normal((n, WIDTH)).astype(np.float32)}
    for n in lengths
  ]


def tokens(lengths=LENGTHS, seed=0):
  rng = np.random.default_rng(seed)
  return [{"input_ids": rng.integers(1, 11, n)} for n in lengths]


def make_batch(sequences):
  return lay_out([sequences[:3], sequences[3:], []], row_length=11)


def attend(x, segment_ids, mask, forbidden=-jnp.inf):
  scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", x, x), forbidden)
  real = (segment_ids > 0)[:, :, None]
  probabilities = jax.nn.softmax(jnp.where(real, scores, 0))
  return jnp.einsum("bqk,bkd->bqd", probabilities, x)


def isolated(batch):
  x = batch["input_embeddings"]
  x += jnp.asarray(batch["position_ids"], x.dtype)[:, :, None]
  mask = packed_attention_mask(jnp.asarray(batch["segment_ids"]))[:, 0]
  return attend(x, batch["segment_ids"], mask)


# Every way to get it wrong that we have seen or could think of.
def no_mask(batch):
  x, ids = batch["input_embeddings"], jnp.asarray(batch["segment_ids"])
  return attend(x, ids, jnp.broadcast_to((ids > 0)[:, None], (*ids.shape, ids.shape[1])))


def a_mask_that_is_not_low_enough(batch):
  mask = packed_attention_mask(jnp.asarray(batch["segment_ids"]))[:, 0]
  return attend(batch["input_embeddings"], batch["segment_ids"], mask, forbidden=-5.0)


def a_mask_that_is_one_token_off(batch):
  ids = jnp.asarray(batch["segment_ids"])
  mask = packed_attention_mask(jnp.roll(ids, 1, axis=1))[:, 0]
  return attend(batch["input_embeddings"], ids, mask)


def statistics_of_the_row(batch):
  x = batch["input_embeddings"]
  real = (jnp.asarray(batch["segment_ids"]) > 0)[:, :, None]
  return x - jnp.where(real, x, 0).sum(axis=1, keepdims=True)


def statistics_of_the_batch(batch):
  x = batch["input_embeddings"]
  return x - x.mean(axis=(0, 1), keepdims=True)


def a_convolution_over_the_row(batch):
  x = batch["input_embeddings"]
  return x + jnp.roll(x, 1, axis=1)


BROKEN = {
  no_mask: "sequence 1 of row 0 changes with sequence 2 of row 0",
  a_mask_that_is_not_low_enough: "sequence 1 of row 0 changes with sequence 2 of row 0",
  a_mask_that_is_one_token_off: "sequence 1 of row 0 changes with sequence 2 of row 0",
  statistics_of_the_row: "sequence 1 of row 0 changes with sequence 2 of row 0",
  statistics_of_the_batch: "sequence 1 of row 0 changes with sequence 2 of row 0",
  a_convolution_over_the_row: "sequence 2 of row 0 changes with sequence 1 of row 0",
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
  assert_no_cross_contamination(isolated, make_batch(embedded()))
  assert_no_cross_contamination(through_ids(isolated), make_batch(tokens()))
  assert_packed_equals_unpacked(isolated, embedded())
  assert_packed_equals_unpacked(through_ids(isolated), tokens())


@pytest.mark.parametrize("apply", BROKEN)
def test_what_is_broken_is_caught_by_derivative(apply):
  with pytest.raises(AssertionError, match=BROKEN[apply] + ".* derivative of up to"):
    assert_no_cross_contamination(apply, make_batch(embedded()), methods=("derivative",))


@pytest.mark.parametrize("apply", BROKEN)
def test_what_is_broken_is_caught_by_change(apply):
  with pytest.raises(
    AssertionError, match=r"row \d changes with .* change of up to|NaN at"
  ):
    assert_no_cross_contamination(through_ids(apply), make_batch(tokens()))


@pytest.mark.parametrize("apply", [f for f in BROKEN if f is not statistics_of_the_batch])
def test_what_is_broken_is_not_equal(apply):
  with pytest.raises(AssertionError, match="Packed differs from unpacked in 'output'"):
    assert_packed_equals_unpacked(apply, embedded())


def positions_of_the_row(batch):
  x = batch["input_embeddings"]
  return x * jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)[None, :, None]


def test_positions_that_run_on_are_not_equal_though_nothing_leaks():
  assert_no_cross_contamination(positions_of_the_row, make_batch(embedded()))
  with pytest.raises(AssertionError, match=r"most in sequences\[\d\]"):
    assert_packed_equals_unpacked(positions_of_the_row, embedded())


def test_all_pairs_are_told_and_no_others():
  """Only the second sequence of a row hears, and only the first."""

  def apply(batch):
    x, ids = batch["input_embeddings"], jnp.asarray(batch["segment_ids"])
    heard = jnp.where((ids == 1)[:, :, None], x, 0).sum(1, keepdims=True)
    return jnp.where((ids == 2)[:, :, None], x + heard, x)

  for method in METHODS:
    leaks = find_leaks(apply, make_batch(embedded()), methods=(method,))
    assert [(leak.source, leak.target) for leak in leaks] == [((0, 1), (0, 2))]
    assert leaks[0].measure == method
    assert leaks[0].size > 0


def test_the_first_output_that_leaks_is_named():
  def apply(batch):
    first = isolated(batch)
    return {
      "z first": first,
      "second": no_mask(batch),
      "last": first + no_mask(batch),
    }

  with pytest.raises(AssertionError, match="first in 'second'"):
    assert_no_cross_contamination(apply, make_batch(embedded()))
  found = differences(apply, embedded())
  assert [d.output for d in found if d.size > d.limit] == ["second", "last"]


def test_gradients_are_compared_too():
  """Equal outputs, other gradients: a stop in one layout alone."""
  params = np.ones((WIDTH, WIDTH), np.float32)

  def apply(params, batch, broken=True):
    x = batch["input_embeddings"] @ params
    stopped = jax.lax.stop_gradient(x)
    is_stopped = jnp.asarray(batch["segment_ids"]) > int(broken)
    return jnp.where(is_stopped[:, :, None], stopped, x)

  right = functools.partial(apply, broken=9)
  assert_packed_equals_unpacked(right, embedded(), params=params)
  with pytest.raises(AssertionError, match="differs from unpacked in 'gradients'"):
    assert_packed_equals_unpacked(apply, embedded(), params=params)


def test_a_function_of_nothing_proves_nothing():
  def apply(batch):
    return (
      jnp.ones((*batch["segment_ids"].shape, 2)) + 0 * batch["input_embeddings"][0, 0, 0]
    )

  with pytest.raises(AssertionError, match="do not depend on its own tokens"):
    assert_no_cross_contamination(apply, make_batch(embedded()))


def test_dropout_is_told_from_a_leak():
  rng = np.random.default_rng(0)

  def apply(batch):
    return rng.standard_normal((*batch["segment_ids"].shape, 2))

  with pytest.raises(ValueError, match="Turn dropout off"):
    assert_no_cross_contamination(apply, make_batch(tokens()))


def test_values_that_are_not_numbers_prove_nothing():
  def apply(batch):
    return isolated(batch) * jnp.where(batch["segment_ids"] == 2, jnp.nan, 1)[:, :, None]

  with pytest.raises(AssertionError, match="NaN at real tokens"):
    assert_no_cross_contamination(apply, make_batch(embedded()))
  with pytest.raises(AssertionError, match="derivative of up to nan"):
    assert_no_cross_contamination(apply, make_batch(embedded()), methods=("derivative",))
  with pytest.raises(AssertionError, match="relative difference nan"):
    assert_packed_equals_unpacked(apply, embedded())


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("leaf", ["first", "last"])
def test_nan_anywhere_is_no_small_difference(where, leaf):
  trees = {name: {"first": np.ones(2), "last": np.ones(3)} for name in "ab"}
  assert relative_difference(**trees) == 0
  trees[where][leaf][1] = np.nan
  assert np.isnan(relative_difference(**trees))


def test_a_gradient_of_nan_in_packs_alone_is_found():
  params = {"a": np.ones(WIDTH, np.float32), "z": np.ones(WIDTH, np.float32)}

  def apply(params, batch):
    packed = (jnp.asarray(batch["segment_ids"]) > 1).any()
    root = jnp.sqrt(jnp.where(packed, 0, 1) * params["z"]) * 0  # d sqrt(0) is infinite
    x = batch["input_embeddings"] * params["a"][None, None]
    return jnp.where(packed, x + root[None, None], x)

  with pytest.raises(AssertionError, match=r"'gradients': relative difference nan"):
    assert_packed_equals_unpacked(apply, embedded(), params=params)


def test_the_tolerance_is_the_users():
  def apply(batch):
    return batch["input_embeddings"] + 3e-6 * positions_of_the_row(batch)

  assert_packed_equals_unpacked(apply, embedded(), tolerance=1e-4)
  for tolerance in (1e-6, 0):
    with pytest.raises(AssertionError, match=f"expected at most {tolerance:.3g}"):
      assert_packed_equals_unpacked(apply, embedded(), tolerance=tolerance)


@pytest.mark.parametrize("name", ["sequence_output", "token_embeddings", "mlm_logits"])
def test_names_of_our_heads_mean_nothing_in_other_models(name):
  assert_no_cross_contamination(
    lambda batch: {name: isolated(batch)}, make_batch(embedded())
  )
  assert_packed_equals_unpacked(lambda batch: {name: isolated(batch)}, embedded())
  # As many slots as tokens: a guess at whose an output is would go unnoticed.
  full = make_batch(embedded((1,) * 11)) | {"sequence_mask": np.ones((3, 11), bool)}
  with pytest.raises(AssertionError, match="changes with"):
    assert_no_cross_contamination(lambda batch: {name: no_mask(batch)}, full)


@pytest.mark.parametrize(
  "batch",
  [
    lay_out([[s] for s in embedded()], row_length=5),
    jax.tree.map(np.zeros_like, make_batch(embedded())),
  ],
  ids=["one a row", "padding alone"],
)
def test_a_batch_without_a_pack_proves_nothing(batch):
  with pytest.raises(ValueError, match="a row with two sequences or more, found none"):
    assert_no_cross_contamination(isolated, batch)


def test_an_output_that_is_dead_is_named():
  def apply(batch):
    return {"live": isolated(batch), "dead": 0 * no_mask(batch)}

  for sequences in (embedded(), tokens()):
    function = apply if "input_embeddings" in sequences[0] else through_ids(apply)
    with pytest.raises(AssertionError, match="'dead' depends on no token"):
      assert_no_cross_contamination(function, make_batch(sequences))


def the_two_largest_of_the_row(batch):
  x = batch["input_embeddings"]
  chosen = jax.lax.top_k(jnp.where(batch["segment_ids"] > 0, x[..., 0], -9.0), 2)[1]
  return x + jax.nn.one_hot(chosen, x.shape[1]).sum(1)[:, :, None]


def a_stopped_sum_of_the_row(batch):
  x = batch["input_embeddings"]
  return x + jax.lax.stop_gradient(x.sum(1, keepdims=True))


@pytest.mark.parametrize("apply", [the_two_largest_of_the_row, a_stopped_sum_of_the_row])
def test_what_has_no_derivative_is_found_by_change(apply):
  batch = make_batch(embedded())
  assert_no_cross_contamination(apply, batch, methods=("derivative",))
  with pytest.raises(AssertionError, match="a change of up to"):
    assert_no_cross_contamination(apply, batch)


def test_padding_and_other_rows_are_looked_at_as_sources():
  def hears(batch, where):
    x = batch["input_embeddings"]
    ids = jnp.asarray(batch["segment_ids"])
    heard = jnp.where((ids == 0)[:, :, None], x, 0) if where == "padding" else x[::-1]
    return isolated(batch) + 1e-3 * heard.sum(1, keepdims=True)

  batch = make_batch(embedded())
  for method in METHODS:
    for where, message in (("padding", "with the padding of row 0"), ("rows", "row 2")):
      apply = functools.partial(hears, where=where)
      with pytest.raises(LeakError) as caught:
        assert_no_cross_contamination(apply, batch, methods=(method,))
      sources = {leak.source for leak in caught.value.leaks}
      assert message.removeprefix("with ") in " ".join(map(str, sources))


def test_what_masks_put_in_does_not_hide_the_rest():
  def with_column(apply, value):
    return lambda batch: apply(batch).at[..., 0].set(value)

  for value in (-1e9, -jnp.inf):
    assert_packed_equals_unpacked(with_column(isolated, value), embedded())
    with pytest.raises(AssertionError, match="differs from unpacked"):
      assert_packed_equals_unpacked(with_column(no_mask, value), embedded())


def test_whole_numbers_must_be_equal():
  right = lambda batch: (isolated(batch)[..., 0] > 0, isolated(batch))  # noqa: E731
  assert_packed_equals_unpacked(right, embedded())
  wrong = lambda batch: (isolated(batch), 3 + jnp.asarray(batch["segment_ids"]))  # noqa: E731
  with pytest.raises(AssertionError, match="'output 1': relative difference 1"):
    assert_packed_equals_unpacked(wrong, embedded())


def test_parameters_that_are_whole_numbers_have_no_gradient():
  params = {"scale": np.ones(WIDTH, np.float32), "step": np.int32(3)}

  def apply(params, batch):
    return batch["input_embeddings"] * params["scale"][None, None]

  assert_packed_equals_unpacked(apply, embedded(), params=params)


class Tensor:
  shape = (4, 7, 2)

  def __array__(self, *args, **kwargs):
    raise RuntimeError("Can't call numpy() on a tensor that requires grad.")


@pytest.mark.parametrize(
  ("outputs", "message"),
  [
    ({}, "at least one output of the model, found none"),
    (Tensor(), "to be an array, found Tensor: Can't call numpy"),
    (None, r"a value for each token, \[B, S, ...\]"),
    (np.ones((4, 7, 2), np.float32), "all alike, which proves nothing"),
  ],
)
def test_outputs_of_other_kinds_are_refused(outputs, message):
  with pytest.raises(ValueError, match=message):
    assert_packed_equals_unpacked(lambda batch: outputs, embedded())


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda ids: np.roll(ids, 1, axis=1), "and then 0 for padding"),
    (lambda ids: ids[0], r"shape \[B, S\]"),
  ],
)
def test_padding_in_front_is_refused(change, message):
  batch = make_batch(embedded())
  batch["segment_ids"] = change(batch["segment_ids"])
  with pytest.raises(ValueError, match=message):
    assert_no_cross_contamination(isolated, batch)


def test_outputs_that_are_not_of_tokens_are_refused():
  with pytest.raises(ValueError, match=r"\[3, 11, ...\], found \(3, 5\)"):
    assert_no_cross_contamination(
      lambda batch: batch["input_embeddings"].mean(1), make_batch(embedded())
    )


def test_tokens_all_alike_cannot_be_swapped():
  batch = make_batch([{"input_ids": [7] * n} for n in LENGTHS])
  with pytest.raises(ValueError, match="at least two kinds of tokens to swap, found 1"):
    assert_no_cross_contamination(through_ids(isolated), batch)


def test_sequences_are_packed_first_fit():
  assert first_fit(tokens((4, 3, 2, 1, 5)), 7) == [[0, 1], [2, 3], [4]]
  assert first_fit(tokens((4, 3, 2))) == [[0, 1], [2]]


@pytest.mark.parametrize(
  ("lengths", "row_length", "message"),
  [
    ((4,), 7, "of which two fit a row of 7 tokens"),
    ((4, 4), 5, "of which two fit a row of 5 tokens, found lengths"),
    ((4, 9), 7, r"sequences\[1\] has 9 tokens, the row 7"),
  ],
)
def test_sequences_that_do_not_pack_are_refused(lengths, row_length, message):
  with pytest.raises(ValueError, match=message):
    assert_packed_equals_unpacked(isolated, embedded(lengths), row_length=row_length)


class Tangled(nnx.Module):
  """Not of this project: NNX, with a layer that mixes what it should not."""

  def __init__(self, rngs):
    self.inner = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

  def __call__(self, batch):
    x = self.inner(batch["input_embeddings"])
    return {"inner": x, "outer": jnp.cumsum(x, axis=1)}


def test_a_model_of_another_project():
  model = Tangled(nnx.Rngs(0))
  with pytest.raises(AssertionError, match="first in 'outer'"):
    assert_no_cross_contamination(model, make_batch(embedded()))


@pytest.mark.extra("torch", "transformers")
def test_a_model_of_pytorch():
  """Hugging Face's BERT, told of the pack by a mask of its own and by positions."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  config = transformers.BertConfig(
    vocab_size=11,
    hidden_size=14,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    attn_implementation="eager",
  )
  torch.manual_seed(0)
  bert = transformers.BertModel(config, add_pooling_layer=False).eval()

  def apply(batch, packed=True):
    ids = torch.tensor(batch["segment_ids"])
    same = (
      (ids[:, :, None] == ids[:, None])
      if packed
      else (ids > 0)[:, None].expand(-1, ids.shape[1], -1)
    )
    with torch.no_grad():
      states = bert(
        input_ids=torch.tensor(batch["input_ids"]).long(),
        position_ids=torch.tensor(batch["position_ids"]).long(),
        attention_mask=torch.where(same, 0.0, torch.finfo(torch.float32).min)[:, None],
        output_hidden_states=True,
      ).hidden_states
    return {f"layer {i}": state.numpy() for i, state in enumerate(states)}

  assert_no_cross_contamination(apply, make_batch(tokens()))
  assert_packed_equals_unpacked(apply, tokens())
  with pytest.raises(AssertionError, match="first in 'layer 1'"):
    assert_no_cross_contamination(
      functools.partial(apply, packed=False), make_batch(tokens())
    )


# ---- the order of tokens -----------------------------------------------------------------


def causal(batch):
  x = batch["input_embeddings"]
  mask = packed_attention_mask(jnp.asarray(batch["segment_ids"]))[:, 0]
  return attend(x, batch["segment_ids"], mask & np.tri(x.shape[1], dtype=bool)[None])


def test_a_causal_model_passes_by_derivative_and_by_change():
  assert_causal(causal, make_batch(embedded()))
  assert_causal(through_ids(causal), make_batch(tokens()))


def hears_the_third_token_before(batch):
  x = batch["input_embeddings"]
  return causal(batch) + 1e-30 * jnp.roll(x, -3, axis=1)


@pytest.mark.parametrize(
  ("apply", "sequences", "methods", "measure"),
  [
    (isolated, embedded(), ("derivative",), "derivative"),
    (isolated, embedded(), None, "change"),
    (hears_the_third_token_before, embedded(), None, "derivative"),  # too small to change
    (through_ids(isolated), tokens(), None, "change"),
  ],
)
def test_tokens_that_see_what_comes_after_them_are_found(
  apply, sequences, methods, measure
):
  expected = f"before position 1 of row 0 changes .* a {measure} of up to"
  with pytest.raises(AssertionError, match=expected):
    assert_causal(apply, make_batch(sequences), methods=methods)


def test_what_depends_on_nothing_is_not_called_causal():
  for sequences in (embedded(), tokens()):
    apply = lambda batch: 0 * isolated(batch)  # noqa: E731
    function = apply if "input_embeddings" in sequences[0] else through_ids(apply)
    with pytest.raises(AssertionError, match="depend on no token"):
      assert_causal(function, make_batch(sequences))
