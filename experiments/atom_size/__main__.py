"""How to cut, shuffle and fill rows of a causal model: the atom-size paper, and packing.

  python -m experiments.atom_size --data FOLDER

Trains small GPT-2s with ALiBi on the same text in rows of several lengths: concat and
padding with atoms of a quarter to four rows, and packed. Rows of 64 tokens come first,
with three seeds; then all other row lengths with one seed, and last with the other seeds.
Finished runs are kept, so the same command resumes. With --minutes, no run starts after
that time, and the report shows what is finished; --minutes=0 trains nothing. Writes
exhibits.md, exhibits.json and pictures to --workdir.

The text is test.txt of WikiText-2, with valid.txt held out; without --data it is the
docstrings of the standard library. --large trains larger models on Wikipedia's articles,
for an epoch, in rows of 128 and 512: 48 runs. All 24 million tokens take hours a run on a
CPU; --text-bytes takes less text. On a GPU:

  JAX_PLATFORMS=cuda,cpu python -m experiments.atom_size --data FOLDER --large --jobs 1

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import pipeline
from experiments.atom_size.atom_sizes import atom_sizes
from experiments.atom_size.layouts import NAMES, concat_and_padding, packed
from experiments.atom_size.perplexities import SEGMENTS
from experiments.atom_size.runs import (
  LARGE,
  QUICK,
  SEEDS,
  SMALL,
  Layout,
  Scale,
  make_study,
  time_steps,
)
from experiments.atom_size.steps import steps_an_epoch
from experiments.atom_size.text import filtering
from experiments.lab import command, real_data
from experiments.lab.exhibits import Exhibit
from experiments.lab.part import Part, machines_of
from experiments.lab.study import Study, run_tasks, stop_if_failed
from model.models import abstract_model
from packing import InputError
from pipeline.batches.atoms import documents
from training.command import positive
from training.config import model_config
from training.record.parameters import count_parameters

FULL = 64  # the row length that is first trained with all atoms and seeds
PAPER_ROWS = (64, 32, 128)
LONG_ROWS = (256, 512)  # longer than most documents; the paper leaves this case open
LARGE_ROWS = (128, 512)
TEXT_BYTES = 120_000_000  # of Wikipedia's articles, for `LARGE`; 24 million tokens
TEXTS = {
  "wikitext": "test.txt of WikiText-2",
  "stdlib": "the standard library's docstrings",
  "wikipedia": "paragraphs of Wikipedia",
}
_ALONE = tuple(NAMES)


def stages(*, scale: Scale = SMALL, quick: bool) -> Iterator[tuple[int, Layout, int]]:
  """Row lengths, layouts and seeds of all runs, in order; seeds from 1 on.

  Args:
    scale: of the runs.
    quick: whether to plan one seed only, and atoms of half a row to two rows.
  """
  seeds = range(1, 2 if quick else SEEDS + 1)
  near, far = _of_atoms(0.5, 2.0), _of_atoms(0.25, 4.0)
  if scale is LARGE:
    for seed in seeds:
      for row_length in LARGE_ROWS:
        yield from ((row_length, layout, seed) for layout in (*_ALONE, *near))
    return
  others = [x for x in PAPER_ROWS if x != FULL]
  for seed in seeds:
    of_atoms = near if quick else (*near, *far)
    yield from ((FULL, layout, seed) for layout in (*_ALONE, *of_atoms))
  for row_length in others:
    yield from ((row_length, layout, 1) for layout in (*_ALONE, *near))
  for row_length in LONG_ROWS:
    yield from ((row_length, layout, 1) for layout in _ALONE)
  if quick:
    return
  for row_length in others:
    yield from ((row_length, layout, 1) for layout in far)
  for seed in seeds[1:]:
    for row_length in (*LONG_ROWS, *others):
      of_atoms = () if row_length in LONG_ROWS else (*near, *far)
      yield from ((row_length, layout, seed) for layout in (*_ALONE, *of_atoms))


def _of_atoms(*sizes: float) -> tuple[Layout, ...]:
  return tuple(Layout(kind, size) for size in sizes for kind in ("concat", "padding"))


def exhibits(
  part: Part,
  *,
  scale: Scale = SMALL,
  text_bytes: int = TEXT_BYTES,
  minutes: float = math.inf,
) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    part: of the study; `quick` makes a few steps with one seed, which prove nothing.
    scale: of the runs.
    text_bytes: of Wikipedia's articles that are trained on, for `LARGE`.
    minutes: after which no further run starts.

  Raises:
    InputError: the folder has no text, or too little; or nothing is trained yet.
    Stopped: some runs failed; all others are finished.
  """
  until = time.monotonic() + 60 * minutes
  if scale is LARGE:
    name, text = "wikipedia", articles(part, at_least=text_bytes)
  else:
    name, text = "stdlib" if part.data is None else "wikitext", text_of(part.data)
  planned = list(stages(scale=scale, quick=part.quick))
  layouts: dict[int, dict[Layout, None]] = {}
  for row_length, layout, _ in planned:
    layouts.setdefault(row_length, {})[layout] = None
  studies = {
    row_length: make_study(
      part.folder / name / str(row_length),
      row_length,
      list(of_length),
      text=text,
      scale=scale,
      quick=part.quick,
    )
    for row_length, of_length in layouts.items()
  }
  _train(studies, planned, part, scale, until=until)
  results = {}
  for row_length, study in sorted(studies.items()):
    of_study = study.results()
    found = {x: of_study[x.name] for x in layouts[row_length] if of_study[x.name]}
    if found:
      results[row_length] = found
  whole = {n: found for n, found in results.items() if found.keys() >= {*_ALONE}}
  if not whole:
    raise InputError(
      "No row length has all its layouts trained yet. Run again with more --minutes."
    )
  made = [
    run for found in results.values() for runs in found.values() for run in runs.values()
  ]
  first = studies[min(whole)]
  lengths, vocabulary = _documents(first)
  recipe = _recipe(part, TEXTS[name], first, lengths, vocabulary, scale)
  if len(made) < len(planned):
    missing = len(planned) - len(made)
    recipe += f" {missing} of {len(planned)} planned runs are not finished yet."
  exhibits = [steps_an_epoch(part, lengths, results, tokens=scale.tokens, recipe=recipe)]
  if name == "wikitext":
    assert part.data is not None
    exhibits.append(filtering(part, real_data.find(part.data, "wikitext-2/valid.txt")))
  exhibits += [
    atom_sizes(part, kind, row_length, whole[row_length], lengths)
    for row_length in dict.fromkeys((*PAPER_ROWS, *LARGE_ROWS))
    for kind in ("concat", "padding")
    if row_length in whole and whole[row_length].keys() >= {*_of_atoms(0.5, 2.0)}
  ]
  exhibits.append(concat_and_padding(part, whole))
  timed = {n: time_steps(studies[n], _ALONE) for n in whole}
  exhibits += [packed(part, n, found, timed[n]["seconds"]) for n, found in whole.items()]
  places = {"trained on": machines_of(made), "steps timed on": machines_of(timed.values())}
  where = "; ".join(f"{what} {names}" for what, names in places.items() if names)
  return [dataclasses.replace(x, machine=where) for x in exhibits]


