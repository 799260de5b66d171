"""Load balance if attention skips other sequences.

  python -m experiments.load_balance.skipping --data FOLDER

If attention skips pairs of tokens of different sequences, its cost in a row is the sum of
the squared lengths, and devices wait again. Simulates 1 to 16,384 devices; rows of 8,192
tokens hold the documents of FOLDER/text. Writes skipping.md, skipping.json and pictures to
--workdir, and caches its plans beside it.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tqdm

import packing
from experiments.load_balance.tables import Records, by_devices, mark_devices, shown
from lab import command, real_data
from lab.exhibits import Part
from lab.pictures import COLOURS, PERCENT, figure, save
from lab.plans import cached_plan, digest, made_once
from packing import Cost, Plan
from pipeline.sources.textfiles import lines_of
from pipeline.tokenizer import load_tokenizer

# A layer of ModernBERT-base has a gated feed-forward part: three matrices of 1,152 rows
# cost as much as two of 1,728.
MODELS = {
  name: Cost.of_bert(types.SimpleNamespace(hidden_size=768, intermediate_size=size))
  for name, size in (("BERT-base", 3072), ("ModernBERT-base", 1728))
}
TOKENS = 8192  # of a device in a step
PACKS = 2**22  # of a cell, at most, unless 16 steps have more
LEAST_PACKS = 2**18  # so that the mean cost of random packs is right to a thousandth
DOCUMENTS = "documents_8192"
ABOUT = "documents of Wikipedia, cut at 8,192 tokens"


class Case(NamedTuple):
  """Rows of one length.

  Attributes:
    histogram: a name of `packing`'s, or `DOCUMENTS`.
    row_length: in tokens.
    multiple: lengths are rounded up to it.
  """

  histogram: str
  row_length: int
  multiple: int = 1

  @property
  def rows(self) -> int:
    """Rows of a device in a step."""
    return TOKENS // self.row_length


CASES = (
  Case("wikipedia_512", 512),
  Case("wikipedia_2048", 2048),
  Case(DOCUMENTS, 8192, multiple=64),
)
DEVICES = (1, 4, 16, 64, 256, 1024, 4096, 16384)

# -------------------------------------------------------------------------- the plans


def documents(data: str, folder: pathlib.Path) -> packing.Histogram:
  """The lengths of documents, cut at 8,192 tokens; cached in the folder.

  Raises:
    InputError: the folder of data has no text or no vocabulary.
  """
  longest = 8192
  vocabulary = real_data.find(data, "bert-base-uncased-vocab.txt")
  sources = sorted(real_data.find(data, real_data.TEXT).parent.iterdir())
  made_from = [[path.name, path.stat().st_size] for path in (vocabulary, *sources)]

  def count() -> list[int]:
    tokenizer = load_tokenizer(str(vocabulary))
    lengths: list[int] = []
    for source in sources:
      articles = _articles(source)
      for lines in tqdm.tqdm(articles, source.name, unit=" documents", disable=None):
        left = sum(map(len, tokenizer.encode(lines)))
        while left > 0:  # [CLS] and [SEP] take two tokens of each sequence
          lengths.append(min(left + 2, longest))
          left -= longest - 2
    return lengths

  lengths = made_once(folder / f"documents-{digest(made_from)}.json", count)
  return packing.Histogram.from_lengths(lengths, max_sequence_length=longest, source=ABOUT)


def _articles(path: pathlib.Path) -> Iterator[list[str]]:
  """The paragraphs of each article; blank lines separate articles."""
  lines = (line.strip() for _, line in lines_of(path))
  for has_text, article in itertools.groupby(lines, key=bool):
    if has_text:
      yield list(article)


# -------------------------------------------------------------------------- the steps

# Each way takes the costs of many packs and arranges them into steps, int64[steps, B], in
# which the rows of a device are next to each other.


def at_random(costs: np.ndarray, devices: int, rows: int, rng) -> np.ndarray:
  return rng.permutation(costs).reshape(-1, devices * rows)


def snake(costs: np.ndarray, devices: int, rows: int, rng) -> np.ndarray:
  """Megatron's way: a step's packs, sorted by cost, are dealt to devices back and forth."""
  steps = at_random(costs, devices, rows, rng)
  rounds = np.sort(steps, axis=1)[:, ::-1].reshape(-1, rows, devices).copy()
  rounds[:, 1::2] = rounds[:, 1::2, ::-1]
  return rounds.transpose(0, 2, 1).reshape(len(steps), -1)


def dealt(costs: np.ndarray, devices: int, rows: int, rng) -> np.ndarray:
  """The packs of random steps, dealt by `packing.deal`."""
  return _deal(at_random(costs, devices, rows, rng), devices)


def balanced(costs: np.ndarray, devices: int, rows: int, rng) -> np.ndarray:
  """`packing.balance=devices`."""
  order = packing.balanced_order(
    costs, batch_size=devices * rows, group=devices, first_row=0, rng=rng
  )
  return _deal(costs[order].reshape(-1, devices * rows), devices)


def _deal(steps: np.ndarray, devices: int) -> np.ndarray:
  return np.stack([step[packing.deal(step, devices)] for step in steps])


WAYS: dict[str, Callable[..., np.ndarray]] = {
  "random packs": at_random,
  "Megatron's snake": snake,
  "dealt": dealt,
  "balance=devices": balanced,
}


def simulate(case: Case, plan: Plan, devices: int) -> list[dict[str, Any]]:
  """A row for each model and way.

  `waiting` is the share of time that devices wait; `steps`, the standard deviation of a
  step's time divided by its mean; and `gain`, the speed-up over attention that computes
  whole rows.
  """
  batch = devices * case.rows
  steps = max(int(np.clip(PACKS // batch, 16, 200)), LEAST_PACKS // batch)
  rng = np.random.default_rng([devices, case.row_length])
  shares = plan.repeat_counts / plan.num_packs
  squares = plan.squares[rng.choice(shares.size, steps * batch, p=shares)]
  rows = []
  for way, deal in WAYS.items():
    rng = np.random.default_rng([devices, case.row_length, 1])
    of_packs = deal(squares, devices, case.rows, rng)
    for model, cost in MODELS.items():
      costs = cost.of_squares(of_packs, row_length=case.row_length)
      slowest = _slowest(costs, devices)
      whole = cost.of_squares(case.row_length**2, row_length=case.row_length) * case.rows
      rows.append(
        {
          "case": case.histogram,
          "row_length": case.row_length,
          "rows": case.rows,
          "devices": devices,
          "model": model,
          "way": way,
          "waiting": packing.waiting(costs, devices=devices),
          "steps": float(slowest.std() / slowest.mean()),
          "gain": float(whole / slowest.mean()),
        }
      )
  return rows


def _slowest(costs: np.ndarray, devices: int) -> np.ndarray:
  """The cost of each step's slowest device: [steps, B] -> [steps]."""
  return costs.reshape(len(costs), devices, -1).sum(axis=2).max(axis=1)


