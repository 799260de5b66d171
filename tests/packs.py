"""Small models and random packs for tests, and the same sequences one a row."""

import dataclasses
import functools
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import BertConfig, Gpt2Config, ModelConfig, ModernBertConfig
from model.models import abstract_model
from packing.testing import layout

ROW_LENGTH = 13
MAX_SEQUENCES = 3
MAX_MASKED = 7
VOCAB_SIZE = 29

# Lengths in each pack: a full row, M sequences, the shortest ones, an empty row.
PACKS = [[13], [5, 4, 3], [2, 2, 2], [7, 6], []]


SMALL: dict[str, Any] = {
  "vocab_size": VOCAB_SIZE,
  "num_layers": 2,
  "intermediate_size": 11,
  "max_position_embeddings": 17,
  "dropout_rate": 0.0,
  "attention_dropout_rate": 0.0,
}


def small_config(**fields) -> BertConfig:
  return BertConfig(**SMALL | {"hidden_size": 14, "num_heads": 2} | fields)


def small_gpt2(**fields) -> Gpt2Config:
  """Of 3 heads, which is no power of 2: ALiBi's slopes are then of both kinds."""
  return Gpt2Config(**SMALL | {"hidden_size": 15, "num_heads": 3} | fields)


def small_modern_bert(**fields) -> ModernBertConfig:
  """A global layer and a local one, whose window is shorter than a third of a row."""
  sizes = {"hidden_size": 12, "num_heads": 3, "global_every": 2, "local_window": 4}
  return ModernBertConfig(**SMALL | sizes | fields)


def ordinary(config: BertConfig) -> BertConfig:
  """The BERT without packing: positions of the row, an ordinary padding mask."""
  return dataclasses.replace(config, attention_mask="none", position_reset=False)


def random_params(config: ModelConfig, seed: int = 0, head: str = "pretraining"):
  """Graph definition and parameters, large enough for every path to matter."""
  graphdef, state = _abstract(config, head, jax.config.read("jax_enable_x64"))
  rng = np.random.default_rng(seed)
  return graphdef, jax.tree_util.tree_map_with_path(
    lambda path, x: jnp.asarray(
      0.4 * rng.standard_normal(x.shape) + (path[-1].key == "scale"), x.dtype
    ),
    nnx.to_pure_dict(state),
  )


@functools.cache
def _abstract(config: ModelConfig, head: str, x64: bool):
  del x64
  return abstract_model(config, head)


def random_model(config: ModelConfig, seed: int = 0, head: str = "pretraining"):
  return nnx.merge(*random_params(config, seed, head))


def random_sequences(packs=PACKS, seed: int = 0) -> list[list[dict]]:
  """With the labels of every head."""
  rng = np.random.default_rng(seed)

  def sequence(length: int) -> dict:
    positions = np.sort(rng.choice(length, size=min(2, length - 1), replace=False))
    start, end = np.sort(rng.integers(length, size=2))
    return {
      "input_ids": rng.integers(1, VOCAB_SIZE, length),
      "token_type_ids": np.arange(length) >= length // 2,
      "mlm_positions": positions,
      "mlm_labels": rng.integers(1, VOCAB_SIZE, positions.size),
      "sequence_label": int(rng.integers(2)),
      "token_labels": rng.integers(-1, 2, length),
      "start_position": int(start),
      "end_position": int(end),
    }

  return [[sequence(length) for length in pack] for pack in packs]


def lay_out(packs: list[list[dict]], max_sequences: int = MAX_SEQUENCES) -> dict:
  return layout.lay_out(
    packs, row_length=ROW_LENGTH, max_sequences=max_sequences, max_masked=MAX_MASKED
  )


def one_a_row(packs: list[list[dict]]) -> dict:
  """The same sequences in the same order, one a row."""
  return lay_out([[sequence] for pack in packs for sequence in pack], max_sequences=1)


def examples(batch):
  """Of each sequence its number, tokens, types, masked places and labels, in order."""
  found = []
  for row, slot in np.argwhere(batch["sequence_mask"]):
    own = batch["segment_ids"][row] == slot + 1
    masked = batch["mlm_segment_ids"][row] == slot + 1
    start = batch["cls_positions"][row, slot]
    found.append(
      (
        int(batch["sequence_ids"][row, slot]),
        batch["input_ids"][row, own].tolist(),
        batch["token_type_ids"][row, own].tolist(),
        batch["position_ids"][row, own].tolist(),
        (batch["mlm_positions"][row, masked] - start).tolist(),
        batch["mlm_labels"][row, masked].tolist(),
        int(batch["sequence_labels"][row, slot]),
      )
    )
  return found
