"""How to cut, shuffle and fill rows of a causal model: the atom-size paper, and packing.

  python -m experiments.atom_size --wikitext wikitext-2

Trains small GPT-2s with ALiBi on the same text in rows of several lengths: concat and
padding with atoms of a quarter to four rows, and packed. Rows of 64 come first, with three
seeds; all others with one, and with the other seeds at last. What is finished is not run
again: stopped, the same command goes on. With --minutes no run is begun after so many, and
the report is of what there is; --minutes=0 trains nothing. It goes to exhibits.md and
exhibits.json in --workdir, with pictures.

The text is test.txt of WikiText-2, with valid.txt held out; without --wikitext the
docstrings of the standard library.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from experiments.atom_size import exhibits as atom_exhibits
from experiments.atom_size.exhibits import CONCAT, PACKED, PADDING, PADDING_ALL, Study
from experiments.atom_size.runs import EPOCHS, QUICK, TOKENS, Arm, RowLengthStudy
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from packing import InputError
from training.command import Parser, Stopped
from training.sweep.jobs import say

SEEDS = 3
FULL = 64  # the row length with all atoms and seeds first
PAPER_ROWS = (64, 32, 128)
LONG_ROWS = (256, 512)  # longer than documents, which the paper leaves open
TEXTS = {
  "wikitext": "test.txt of WikiText-2",
  "stdlib": "the standard library's docstrings",
}
_ALONE = (CONCAT, PADDING, PADDING_ALL, PACKED)


def stages(*, quick: bool) -> Iterator[tuple[int, Arm, int]]:
  """Row lengths, arms and seeds of all runs, in their order; seeds from 1 on.

  Args:
    quick: whether one seed is enough, and atoms of half a row to two.
  """
  seeds = range(1, 2 if quick else SEEDS + 1)
  near, far = ((0.5, 2.0), (0.25, 4.0))
  for seed in seeds:
    atoms = near if quick else (*near, *far)
    yield from ((FULL, arm, seed) for arm in (*_ALONE, *_of_atoms(*atoms)))
  for row_length in (x for x in PAPER_ROWS if x != FULL):
    yield from ((row_length, arm, 1) for arm in (*_ALONE, *_of_atoms(*near)))
  for row_length in LONG_ROWS:
    yield from ((row_length, arm, 1) for arm in _ALONE)
  if quick:
    return
  for row_length in (x for x in PAPER_ROWS if x != FULL):
    yield from ((row_length, arm, 1) for arm in _of_atoms(*far))
  for seed in seeds[1:]:
    for row_length in (*LONG_ROWS, *(x for x in PAPER_ROWS if x != FULL)):
      of_atoms = () if row_length in LONG_ROWS else _of_atoms(*near, *far)
      yield from ((row_length, arm, seed) for arm in (*_ALONE, *of_atoms))


def _of_atoms(*sizes: float) -> tuple[Arm, ...]:
  return tuple(Arm(layout, size) for size in sizes for layout in ("concat", "padding"))


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
  wikitext: str | None = None,
  minutes: float | None = None,
) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    folder: for the data, the runs and the pictures.
    quick: some steps with one seed, to see that it works; says nothing of the claims.
    wikitext: the folder of the text; None for docstrings.
    minutes: after which no further run is begun; None for no end.

  Raises:
    InputError: there is no text in the folder, or too little; or nothing is trained yet.
    Stopped: some runs failed; all others are finished.
  """
  data = data_of(wikitext)
  text = "stdlib" if wikitext is None else "wikitext"
  runs = folder / (f"{text}-quick" if quick else text)
  end = time.monotonic() + 60 * (math.inf if minutes is None else minutes)
  planned = list(stages(quick=quick))
  studies: dict[int, RowLengthStudy] = {}
  found: dict[int, dict[Arm, dict[int, dict[str, Any]]]] = {}
  failures: list[str] = []
  left_out = 0
  for number, (row_length, arm, seed) in enumerate(planned, start=1):
    where = runs / str(row_length)
    is_late = time.monotonic() >= end
    if row_length not in studies and is_late and not where.exists():
      left_out += 1
      continue
    if row_length not in studies:
      studies[row_length] = RowLengthStudy(where, row_length, data=data, quick=quick)
    study = studies[row_length]
    result = study.read(arm, seed)
    if result is None and is_late:
      left_out += 1
      continue
    if result is None:
      start = time.monotonic()
      try:
        result = study.run(arm, seed)
      except Stopped as error:
        failures.append(str(error))
        continue
      title = f"rows of {row_length}, {arm.name}, seed {seed}"
      say(f"[{number}/{len(planned)}] {title}: {time.monotonic() - start:.0f} s")
    found.setdefault(row_length, {}).setdefault(arm, {})[seed] = result
  if failures:
    raise Stopped(f"{len(failures)} of {len(planned)} runs failed. {' '.join(failures)}")
  whole = {n: found[n] for n in sorted(found) if _has(found[n], *_ALONE)}
  if not whole:
    raise InputError(
      "No row length has all its layouts trained yet. Run again with more --minutes."
    )
  told = Study(
    _command(wikitext, quick=quick),
    _recipe(text, studies, quick=quick, left_out=left_out),
    quick,
  )
  lengths = next(iter(studies.values())).lengths
  by_length = {n: found[n] for n in sorted(found)}
  made = [atom_exhibits.steps_an_epoch(lengths, by_length, tokens=TOKENS, study=told)]
  made += [
    atom_exhibits.atom_sizes(
      layout, row_length, whole[row_length], lengths, folder, study=told
    )
    for row_length in PAPER_ROWS
    for layout in ("concat", "padding")
    if row_length in whole and _has(whole[row_length], *_of_atoms(0.5, 2.0))
  ]
  made.append(atom_exhibits.concat_and_padding(whole, folder, study=told))
  for length, arms in whole.items():
    seconds = studies[length].seconds_a_step(_ALONE)
    made.append(atom_exhibits.packed(length, arms, seconds, folder, study=told))
  return made


