"""Fine-tuned on packs a model is what it is on the sequences alone, and says the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import packs
from training import optimizer as optimizers
from training.mesh import make_mesh
from training.step import TrainingProgram

STEPS = 20
NUM_LABELS = {"classification": 3, "regression": 1, "answers": 2, "tags": 3}
HEADS = {
  "classification": "sequence_classification",
  "regression": "sequence_classification",
  "answers": "question_answering",
  "tags": "token_classification",
}
OPTIMIZERS = {
  "adamw": optimizers.adamw(
    1e-3, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, clip_norm=1.0
  ),
  "lamb": optimizers.lamb(1e-3),
}


def sequences_of(task, seed):
  """Packs of sequences, with labels of the task that are not all the same."""
  found = packs.random_sequences(seed=seed)
  rng = np.random.default_rng(seed)
  for pack in found:
    for sequence in pack:
      label = rng.normal() if task == "regression" else int(rng.integers(3))
      sequence["sequence_label"] = label
  return found


def batches_of(task, steps):
  """The same sequences in the same step, packed and one a row."""
  for seed in range(steps):
    sequences = sequences_of(task, seed)
    yield packs.lay_out(sequences), packs.one_a_row(sequences)


def make_program(task, dtype, optimizer, **fields):
  config = packs.small_config(
    num_layers=1,
    num_labels=NUM_LABELS[task],
    dtype=dtype,
    param_dtype=dtype,
    **fields,
  )
  return TrainingProgram(config, optimizer, mesh=make_mesh(1), seed=3, head=HEADS[task])


@pytest.mark.parametrize(
  ("task", "optimizer"),
  [
    ("classification", "adamw"),
    pytest.param("regression", "adamw", marks=pytest.mark.slow),
    pytest.param("answers", "lamb", marks=pytest.mark.slow),
    pytest.param("tags", "adamw", marks=pytest.mark.slow),
  ],
)
def test_20_packed_steps_give_the_parameters_of_20_unpacked_ones(task, optimizer):
  """In float64: in float32 the optimizers amplify noise."""
  with jax.enable_x64(True):
    ordinary = {"attention_mask": "none", "position_reset": False}
    programs = [
      make_program(task, jnp.float64, OPTIMIZERS[optimizer], **fields)
      for fields in ({}, ordinary)
    ]
    params = packs.random_params(programs[0].config, head=HEADS[task])[1]
    begun = jax.device_get(params)
    states = [program.init(params) for program in programs]
    for batches in batches_of(task, STEPS):
      for i, batch in enumerate(batches):
        states[i], _ = programs[i].train_step(states[i], batch)
    found, expected = (jax.device_get(state["params"]) for state in states)
  leaves = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
  assert max(np.abs(x - y).max() for x, y in leaves) < 1e-9
  # Of the biases some change nothing: what is added to all that a softmax runs over.
  moved = jax.tree_util.tree_map_with_path(
    lambda path, x, y: np.abs(x - y).max() > 1e-4 or path[-1].key == "bias", begun, expected
  )
  assert all(jax.tree.leaves(moved)), moved
