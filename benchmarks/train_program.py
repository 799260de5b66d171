"""Times train.py itself: its steps a second, beside its bare step from a ready batch.

train.py runs in a process of its own, on text of the standard library. It queues steps and
waits for them where it logs. Its bare step has the same model, shape and plan, and is
queued in blocks of as many steps, so both are on one clock.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

import packing
from benchmarks.accelerator_steps import BATCHES, Case, Pace
from lab.statistics import quartiles
from lab.timing.models import make_optimizer
from lab.timing.speedup import make_batches
from lab.timing.steps import Trainer, compile_step
from lab.timing.turns import in_turns
from training.mesh import make_mesh, put_batch
from training.step import TrainingProgram

ROOT = pathlib.Path(__file__).parents[1]
GPU_SHARE = "0.4"  # of the GPU's memory for train.py; the caller's process has the rest


class ProgramError(RuntimeError):
  """train.py did not end well."""


def measure(
  folder: pathlib.Path, case: Case, *, steps: int, pace: Pace, limit: float
) -> dict[str, Any]:
  """Runs train.py, then its bare step in this process.

  Args:
    folder: an empty folder for the dataset and the run.
    case: a BERT and its rows.
    steps: without packing; train.py makes fewer.
    pace: how long the bare step is timed.
    limit: seconds, after which train.py is ended.

  Returns:
    The shape; by the run's own summary `seconds` of a step, `sequences_per_second`, and
    `input_share`, the fraction of the time that the loop waits for input; `bare_seconds`
    of a queued step with quartiles; and `ratio`, train.py's steps a second divided by
    those of its bare step.

  Raises:
    ProgramError: train.py failed, or took too long.
  """
  run = folder / "run"
  _run(_words(folder, run, case, steps, log_every=pace.steps), limit)
  summary = json.loads((run / "summary.json").read_text())
  bare = _bare_seconds(run, case.rows, pace)
  seconds = case.rows / summary["packs_per_second"]
  return {
    **{name: getattr(case, name) for name in ("size", "rows", "row_length")},
    "seconds": seconds,
    **{name: summary[name] for name in ("sequences_per_second", "input_share")},
    "bare_seconds": quartiles(bare),
    "ratio": float(np.median(bare)) / seconds,
  }


def _words(
  folder: pathlib.Path, run: pathlib.Path, case: Case, steps: int, *, log_every: int
) -> list[str]:
  never = 10_000_000  # a multiple of what is logged
  fields: dict[str, Any] = {
    "data.source": "stdlib",
    "data.directory": folder / "data",
    "data.max_sequence_length": case.row_length,
    "model.size": case.size,
    "model.dropout_rate": 0.0,
    "model.attention_dropout_rate": 0.0,
    "packing.adjust": "none",  # so that a step has as many rows
    "train.batch_size": case.rows,
    "train.steps": steps,
    "train.log_every": log_every,
    "train.eval_every": never,
    "train.checkpoint_every": never,
    "train.throughput_rounds": 0,
  }
  return [
    *(sys.executable, "train.py", "--config=configs/base.py", f"--workdir={run}"),
    *(f"--config.{name}={value}" for name, value in fields.items()),
  ]


def _run(words: list[str], limit: float):
  environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": GPU_SHARE}
  gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
  environment["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]  # as the bare step, one GPU
  options: dict[str, Any] = {"cwd": ROOT, "env": environment, "timeout": limit}
  try:
    result = subprocess.run(words, capture_output=True, text=True, **options)
  except subprocess.TimeoutExpired:
    raise ProgramError(f"train.py took more than {limit:.0f} s") from None
  if result.returncode:
    last = (result.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise ProgramError(f"train.py ended with status {result.returncode}: {last}")


def _bare_seconds(run: pathlib.Path, rows: int, pace: Pace) -> np.ndarray:
  """float[blocks]: seconds of a step of the run's model, on batches drawn from its plan."""
  from model import weights  # here, since it needs more packages than steps alone

  config = weights.read_description(run).config
  plan = packing.load_plan(run / "plans" / "train.json")
  batches = make_batches(plan, rows=rows, number=BATCHES)["packed"]
  for batch in batches:
    for name in ("input_ids", "mlm_labels"):
      batch[name] %= config.vocab_size
  mesh = make_mesh(1)
  program = TrainingProgram(config, make_optimizer(), mesh=mesh, seed=0)
  placed = [put_batch(batch, mesh) for batch in batches]
  step = compile_step(program, placed[0])
  runs = {"bare": Trainer(program).runs(step, placed, in_a_row=pace.steps)}
  return (
    in_turns(runs, rounds=pace.blocks, name="train.py's bare step")["bare"] / pace.steps
  )
