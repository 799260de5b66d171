"""BERT-base from scratch on Wikipedia, packed and unpacked, in some minutes of a GPU.

  python -m experiments.real_size --data FOLDER --prepare     # once, on any machine
  python -m experiments.real_size --minutes 10                # on the GPU
  python -m experiments.real_size --data FOLDER --quick       # a little of it, on a CPU

Three arms, packed, unpacked and packed without the mask, see the same sequences, as many a
step, and take turns, so that all stop at the same evaluation if the minutes are over.
Another seed follows only if there is time for all of it. The report lists what was left
out.

The minutes begin when the data are prepared; each arm gets as far as its first evaluation
in any case. Results are written after each evaluation. The same command keeps finished
runs, and begins the others again. `--data` is that of lab/real_data.py; once --prepared has
the data, it is not needed.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from training import compiler

if __name__ == "__main__":
  compiler.set_flags()  # before JAX is imported

from experiments.packing_paper.curves.arms import lasting
from experiments.real_size import results
from experiments.real_size.results import is_finished, last, read
from lab import command, options, real_data, report
from lab import part as parts
from lab.exhibits import Exhibit, Part
from lab.studies import study as studies
from lab.studies.paired_run import PairedRun
from lab.studies.study import Arm, Study
from launch.data import PREPARED, prepare_dataset
from launch.sweep.file import Run
from packing.files import write_json
from pipeline.dataset import MANIFEST

ARMS = (
  Arm("packed", {}),
  Arm("constant", {}, "constant"),
  Arm("no_mask", {"model.attention_mask": "none"}),
)
SEEDS, STEPS, BATCH = 2, 2000, 128  # at most; of a run; sequences a step
RATE = 2e-3  # of LAMB; not tuned at this size
EVALUATED = range(5, 101, 5)  # percent of a run
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


def make_study(part: Part, prepared: pathlib.Path) -> Study:
  """The study of pretraining, on data that are prepared in a folder."""
  steps, batch = (QUICK_STEPS, QUICK_BATCH) if part.quick else (STEPS, BATCH)
  fields = {"data.directory": str(prepared / "text"), "optimizer.learning_rate": RATE}
  fields |= OVERRIDES | lasting(steps * batch, batch) | (QUICK if part.quick else {})
  seeds = 1 if part.quick else SEEDS
  return Study(part.folder, ARMS, fields, seeds, config="configs/base.py")


def prepare(part: Part, study: Study):
  """Prepares the text if it is not there.

  Raises:
    InputError: real data are needed and missing.
  """
  config = study.runs[0][1].config.copy_and_resolve_references()
  if pathlib.Path(config.data.directory, MANIFEST).exists():
    return
  data, least = part.real_data(), QUICK_BYTES if part.quick else TEXT_BYTES
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder, "text.txt")
    config.data.source = str(real_data.write_articles(data, place, at_least=least))
    config.data.vocab_file = str(real_data.find(data, VOCABULARY))
    prepare_dataset(config)


def pretrain(study: Study, seed: int, until: float) -> Iterator[None]:
  """Trains the arms of a seed that have not finished, in turns; pauses after each turn.

  Ends before a second turn, or a later one, that would end after `until`, a time of
  `time.monotonic`.
  """
  made: list[tuple[Arm, Run, PairedRun]] = []
  for arm, run in study.runs:
    if run.config.seed == seed and not is_finished(read(study, arm, run)):
      print(f"compiling {run.name} ...", file=sys.stderr, flush=True)
      folder = study.path(run).with_suffix("")
      one = PairedRun(arm, run.config, folder=folder, evaluated=EVALUATED)
      one.compile()
      made.append((arm, run, one))
  turns = [one.train() for *_, one in made]
  going, end_of_next = True, until
  while going and end_of_next <= until:
    start, going = time.monotonic(), False
    for (arm, run, _), turn in zip(made, turns, strict=True):
      for result, _ in itertools.islice(turn, 1):
        _write(study, arm, run, result)
        going = True
    end_of_next = 2 * time.monotonic() - start
    yield


def _write(study: Study, arm: Arm, run: Run, result: Mapping[str, Any]):
  about = {"run": studies.identity(arm, run.config)} | studies.known_by(run.config)
  study.path(run).parent.mkdir(parents=True, exist_ok=True)
  write_json(study.path(run), {**about, **result})


def exhibits(part: Part, study: Study, *, minutes: float) -> Iterator[list[Exhibit]]:
  """Trains what is not finished while there is time; yields what is known, again and again.

  Raises:
    InputError: real data are needed and missing.
    Stopped: a loss is not finite.
  """
  prepare(part, study)
  until = time.monotonic() + 60 * minutes
  for seed in range(1, study.seeds + 1):
    before = results.of_arms(study).values()
    as_long = sum(last(x[0])["seconds"] for x in before)
    if seed == 1 or time.monotonic() + as_long <= until:
      for _ in pretrain(study, seed, until):
        yield [results.pretraining(part, study)]
  yield [results.pretraining(part, study)]


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "real_size", workdir="results/real_size")
  command.add_data(parser)
  place, about = pathlib.Path("data", "real_size"), "where the prepared data are"
  options.add(parser, "--prepared", place, about, type=pathlib.Path)
  parser.add_argument("--prepare", action="store_true", help="only prepare the data")
  options.add(parser, "--minutes", 10, "start nothing that may end after this time")
  about = "a tiny model and little text, in folders of their own, named quick"
  parser.add_argument("--quick", action="store_true", help=about)
  given = parser.parse_args(arguments)
  inner = "quick" if given.quick else ""
  prepared, line = given.prepared / inner, "python -m experiments.real_size --data FOLDER"
  part = Part(given.workdir / inner, line, given.quick, data=given.data)

  def work():
    study = make_study(part, prepared)
    if given.prepare:
      prepare(part, study)
      print(f"prepared in {prepared}")
      return
    compiler.keep_programs()
    maker = functools.partial(exhibits, study=study, minutes=given.minutes)
    made = parts.make_by_and_by(maker, part)
    print("\n\n".join(report.section(exhibit, folder=".") for exhibit in made))

  return command.run(work)


if __name__ == "__main__":
  sys.exit(main())
