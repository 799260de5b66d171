"""What a finished run comes to: the measured speed-up of packing, and `summary.json`."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax

from launch.plans import make_plan
from launch.record import plots, report
from launch.record.throughput import packed_against_unpacked
from launch.run import Run
from pipeline import plan_sha256
from training import processes
from training.step import TrainingProgram


def finish(run: Run, program: TrainingProgram, figures: dict[str, Any]):
  """Measures the speed-up of packing, and writes the summary and the pictures.

  Args:
    run: the finished run; its state has been freed, since measuring needs a new one.
    program: that trained it.
    figures: of its training: `steps`, `seconds` and others, for the summary.
  """
  config, plan, summary = run.config, run.plan, dict(figures)
  steps = summary.pop("steps")
  unpacked_plan = make_plan(config, run.dataset.train, algorithm="none")
  loader, unpacked = run.loader(plan), run.loader(unpacked_plan)
  if rounds := config.train.throughput_rounds:
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
    "task": config.data.task,
    "dtype": run.model.dtype.name,
    "attention_impl": run.model.attention_impl,
    "computation": str(run.computation),
    "recipe": {"unpacked": run.unpacked_recipe.as_dict(), "packed": run.recipe.as_dict()},
    "stream": config.data.stream,
    "epochs": None if config.data.stream else steps / loader.batches_per_epoch,
    "packs": plan.num_packs,
    "plan_sha256": plan_sha256(plan),
    "packing_factor": plan.packing_factor,
    "efficiency": plan.efficiency,
    "packing_depth": plan.packing_depth,
    "padding_tokens": plan.num_padding_tokens,
    "unpacked_padding_tokens": unpacked_plan.num_padding_tokens,
    "sequences": plan.num_sequences,
    "target_mlm_accuracy": config.train.target_mlm_accuracy,
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
  }
  is_regression = run.head == "sequence_classification" and not run.dataset.labels
  results = processes.on_first(
    lambda: report.write(
      run.folder,
      summary,
      head=run.head,
      lengths=run.dataset.train.lengths,
      segment_ids=loader.first_rows(plots.PACKS_SHOWN),
      loss_name="squared error" if is_regression else "loss in nats",
    )
  )
  processes.print_on_first(f"\n{results}\n\nwritten to {run.folder}: summary.json, plots/")
