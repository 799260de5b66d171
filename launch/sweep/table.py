"""The tables of a sweep: the result of each arm, and its difference from the first arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from launch.sweep.pairs import Difference, paired

# Columns, by field of summary.json: the title, and how a value is shown.
COLUMNS = {
  "best_score": ("best score", "{:.2%}"),
  "eval_mlm_accuracy": ("masked-token accuracy", "{:.2%}"),
  "eval_mlm_loss": ("masked-token loss", "{:.4f}"),
  "eval_nsp_accuracy": ("next-sentence accuracy", "{:.2%}"),
  "eval_causal_accuracy": ("next-token accuracy", "{:.2%}"),
  "eval_perplexity": ("perplexity", "{:.2f}"),
  "sequences_per_second": ("sequences/s", "{:,.0f}"),
  "seconds": ("seconds", "{:,.0f}"),
}
# Baselines, by column: the field of summary.json with the score of always predicting the
# most frequent token or label.
BASELINES = {
  "eval_mlm_accuracy": "unigram_mlm_accuracy",
  "eval_nsp_accuracy": "nsp_majority_accuracy",
}
# Columns that arms are compared in, by pairs of runs with the same seed.
_COMPARED = [name for name in COLUMNS if name.startswith(("best_", "eval_"))]


def pooled(values: Sequence[float]) -> dict[str, Any]:
  """The mean, the sample standard deviation (None for one value), and the values.

  Example:
    >>> pooled([2.0])
    {'mean': 2.0, 'sd': None, 'values': [2.0]}
  """
  sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return {"mean": float(np.mean(values)), "sd": sd, "values": list(values)}


def records(arms: Sequence[Mapping]) -> dict[str, list[dict[str, str]]]:
  """The cells of both tables by column, for documents: `results` and `differences`."""
  tables = {"results": _results(arms), "differences": _differences(arms)}
  return {
    name: [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    for name, rows in tables.items()
  }


def table(arms: Sequence[Mapping]) -> str:
  """The arms in Markdown: mean ± standard deviation.

  The last row is the baseline over the runs of all arms, if there is one.
  """
  return _aligned(_results(arms), left=len(arms[0]["point"]))


def differences(arms: Sequence[Mapping]) -> str:
  """How much each arm has more than the first, in Markdown: mean and 95 % interval.

  Runs with the same seed are compared, and finished ones only. "" without two such pairs.
  """
  rows = _differences(arms)
  return _aligned(rows, left=len(arms[0]["point"])) if rows else ""


def _results(arms: Sequence[Mapping]) -> list[list[str]]:
  """The lines of `table`, the first with the titles of columns."""
  titles = list(arms[0]["point"])
  lines = [([str(value) for value in arm["point"].values()], arm) for arm in arms]
  figures = [run["figures"] for arm in arms for run in arm["runs"] if run["finished"]]
  has_baseline = [any(name in some for name in BASELINES.values()) for some in figures]
  row: dict[str, Any] = {"n": sum(has_baseline)}
  for name, field in BASELINES.items():
    if values := [some[field] for some in figures if field in some]:
      row[name] = pooled(values)
  if len(row) > 1:
    lines.append((["most-frequent baseline", *[""] * (len(titles) - 1)], row))
  return _lines(titles, lines)


def _differences(arms: Sequence[Mapping]) -> list[list[str]]:
  """The lines of `differences`, the first with the titles of columns; [] without pairs."""
  first, *others = arms
  rows = []
  for arm in others:
    pairs = _pairs(arm, first)
    of_columns = {
      name: paired([a[name] for a, _ in pairs], [b[name] for _, b in pairs])
      for name in _COMPARED
      if len(pairs) > 1 and all(name in figures for pair in pairs for figures in pair)
    }
    if of_columns:
      head = [str(value) for value in arm["point"].values()], str(len(pairs))
      rows.append((head, of_columns))
  names = [name for name in _COMPARED if any(name in found for _, found in rows)]
  if not names:
    return []
  lines = [[*first["point"], "pairs", *(COLUMNS[name][0] for name in names)]]
  for (point, number), found in rows:
    cells = [
      _difference(found[name], COLUMNS[name][1]) if name in found else "" for name in names
    ]
    lines.append([*point, number, *cells])
  return lines


def _pairs(arm: Mapping, first: Mapping) -> list[tuple[Mapping, Mapping]]:
  """The figures of the runs that both arms have finished, by seed."""
  by_seed = [
    {run["fields"].get("seed"): run["figures"] for run in x["runs"] if run["finished"]}
    for x in (arm, first)
  ]
  return [(by_seed[0][seed], by_seed[1][seed]) for seed in by_seed[0] if seed in by_seed[1]]


def _difference(difference: Difference, form: str) -> str:
  """Such as `+0.0100 (-0.0050 to +0.0250)`."""
  signed = form.replace("{:", "{:+")
  mean, low, high = (signed.format(x) for x in (difference.mean, *difference.interval()))
  return f"{mean} ({low} to {high})"


def _lines(
  titles: Sequence[str], lines: Sequence[tuple[list[str], Mapping]]
) -> list[list[str]]:
  """The lines of a table, from the first cells of each and its figures."""
  columns = {k: v for k, v in COLUMNS.items() if any(k in row for _, row in lines)}
  rows = [[*titles, "n", *(title for title, _ in columns.values())]]
  for head, row in lines:
    cells = [*head, str(row["n"])]
    for name, (_, form) in columns.items():
      cell = ""
      if name in row:
        cell = form.format(row[name]["mean"])
        if row[name]["sd"] is not None:
          cell += f" ± {form.format(row[name]['sd'])}"
      cells.append(cell)
    rows.append(cells)
  return rows


def _aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
  """A Markdown table; all columns but the first `left` are aligned on the right."""
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  texts = [
    "| " + " | ".join(
      cell.ljust(width) if i < left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ) + " |"
    for row in rows
  ]  # fmt: skip
  rule = "|".join(
    "-" * (width + 1) + ("-" if i < left else ":") for i, width in enumerate(widths)
  )
  return "\n".join([texts[0], f"|{rule}|", *texts[1:]])
