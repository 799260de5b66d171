"""What the runs of the real size show: held-out losses, speed, and scores."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.packing_paper.curves.claims import long_enough
from experiments.packing_paper.curves.tables import NAMES, mean_difference, table
from lab import pictures, report
from lab.exhibits import Exhibit, Part
from lab.statistics import equivalent, larger, mean_and_sd
from lab.studies import study as studies
from lab.studies.paired_run import held_out
from lab.studies.study import Arm, ByArm, Study
from launch.sweep.file import Run

Result = Mapping[str, Any]


def read(study: Study, arm: Arm, run: Run) -> dict[str, Any] | None:
  """The record of a run, as far as it is trained; None if there is none."""
  return studies.read(study.path(run), arm, run.settings)


def last(result: Result) -> Result:
  """The last evaluation."""
  return result["evaluations"][-1]


def is_finished(result: Result | None) -> bool:
  """Whether all steps of a run are made."""
  return result is not None and last(result)["step"] == result["recipe"]["steps"]


def of_arms(study: Study) -> dict[str, list[dict[str, Any]]]:
  """The results by arm, of the seeds of which all arms have finished.

  If there is none, of the first seed, as far as all arms are; empty before that.
  """
  by_seed: dict[int, dict[str, dict[str, Any]]] = {}
  for arm, run in study.runs:
    if (result := read(study, arm, run)) is not None:
      by_seed.setdefault(run.settings.seed, {})[arm.name] = result
  whole = [x for x in by_seed.values() if len(x) == len(study.arms)]
  shown = [x for x in whole if all(map(is_finished, x.values()))] or whole[:1]
  common = min((len(y["evaluations"]) for x in shown for y in x.values()), default=0)
  return {
    arm.name: [
      x[arm.name] | {"evaluations": x[arm.name]["evaluations"][:common]} for x in shown
    ]
    for arm in (study.arms if shown else ())
  }


def left_out(study: Study, tasks: Mapping[str, Study]) -> str:
  """What is not run, or not to its end, as a paragraph; "" if nothing is."""
  lines = []
  for arm, run in study.runs:
    result = read(study, arm, run)
    if result is None:
      lines.append(run.name)
    elif not is_finished(result):
      steps = f"{last(result)['step']:,} of {result['recipe']['steps']:,}"
      lines.append(f"{run.name} after step {steps}")
  lines += [
    f"{task} from {pathlib.Path(run.settings.model.init_from).name}"
    for task, of_task in tasks.items()
    for arm, run in of_task.runs
    if read(of_task, arm, run) is None
  ]
  return f"Not run in these minutes, or not to the end: {'; '.join(lines)}." * bool(lines)


def pretraining(part: Part, study: Study, left_out: str) -> Exhibit:
  """The exhibit of held-out losses, over steps and over time."""
  name, title = "Figures 3, 4 and 18 to 21, at real size", "BERT from scratch on Wikipedia"
  claim = "Packed and unpacked training have one learning curve; without the mask the loss "
  claim += "is higher."
  results = of_arms(study)
  if not results:
    why = "Not all arms have been evaluated yet."
    return part.not_run(name, title, why, claim=claim, text=left_out)
  packed, unpacked, no_mask = results.values()
  seconds = {x: np.mean([last(run)["seconds"] for run in results[x]]) for x in results}
  rates = {x: last(results[x][0])["sequences"] / seconds[x] for x in results}
  ratios = {x: rate / rates["constant"] for x, rate in rates.items()}
  finding = (
    f"After {last(packed[0])['sequences']:,} sequences the held-out loss of unpacked "
    f"training differs from that of packed training by "
    f"{mean_difference(unpacked, packed):+.3f} nats, and that without the mask by "
    f"{mean_difference(no_mask, packed):+.3f}. Packed training is "
    f"{ratios['packed']:.2f} times as fast as unpacked training, at a packing factor of "
    f"{packed[0]['plan']['packing_factor']:.2f}."
  )
  draw(part.folder / "losses.png", results, finding)
  run = study.runs[0][1].settings
  about = (
    f"BERT-{run.model.size} from random weights on paragraphs of Wikipedia, in rows of "
    f"{run.data.max_sequence_length} tokens, without dropout; LAMB with a rate of "
    f"{run.optimizer.learning_rate:g}. The rate was not tuned at this size. All arms "
    "see the same sequences in the same order, as many a step, and take turns on one "
    "device. Minutes are those of steps with their input, without evaluations. The packed "
    f"arm: {packed[0]['computation']}."
  )
  rows = [
    [NAMES[x], f"{seconds[x] / 60:.1f}", f"{rates[x]:,.1f}", f"{ratios[x]:.2f}"]
    for x in results
  ]
  header = ["arm", "minutes", "sequences a second", "times unpacked"]
  losses = list(map(held_out, results.values()))
  same = "Packed and unpacked training reach the same loss"
  texts = [about, table(results, list(results)), report.table(header, rows), left_out]
  return part.exhibit(
    name,
    title,
    finding,
    claim=claim,
    statements=[
      long_enough(packed),
      equivalent(same, losses[0], losses[1], power=losses[2]),
      larger("Without the mask the held-out loss is higher", losses[2], losses[0]),
    ],
    pictures=["losses.png"],
    text="\n\n".join(filter(None, texts)),
  )


def draw(path: pathlib.Path, results: ByArm, title: str):
  """The held-out loss over steps, and over the minutes of the steps."""
  drawing = pictures.figure(height=5)
  panels = drawing.subplots(1, 2, sharey=True)
  for (name, runs), colour in zip(results.items(), pictures.COLOURS, strict=False):
    losses = [[x["own"]["mlm_loss"] for x in run["evaluations"]] for run in runs]
    for axes, counter, unit in zip(panels, ("step", "seconds"), (1, 60), strict=True):
      passed = [[x[counter] / unit for x in run["evaluations"]] for run in runs]
      pictures.band(axes, np.mean(passed, 0), losses, colour, NAMES[name], marker="o")
  panels[0].set(xlabel="steps", ylabel="held-out loss of masked tokens, nats", xlim=0)
  panels[1].set(xlabel="minutes of training", xlim=0)
  pictures.legend_below(drawing, columns=3)
  pictures.save(drawing, path, title)


def fine_tuning(part: Part, tasks: Mapping[str, Study], left_out: str) -> Exhibit:
  """The exhibit of the scores of fine-tuned weights."""
  name, title = "Table 3, at real size", "Fine-tuned from packed and from unpacked weights"
  claim = "A model that was pretrained packed scores the same as the reference."
  scores: dict[tuple[str, str], list[float]] = {}
  for task, of_task in tasks.items():
    for arm, results in of_task.results().items():
      if results:
        scores[task, arm] = [100 * x["summary"]["eval_score"] for x in results]
  if not scores:
    why = "No weights have been fine-tuned yet."
    return part.not_run(name, title, why, claim=claim, text=left_out)
  rows = [[task, NAMES[arm], mean_and_sd(x, 1)] for (task, arm), x in scores.items()]
  finding = "; ".join(f"{task} {score} {arm}" for task, arm, score in rows)
  header = ["task", "pretrained", "score (%)"]
  about = "Fine-tuning is packed for all. So few seeds prove no difference."
  texts = [report.table(header, rows, left=(0, 1)), about, left_out]
  text = "\n\n".join(filter(None, texts))
  return part.exhibit(name, title, f"Scores: {finding}.", claim=claim, text=text)