def _command(wikitext: str | None, *, quick: bool) -> str:
  text = "" if wikitext is None else " --wikitext FOLDER"
  return f"python -m experiments.atom_size{text}{' --quick' if quick else ''}"


def _recipe(text: str, studies, *, quick: bool, left_out: int) -> str:
  """What was trained on what, for the report."""
  study = next(iter(studies.values()))
  config = study.config(PACKED, 1)
  parameters = sum(x.size for x in jax.tree.leaves(study.initial_params(1)))
  length = (
    f"{QUICK['steps']} steps, which say that it works and nothing of the claims"
    if quick
    else f"{EPOCHS} epochs"
  )
  planned = len(list(stages(quick=quick)))
  rest = f" Of {planned} planned runs {left_out} are not made yet." if left_out else ""
  return (
    f"Text: {TEXTS[text]}, documents of {config.data.min_words} words and more, "
    f"{(study.lengths + 1).sum():,} tokens of a byte-level BPE of "
    f"{len(study.dataset.vocabulary):,}. Model: {config.model.size}, {parameters:,} "
    f"parameters, ALiBi. {length[0].upper()}{length[1:]}; {TOKENS} tokens a step, padding "
    f"included; AdamW, rate {config.optimizer.learning_rate:g}, constant after "
    f"{config.optimizer.warmup_steps} steps, chosen for concat in rows of {FULL} with seed "
    f"0, which is in no statement.{rest}"
  )


def _has(arms, *wanted: Arm) -> bool:
  return all(arm in arms for arm in wanted)


def data_of(wikitext: str | None) -> dict[str, Any]:
  if wikitext is None:
    return {"source": "stdlib", "held_out_source": "", "documents": "blank-line"}
  folder = pathlib.Path(wikitext).resolve()
  files = {"source": folder / "test.txt", "held_out_source": folder / "valid.txt"}
  for path in files.values():
    if not path.is_file():
      raise InputError(
        f"--wikitext is {wikitext}; expected a folder with test.txt and valid.txt of "
        f"WikiText-2, found no {path.name} there."
      )
  return {name: str(path) for name, path in files.items()} | {"documents": "line"}


def _add_options(parser: Parser):
  parser.add_argument(
    "--wikitext", metavar="FOLDER", help="with test.txt and valid.txt of WikiText-2"
  )
  parser.add_argument(
    "--minutes", type=_minutes, help="begin no further run after so many; no end"
  )


def _minutes(text: str) -> float:
  try:
    minutes = float(text)
  except ValueError:
    minutes = -1.0
  if not 0 <= minutes < float("inf"):
    raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text}")
  return minutes


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="atom_size", add_options=_add_options))
