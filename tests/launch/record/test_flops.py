"""The count of matrix work against JAX's own program, and against XLA's count."""

import dataclasses
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
from launch.record import flops
from model import CONFIGS, attention
from tests import packs
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

SHAPES = {"rows": 3, "row_length": 29, "mlm_slots": 7, "max_sequences": 2}


def program_of(head="pretraining", family="bert", **fields) -> TrainingProgram:
  sizes = {"vocab_size": 1003, "hidden_size": 22, "num_layers": 2, "num_heads": 2}
  sizes |= {"intermediate_size": 37, "max_position_embeddings": 31}
  config = CONFIGS["gpt2" if head == "causal" else family](**sizes | fields)
  return TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0, head=head)


def abstract_batch():
  """Of the shapes above."""
  axes = {packs.ROW_LENGTH: 29, packs.MAX_MASKED: 7, packs.MAX_SEQUENCES: 2}
  return {
    name: jax.ShapeDtypeStruct((3, axes[field.shape[1]]), field.dtype)
    for name, field in packs.lay_out(packs.random_sequences()).items()
  }


def dot_flops(jaxpr) -> int:
  """Operations of all matrix products in a traced program and in what it calls.

  A product of [a, b] with [b, c] has 2abc; the body of a scan counts each time it runs.
  """
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      shape = equation.invars[0].aval.shape
      inner = math.prod(shape[axis] for axis in contracted)
      total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
    times = equation.params["length"] if equation.primitive.name == "scan" else 1
    for value in equation.params.values():
      inner_jaxpr = getattr(value, "jaxpr", value if hasattr(value, "eqns") else None)
      if inner_jaxpr is not None:
        total += times * dot_flops(inner_jaxpr)
  return total


@pytest.mark.parametrize(
  "fields",
  [
    {},
    {"next_sentence": False},
    {"attention_mask": "none", "position_reset": False},
    {"family": "modern_bert", "num_heads": 1, "global_every": 2, "local_window": 6},
    {"family": "modern_bert", "num_heads": 1, "head": "sequence_classification"},
    {"family": "modern_bert", "num_heads": 1, "head": "token_classification"},
    {"head": "causal"},
    {"head": "causal", "positions": "learned"},
  ],
)
def test_every_matrix_product_of_a_step_is_counted(fields):
  program = program_of(**fields)
  step = jax.make_jaxpr(program.train_step)(program.abstract_state(), abstract_batch())
  counted = flops.training_flops(program.config, **SHAPES, head=program.head)
  assert counted == dot_flops(step.jaxpr)


def device(kind, process_index=0):
  return types.SimpleNamespace(device_kind=kind, process_index=process_index)


@pytest.mark.parametrize(
  ("kind", "dtype", "teraflops"),
  [
    ("NVIDIA H100 80GB HBM3", "float32", 494.7),
    ("TPU v5 lite", "bfloat16", 197),
  ],
)
def test_a_known_device_has_the_vendors_rate(kind, dtype, teraflops):
  peak = flops.peak_of([device(kind)] * 3, dtype=dtype)
  assert peak == flops.Peak(pytest.approx(3e12 * teraflops), "table")


def test_another_device_is_measured_and_the_best_time_counts(monkeypatch):
  """The first size takes 2 ms on this clock, which is too short; the second 30 at best."""
  seconds = [9.0, *[0.002] * 5, 9.0, 0.05, 0.03, 0.07, 0.09, 0.04]
  reads = iter([time for taken in seconds for time in (0.0, taken)])  # before and after
  clock = types.SimpleNamespace(perf_counter=lambda: next(reads))
  monkeypatch.setattr(flops, "time", clock)
  local = jax.local_devices()[:2]
  elsewhere = [device(local[0].device_kind, process_index=1)] * 2
  peak = flops.peak_of([*local, *elsewhere], dtype="float32")
  assert peak.source == "measured"
  assert peak.flops == pytest.approx(2 * (2 * 2 * 1024**3 / 0.03))
  assert next(reads, None) is None


@pytest.mark.parametrize("has_instructions", [True, False])
def test_the_peak_is_of_products_as_the_model_computes_them(monkeypatch, has_instructions):
  """CPUs that multiply bfloat16 do so only for results in float32."""
  monkeypatch.setattr(flops, "multiplies_bfloat16", lambda: has_instructions)
  measured: list[jax.Array] = []
  multiply: Any = flops.multiply

  def watched(a, b):
    measured.append(multiply(a, b))
    return measured[-1]

  monkeypatch.setattr(flops, "multiply", watched)
  multiply.clear_cache()
  for dtype in (jnp.bfloat16, jnp.float32):
    flops.peak_of(jax.local_devices()[:1], dtype=dtype.dtype.name)
    wide = jnp.float32 if has_instructions else dtype
    assert {product.dtype for product in measured} == {jnp.dtype(wide)}
    measured.clear()
  multiply.clear_cache()


def test_pairs_that_attention_skips_are_not_counted():
  """A run with blocks counts the squares of its packs; others, and no mask, whole rows.

  A local layer counts what is within its window, here of 2 tokens to either side.
  """
  plan = packing.pack([5, 3, 8], max_sequence_length=8)
  sizes = packs.small_config(num_layers=2)
  assert flops.attended_pairs(sizes, plan, rows=6) is None
  sizes = dataclasses.replace(sizes, attention_impl="blocks")
  of_a_layer = 6 * (25 + 9 + 64) // 2
  assert flops.attended_pairs(sizes, plan, rows=6) == 2 * of_a_layer
  texts = np.array([5, 2, 1, 4, 4])  # of records; attention keeps them apart
  found = flops.attended_pairs(sizes, plan, rows=6, texts=texts)
  assert found == 2 * 6 * (25 + 4 + 1 + 16 + 16) // 2
  near = sum(abs(i - j) <= 2 for n in (5, 3, 8) for i in range(n) for j in range(n))
  local = {"num_layers": 3, "local_window": 4, "attention_impl": "blocks"}
  modern = packs.small_modern_bert(**local)  # layer 1 is local
  found = flops.attended_pairs(modern, plan, rows=6)
  assert found == 2 * of_a_layer + 6 * near // 2
  modern = dataclasses.replace(modern, attention_impl="cudnn_packed")  # xla computes it
  found = flops.attended_pairs(modern, plan, rows=6)
  assert found == 2 * of_a_layer + 6 * attention.window_pairs(8, 2)
  sizes = dataclasses.replace(sizes, attention_mask="none")
  assert flops.attended_pairs(sizes, plan, rows=6) is None
