"""Training steps lowered for GPUs and TPUs, on a machine without them.

The expected calls of kernels are there, and no array of S x S where none should be.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from model import attention
from tests import packs
from tests.model.test_attention import AMPERE, HOPPER, TPU, as_if_on
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

S = 640  # no other size in the program is as large
PAIRS = re.compile(rf"[<x]{S}x{S}x")
CUDNN = r"__cudnn\$fmha\w*Softmax"  # forward and backward
CASES = [
  ("cuda", HOPPER, "cudnn_packed", CUDNN),
  ("cuda", AMPERE, "cudnn", CUDNN),
  ("tpu", TPU, "splash", "tpu_custom_call"),
]


def step_for(platform, monkeypatch, config) -> str:
  """A training step of the model for another platform, as StableHLO."""
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  program = TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0)
  batch = packs.lay_out(packs.random_sequences(packs.PACKS))
  rows = {**batch} | {
    name: jnp.zeros((len(batch[name]), S), jnp.int32)
    for name in ("input_ids", "token_type_ids", "segment_ids", "position_ids")
  }
  rows.pop("sequence_ids", None)
  traced = program.train_step.trace(program.abstract_state(), rows)
  return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("platform", "device", "implementation", "call"), CASES)
@pytest.mark.parametrize("make_config", [packs.small_config, packs.small_modern_bert])
def test_auto_lowers_to_the_kernel_of_the_device(
  monkeypatch, platform, device, implementation, call, make_config
):
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
  monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
  as_if_on(monkeypatch, device)
  local = {"global_every": 1} if make_config is packs.small_modern_bert else {}
  config = make_config(hidden_size=128, num_heads=2, dtype="auto", **local)
  assert attention.choose(config, [S]).implementation == implementation
  text = step_for(platform, monkeypatch, config)
  assert len(re.findall(call, text)) >= 2
  assert bool(PAIRS.search(text)) == (implementation == "cudnn")  # whose mask is S x S
  assert "bf16" in text
