"""One run of the study of fine-tuning; of a packed run, its predictions are compared."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import numpy as np

from lab.studies.study import Arm
from lab.studies.trained_run import main
from launch.data import make_held_out, prepare_dataset
from launch.init_from import pooling_of
from launch.settings import RunSettings
from model import weights
from training.evaluation import embed, predict
from training.mesh import make_mesh
from training.step import ModelProgram

TOLERANCE = 1e-4  # of predicted numbers; classes and answers have to be the same


class Same(NamedTuple):
  """The predictions of one checkpoint on the dev set, packed and one sequence a row.

  Attributes:
    sequences: how many are predicted.
    different: how many differ in class, in the most likely start or end, or by more than
      `TOLERANCE` in the predicted number or vector.
    largest: the largest difference of a logit, or of a number of a vector.
  """

  sequences: int
  different: int
  largest: float


def look(arm: Arm, settings: RunSettings, folder: pathlib.Path) -> dict[str, Any]:
  """For a packed run, how its predictions differ from those with one sequence a row."""
  return {"same": compare_predictions(settings, folder)} if arm.name == "packed" else {}


def compare_predictions(settings: RunSettings, folder: pathlib.Path) -> Same:
  """Predicts a run's dev set packed and unpacked, with its newest checkpoint."""
  stored = weights.open_folder(folder)
  program = ModelProgram(stored.config, mesh=make_mesh(1), head=stored.head)
  params = stored.load()
  dataset = prepare_dataset(settings.data)
  pairs = settings.data.task == "scored_pairs"
  pooling = pooling_of(settings, stored).mode if pairs else ""
  outputs = []
  for run in (settings, settings.changed({"packing.algorithm": "none"})):
    (held_out, *_) = make_held_out(run, dataset, pooling=pooling)
    if pairs:
      outputs.append(embed(program, params, held_out.batches(), pooling=pooling))
    else:
      outputs.append(predict(program, params, held_out.batches()).logits)
  return Same(
    len(outputs[0]),
    sum(_differ(a, b, numbers=pairs) for a, b in zip(*outputs, strict=True)),
    max(float(np.abs(a - b).max()) for a, b in zip(*outputs, strict=True)),
  )


def _differ(a: np.ndarray, b: np.ndarray, *, numbers: bool) -> bool:
  if numbers or a.shape == (1,):
    return not np.allclose(a, b, rtol=0, atol=TOLERANCE)
  return not np.isfinite([a, b]).all() or bool((a.argmax(0) != b.argmax(0)).any())


if __name__ == "__main__":
  main(look)
