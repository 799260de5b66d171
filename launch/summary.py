"""What a finished run comes to: the measured speed-up of packing, and `summary.json`."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Mapping
from typing import Any

import jax

from launch.parts import Packs
from launch.plans import make_plan
from launch.prepare_run import TrainingRun
from launch.record import plots, report
from launch.record.metrics import read_json_lines
from launch.record.throughput import packed_against_unpacked
from model.models import metric_of
from packing.files import write_json
from pipeline import RowLoader, plan_sha256
from training import processes
from training.compiler import cores
from training.step import TrainingProgram
from training.stopping import target_reached


def finish(run: TrainingRun, program: TrainingProgram, figures: dict[str, Any]):
  """Measures the speed-up of packing, and writes the summary and the pictures.

  Args:
    run: the finished run; its state has been freed, since measuring needs a new one.
    program: that trained it.
    figures: of its training: `steps`, `seconds` and others, for the summary.
  """
  settings, plan, summary = run.settings, run.plan, dict(figures)
  steps = summary.pop("steps")
  unpacked_plan = make_plan(
    settings.rows, run.dataset.train, seed=settings.seed, algorithm="none"
  )
  loader, unpacked = run.loader(plan), run.loader(unpacked_plan)
  rounds = settings.rows.throughput_rounds if isinstance(settings.rows, Packs) else 0
  if rounds:
    at_most = summary["seconds"] / 10
    processes.print_on_first(
      f"timing packed against unpacked: at most {rounds} steps of each, {at_most:.1f} s ..."
    )
    with (
      contextlib.closing(loader.iterate()) as packs,
      contextlib.closing(unpacked.iterate()) as padded,
    ):
      summary |= packed_against_unpacked(
        program, packs, padded, rounds=rounds, at_most=at_most
      )
  summary |= {
    "task": settings.data.task,
    "dtype": run.model.dtype.name,
    "attention_impl": run.model.attention_impl,
    "computation": str(run.computation),
    "recipe": {"unpacked": run.unpacked_recipe.as_dict(), "packed": run.recipe.as_dict()},
    "stream": settings.data.stream,
    "epochs": None if settings.data.stream else steps / loader.batches_per_epoch,
    "packs": plan.num_packs,
    "plan_sha256": plan_sha256(plan),
    "packing_factor": plan.packing_factor,
    "efficiency": plan.efficiency,
    "packing_depth": plan.packing_depth,
    "row_length": plan.row_length,
    "unpacked_row_length": unpacked_plan.row_length,
    "padding_tokens": plan.num_padding_tokens,
    "unpacked_padding_tokens": unpacked_plan.num_padding_tokens,
    "sequences": plan.num_sequences,
    "target_mlm_accuracy": settings.train.target_mlm_accuracy,
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "cores": len(cores()),  # the same bits need as many, on a CPU
    "processes": jax.process_count(),
    "device_shares": run.shares,
    **run.code,
    "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "jax": jax.__version__,
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
  }
  results = processes.on_first(lambda: _write(run, summary, loader))
  processes.print_on_first(f"\n{results}\n\nwritten to {run.folder}: summary.json, plots/")


def _write(run: TrainingRun, summary: Mapping[str, Any], loader: RowLoader) -> str:
  """Writes `summary.json` and the pictures; returns the summary as a table."""
  folder, metric = run.folder, metric_of(run.head)
  train_lines = read_json_lines(folder / "metrics.jsonl")
  eval_lines = read_json_lines(folder / "eval.jsonl")
  summary = {
    **report.run_summary(train_lines, eval_lines, metric=metric),
    **summary,
    **target_reached(eval_lines, target=summary["target_mlm_accuracy"]),
  }
  plots.plot_packing(
    folder / "plots" / "packing.png",
    run.dataset.train.histogram,
    loader.first_rows(plots.PACKS_SHOWN),
    efficiency=summary["efficiency"],
  )
  is_regression = run.dataset.train.sequence_labels.dtype.kind == "f"
  plots.plot_learning_curve(
    folder / "plots" / "learning_curve.png",
    train_lines,
    eval_lines,
    metric=metric,
    loss="squared error" if is_regression else "loss in nats",
  )
  write_json(folder / "summary.json", summary)
  return report.summary_table(summary)
