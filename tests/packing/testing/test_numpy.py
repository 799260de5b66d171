"""The proofs with NumPy alone: for a function of any framework, by change."""

import subprocess
import sys

import numpy as np
import pytest

from packing.testing import (
  LeakError,
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  frameworks,
  lay_out,
)

TABLE = np.random.default_rng(0).standard_normal((20, 6))
PLACES = np.random.default_rng(1).standard_normal((16, 6))
SEQUENCES = [{"input_ids": ids} for ids in ([5, 9, 2], [7, 3], [8, 1, 4, 6], [2])]
BATCH = lay_out([SEQUENCES[:2], SEQUENCES[2:]], row_length=8)


def attend(x, allowed):
  scores = np.where(allowed, np.einsum("bqd,bkd->bqk", x, x), -np.inf)
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return np.einsum("bqk,bkd->bqd", weights / weights.sum(axis=-1, keepdims=True), x)


def model(batch, *, mask="segments", positions="position_ids", causal=False):
  ids = batch["segment_ids"]
  allowed = ids[:, :, None] == ids[:, None, :]
  if mask == "row":
    allowed = np.broadcast_to((ids > 0)[:, None, :], allowed.shape)
  if causal:
    allowed = allowed & np.tri(ids.shape[1], dtype=bool)
  places = batch["position_ids"] if positions == "position_ids" else np.arange(ids.shape[1])
  return {"attention": attend(TABLE[batch["input_ids"]] + PLACES[places], allowed)}


def test_what_is_right_passes():
  assert_no_cross_contamination(model, BATCH)
  assert_packed_equals_unpacked(model, SEQUENCES)
  assert_causal(lambda batch: model(batch, causal=True), BATCH)


def test_what_is_wrong_is_named():
  with pytest.raises(AssertionError, match="sequence 1 of row 0 changes with sequence 2"):
    assert_no_cross_contamination(lambda batch: model(batch, mask="row"), BATCH)
  with pytest.raises(AssertionError, match=r"in 'attention'.*most in sequences\[1\]"):
    assert_packed_equals_unpacked(
      lambda batch: model(batch, positions="row"), SEQUENCES[:2]
    )
  with pytest.raises(AssertionError, match="before position 1 of row 0 changes"):
    assert_causal(model, BATCH)


def test_a_mask_that_is_wrong_in_packs_and_without_is_found_by_the_reference():
  def windowed(batch):
    ids = batch["segment_ids"]
    near = np.abs(np.arange(ids.shape[1])[:, None] - np.arange(ids.shape[1])) <= 1
    allowed = (ids[:, :, None] == ids[:, None, :]) & near
    x = TABLE[batch["input_ids"]] + PLACES[batch["position_ids"]]
    return {"attention": attend(x, allowed)}

  def alone(sequence):
    x = TABLE[sequence["input_ids"]] + PLACES[: len(sequence["input_ids"])]
    return {"attention": attend(x[None], True)[0]}

  check = assert_packed_equals_unpacked
  check(model, SEQUENCES, reference=alone)
  check(windowed, SEQUENCES)
  with pytest.raises(AssertionError, match="differs from the reference in 'attention'"):
    check(windowed, SEQUENCES, reference=alone)
  with pytest.raises(ValueError, match=r"shape \(1, 3, 6\); expected \(3, 6\)"):
    check(model, SEQUENCES, reference=lambda x: {"attention": alone(x)["attention"][None]})
  with pytest.raises(ValueError, match="The reference has no output 'attention'"):
    check(model, SEQUENCES, reference=lambda x: alone(x)["attention"])


@pytest.mark.parametrize("methods", [(), "change", ("derivatives",)])
def test_unknown_methods_or_none_are_refused(methods):
  for check in (assert_no_cross_contamination, assert_causal):
    with pytest.raises(ValueError, match="expected some of change, derivative"):
      check(model, BATCH, methods=methods)


def test_an_infinity_that_stays_is_no_change():
  def banned(batch, **options):  # a logit that the model never chooses
    outputs = model(batch, **options)["attention"]
    outputs[..., 0] = -np.inf
    return {"attention": outputs}

  assert_no_cross_contamination(banned, BATCH)
  assert_causal(lambda batch: banned(batch, causal=True), BATCH)
  with pytest.raises(AssertionError, match=r"a change of up to \d"):
    assert_causal(banned, BATCH)


def test_a_model_that_draws_or_gives_nan_proves_nothing_about_order():
  rng = np.random.default_rng(0)

  def drawn(batch):
    return {"attention": model(batch, causal=True)["attention"] + rng.random()}

  with pytest.raises(ValueError, match="Turn dropout off"):
    assert_causal(drawn, BATCH)
  with pytest.raises(AssertionError, match="has NaN at real tokens"):
    assert_causal(lambda batch: {"a": model(batch)["attention"] * np.nan}, BATCH)


def test_outputs_of_nothing_prove_nothing():
  nothing = {"attention": np.arange(16.0).reshape(2, 8)}
  assert BATCH["input_ids"].shape == (2, 8)
  with pytest.raises(AssertionError, match="Give a function that reads input_ids or input"):
    assert_no_cross_contamination(lambda batch: nothing, BATCH)


def test_parameters_of_a_library_that_is_not_imported_are_refused(monkeypatch):
  for name in ("jax", "torch"):
    monkeypatch.delitem(sys.modules, name, raising=False)
  with pytest.raises(ValueError, match=r"params is dict; .* imported: import jax, or"):
    frameworks.outputs_and_gradients(model, {"weights": [1.0]}, sum)


def test_gaps_between_sequences_are_padding():
  """As of a plan with aligned lengths or separators."""
  gaps = {name: np.zeros((2, 10), x.dtype) for name, x in BATCH.items() if x.ndim == 2}
  for name in ("input_ids", "segment_ids", "position_ids"):
    row = BATCH[name]
    gaps[name][:, :8] = row
    gaps[name][0] = [*row[0, :3], 0, *row[0, 3:5], *[0] * 4]
  assert_no_cross_contamination(model, gaps)

  def hears_the_gap(batch):
    x = TABLE[batch["input_ids"]]
    return x + x[:1, 3:4]

  with pytest.raises(LeakError) as caught:
    assert_no_cross_contamination(hears_the_gap, gaps)
  assert {str(leak.source) for leak in caught.value.leaks} == {"the padding of row 0"}


def test_params_need_a_framework():
  program = (
    "import numpy as np; from packing.testing import assert_packed_equals_unpacked as f;"
    "f(lambda p, b: p * b['input_ids'], [{'input_ids': [1, 2]}] * 2, params=np.ones(1))"
  )
  result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
  assert "expected JAX arrays, or a dict or list of tensors" in result.stderr
  assert result.returncode == 1
