"""The proofs differentiate functions of PyTorch."""

import functools

import numpy as np
import pytest

from packing.testing import (
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  lay_out,
)

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra("torch")

WIDTH = 5
RNG = np.random.default_rng(0)
SEQUENCES = [
  {"input_embeddings": RNG.standard_normal((n, WIDTH)).astype(np.float32)}
  for n in (4, 3, 2, 1)
]
BATCH = lay_out([SEQUENCES[:3], SEQUENCES[3:]], row_length=10)


def model(batch, *, mask="segments", causal=False, whisper=0.0, dtype=torch.float32):
  x = torch.as_tensor(batch["input_embeddings"]).to(dtype)
  ids = torch.as_tensor(batch["segment_ids"])
  allowed = ids[:, :, None] == ids[:, None, :]
  if mask == "row":
    allowed = (ids > 0)[:, None, :].expand_as(allowed)
  if causal:
    allowed = allowed.tril()
  scores = (x @ x.mT).masked_fill(~allowed, torch.finfo(dtype).min)
  attended = scores.softmax(-1) @ x
  return {"attention": attended, "last": attended + whisper * x.sum(1, keepdim=True)}


def test_what_is_right_passes_by_derivative_and_by_change():
  assert_no_cross_contamination(model, BATCH)
  assert_no_cross_contamination(model, BATCH, methods=("derivative",))
  assert_packed_equals_unpacked(model, SEQUENCES)
  assert_causal(lambda batch: model(batch, causal=True), BATCH)


@pytest.mark.parametrize("method", ["change", "derivative"])
def test_a_leak_is_found_by_both(method):
  with pytest.raises(AssertionError, match=f"{method} of up to .* first in 'attention'"):
    assert_no_cross_contamination(
      lambda batch: model(batch, mask="row"), BATCH, methods=(method,)
    )
  with pytest.raises(AssertionError, match=f"before position 1 .* {method}"):
    assert_causal(model, BATCH, methods=(method,))


def test_a_leak_too_small_to_change_a_bit_is_found_by_default():
  with pytest.raises(AssertionError, match=r"e-30, first in 'last'"):
    assert_no_cross_contamination(lambda batch: model(batch, whisper=1e-30), BATCH)


def test_gradients_by_tensors_are_compared():
  layer = torch.nn.Linear(WIDTH, WIDTH)

  def apply(params, batch, last=1):
    x = torch.as_tensor(batch["input_embeddings"])
    y = torch.func.functional_call(layer, params, x)
    is_stopped = torch.as_tensor(batch["segment_ids"] > last)
    return torch.where(is_stopped[:, :, None], y.detach(), y)

  params = dict(layer.named_parameters())
  right = functools.partial(apply, last=9)
  assert_packed_equals_unpacked(right, SEQUENCES, params=params)
  with pytest.raises(AssertionError, match="differs from unpacked in 'gradients'"):
    assert_packed_equals_unpacked(apply, SEQUENCES, params=params)
  frozen = {name: x.detach() for name, x in params.items()}
  with pytest.raises(ValueError, match="requires a gradient"):
    assert_packed_equals_unpacked(apply, SEQUENCES, params=frozen)


def test_bfloat16_has_its_own_tolerance():
  def apply(batch):
    return model(batch, dtype=torch.bfloat16)["attention"]

  assert_packed_equals_unpacked(apply, SEQUENCES)
  with pytest.raises(AssertionError, match=r"expected at most 0\.03"):
    assert_packed_equals_unpacked(
      lambda batch: model(batch, mask="row", dtype=torch.bfloat16)["attention"], SEQUENCES
    )
