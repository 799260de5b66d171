"""The count of matrix work against JAX's own program, and against XLA's count."""

import types

import jax
import numpy as np
import pytest

from benchmarks.steps import dot_flops
from model import MODELS, ModelConfig
from training.mesh import make_mesh
from training.optimizer import lamb
from training.record import flops
from training.step import TrainingProgram

SHAPES = {"rows": 3, "row_length": 29, "mlm_slots": 7, "max_sequences": 2}


def program_of(*, head="pretraining", **fields) -> tuple[ModelConfig, TrainingProgram]:
  sizes = {
    "vocab_size": 1003,
    "hidden_size": 22,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 31,
  }
  config = MODELS[head].config_type(**sizes | fields)
  return config, TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0, head=head)


def abstract_batch(*, rows, row_length, mlm_slots, max_sequences):
  fields = {
    row_length: ("input_ids", "token_type_ids", "segment_ids", "position_ids"),
    mlm_slots: ("mlm_positions", "mlm_labels", "mlm_segment_ids"),
    max_sequences: ("cls_positions", "sequence_labels"),
  }
  batch = {
    name: jax.ShapeDtypeStruct((rows, size), np.int32)
    for size, names in fields.items()
    for name in names
  }
  return batch | {"sequence_mask": jax.ShapeDtypeStruct((rows, max_sequences), bool)}


@pytest.mark.parametrize(
  "fields",
  [
    {},
    {"next_sentence": False},
    {"vocab_multiple": 128},
    {"attention_mask": "none", "position_reset": False},
    {"head": "causal"},
    {"head": "causal", "positions": "learned", "vocab_multiple": 128},
  ],
)
def test_every_matrix_product_of_a_step_is_counted(fields):
  config, program = program_of(**fields)
  step = jax.make_jaxpr(program.train_step)(
    program.abstract_state(), abstract_batch(**SHAPES)
  )
  counted = flops.training_flops(config, **SHAPES, head=program.head)
  assert counted == dot_flops(step.jaxpr)


@pytest.mark.parametrize("head", ["pretraining", "causal"])
def test_the_count_is_that_of_xla(head):
  """XLA counts what is done entry by entry too, less than 4 % at this width."""
  wide = {"hidden_size": 512, "num_heads": 8, "intermediate_size": 2048, "num_layers": 1}
  config, program = program_of(head=head, **wide)
  params = program.abstract_state()["params"]
  forward = jax.jit(program.apply).lower(params, abstract_batch(**SHAPES)).compile()
  ours = flops.training_flops(config, **SHAPES, head=head) / 3
  costs = forward.cost_analysis()
  assert costs is not None
  assert 1 < costs["flops"] / ours < 1.04


def device(kind, process_index=0):
  return types.SimpleNamespace(device_kind=kind, process_index=process_index)


@pytest.mark.parametrize(
  ("kind", "dtype", "teraflops"),
  [
    ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
    ("NVIDIA H100 80GB HBM3", "float32", 494.7),
    ("NVIDIA A100-SXM4-80GB", "float32", 156),
    ("TPU v5 lite", "bfloat16", 197),
    ("TPU v4", "float32", 275),
  ],
)
def test_a_known_device_has_the_vendors_rate(kind, dtype, teraflops):
  peak = flops.peak_of([device(kind)] * 3, dtype=dtype)
  assert peak == flops.Peak(pytest.approx(3e12 * teraflops), "table")
  assert flops.peak_of([device(kind)], dtype=dtype, given=7.0) == flops.Peak(7.0, "config")


def test_another_device_is_measured_and_the_best_time_counts(monkeypatch):
  """The first size takes 2 ms on this clock, which is too short; the second 30 at best."""
  seconds = iter([9.0, *[0.002] * 5, 9.0, 0.05, 0.03, 0.07, 0.09, 0.04])
  now = [0.0]
  reads = [0]

  def perf_counter():
    reads[0] += 1
    if reads[0] % 2 == 0:
      now[0] += next(seconds)
    return now[0]

  monkeypatch.setattr(flops, "time", types.SimpleNamespace(perf_counter=perf_counter))
  local = jax.local_devices()[:2]
  elsewhere = [device(local[0].device_kind, process_index=1)] * 2
  peak = flops.peak_of([*local, *elsewhere], dtype="float32")
  assert peak.source == "measured"
  assert peak.flops == pytest.approx(2 * (2 * 2 * 1024**3 / 0.03))
  assert next(seconds, None) is None
