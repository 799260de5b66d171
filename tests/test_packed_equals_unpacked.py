"""From an Arrow store to gradients: packed equals unpacked.

`tests/model/test_bert.py` lays packs out by hand; here the packer and the pipeline do.
"""

import functools
from typing import Any

import flax.nnx as nnx
import jax
import numpy as np
import pytest

import packing
from model import losses
from model.testing import relative_difference
from pipeline.batches.masking import Masking, mask_tokens
from pipeline.batches.packed import pack_rows
from pipeline.store import SequenceStore, StoredSequence, write_sequences
from tests import packs

ROW_LENGTH = 31
NUM_SEQUENCES = 23
DEPTH = 3
VOCAB_SIZE = 37
PAD, CLS, SEP, MASK = 0, 2, 3, 4
MASKING = Masking(
  rate=0.15, seed=5, mask_id=MASK, special_ids=(PAD, CLS, SEP, MASK), vocab_size=VOCAB_SIZE
)


# In turns where there are several: spfhp packs sequences of one length with others only.
CASES: dict[str, Any] = {
  "random": np.random.default_rng(0).integers(1, ROW_LENGTH + 1, NUM_SEQUENCES),
  "nothing to mask": [1, 2],
  "longest": [ROW_LENGTH],
  "extremes": [ROW_LENGTH - 2, 1, 2],
}


def make_store(path, lengths) -> SequenceStore:
  """[CLS] A [SEP] B [SEP], as long as there is room for it."""
  rng = np.random.default_rng(int(lengths.sum()))
  rows = []
  for length in lengths.tolist():
    ids = rng.integers(5, VOCAB_SIZE, length)
    first_type = int(rng.integers(1, length + 1))
    ids[first_type - 1] = ids[-1] = SEP
    ids[0] = CLS
    rows.append(StoredSequence(ids.tolist(), first_type, int(rng.integers(2))))
  write_sequences(path, rows, batch_size=7)
  return SequenceStore(path)


def make_batch(store, algorithm, max_sequences):
  """All sequences in one batch; as many rows whatever the packing: two programs in all."""
  plan = packing.pack(
    packing.Histogram.from_lengths(store.lengths, max_sequence_length=ROW_LENGTH),
    algorithm=algorithm,
    max_sequences_per_pack=max_sequences,
  )
  assignment = plan.assign(store.lengths, seed=11)
  sequence_ids = np.full((NUM_SEQUENCES, max_sequences), -1)
  for row, ids in enumerate(assignment):
    sequence_ids[row, : len(ids)] = ids
  batch = pack_rows(store, sequence_ids, row_length=ROW_LENGTH)
  return mask_tokens(batch, MASKING, epochs=np.full(NUM_SEQUENCES, 2)), plan


@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradients(params, graphdef, batch):
  outputs = nnx.merge(graphdef, params)(batch)
  return losses.loss(outputs, batch)[0], losses.per_sequence(outputs, batch)


def by_sequence(per_sequence, batch) -> dict:
  """Values and counts in the order of the sequences' numbers."""
  used = batch["sequence_mask"]
  order = np.argsort(batch["sequence_ids"][used])
  return {
    name: [part[used][order] for part in parts] for name, parts in per_sequence.items()
  }


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_the_sequences_alone(
  tmp_path, case, dtype, tolerance
):
  lengths = np.resize(CASES[case], NUM_SEQUENCES)
  store = make_store(tmp_path / "s.arrow", lengths)
  packed, plan = make_batch(store, "spfhp", DEPTH)
  unpacked, _ = make_batch(store, "none", 1)
  assert (plan.num_packs < NUM_SEQUENCES) == (case != "longest")
  sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": ROW_LENGTH}
  dtypes = dict.fromkeys(("dtype", "param_dtype"), np.dtype(dtype))
  config = packs.small_config(num_layers=1, **sizes, **dtypes)
  with jax.enable_x64(dtype == "float64"):
    found = []
    for batch, made in ((packed, config), (unpacked, packs.ordinary(config))):
      graphdef, params = packs.random_params(made, seed=3)
      fields = {name: x for name, x in batch.items() if name != "sequence_ids"}
      (loss, each), gradients = jax.device_get(loss_and_gradients(params, graphdef, fields))
      assert loss.dtype == dtype
      found.append((loss, by_sequence(each, batch), gradients))
  (loss, each, gradients), (alone, each_alone, gradients_alone) = found

  assert float(alone) > 0
  assert relative_difference(loss, alone) < tolerance
  assert relative_difference(gradients, gradients_alone) < tolerance
  for name, (values, counts) in each.items():
    values_alone, counts_alone = each_alone[name]
    assert values.shape == (NUM_SEQUENCES,)
    np.testing.assert_array_equal(counts, counts_alone)
    assert relative_difference(values, values_alone) < tolerance, name
  assert each["mlm_loss"][1].any() == (case != "nothing to mask")
