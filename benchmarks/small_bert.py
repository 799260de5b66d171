"""The models, random batches and description of the machine that benchmarks share."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
import optax

from benchmarks.machine import machine
from model import BertConfig, EncoderConfig, ModernBertConfig
from packing.testing import lay_out
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

Encoder = TypeVar("Encoder", bound=EncoderConfig)
VOCAB_SIZE = 30522
FAMILIES: dict[str, type[EncoderConfig]] = {
  "bert": BertConfig,
  "modern_bert": ModernBertConfig,
}
MASK_RATE = 0.15
# Options of AdamW, as in PyTorch's steps.
ADAMW: dict[str, Any] = {"learning_rate": 1e-4, "weight_decay": 0.01}
ADAMW |= {"b1": 0.9, "b2": 0.999, "eps": 1e-6}


def make_optimizer() -> optax.GradientTransformation:
  """LAMB with a constant learning rate."""
  return lamb(1e-4)


def make_config(size: str, *, longest: int, **fields) -> BertConfig:
  """A BERT of this size without dropout, for rows of up to `longest` tokens."""
  return make_encoder(BertConfig, size, longest=longest, **fields)


def make_encoder(kind: type[Encoder], size: str, *, longest: int, **fields) -> Encoder:
  """The same for any kind of encoder."""
  return kind.from_size(
    size,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=longest,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    **fields,
  )


def make_program(size: str, *, longest: int, devices: int = 1) -> TrainingProgram:
  """The program that trains such a BERT with LAMB, on the first `devices` devices."""
  config = make_config(size, longest=longest)
  return TrainingProgram(config, make_optimizer(), mesh=make_mesh(devices), seed=0)


def full_rows(row_length: int, rows: int) -> dict[str, np.ndarray]:
  """A batch without padding: one sequence a row, random tokens, 15 % of them masked."""
  rng = np.random.default_rng(0)
  return lay_out([[sequence(rng, row_length)] for _ in range(rows)], row_length=row_length)


def sequence(rng: np.random.Generator, length: int) -> dict[str, Any]:
  """Random tokens, 15 % of them masked, in the form that `lay_out` takes."""
  masked = masked_tokens(length)
  return {
    "input_ids": rng.integers(VOCAB_SIZE, size=length),
    "mlm_positions": np.sort(rng.choice(length, masked, replace=False)),
    "mlm_labels": rng.integers(VOCAB_SIZE, size=masked),
    "sequence_label": int(rng.integers(2)),
  }


def masked_tokens(length: int) -> int:
  """How many tokens of a sequence are masked; never fewer in a longer sequence.

  Example:
    >>> masked_tokens(1), masked_tokens(512)
    (1, 77)
  """
  return max(1, round(MASK_RATE * length))


def machine_and_device() -> str:
  """The processor, its cores, and JAX's device."""
  return f"{machine()}; {jax.devices()[0].device_kind}, jax {jax.__version__}"
