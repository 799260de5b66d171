"""Throughput of training on packed and on unpacked batches."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from launch.record.progress import Progress
from training import processes
from training.step import TrainingProgram


def packed_against_unpacked(
  program: TrainingProgram,
  packed: Iterator[Mapping[str, np.ndarray]],
  unpacked: Iterator[Mapping[str, np.ndarray]],
  *,
  rounds: int,
  at_most: float = math.inf,
) -> dict[str, float]:
  """Times training steps on packed and on unpacked batches, in alternation.

  Since the speed of machines drifts, each packed step is compared with the unpacked step
  right after it. Steps start from new parameters. The first of each kind is not counted,
  since it compiles.

  Args:
    program: its `train_step` is timed.
    packed: PackedBatches; each process passes only its own rows.
    unpacked: PackedBatches with one sequence a row.
    rounds: steps of each kind.
    at_most: seconds; there are fewer rounds, but at least one, if they would take longer.

  Returns:
    `packed_sequences_per_second` and `unpacked_sequences_per_second` at the median step
    time; `speedup_measured`, the ratio of sequences per step times the median ratio of
    step times; and its quartiles over the rounds, `speedup_low` and `speedup_high`.
  """
  kinds = {"packed": packed, "unpacked": unpacked}
  seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
  sequences: dict[str, list[int]] = {kind: [] for kind in kinds}
  with Progress("packed against unpacked", total=rounds + 1, unit="rounds") as progress:
    begun = time.perf_counter()
    state = program.init()
    for number in progress.over(range(rounds + 1)):
      for kind, batches in kinds.items():
        batch = jax.block_until_ready(program.put_batch(next(batches)))
        start = time.perf_counter()
        state, values = jax.block_until_ready(program.train_step(state, batch))
        if number:
          seconds[kind].append(time.perf_counter() - start)
          sequences[kind].append(int(values["sequences"]))  # over all processes
      a_round = (time.perf_counter() - begun) / (number + 1)
      ends = number > 0 and a_round * (number + 2) > at_most
      if processes.on_first(functools.partial(bool, ends)):
        break
  per_step = {kind: float(np.mean(sequences[kind])) for kind in kinds}
  ratios = np.divide(seconds["unpacked"], seconds["packed"])
  low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
  scale = per_step["packed"] / per_step["unpacked"]
  return {
    "packed_sequences_per_second": per_step["packed"] / float(np.median(seconds["packed"])),
    "unpacked_sequences_per_second": per_step["unpacked"]
    / float(np.median(seconds["unpacked"])),
    "speedup_measured": scale * float(middle),
    "speedup_low": scale * float(low),
    "speedup_high": scale * float(high),
  }
