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
from typing import Any

import numpy as np

from experiments.finetuning import real_tasks
from experiments.finetuning.real_tasks import (
  AT_MOST,
  LEARNING_RATE,
  Files,
)
from experiments.finetuning.run import Same
from lab import command, real_data, report
from lab.exhibits import Exhibit, Part, Statement, judged
from lab.options import add_some
from lab.pictures import figure, legend_below, save
from lab.statistics import mean_and_sd, same_score
from lab.studies.study import Arm, Study, run_all

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

Scores = dict[str, dict[str, list[float]]]  # by metric and arm, in percent, one a seed


def make_study(
  name: str,
  files: Files,
  part: Part,
  *,
  seeds: int,
  overrides: Mapping[str, Any],
) -> Study:
  """The runs of a task: all arms with all seeds."""
  directory = part.folder / "data" / name
  rows = {
    "data.max_sequence_length": files.longest,
    "train.micro_batch_size": files.at_once,
    "data.directory": f"{directory}-rows",
  }
  arms = ARMS | {"unpacked": ARMS["unpacked"] | rows}
  size = pathlib.Path(files.source).stat().st_size
  return Study(
    part.folder,
    [Arm(arm, fields, cost=COST[arm] * size) for arm, fields in arms.items()],
    files.overrides(directory)
    | {"optimizer.learning_rate": LEARNING_RATE}
    | dict(overrides),
    seeds,
    config=real_tasks.config_of(name),
    module="experiments.finetuning.run",
    name=name,
  )


def summaries_of(study: Study) -> dict[str, list[Mapping[str, Any]]]:
  """The summaries that train.py wrote for the finished runs, by arm and seed."""
  results = study.results().items()
  return {arm: [result["summary"] for result in of_arm] for arm, of_arm in results}


def scores_of(study: Study) -> Scores:
  """The dev set's metrics after the last step; `score` is their mean, if there are two."""
  arms = summaries_of(study)
  first = arms["packed"][0]
  names = [n for n in first if n.startswith("eval_") and n != "eval_loss"]
  return {
    name.removeprefix("eval_"): {
      arm: [100 * one[name] for one in summaries] for arm, summaries in arms.items()
    }
    for name in names
  }


# -------------------------------------------------------------------------- the results


def statements(study: Study) -> list[Statement]:
  """The tested statements about a task."""
  score = scores_of(study)["score"]
  same = [Same(*result["same"]) for result in study.results()["packed"]]
  number = sum(one.different for one in same)
  of_all = sum(one.sequences for one in same)
  return [
    same_score(f"{study.name}: packed and unpacked runs reach the same score", **score),
    judged(
      f"{study.name}: one model predicts the same packed and unpacked",
      number == 0,
      f"{number} of {of_all:,} predictions differ; the largest difference of a logit is "
      f"{max(one.largest for one in same):.1e}",
    ),
  ]


def score_table(tasks: Sequence[Study]) -> str:
  """Means and standard deviations of the metrics over the seeds."""
  rows = []
  for study in tasks:
    scores = scores_of(study)
    if len(scores) == 2:  # a metric, and the score, which is the same
      del scores["score"]
    for metric, arms in scores.items():
      cells = [mean_and_sd(arms[arm], digits=1) for arm in NAMES]
      rows.append([study.name, metric.replace("_", " "), *cells])
  return report.table(["task", "metric", *NAMES.values()], rows, left=(0, 1))


def work_table(tasks: Sequence[Study]) -> str:
  """Rows of an epoch, and the speed of training, packed and unpacked."""
  rows = []
  for study in tasks:
    results, summaries = study.results(), summaries_of(study)
    packed, unpacked = summaries["packed"], summaries["unpacked"]
    lengths = [
      results[arm][0]["run"]["config"]["data"]["max_sequence_length"]
      for arm in ("packed", "unpacked")
    ]
    ratio = np.mean(_values(packed, "speedup_measured"))
    low, high = min(_values(packed, "speedup_low")), max(_values(packed, "speedup_high"))
    # Medians: a run that was suspended for a while seems slow.
    in_training = np.median(_values(packed, SPEED)) / np.median(_values(unpacked, SPEED))
    rows.append(
      [
        study.name,
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


def sequences_a_step(tasks: Sequence[Study]) -> str:
  """How many sequences a step has on average, packed and unpacked."""

  def of(study: Study, arm: str) -> float:
    first = summaries_of(study)[arm][0]
    return first["epochs"] * first["sequences"] / first["steps"]

  each = [
    f"{study.name} {of(study, 'packed'):.1f} against {of(study, 'unpacked'):.1f}"
    for study in tasks
  ]
  return (
    "A packed step holds whole packs, so it has only about as many sequences as an "
    f"unpacked one: {', '.join(each)}."
  )


def _values(summaries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
  return [one[name] for one in summaries]


def exhibit(part: Part, tasks: Sequence[Study]) -> Exhibit:
  """The tables and tests of tasks whose runs are finished."""
  apart = []
  for study in tasks:
    score = scores_of(study)["score"]
    difference = np.mean(np.subtract(score["packed"], score["unpacked"]))
    apart.append(f"{study.name} {difference:+.1f}")
  return part.exhibit(
    "Fine-tuning",
    "packed, unpacked, and packed without the mask",
    f"Score of packed minus unpacked fine-tuning, in points: {', '.join(apart)}.",
    claim="Fine-tuning can be packed, too: the scores and the predictions are the same.",
    statements=[statement for study in tasks for statement in statements(study)],
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


def draw(folder: pathlib.Path, tasks: Sequence[Study]) -> str:
  """Draws the score of each run, by task and arm; returns the picture's name."""
  drawing = figure(10, 4.5)
  axes = drawing.add_subplot()
  for i, (arm, name) in enumerate(NAMES.items()):
    scores = [scores_of(study)["score"][arm] for study in tasks]
    places = np.repeat(np.arange(len(tasks)), [len(x) for x in scores]) + 0.2 * (i - 1)
    axes.plot(places, np.concatenate(scores), "o", label=name, markersize=5, alpha=0.6)
  axes.set_xticks(range(len(tasks)), [study.name for study in tasks])
  axes.set_ylabel("score, %")
  legend_below(drawing, len(NAMES))
  save(drawing, folder / PICTURE, "The score of each run on the dev set")
  return PICTURE


# ----------------------------------------------------------------------------- the command


def make_tasks(part: Part, names: Sequence[str] = real_tasks.TASKS) -> list[Study]:
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
    made.append(make_study(name, files, part, seeds=seeds, overrides=overrides))
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
