"""How to cut, shuffle and fill rows of a causal model: the atom-size paper, and packing.

  python -m experiments.atom_size --data FOLDER

Trains small GPT-2s with ALiBi on the same text in rows of several lengths: concat and
padding with atoms of a quarter to four rows, concat in the order of the text, and packed.
Finished runs are kept, so the same command resumes. Writes exhibits.md, exhibits.json and
pictures to --workdir.

The text is test.txt of WikiText-2, with valid.txt held out. --large trains larger models
on 15 MB of Wikipedia's articles, for an epoch, in rows of 128 and 512: 48 runs. On a GPU:

  JAX_PLATFORMS=cuda,cpu python -m experiments.atom_size --data FOLDER --large --jobs 1

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import numpy as np

from experiments.atom_size.atom_sizes import atom_sizes, second_epoch
from experiments.atom_size.layouts import NAMES, TIMED, concat_and_padding, packed
from experiments.atom_size.perplexities import SEGMENTS
from experiments.atom_size.runs import (
  LARGE,
  SMALL,
  UNSHUFFLED,
  Layout,
  Scale,
  make_study,
  time_steps,
)
from experiments.atom_size.seeds import seeds_needed
from experiments.atom_size.steps import full_size, steps_an_epoch
from experiments.atom_size.text import filtering, row_lengths
from experiments.atom_size.unshuffled import unshuffled
from lab import command, real_data
from lab.exhibits import Exhibit, Part
from lab.part import machines_of
from lab.studies.study import Study
from launch.data import prepare_dataset
from launch.record.parameters import count_parameters
from model.models import abstract_model
from packing import InputError
from pipeline.batches.atoms import documents

PAPER_ROWS = (64, 32, 128)
# Longer than most documents; the paper leaves this case open.
LONG_ROWS = {256: tuple(TIMED), 512: tuple(NAMES)}
LARGE_ROWS = (128, 512)
TEXT_BYTES = 15_000_000  # of Wikipedia's articles, for `LARGE`; 3 million tokens


def layouts_of(scale: Scale) -> dict[int, tuple[Layout, ...]]:
  """The layouts of each row length."""
  near, far = _of_atoms(0.5, 2.0), _of_atoms(0.25, 4.0)
  if scale is LARGE:
    return dict.fromkeys(LARGE_ROWS, (*TIMED, *near))
  every = (*TIMED, *near, *far, UNSHUFFLED)
  return dict.fromkeys(PAPER_ROWS, every) | LONG_ROWS


def _of_atoms(*sizes: float) -> tuple[Layout, ...]:
  return tuple(Layout(kind, size) for size in sizes for kind in ("concat", "padding"))


def exhibits(part: Part, *, scale: Scale = SMALL) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    part: of the study.
    scale: of the runs.

  Raises:
    InputError: the folder has no text, or too little.
    Stopped: some runs failed.
  """
  if scale is LARGE:
    name, about, text = "wikipedia", "paragraphs of Wikipedia", articles(part)
  else:
    name, about, text = "wikitext", "test.txt of WikiText-2", text_of(part)
  layouts = layouts_of(scale)
  studies = {
    row_length: make_study(
      part.folder / name / str(row_length),
      row_length,
      of_length,
      text=text,
      scale=scale,
      jobs=part.jobs,
    )
    for row_length, of_length in layouts.items()
  }
  shortest = studies[min(studies)]
  lengths, vocabulary = _documents(shortest)
  tokens, least = int((lengths + 1).sum()), SEGMENTS * scale.tokens
  if tokens < least:
    raise InputError(
      f"The text has {tokens:,} tokens; expected at least {least:,}, so that an epoch "
      f"has {SEGMENTS} steps of {scale.tokens} tokens. Give more text."
    )
  of_arms = {row_length: study.run() for row_length, study in studies.items()}
  results = {
    row_length: {layout: of_arms[row_length][layout.name] for layout in layouts[row_length]}
    for row_length in sorted(layouts)
  }
  recipe = _recipe(about, shortest, lengths, vocabulary, scale)
  exhibits = [steps_an_epoch(part, lengths, results, tokens=scale.tokens, recipe=recipe)]
  if scale is not LARGE:
    validation = real_data.find(part.real_data(), "wikitext-2/valid.txt")
    training = real_data.find(part.real_data(), "wikitext-2/test.txt")
    tokenizer = prepare_dataset(shortest.runs[0][1].settings.data).tokenizer
    exhibits += [full_size(part), filtering(part, validation)]
    exhibits.append(row_lengths(part, training, tokenizer))
  exhibits += [
    atom_sizes(part, kind, row_length, results[row_length], lengths)
    for row_length, of_length in layouts.items()
    for kind in ("concat", "padding")
    if Layout(kind, 2.0) in of_length
  ]
  if scale is not LARGE:
    exhibits += [unshuffled(part, results), seeds_needed(part, results)]
  if scale.epochs > 1:
    exhibits.append(second_epoch(part, results))
  exhibits.append(concat_and_padding(part, results))
  timed = {n: time_steps(studies[n], list(TIMED)) for n in results}
  exhibits += [packed(part, n, found, timed[n]["seconds"]) for n, found in results.items()]
  made = [run for of_arm in of_arms.values() for runs in of_arm.values() for run in runs]
  places = {"trained on": machines_of(made), "steps timed on": machines_of(timed.values())}
  where = "; ".join(f"{what} {names}" for what, names in places.items() if names)
  return [dataclasses.replace(x, machine=where) for x in exhibits]


