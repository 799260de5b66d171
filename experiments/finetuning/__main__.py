"""Fine-tuning packed, unpacked, and packed without the mask: scores, predictions, speed.

  python -m experiments.finetuning --data FOLDER

Trains on five tasks of GLUE, on embeddings of STS-B's sentences, and on SQuAD 1.1 from the
weights in FOLDER/minilm-l6-h384; lab/real_data.py says what FOLDER holds. The same command
resumes where it was stopped.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.finetuning import real_tasks
from experiments.finetuning.real_tasks import (
  AT_MOST,
  LEARNING_RATE,
  Files,
)
from experiments.finetuning.runs import Runs, run_all
from lab import command, real_data, report
from lab.exhibits import Exhibit, Part, Statement, judged
from lab.options import add_some
from lab.pictures import figure, legend_below, save
from lab.statistics import mean_and_sd, same_score
from launch.data import make_held_out, prepare_dataset
from launch.init_from import pooling_of
from launch.settings import RunSettings
from launch.sweep.file import Run, make_sweep
from model import weights
from training.evaluation import embed, predict
from training.mesh import make_mesh
from training.step import ModelProgram

SEEDS = 5  # of each arm; the first is 1
FEWER_SEEDS = {real_tasks.PAIRS: 3, "squad": 1}
ARMS: dict[str, dict[str, Any]] = {
  "packed": {"train.throughput_rounds": 8},  # steps of both kinds, in turns
  "no_mask": {"model.attention_mask": "none"},  # the control: known to be worse
  "unpacked": {"packing.algorithm": "none"},
}
NAMES = {"packed": "packed", "no_mask": "packed without mask", "unpacked": "unpacked"}
COST = {"packed": 1, "no_mask": 1, "unpacked": 3}  # of a run, roughly
PICTURE = "scores.png"
SPEED = "sequences_per_second"  # in the summary of a run
TOLERANCE = 1e-4  # of predicted numbers; classes and answers have to be the same

Scores = dict[str, dict[str, list[float]]]  # by metric and arm, in percent, one a seed


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


def make_runs(
  name: str,
  files: Files,
  folder: pathlib.Path,
  *,
  seeds: int,
  overrides: Mapping[str, Any],
) -> Runs:
  """The runs of a task: all arms with all seeds."""
  directory = folder / "data" / name
  rows = {
    "data.max_sequence_length": files.longest,
    "train.micro_batch_size": files.at_once,
    "data.directory": f"{directory}-rows",
  }
  spec = {
    "config": real_tasks.config_of(name),
    "overrides": files.overrides(directory)
    | {"optimizer.learning_rate": LEARNING_RATE}
    | dict(overrides),
    "arms": ARMS | {"unpacked": ARMS["unpacked"] | rows},
    "grid": {"seed": list(range(1, seeds + 1))},
  }
  size = pathlib.Path(files.source).stat().st_size
  costs = {arm: cost * size for arm, cost in COST.items()}
  return Runs(name, make_sweep(spec, where=f"the runs of {name}"), folder, look, costs)


def look(run: Run, place: pathlib.Path) -> dict[str, Any]:
  """For a packed run, how its predictions differ from those with one sequence a row."""
  return {"same": compare_predictions(run.settings, place)} if run.arm == "packed" else {}


def scores_of(runs: Runs) -> Scores:
  """The dev set's metrics after the last step; `score` is their mean, if there are two."""
  arms = {arm: runs.summaries(arm) for arm in ARMS}
  first = arms["packed"][0]
  names = [n for n in first if n.startswith("eval_") and n != "eval_loss"]
  return {
    name.removeprefix("eval_"): {
      arm: [100 * one[name] for one in summaries] for arm, summaries in arms.items()
    }
    for name in names
  }


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


# -------------------------------------------------------------------------- the results


def statements(runs: Runs) -> list[Statement]:
  """The tested statements about a task."""
  score = scores_of(runs)["score"]
  same = [Same(*result["same"]) for result in runs.results("packed")]
  number = sum(one.different for one in same)
  of_all = sum(one.sequences for one in same)
  return [
    same_score(f"{runs.task}: packed and unpacked runs reach the same score", **score),
    judged(
      f"{runs.task}: one model predicts the same packed and unpacked",
      number == 0,
      f"{number} of {of_all:,} predictions differ; the largest difference of a logit is "
      f"{max(one.largest for one in same):.1e}",
    ),
  ]


def score_table(tasks: Sequence[Runs]) -> str:
  """Means and standard deviations of the metrics over the seeds."""
  rows = []
  for runs in tasks:
    scores = scores_of(runs)
    if len(scores) == 2:  # a metric, and the score, which is the same
      del scores["score"]
    for metric, arms in scores.items():
      cells = [mean_and_sd(arms[arm], digits=1) for arm in NAMES]
      rows.append([runs.task, metric.replace("_", " "), *cells])
  return report.table(["task", "metric", *NAMES.values()], rows, left=(0, 1))


