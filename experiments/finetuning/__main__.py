"""Fine-tuning packed beside unpacked: metric, rows, speed, and predictions.

  make train
  python -m experiments.finetuning --init-from runs/quickstart

Trains on the tasks of `experiments/local_tasks.py` by configs/glue.py, and with --xquad on
questions by configs/squad.py: packed, and one sequence a row, from the same weights with as
many sequences a step. The score is the best of all evaluations on the dev set, so in both
arms a little higher than a test set would have it. Writes `finetuning.md` and
`finetuning.json` to --workdir. The same command goes on where it stopped.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

import pipeline
from experiments.finetuning import local_tasks
from model import weights
from packing import InputError
from training.command import Parser
from training.evaluation import predict
from training.mesh import make_mesh
from training.record import workdir
from training.record.files import write_json, write_text
from training.step import TrainingProgram
from training.sweep import __main__ as sweep
from training.sweep.file import Sweep, SweepError, make_sweep

LEARNING_RATE = 3e-4  # a small model wants more than BERT-base
ARMS = {
  "unpacked": {"packing.algorithm": "none", "train.throughput_rounds": 0},
  "packed": {},  # measures both in turns
}


class Same(NamedTuple):
  """What one checkpoint says of the dev set, packed and one sequence a row.

  Attributes:
    sequences: how many.
    different: of them, those whose class, or whose likeliest start or end, is another, or
      whose number differs by more than 1e-4.
    largest: difference of a logit.
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
  }
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
  """Has the best checkpoint of a run predict its dev set in both ways.

  Args:
    config: of the run.
    folder: of the run.
  """
  stored = weights.open_folder(folder, step=workdir.choose_step(folder, "best"))
  program = TrainingProgram(
    stored.config, optax.identity(), mesh=make_mesh(1), seed=0, head=stored.head
  )
  params = stored.load()
  dataset = pipeline.prepare_dataset(config)
  found = []
  for algorithm in (config.packing.algorithm, "none"):
    changed = config.copy_and_resolve_references()
    changed.packing.algorithm = algorithm
    (held_out, *_) = pipeline.make_held_out(changed, dataset)
    found.append(predict(program, params, held_out.batches()).logits)
  return Same(
    len(found[0]),
    sum(_differ(a, b) for a, b in zip(*found, strict=True)),
    max(float(np.abs(a - b).max()) for a, b in zip(*found, strict=True)),
  )


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
  if a.shape == (1,):  # a number
    return not np.allclose(a, b, rtol=0, atol=1e-4)
  return bool((a.argmax(0) != b.argmax(0)).any())


def task_rows(task: str, swept: Sweep, folder: pathlib.Path) -> list[dict[str, Any]]:
  """What both arms came to, as means over the seeds.

  Args:
    task: its name.
    swept: its runs, all finished.
    folder: with their folders.
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
  """The rows of all tasks in Markdown; `differ` counts predictions of the packed arm."""
  lines = [
    "| task | arm | score | rows | packing factor | sequences/s | ratio | differ |",
    "|---|---|---:|---:|---:|---:|---:|---:|",
  ]
  for row in rows:
    score = f"{row['score']:.1%}"
    if row["score_sd"] is not None:
      score += f" ± {row['score_sd']:.1%}"
    ratio = told = ""
    if "speedup" in row:
      ratio = (
        f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
      )
      told = f"{row['different']} of {row['predictions']:,}"
    cells = [
      row["task"],
      row["arm"],
      score,
      f"{row['rows']:,}",
      f"{row['packing_factor']:.2f}",
      f"{row['sequences_per_second']:,.0f}",
      ratio,
      told,
    ]
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def _parser():
  parser = Parser(
    prog="python -m experiments.finetuning",
    description="Fine-tunes packed and unpacked, and tabulates both.",
  )
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
  parser.add_argument("--seeds", type=int, default=1, help="runs of each arm; 1")
  parser.add_argument("--workdir", type=pathlib.Path, default="runs/finetuning")
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = _parser()
  options = parser.parse_args(arguments)
  tasks = [task for task in options.tasks.split(",") if task]
  if unknown := [task for task in tasks if task not in local_tasks.TASKS]:
    parser.error(
      f"there is no task {unknown[0]!r}; expected some of {', '.join(local_tasks.TASKS)}"
    )
  if options.seeds < 1:
    parser.error(f"--seeds is {options.seeds}; expected at least 1")
  data = options.workdir / "text"
  rows: list[dict] = []
  try:
    files = local_tasks.write(data)
    if options.xquad:
      tasks.append("squad")
      files["squad"] = local_tasks.split_questions(options.xquad, data)
    sweeps = {task: task_sweep(task, files[task], options) for task in tasks}
    for task, swept in sweeps.items():
      folder = options.workdir / task
      if failures := sweep.run_all(swept, folder, ()):
        name, why = next(iter(failures.items()))
        raise SweepError(f"{task}, {name} failed: {why}")
      rows += task_rows(task, swept, folder)
  except (SweepError, InputError, weights.WeightsError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("Stopped. Run the same command again to continue.", file=sys.stderr)
    return 130
  device = jax.devices()[0].device_kind
  result = {"device": device, "init_from": str(options.init_from), "rows": rows}
  write_json(options.workdir / "finetuning.json", result)
  write_text(options.workdir / "finetuning.md", table(rows) + "\n")
  print(json.dumps(result) if options.json else f"\n{table(rows)}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
