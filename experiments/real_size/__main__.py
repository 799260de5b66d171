"""BERT-base from scratch on Wikipedia, packed and unpacked, in some minutes of a GPU.

  python -m experiments.real_size --data FOLDER --prepare     # once, on any machine
  python -m experiments.real_size --minutes 10                # on the GPU
  python -m experiments.real_size --data FOLDER --quick       # a little of it, on a CPU

Three arms, packed, unpacked and packed without the mask, see the same sequences, as many a
step, and take turns. Then MRPC and STS-B are fine-tuned from packed and unpacked weights;
a quarter of the minutes is kept for that. Where pretraining needs more than the rest, all
arms stop at the same evaluation. Another seed follows only if there is time for all of it.
The report lists what was left out.

The minutes begin once the arms are compiled. Results are written after each evaluation.
The same command keeps finished runs, and begins the others again. `--data` is that of
lab/real_data.py; once --prepared has the data, it is not needed.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from training import compiler

if __name__ == "__main__":
  compiler.set_flags()  # before JAX is imported

import jax

from experiments.finetuning import pretrained, real_tasks
from experiments.finetuning.real_tasks import Files
from experiments.packing_paper.curves.arms import lasting
from experiments.real_size import results
from experiments.real_size.results import is_finished, last, read
from lab import command, options, real_data, report
from lab import part as parts
from lab.exhibits import Exhibit, Part
from lab.studies.identity import known_by, weights_digest
from lab.studies.paired_run import PairedRun
from lab.studies.study import Arm, Study, identity, run_jobs, stop_if_failed
from launch.data import prepare_dataset
from launch.door import read_settings
from launch.parts import PREPARED
from launch.record.parameters import parameters_digest
from launch.sweep.file import Run
from packing.files import write_json
from pipeline.dataset import MANIFEST
from training.step import State

ARMS = (
  Arm("packed", {}, keep=True),
  Arm("constant", {}, "constant", keep=True),
  Arm("no_mask", {"model.attention_mask": "none"}),
)
TASKS = ("mrpc", "stsb")
SEEDS, STEPS, BATCH = 2, 2000, 128
RATE = 2e-3  # of LAMB; not tuned at this size
EVALUATED = range(5, 101, 5)  # percent of a run
FOR_TASKS = 0.25  # of the minutes
TEXT_BYTES = 55_000_000  # so that the prepared data are below 40 MB
VOCABULARY = "bert-base-uncased-vocab.txt"
ON_DEVICE = {
  "model.dtype": "auto",
  "model.attention_impl": "auto",
  "model.attention_dropout_rate": 0.0,
}
OVERRIDES: dict[str, Any] = ON_DEVICE | {
  "data.source": PREPARED,
  "data.documents": "line",  # paragraphs
  "data.min_sentences": 5,  # else more than four sequences would share a row
  "data.max_sequence_length": 512,
  "data.held_out_fraction": 0.01,
  "packing.algorithm": "optimal",
  "packing.max_sequences_per_pack": 3,
  "model.dropout_rate": 0.0,
}
QUICK = {"model.size": "tiny", "data.max_sequence_length": 128}
QUICK_STEPS, QUICK_BATCH, QUICK_BYTES = 12, 8, 400_000


class Clock:
  """The seconds of a command, which begin when it has compiled."""

  def __init__(self, minutes: float):
    self.seconds = 60 * minutes
    self._end: float | None = None

  def start(self):
    self._end = self._end or time.monotonic() + self.seconds

  @property
  def left(self) -> float:
    return self._end - time.monotonic() if self._end else self.seconds

  @property
  def left_to_pretrain(self) -> float:
    return self.left - FOR_TASKS * self.seconds


def make_study(part: Part, prepared: pathlib.Path, *, steps: int, rate: float) -> Study:
  """The study of pretraining, on data that are prepared in a folder."""
  steps, batch = (QUICK_STEPS, QUICK_BATCH) if part.quick else (steps, BATCH)
  fields = {"data.directory": str(prepared / "text"), "optimizer.learning_rate": rate}
  fields |= OVERRIDES | lasting(steps * batch, batch) | (QUICK if part.quick else {})
  seeds = 1 if part.quick else part.seeds or SEEDS
  return Study(part.folder, ARMS, fields, seeds, config="configs/base.py")


def prepare_data(part: Part, study: Study, prepared: pathlib.Path):
  """Prepares the text and the tasks that are not there.

  Raises:
    InputError: real data are needed and missing.
  """
  names = [x for x in ("text", *TASKS) if not (prepared / x / MANIFEST).exists()]
  with tempfile.TemporaryDirectory() as temporary:
    place = pathlib.Path(temporary)
    for name in names:
      data = part.real_data()
      if name == "text":
        settings = study.runs[0][1].settings
        least = QUICK_BYTES if part.quick else TEXT_BYTES
        text = real_data.write_articles(data, place / "text.txt", at_least=least)
        fields: dict[str, Any] = {"data.source": str(text)}
      else:
        # Its data only, for a model of any size.
        settings = read_settings(real_tasks.config_of(name), ["--config.model.size=tiny"])
        files = real_tasks.glue(data, place, [name], quick=part.quick)[name]
        fields = files.overrides(prepared / name)
      fields["data.vocab_file"] = str(real_data.find(data, VOCABULARY))
      prepare_dataset(settings.changed(fields).data)


def pretrain(study: Study, seed: int, clock: Clock) -> Iterator[None]:
  """Trains the arms of a seed that have not finished, in turns; pauses after each turn.

  Ends before a turn that would take from the time for fine-tuning.
  """
  made: list[tuple[Arm, Run, PairedRun]] = []
  for arm, run in study.runs:
    if run.settings.seed == seed and not is_finished(read(study, arm, run)):
      print(f"compiling {run.name} ...", file=sys.stderr, flush=True)
      folder = study.path(run).with_suffix("")
      one = PairedRun(arm, run.settings, folder=folder, evaluated=EVALUATED)
      one.compile()
      made.append((arm, run, one))
  clock.start()
  turns = [one.train() for *_, one in made]
  states: dict[str, State] = {}
  seconds, going = 0.0, True
  while going and clock.left_to_pretrain >= seconds:
    start, going = time.monotonic(), False
    for (arm, run, _), turn in zip(made, turns, strict=True):
      if (found := next(turn, None)) is not None:
        result, states[run.name] = found
        _write(study, arm, run, result)
        going = True
    seconds = time.monotonic() - start
    yield
  for arm, run, one in made:
    record, state = read(study, arm, run), states.get(run.name)
    if arm.keep and record and state and int(state["step"]) == last(record)["step"]:
      one.keep(state)
      digest = parameters_digest(jax.device_get(state["params"]))
      _write(study, arm, run, record | {"parameters_digest": digest})


def _write(study: Study, arm: Arm, run: Run, result: Mapping[str, Any]):
  """Writes a record, unless an earlier start of the command came further."""
  before = read(study, arm, run)
  if before is None or last(before)["step"] <= last(result)["step"]:
    about = {"run": identity(arm, run.settings)} | known_by(run.settings)
    study.path(run).parent.mkdir(parents=True, exist_ok=True)
    write_json(study.path(run), {**about, **result})


def make_tasks(part: Part, study: Study, prepared: pathlib.Path) -> dict[str, Study]:
  """The fine-tuning runs of each task, once pretraining has kept some weights."""
  models = {arm.name: study.kept_of(arm.name) for arm in ARMS if arm.keep}
  if not any(weights_digest(str(x)) for folders in models.values() for x in folders):
    return {}
  made = {}
  for task in TASKS:
    fields = ON_DEVICE | {"data.directory": str(prepared / task)}
    fields |= real_tasks.QUICK if part.quick else {}
    files = {task: Files(PREPARED, "")}
    (made[task],) = pretrained.make_studies(models, files, part.folder, fields)
  return made


def fine_tune(tasks: Mapping[str, Study], clock: Clock) -> Iterator[None]:
  """Makes the runs that have not ended, while there is time; pauses after each."""
  longest = 0.0
  for study in tasks.values():
    for arm, run in study.runs:
      job, weights = study.job(arm, run), pathlib.Path(run.settings.model.init_from)
      if weights.is_dir() and not job.is_finished() and clock.left > longest:
        start = time.monotonic()
        stop_if_failed(run_jobs([job], number=1), total=1)
        longest = max(longest, time.monotonic() - start)
        yield


def exhibits(
  part: Part, study: Study, prepared: pathlib.Path, *, minutes: float
) -> Iterator[list[Exhibit]]:
  """Trains what is not finished while there is time; yields what is known, again and again.

  Raises:
    InputError: real data are needed and missing.
    Stopped: a loss is not finite, or fine-tuning failed.
  """
  prepare_data(part, study, prepared)
  clock, tasks = Clock(minutes), dict[str, Study]()

  def known() -> list[Exhibit]:
    print(f"{max(clock.left, 0) / 60:.1f} minutes left", file=sys.stderr, flush=True)
    left_out = results.left_out(study, tasks)
    return [
      results.pretraining(part, study, left_out),
      results.fine_tuning(part, tasks, left_out),
    ]

  for seed in range(1, study.seeds + 1):
    before = results.of_arms(study).values()
    if seed == 1 or clock.left_to_pretrain >= sum(last(x[0])["seconds"] for x in before):
      for _ in pretrain(study, seed, clock):
        yield known()
    tasks = make_tasks(part, study, prepared)
    for _ in fine_tune(tasks, clock):
      yield known()
  yield known()


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "real_size", workdir="results/real_size")
  command.add_data(parser)
  place, about = pathlib.Path("data", "real_size"), "where the prepared data are"
  options.add(parser, "--prepared", place, about, type=pathlib.Path)
  parser.add_argument("--prepare", action="store_true", help="only prepare the data")
  options.add(parser, "--minutes", 10, "start nothing that may end after this time")
  options.add(parser, "--seeds", SEEDS, "at most")
  options.add(parser, "--steps", STEPS, f"of a run, each of {BATCH} sequences")
  about = "the peak learning rate; runs with another one replace those in --workdir"
  options.add(parser, "--rate", RATE, about, type=float)
  about = "a tiny model and little text, in folders of their own, named quick"
  parser.add_argument("--quick", action="store_true", help=about)
  given = parser.parse_args(arguments)
  inner = "quick" if given.quick else ""
  prepared, line = given.prepared / inner, "python -m experiments.real_size --data FOLDER"
  part = Part(given.workdir / inner, line, given.quick, given.seeds, data=given.data)

  def work():
    study = make_study(part, prepared, steps=given.steps, rate=given.rate)
    if given.prepare:
      prepare_data(part, study, prepared)
      print(f"prepared in {prepared}")
      return
    # Fine-tuning has processes of its own, which need memory, and the same device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_PLATFORMS", "")
    compiler.keep_programs()
    fields = {"study": study, "prepared": prepared, "minutes": given.minutes}
    made = parts.make_by_and_by(functools.partial(exhibits, **fields), part)
    print("\n\n".join(report.section(exhibit, folder=".") for exhibit in made))

  return command.run(work)


if __name__ == "__main__":
  sys.exit(main())
