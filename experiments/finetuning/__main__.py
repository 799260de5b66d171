"""Fine-tuning packed and unpacked: metric, rows, speed, and predictions.

  make train
  python -m experiments.finetuning --init-from runs/quickstart

Trains on the tasks of experiments/finetuning/local_tasks.py by configs/glue.py, and with
--xquad on questions by configs/squad.py: packed, and one sequence a row, from the same
weights with the same number of sequences a step. The score is the best of all evaluations
on the dev set, so in both arms a little higher than a test set would have it. Writes
finetuning.md and finetuning.json to --workdir. The same command resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

import pipeline
from experiments.finetuning import local_tasks
from experiments.lab import command, report
from model import weights
from training.command import positive
from training.evaluation import predict
from training.mesh import make_mesh
from training.record import workdir
from training.record.files import write_json, write_text
from training.step import ModelProgram
from training.sweep import __main__ as sweep
from training.sweep.file import Sweep, SweepError, make_sweep

LEARNING_RATE = 3e-4  # a small model needs a higher one than BERT-base
ARMS = {
  "unpacked": {"packing.algorithm": "none", "train.throughput_rounds": 0},
  "packed": {},  # measures both in turns
}
QUICK = {"train.duration": "256 sequences", "optimizer.warmup": "32 sequences"}


class Same(NamedTuple):
  """The predictions of one checkpoint on the dev set, packed and one sequence a row.

  Attributes:
    sequences: their number.
    different: those whose class, or likeliest start or end, differs, or whose number
      differs by more than 1e-4.
    largest: the largest difference of a logit.
  """

  sequences: int
  different: int
  largest: float


def task_sweep(task: str, files: tuple[str, str], options) -> Sweep:
  """The runs of one task: both arms, each seed.

  Args:
    task: of `local_tasks.TASKS`, or squad.
    files: to train on and to evaluate on.
    options: of the command line.
  """
  overrides: dict[str, Any] = {
    "model.init_from": str(options.init_from),
    "data.source": files[0],
    "data.held_out_source": files[1],
    "data.directory": str(options.workdir / "data" / task),
    "optimizer.learning_rate": LEARNING_RATE,
    "train.log_every": 20,
    "train.eval_every": 100,
    "train.checkpoint_every": 100,
  } | (QUICK if options.quick else {})
  config = "configs/squad.py" if task == "squad" else f"configs/glue.py:{task}"
  return make_sweep(
    {
      "config": config,
      "overrides": overrides,
      "arms": ARMS,
      "grid": {"seed": list(range(options.seeds))},
    },
    where=f"the sweep of {task}",
  )


def compare_predictions(config: ConfigDict, folder: pathlib.Path) -> Same:
  """Predicts the dev set of a run in both ways, with its best checkpoint."""
  stored = weights.open_folder(folder, step=workdir.choose_step(folder, "best"))
  program = ModelProgram(stored.config, mesh=make_mesh(1), head=stored.head)
  params = stored.load()
  dataset = pipeline.prepare_dataset(config)
  logits = []
  for algorithm in (config.packing.algorithm, "none"):
    changed = config.copy_and_resolve_references()
    changed.packing.algorithm = algorithm
    (held_out, *_) = pipeline.make_held_out(changed, dataset)
    logits.append(predict(program, params, held_out.batches()).logits)
  return Same(
    len(logits[0]),
    sum(_differ(a, b) for a, b in zip(*logits, strict=True)),
    max(float(np.abs(a - b).max()) for a, b in zip(*logits, strict=True)),
  )


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
  if a.shape == (1,):  # a number
    return not np.allclose(a, b, rtol=0, atol=1e-4)
  return bool((a.argmax(0) != b.argmax(0)).any())


def task_rows(task: str, swept: Sweep, folder: pathlib.Path) -> list[dict[str, Any]]:
  """The results of both arms, means over the seeds.

  Args:
    task: its name.
    swept: its runs, all finished.
    folder: that has their folders.
  """
  arms: dict[str, list[dict]] = {arm: [] for arm in ARMS}
  same = []
  for run in swept.runs:
    arms[run.arm].append(json.loads((folder / run.name / "summary.json").read_text()))
    if run.arm == "packed":
      same.append(compare_predictions(run.config, folder / run.name))
  paired = arms["packed"]
  rows = []
  for arm, summaries in arms.items():
    speeds = [summary[f"{arm}_sequences_per_second"] for summary in paired]
    scores = [summary["best_score"] for summary in summaries]
    rows.append(
      {
        "task": task,
        "arm": arm,
        "seeds": len(scores),
        "score": float(np.mean(scores)),
        "score_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "sequences": summaries[0]["sequences"],
        "rows": summaries[0]["packs"],
        "packing_factor": summaries[0]["packing_factor"],
        "sequences_per_second": float(np.mean(speeds)),
      }
    )
  rows[1] |= {
    "speedup": float(np.mean([summary["speedup_measured"] for summary in paired])),
    "speedup_low": min(summary["speedup_low"] for summary in paired),
    "speedup_high": max(summary["speedup_high"] for summary in paired),
    "predictions": sum(one.sequences for one in same),
    "different": sum(one.different for one in same),
    "largest_difference": max(one.largest for one in same),
  }
  return rows


def table(rows: Sequence[dict]) -> str:
  """The results of all tasks; `differ` counts predictions of the packed arm."""
  header = ["task", "arm", "score", "rows", "packing factor", "sequences/s", "ratio"]
  lines = []
  for row in rows:
    score = f"{row['score']:.1%}"
    if row["score_sd"] is not None:
      score += f" ± {row['score_sd']:.1%}"
    numbers = [f"{row['rows']:,}", f"{row['packing_factor']:.2f}"]
    numbers.append(f"{row['sequences_per_second']:,.0f}")
    line = [row["task"], row["arm"], score, *numbers, "", ""]
    if "speedup" in row:
      low, high = row["speedup_low"], row["speedup_high"]
      line[-2:] = [
        f"{row['speedup']:.2f} ({low:.2f} to {high:.2f})",
        f"{row['different']} of {row['predictions']:,}",
      ]
    lines.append(line)
  return report.table([*header, "differ"], lines, right=range(2, 8))


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "experiments.finetuning", workdir="runs/finetuning")
  parser.add_argument(
    "--init-from",
    type=pathlib.Path,
    required=True,
    metavar="FOLDER",
    help="of a pretrained model, with vocab.txt: a run's or an imported one",
  )
  parser.add_argument(
    "--tasks",
    default=",".join(local_tasks.TASKS),
    help=f"separated by commas; {','.join(local_tasks.TASKS)} if not given",
  )
  parser.add_argument("--xquad", metavar="FILE", help="in SQuAD's layout, to split")
  parser.add_argument("--seeds", type=positive, default=1, help="runs of each arm; 1")
  options = parser.parse_args(arguments)
  tasks = [task for task in options.tasks.split(",") if task]
  if unknown := [task for task in tasks if task not in local_tasks.TASKS]:
    parser.error(
      f"there is no task {unknown[0]!r}; expected some of {', '.join(local_tasks.TASKS)}"
    )
  return command.run(lambda: fine_tune(options, tasks))


def fine_tune(options: argparse.Namespace, tasks: list[str]) -> int:
  """Runs what is not finished, and writes the results; returns the exit status."""
  data = options.workdir / "text"
  files = local_tasks.write(data)
  if options.xquad:
    tasks.append("squad")
    files["squad"] = local_tasks.split_questions(options.xquad, data)
  rows: list[dict] = []
  sweeps = {task: task_sweep(task, files[task], options) for task in tasks}
  for task, swept in sweeps.items():
    folder = options.workdir / task
    if failures := sweep.run_all(swept, folder):  # alone: both arms are timed
      name, line = next(iter(failures.items()))
      raise SweepError(f"{task}, {name} failed: {line}")
    rows += task_rows(task, swept, folder)
  device = jax.devices()[0].device_kind
  result = {"device": device, "init_from": str(options.init_from), "rows": rows}
  write_json(options.workdir / "finetuning.json", result)
  write_text(options.workdir / "finetuning.md", table(rows) + "\n")
  print(json.dumps(result) if options.json else f"\n{table(rows)}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
