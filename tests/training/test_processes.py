"""Two processes, each with its own rows from the loader, have the numbers of one."""

import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
from pipeline.batches.loader import PackedLoader
from pipeline.store import SequenceStore
from tests import programs
from tests.test_packed_equals_unpacked import MASKING, make_store
from training.evaluation import evaluate_pretraining, predict
from training.mesh import make_mesh, put_batch, replicated


def numbers(path, process_index=0, process_count=1) -> dict:
  """What 4 devices have of a training batch, and of an evaluation."""
  store = SequenceStore(path)
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=13)
  plan = packing.pack(histogram, max_sequences_per_pack=3)
  loader = PackedLoader(store, plan, batch_size=8, masking=MASKING, seed=3)
  loader = loader.for_process(process_index, process_count)
  mesh = make_mesh()
  assert mesh.size == 4

  def digests(batch):
    """Of every row in its place."""

    def digest(field):
      places = jnp.arange(1, field.size + 1).reshape(field.shape)
      return (field.astype(places.dtype) * places).sum()

    return jax.tree.map(digest, batch)

  def eval_step(scale, batch):
    """Stands for a model: numbers of each sequence that depend on its row and slot."""
    used, labels = batch["sequence_mask"], batch["sequence_labels"]
    places = (batch["cls_positions"], labels, batch["input_ids"][:, :1])
    position, label, first = (jnp.asarray(x, jnp.float32) for x in places)
    value = scale * position + label + first
    names = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    values = {name: (value + i, used & (labels != i)) for i, name in enumerate(names)}
    return values, {}

  def predict_step(scale, batch):
    values, _ = eval_step(scale, batch)
    value, used = values["mlm_loss"]
    logits = value[..., None] * jnp.array([1.0, -2.0, 3.0])[None, None]
    return {"sequence_loss": (value, used)}, {"sequence_logits": logits}

  everywhere = replicated(mesh)
  batch = put_batch(next(loader.iterate(2)), mesh)
  rows = jax.jit(digests, out_shardings=everywhere)(batch)
  pretrained, finetuned = (
    types.SimpleNamespace(
      mesh=mesh,
      eval_step=jax.jit(step, out_shardings=everywhere),
      put_batch=lambda batch: put_batch(batch, mesh),
    )
    for step in (eval_step, predict_step)
  )
  held_out = loader.evaluation_batches
  predictions = predict(finetuned, 0.37, held_out())
  return {
    "shapes": {name: list(field.shape) for name, field in batch.items()},
    "rows": {name: int(digest) for name, digest in rows.items()},
    "evaluation": evaluate_pretraining(pretrained, 0.37, held_out(), unigram_token=7),
    "predictions": [logits.tolist() for logits in predictions.logits],
    "loss": predictions.loss,
  }


def test_processes_with_a_block_each_have_the_numbers_of_one(tmp_path, request):
  store = tmp_path / "s.arrow"
  make_store(store, np.random.default_rng(0).integers(3, 14, 61))
  command = [sys.executable, "-m", "tests.training.test_processes", store, tmp_path]
  processes = programs.begin_two(command, programs.ROOT, request)
  alone = numbers(store)
  assert alone["shapes"]["input_ids"] == [8, 13]
  assert alone["evaluation"]["sequences"] == 61
  assert np.shape(alone["predictions"]) == (61, 3)
  for host, process in enumerate(processes):
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    found = json.loads((tmp_path / f"{host}.json").read_text())
    assert found["shapes"] == alone["shapes"]
    assert found["rows"] == alone["rows"]
    np.testing.assert_allclose(found["predictions"], alone["predictions"], rtol=1e-5)
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    ours, theirs = found["evaluation"], alone["evaluation"]
    assert ours.keys() == theirs.keys()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), ours, theirs)


if __name__ == "__main__":  # one of the processes
  _, store, folder, _, coordinator, process = (x.rpartition("=")[2] for x in sys.argv)
  jax.distributed.initialize(coordinator, 2, int(process))
  found = numbers(store, jax.process_index(), jax.process_count())
  pathlib.Path(folder, f"{process}.json").write_text(json.dumps(found))
