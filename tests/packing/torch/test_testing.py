"""The proofs of functions of PyTorch, and the gradients of their parameters."""

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


def model(batch, *, mask="segments", causal=False, dtype=torch.float32):
  x = torch.as_tensor(batch["input_embeddings"]).to(dtype)
  ids = torch.as_tensor(batch["segment_ids"])
  allowed = ids[:, :, None] == ids[:, None, :]
  if mask == "row":
    allowed = (ids > 0)[:, None, :].expand_as(allowed)
  if causal:
    allowed = allowed.tril()
  scores = (x @ x.mT).masked_fill(~allowed, torch.finfo(dtype).min)
  return {"attention": scores.softmax(-1) @ x}


def test_what_is_right_passes():
  assert_no_cross_contamination(model, BATCH)
  assert_packed_equals_unpacked(model, SEQUENCES)
  assert_causal(lambda batch: model(batch, causal=True), BATCH)


def test_a_leak_is_found():
  with pytest.raises(AssertionError, match=r"change of up to .* first in 'attention'"):
    assert_no_cross_contamination(lambda batch: model(batch, mask="row"), BATCH)
  with pytest.raises(AssertionError, match=r"before position 1 .* change"):
    assert_causal(model, BATCH)
  with pytest.raises(ValueError, match="Expected a function of JAX to differentiate"):
    assert_no_cross_contamination(model, BATCH, methods=("derivative",))


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