# ------------------------------------------------------------------------- the report

_SHOWN = (  # ways in pictures, with their style; tables have all ways
  ("random packs", "o-"),
  ("Megatron's snake", "s-"),
  ("balance=devices", "D-"),
)
_MOST = {  # columns for the largest number of devices
  "a step's spread": "{steps:.2%}",
  "over whole rows": "{gain:.3f}",
}


def records(result: Mapping[str, Any]) -> dict[str, Records]:
  """A table for each model: the share of time that devices wait, by their number."""
  rows, models = result["rows"], {}
  for model in dict.fromkeys(row["model"] for row in rows):
    models[model] = [
      {"lengths": case} | line
      for case in dict.fromkeys(row["case"] for row in rows)
      for line in by_devices(
        [row for row in rows if (row["model"], row["case"]) == (model, case)],
        "{waiting:.2%}",
        most=_MOST,
      )
    ]
  return models


def tables(result: Mapping[str, Any]) -> str:
  """All tables, in Markdown."""
  text = (
    f"{DOCUMENTS} has {ABOUT}. A device computes {result['tokens']:,} tokens in "
    "a step. The first columns have the share of time that devices wait, by their number. "
    "The last two are for the largest number: the standard deviation of a step's time "
    "divided by its mean; and the speed-up over attention that computes whole rows."
  )
  parts = [f"{model}:\n\n{shown(x)}" for model, x in records(result).items()]
  return "\n\n".join([text, *parts])


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """`skipping_waiting.png` and `skipping_gain.png`, of BERT-base."""
  rows = [row for row in result["rows"] if row["model"] == "BERT-base"]
  cases = list(dict.fromkeys(row["case"] for row in rows))
  most = max(row["devices"] for row in rows)

  def at(case: str, way: str, value: str) -> dict[int, float]:
    some = [row for row in rows if row["case"] == case and row["way"] == way]
    return {row["devices"]: row[value] for row in some}

  for value, label, digits, title in (
    (
      "waiting",
      "share of the time that devices wait",
      ".1%",
      "In rows of {rows} tokens, {most:,} devices wait {worst} of their time with random "
      "packs, {best} with balance=devices",
    ),
    (
      "gain",
      "speed-up over whole rows",
      ".2f",
      "In rows of {rows} tokens, on {most:,} devices, skipping is {worst} times as fast as "
      "attention over whole rows with random packs, {best} with balance=devices",
    ),
  ):
    drawing = figure(4 * len(cases) + 3, 4.5)
    panels = drawing.subplots(1, len(cases), squeeze=False, sharey=True)[0]
    for case, axes in zip(cases, panels, strict=True):
      # The first lines are wider, so that they show below others with the same values.
      for (way, style), colour, width in zip(_SHOWN, COLOURS, (6, 3, 1.5), strict=False):
        line = at(case, way, value)
        shown = {"color": colour, "label": way, "linewidth": width, "markersize": 4}
        axes.plot([*line], [*line.values()], style, **shown)
      mark_devices(axes, DEVICES)
      axes.set_title(", rows of ".join(case.rsplit("_", 1)))
      if value == "waiting":
        axes.yaxis.set_major_formatter(PERCENT(1))
      else:
        axes.axhline(1, color="grey", linestyle=":")
    panels[0].set_ylabel(label)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    worst, best = (
      ", ".join(f"{at(case, way, value)[most]:{digits}}" for case in cases)
      for way in ("random packs", "balance=devices")
    )
    lengths = ", ".join(f"{int(case.rsplit('_', 1)[1]):,}" for case in cases)
    about = title.format(rows=lengths, most=most, worst=worst, best=best)
    save(drawing, folder / f"skipping_{value}.png", about)


# ------------------------------------------------------------------------- the command


def run(part: Part) -> dict[str, Any]:
  """The result of the simulation.

  Raises:
    InputError: the data are missing.
  """
  part.folder.mkdir(parents=True, exist_ok=True)
  histograms = {
    case: documents(part.real_data(), part.folder)
    if case.histogram == DOCUMENTS
    else packing.load_histogram(case.histogram)
    for case in CASES
  }
  plans = {
    case: cached_plan(
      part, case.histogram, "optimal", lengths=lengths, length_multiple=case.multiple
    )
    for case, lengths in histograms.items()
  }
  result: dict[str, Any] = {"tokens": TOKENS, "rows": []}
  grid = [(case, n) for case in CASES for n in DEVICES]
  for case, n in tqdm.tqdm(grid, "simulating", disable=None):
    result["rows"] += simulate(case, plans[case], n)
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "load_balance.skipping", workdir="results/skipping")
  command.add_data(parser)
  options = parser.parse_args(arguments)
  return command.run_study(
    functools.partial(run, Part(options.workdir, "", data=options.data)),
    options.workdir / "skipping",
    tables=tables,
    records=records,
    draw=draw,
  )


if __name__ == "__main__":
  sys.exit(main())
