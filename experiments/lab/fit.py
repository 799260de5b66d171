"""The training loop of the studies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax

from launch.record.progress import Progress
from training.errors import Stopped
from training.mesh import put_batch
from training.step import State, TrainingProgram


def fit(
  program: TrainingProgram,
  batches: Iterable,
  *,
  steps: int,
  pauses: Collection[int],
  params: Any = None,
  name: str,
) -> Iterator[tuple[int, State, list[dict[str, Any]]]]:
  """Trains from `params`, or from random parameters if there are none.

  Yields:
    After each step in `pauses`: its number, the state, and the totals that `train_step`
    returned for each step since the last pause, on the host.

  Raises:
    Stopped: a loss is not finite.
  """
  state, values = program.init(params), []
  with Progress(name, total=steps) as progress:
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
      state, totals = program.train_step(state, put_batch(batch, program.mesh))
      values.append(totals)
      progress.update()
      if step not in pauses:
        continue
      values = jax.device_get(values)
      if not all(x["finite"] for x in values):
        raise Stopped(
          f"{name}: the loss is not finite by step {step}. Set a lower learning rate."
        )
      yield step, state, values
      values = []
      progress.line(step, {})
