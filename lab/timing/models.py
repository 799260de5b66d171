"""The models and the optimizers whose steps are timed."""

from __future__ import annotations

from typing import Any

import optax
from jax.sharding import Mesh

from model import BertConfig, EncoderConfig, ModernBertConfig
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

VOCAB_SIZE = 30522
FAMILIES: dict[str, type[EncoderConfig]] = {
  "bert": BertConfig,
  "modern_bert": ModernBertConfig,
}
# Options of AdamW, as in PyTorch's steps.
ADAMW: dict[str, Any] = {"learning_rate": 1e-4, "weight_decay": 0.01}
ADAMW |= {"b1": 0.9, "b2": 0.999, "eps": 1e-6}


def make_optimizer() -> optax.GradientTransformation:
  """LAMB with a constant learning rate."""
  return lamb(1e-4)


def make_config(
  size: str, *, longest: int, family: str = "bert", **fields
) -> EncoderConfig:
  """An encoder of this size without dropout, for rows of up to `longest` tokens."""
  return FAMILIES[family].from_size(
    size,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=longest,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    **fields,
  )


def make_program(size: str, *, longest: int, mesh: Mesh | None = None) -> TrainingProgram:
  """The program that trains such a BERT with LAMB, by default on one device."""
  config = make_config(size, longest=longest)
  return TrainingProgram(config, make_optimizer(), mesh=mesh or make_mesh(1), seed=0)