def _train(studies, planned, part: Part, scale: Scale, *, until: float):
  """Runs what is not finished, in the planned order; prepares all data first."""
  runs = {
    (row_length, arm.name, run.config.seed): (study, arm, run)
    for row_length, study in studies.items()
    for arm, run in study.runs
  }
  tasks = []
  for row_length, layout, seed in planned:
    study, arm, run = runs[row_length, layout.name, seed]
    task = study.task(arm, run)
    tasks.append(dataclasses.replace(task, name=f"rows of {row_length}, {task.name}"))
  for study in studies.values():
    lengths, _ = _documents(study)  # prepares the text, which identifies finished runs
    tokens = int((lengths + 1).sum())
    least = SEGMENTS * scale.tokens
    if not part.quick and tokens < least:
      raise InputError(
        f"The text has {tokens:,} tokens; expected at least {least:,}, so that an epoch "
        f"has {SEGMENTS} steps of {scale.tokens} tokens. Give more text."
      )
  failures = run_tasks(tasks, number=part.jobs, desc="atom size", until=until)
  stop_if_failed(failures, len(tasks))


def _documents(study: Study) -> tuple[np.ndarray, int]:
  """The tokens of each document, int[D], and the size of the vocabulary."""
  dataset = pipeline.prepare_dataset(study.runs[0][1].config)
  return documents(dataset.train)[0], len(dataset.vocabulary)


