"""Random packs for tests, and the same sequences one a row."""

import dataclasses

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import BertConfig, BertForPreTraining

ROW_LENGTH = 13
MAX_SEQUENCES = 3
MAX_MASKED = 7
VOCAB_SIZE = 29

# Lengths in each pack: a full row, M sequences, the shortest ones, an empty row.
PACKS = [[13], [5, 4, 3], [2, 2, 2], [7, 6], []]


def small_config(**fields) -> BertConfig:
  return dataclasses.replace(
    BertConfig(
      vocab_size=VOCAB_SIZE,
      hidden_size=14,
      num_layers=2,
      num_heads=2,
      intermediate_size=11,
      max_position_embeddings=17,
      dropout_rate=0.0,
      attention_dropout_rate=0.0,
    ),
    **fields,
  )


def ordinary(config: BertConfig) -> BertConfig:
  """The BERT without packing: positions of the row, an ordinary padding mask."""
  return dataclasses.replace(config, attention_mask="none", position_reset=False)


def random_params(config: BertConfig, seed: int = 0):
  """Graph definition and parameters, large enough for every path to matter."""
  model = BertForPreTraining(config, rngs=nnx.Rngs(0))
  graphdef, state = nnx.split(model, nnx.Param)
  rng = np.random.default_rng(seed)
  return graphdef, jax.tree.map(
    lambda x: jnp.asarray(0.4 * rng.standard_normal(x.shape) + (x == 1), x.dtype),
    nnx.to_pure_dict(state),
  )


def random_sequences(packs=PACKS, seed: int = 0) -> list[list[dict]]:
  rng = np.random.default_rng(seed)

  def sequence(length: int) -> dict:
    positions = np.sort(rng.choice(length, size=min(2, length - 1), replace=False))
    return {
      "input_ids": rng.integers(1, VOCAB_SIZE, length),
      "token_type_ids": np.arange(length) >= length // 2,
      "mlm_positions": positions,
      "mlm_labels": rng.integers(1, VOCAB_SIZE, positions.size),
      "sequence_label": int(rng.integers(2)),
    }

  return [[sequence(length) for length in pack] for pack in packs]


def lay_out(packs: list[list[dict]], max_sequences: int = MAX_SEQUENCES) -> dict:
  """A PackedBatch, built with plain loops."""
  rows = lambda width: np.zeros((len(packs), width), np.int32)  # noqa: E731
  names = ("input_ids", "token_type_ids", "segment_ids", "position_ids")
  batch = {name: rows(ROW_LENGTH) for name in names}
  for name in ("mlm_positions", "mlm_labels", "mlm_segment_ids"):
    batch[name] = rows(MAX_MASKED)
  batch["cls_positions"], batch["sequence_labels"] = (
    rows(max_sequences),
    rows(max_sequences),
  )
  batch["sequence_mask"] = np.zeros((len(packs), max_sequences), bool)
  for row, pack in enumerate(packs):
    start = masked = 0
    for slot, sequence in enumerate(pack):
      for i, token in enumerate(sequence["input_ids"]):
        batch["input_ids"][row, start + i] = token
        batch["token_type_ids"][row, start + i] = sequence["token_type_ids"][i]
        batch["segment_ids"][row, start + i] = slot + 1
        batch["position_ids"][row, start + i] = i
      for position, label in zip(
        sequence["mlm_positions"], sequence["mlm_labels"], strict=True
      ):
        batch["mlm_positions"][row, masked] = start + position
        batch["mlm_labels"][row, masked] = label
        batch["mlm_segment_ids"][row, masked] = slot + 1
        masked += 1
      batch["cls_positions"][row, slot] = start
      batch["sequence_labels"][row, slot] = sequence["sequence_label"]
      batch["sequence_mask"][row, slot] = True
      start += len(sequence["input_ids"])
  return batch


def one_a_row(packs: list[list[dict]]) -> dict:
  """The same sequences in the same order, one a row."""
  return lay_out([[sequence] for pack in packs for sequence in pack], max_sequences=1)


def relative_error(a, b) -> float:
  """max|a - b| / max|b| over whole trees; max|a| where b is zero."""
  difference = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), a, b)
  scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(b))
  return max(map(float, jax.tree.leaves(difference))) / (scale or 1.0)