def _documents(study: Study) -> tuple[np.ndarray, int]:
  """The tokens of each document, int[D], and the size of the vocabulary."""
  dataset = prepare_dataset(study.runs[0][1].settings.data)
  return documents(dataset.train)[0], len(dataset.vocabulary)


def _recipe(text: str, study: Study, lengths, vocabulary: int, scale: Scale) -> str:
  """The text, the model and the recipe, for the report."""
  settings = study.runs[0][1].settings
  model = settings.model.of(vocab_size=vocabulary)
  parameters = count_parameters(abstract_model(model, "causal")[1])
  return (
    f"Text: {text}, documents of {settings.data.min_words} "
    f"words and more, {(lengths + 1).sum():,} tokens of a byte-level BPE of "
    f"{vocabulary:,}. Model: {settings.model.size}, {parameters:,} parameters, ALiBi. "
    f"Epochs: {scale.epochs}; {scale.tokens} tokens a step, padding included. AdamW with "
    f"a learning rate of {settings.optimizer.learning_rate:g}, constant after "
    f"{settings.optimizer.warmup_steps} steps; the rate was chosen for {SMALL.size} models "
    f"and concat in rows of 64 with seed 0, which no statement uses."
  )


def text_of(part: Part) -> dict[str, str]:
  """Fields of the config's `data` for WikiText-2.

  Raises:
    InputError: a file is missing.
  """
  files = {"source": "wikitext-2/test.txt", "held_out_source": "wikitext-2/valid.txt"}
  found = {name: str(real_data.find(part.real_data(), x)) for name, x in files.items()}
  return found | {"documents": "line"}


def articles(part: Part) -> dict[str, Any]:
  """Fields of the config's `data` for paragraphs of Wikipedia; a hundredth is held out.

  Raises:
    InputError: the text is missing.
  """
  path = part.folder / "text.txt"
  source = real_data.write_articles(part.real_data(), path, at_least=TEXT_BYTES)
  return {
    "source": str(source),
    "held_out_source": "",
    "held_out_fraction": 0.01,
    "documents": "line",
  }


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "atom_size", workdir="results/atom_size")
  command.add_training(parser)
  parser.add_argument("--large", action="store_true", help="larger models on Wikipedia")
  options = parser.parse_args(arguments)
  line = "python -m experiments.atom_size --data FOLDER" + " --large" * options.large
  maker = functools.partial(exhibits, scale=LARGE if options.large else SMALL)
  return command.run_part(maker, options, line, "large" if options.large else "")


if __name__ == "__main__":
  sys.exit(main())