def _recipe(
  part: Part, text: str, study: Study, lengths, vocabulary: int, scale: Scale
) -> str:
  """The text, the model and the recipe, for the report."""
  config = study.runs[0][1].config
  model = model_config(config, head="causal", vocab_size=vocabulary)
  parameters = count_parameters(abstract_model(model, "causal")[1])
  length = f"Epochs: {scale.epochs}"
  if part.quick:
    length = f"{QUICK['train.steps']} steps, which prove nothing"
  return (
    f"Text: {text}, documents of {config.data.min_words} "
    f"words and more, {(lengths + 1).sum():,} tokens of a byte-level BPE of "
    f"{vocabulary:,}. Model: {config.model.size}, {parameters:,} parameters, ALiBi. "
    f"{length}; {scale.tokens} tokens a step, padding included. AdamW with a learning rate "
    f"of {config.optimizer.learning_rate:g}, constant after "
    f"{config.optimizer.warmup_steps} steps; the rate was chosen for {SMALL.size} models "
    f"and concat in rows of {FULL} with seed 0, which no statement uses."
  )


def text_of(data: str | None) -> dict[str, str]:
  """Fields of the config's `data` for WikiText-2 in a folder of real data, or docstrings.

  Raises:
    InputError: a file is missing.
  """
  if data is None:
    return {"source": "stdlib", "held_out_source": "", "documents": "blank-line"}
  files = {
    "source": real_data.find(data, "wikitext-2/test.txt"),
    "held_out_source": real_data.find(data, "wikitext-2/valid.txt"),
  }
  return {name: str(path) for name, path in files.items()} | {"documents": "line"}


def articles(part: Part, *, at_least: int) -> dict[str, Any]:
  """Fields of the config's `data` for paragraphs of Wikipedia, at least so many bytes.

  A hundredth is held out.

  Raises:
    InputError: the text is missing.
  """
  if part.data is None:
    raise InputError(
      f"--large needs articles: name a folder that has {real_data.TEXT}, by --data or by "
      f"the variable {real_data.VARIABLE}."
    )
  source = real_data.write_articles(part.data, part.folder / "text.txt", at_least=at_least)
  return {
    "source": str(source),
    "held_out_source": "",
    "held_out_fraction": 0.01,
    "documents": "line",
  }


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(
    __doc__, "experiments.atom_size", workdir="results/atom_size"
  )
  command.add_training(parser)
  parser.add_argument(
    "--minutes",
    type=_minutes,
    default=math.inf,
    help="start no run after this time (default: no limit)",
  )
  parser.add_argument(
    "--large", action="store_true", help="larger models on Wikipedia; not with --quick"
  )
  parser.add_argument(
    "--text-bytes",
    type=positive,
    help="of Wikipedia's articles, or all if there are fewer, with --large (default: "
    f"{TEXT_BYTES})",
  )
  options = parser.parse_args(arguments)
  if options.large and options.quick:
    parser.error("--large and --quick exclude each other; give one of them.")
  if options.text_bytes and not options.large:
    parser.error("--text-bytes is of the text for --large; give both.")
  words = ["python -m experiments.atom_size"]
  words += ["--data FOLDER"] * bool(options.data)
  words += ["--quick"] * options.quick + ["--large"] * options.large
  words += [f"--text-bytes {options.text_bytes}"] * bool(options.text_bytes)
  folder = "large" if options.large else ""
  part = command.make_part(options, " ".join(words), folder)
  maker = functools.partial(
    exhibits,
    scale=LARGE if options.large else SMALL,
    text_bytes=options.text_bytes or TEXT_BYTES,
    minutes=options.minutes,
  )
  return command.run_part(maker, part, as_json=options.json)


def _minutes(text: str) -> float:
  try:
    minutes = float(text)
  except ValueError:
    minutes = -1.0
  if not 0 <= minutes < math.inf:
    raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text}")
  return minutes


if __name__ == "__main__":
  sys.exit(main())