def work_table(tasks: Sequence[Runs]) -> str:
  """Rows of an epoch, and the speed of training, packed and unpacked."""
  rows = []
  for runs in tasks:
    packed, unpacked = (runs.summaries(arm) for arm in ("packed", "unpacked"))
    lengths = [
      runs.results(arm)[0]["config"]["data"]["max_sequence_length"]
      for arm in ("packed", "unpacked")
    ]
    ratio = np.mean(_values(packed, "speedup_measured"))
    low, high = min(_values(packed, "speedup_low")), max(_values(packed, "speedup_high"))
    # Medians: a run that was suspended for a while seems slow.
    in_training = np.median(_values(packed, SPEED)) / np.median(_values(unpacked, SPEED))
    rows.append(
      [
        runs.task,
        f"{packed[0]['sequences']:,}",
        f"{packed[0]['packs']:,}",
        f"{packed[0]['packing_factor']:.2f}",
        f"{lengths[0]}",
        f"{np.mean(_values(packed, f'unpacked_{SPEED}')):,.1f}",
        f"{np.mean(_values(packed, f'packed_{SPEED}')):,.1f}",
        f"{ratio:.2f} ({low:.2f} to {high:.2f})",
        f"{lengths[1]}",
        f"{in_training:.2f}",
      ]
    )
  header = ["task", "sequences", "packed rows", "packing factor", "row (tokens)"]
  header += ["unpacked, sequences/s", "packed, sequences/s", "ratio"]
  header += ["row of the unpacked arm", "ratio to that arm"]
  return report.table(header, rows)


def sequences_a_step(tasks: Sequence[Runs]) -> str:
  """How many sequences a step has on average, packed and unpacked."""

  def of(runs: Runs, arm: str) -> float:
    first = runs.summaries(arm)[0]
    return first["epochs"] * first["sequences"] / first["steps"]

  each = [
    f"{runs.task} {of(runs, 'packed'):.1f} against {of(runs, 'unpacked'):.1f}"
    for runs in tasks
  ]
  return (
    "A packed step holds whole packs, so it has only about as many sequences as an "
    f"unpacked one: {', '.join(each)}."
  )


def _values(summaries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
  return [one[name] for one in summaries]


def exhibit(part: Part, tasks: Sequence[Runs]) -> Exhibit:
  """The tables and tests of tasks whose runs are finished."""
  apart = []
  for runs in tasks:
    score = scores_of(runs)["score"]
    difference = np.mean(np.subtract(score["packed"], score["unpacked"]))
    apart.append(f"{runs.task} {difference:+.1f}")
  return part.exhibit(
    "Fine-tuning",
    "packed, unpacked, and packed without the mask",
    f"Score of packed minus unpacked fine-tuning, in points: {', '.join(apart)}.",
    claim="Fine-tuning can be packed, too: the scores and the predictions are the same.",
    statements=[statement for runs in tasks for statement in statements(runs)],
    pictures=[draw(part.folder, tasks)],
    text="\n\n".join(
      [
        "Scores in percent on the dev set after the last step, mean and standard deviation "
        "over seeds:",
        score_table(tasks),
        "The rows of an epoch, and speed. Packed and unpacked rows of the same length were "
        "timed in turns: their ratio is given with the lowest and the highest quartile of "
        "all runs. The unpacked arm trains in rows no longer than the task's longest "
        "sequence; the last column is the speed of the packed arm divided by that of the "
        "unpacked arm, by medians of whole runs.",
        work_table(tasks),
        sequences_a_step(tasks),
      ]
    ),
  )


def draw(folder: pathlib.Path, tasks: Sequence[Runs]) -> str:
  """Draws the score of each run, by task and arm; returns the picture's name."""
  drawing = figure(10, 4.5)
  axes = drawing.add_subplot()
  for i, (arm, name) in enumerate(NAMES.items()):
    scores = [scores_of(runs)["score"][arm] for runs in tasks]
    places = np.repeat(np.arange(len(tasks)), [len(x) for x in scores]) + 0.2 * (i - 1)
    axes.plot(places, np.concatenate(scores), "o", label=name, markersize=5, alpha=0.6)
  axes.set_xticks(range(len(tasks)), [runs.task for runs in tasks])
  axes.set_ylabel("score, %")
  legend_below(drawing, len(NAMES))
  save(drawing, folder / PICTURE, "The score of each run on the dev set")
  return PICTURE


# ----------------------------------------------------------------------------- the command


def make_tasks(part: Part, names: Sequence[str] = real_tasks.TASKS) -> list[Runs]:
  """The runs of some tasks.

  Raises:
    InputError: files or weights are missing.
    ConfigError: a value that no run can have.
  """
  data = part.real_data()
  overrides = {"model.init_from": str(real_data.find(data, "minilm-l6-h384"))}
  made = []
  for name in names:
    at_most = AT_MOST.get(name, 0)
    files = real_tasks.files(name, data, part.folder / "text", at_most=at_most)
    seeds = part.seeds or FEWER_SEEDS.get(name, SEEDS)
    made.append(make_runs(name, files, part.folder, seeds=seeds, overrides=overrides))
  return made


def exhibits(part: Part, names: Sequence[str] = real_tasks.TASKS) -> list[Exhibit]:
  """Trains what is not finished, and tests; raises as `make_tasks` and `run_all`."""
  tasks = make_tasks(part, names)
  run_all(tasks, number=part.jobs)
  return [exhibit(part, tasks)]


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "finetuning", workdir="results/finetuning")
  command.add_training(parser, seeds=f"{SEEDS}, 3 for stsb_pairs, 1 for squad")
  add_some(parser, "--tasks", real_tasks.TASKS)
  options = parser.parse_args(arguments)
  line = "python -m experiments.finetuning --data FOLDER"
  if options.tasks != list(real_tasks.TASKS):
    line += f" --tasks {','.join(options.tasks)}"
  maker = functools.partial(exhibits, names=options.tasks)
  return command.run_part(maker, options, line)


if __name__ == "__main__":
  sys.exit(main())
