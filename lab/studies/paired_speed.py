"""Times steps of packed rows and of rows with one sequence each; a run of a study.

  python -m lab.studies.paired_speed --config=configs/quickstart.py --out=speed.json

Both have the same number of rows, and take turns.
"""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import numpy as np

from lab.studies.paired_run import make_program
from lab.studies.study import Arm, worker
from launch.data import make_loader, prepare_dataset
from launch.parts import Packs
from launch.plans import make_plan
from launch.recipe.adjustment import resolve
from launch.record.throughput import packed_against_unpacked
from launch.settings import RunSettings


def measure(arm: Arm, settings: RunSettings, *, keep_in: pathlib.Path) -> dict[str, Any]:
  """The result of `packed_against_unpacked` at the plan's packing factor, and that factor.

  One program runs both, so the result excludes the cost of the mask and of the losses of
  packs. `throughput_rounds` is the number of measurements.
  """
  del arm, keep_in
  dataset = prepare_dataset(settings.data)
  rows, seed = settings.rows, settings.seed
  assert isinstance(rows, Packs)  # a study has no other
  plan = make_plan(rows, dataset.train, seed=seed)
  unpacked_plan = make_plan(rows, dataset.train, seed=seed, algorithm="none")
  _, recipe = resolve(
    settings.train, settings.optimizer, packing_factor=plan.packing_factor
  )
  model = settings.model.of(vocab_size=len(dataset.vocabulary))
  program = make_program(settings, model, recipe)
  packed, unpacked = (
    make_loader(
      settings, dataset.train, dataset.vocabulary, plan=one, batch_size=recipe.rows
    ).iterate()
    for one in (plan, unpacked_plan)
  )
  counts: list[int] = []

  def counted(batches):
    for batch in batches:
      counts.append(int(batch["sequence_mask"].sum()))
      yield batch

  with contextlib.closing(packed), contextlib.closing(unpacked):
    result = packed_against_unpacked(
      program, counted(packed), unpacked, rounds=rows.throughput_rounds
    )
  # As if the timed packs had the packing factor of the whole plan.
  scale = plan.packing_factor * recipe.rows / float(np.mean(counts[1:]))
  for name in result:
    if name.startswith(("packed", "speedup")):
      result[name] *= scale
  return result | {"packing_factor": plan.packing_factor}


if __name__ == "__main__":
  worker(measure)
