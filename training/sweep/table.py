"""Tables of a sweep: the result of each arm, and the effect of each field of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
# commonest token or label.
BASELINES = {
  "eval_mlm_accuracy": "unigram_mlm_accuracy",
  "eval_nsp_accuracy": "nsp_majority_accuracy",
}


def pooled(values: Sequence[float]) -> dict[str, Any]:
  """The mean, the sample standard deviation (None for one value), and the values.

  Example:
    >>> pooled([2.0])
    {'mean': 2.0, 'sd': None, 'values': [2.0]}
  """
  sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return {"mean": float(np.mean(values)), "sd": sd, "values": list(values)}


def varied(arms: Sequence[Mapping]) -> dict[str, list]:
  """Fields that differ between arms, each with its values in the order of the grid.

  Args:
    arms: the result of `training.sweep.__main__.tabulate`.

  Example:
    >>> varied([{"point": {"a": 1, "b": 5}}, {"point": {"a": 2, "b": 5}}])
    {'a': [1, 2]}
  """
  found: dict[str, dict] = {}
  for arm in arms:
    for field, value in arm["point"].items():
      found.setdefault(field, {})[value] = None
  return {field: list(values) for field, values in found.items() if len(values) > 1}


def finished_runs(
  arms: Sequence[Mapping], field: str, value: Any
) -> dict[tuple, Mapping[str, Any]]:
  """The finished runs with one value of a field, keyed by all their other fields.

  Args:
    arms: as for `varied`.
    field: a field of the arms' points.
    value: a value of the field.

  Returns:
    Runs of the arms. Two runs with the same key and different values are a pair.
  """
  return {
    (
      *((k, v) for k, v in arm["point"].items() if k != field),
      ("seed", run["fields"].get("seed")),
    ): run
    for arm in arms
    if arm["point"][field] == value
    for run in arm["runs"]
    if run["finished"]
  }


def effects(arms: Sequence[Mapping]) -> list[dict[str, Any]]:
  """The effect of each field alone, over all values of the other fields.

  Args:
    arms: as for `varied`.

  Returns:
    For each value of each field that varies: `field`, `value`, `n`, and the result of
    `pooled` for each of `COLUMNS`. For a field's first value, `pooled` takes the n finished
    runs with it; for any other value, the differences from the first, over n pairs of runs
    that differ in nothing else.
  """
  rows = []
  for field, values in varied(arms).items():
    first = finished_runs(arms, field, values[0])
    for value in values:
      mine = finished_runs(arms, field, value)
      keys = [key for key in mine if key in first]
      row: dict[str, Any] = {"field": field, "value": value, "n": len(keys)}
      pairs = [(mine[key]["figures"], first[key]["figures"]) for key in keys]
      for name in COLUMNS:
        found = [
          one[name] - (other[name] if value != values[0] else 0)
          for one, other in pairs
          if name in one and name in other
        ]
        if found:
          row[name] = pooled(found)
      rows.append(row)
  return rows


def table(arms: Sequence[Mapping]) -> str:
  """The arms in Markdown: mean ± standard deviation.

  The last row is the baseline over the runs of all arms, if there is one.
  """
  titles = list(arms[0]["point"])
  lines = [([str(value) for value in arm["point"].values()], arm, "") for arm in arms]
  figures = [run["figures"] for arm in arms for run in arm["runs"] if run["finished"]]
  row: dict[str, Any] = {"n": len(figures)}
  for name, field in BASELINES.items():
    if values := [some[field] for some in figures if field in some]:
      row[name] = pooled(values)
  if len(row) > 1:
    lines.append((["always the commonest", *[""] * (len(titles) - 1)], row, ""))
  return _markdown(titles, lines)


def effects_table(rows: Sequence[Mapping]) -> str:
  """The rows of `effects` in Markdown; differences have a sign."""
  lines, before = [], None
  for row in rows:
    is_first = row["field"] != before
    head = [row["field"] if is_first else "", str(row["value"])]
    lines.append((head, row, "" if is_first else "+"))
    before = row["field"]
  return _markdown(["field", "value"], lines)


def _markdown(
  titles: Sequence[str], lines: Sequence[tuple[list[str], Mapping, str]]
) -> str:
  """A table, from lines of: the first cells, figures, and "+" if figures have a sign."""
  columns = {k: v for k, v in COLUMNS.items() if any(k in row for _, row, _ in lines)}
  rows = [[*titles, "n", *(title for title, _ in columns.values())]]
  for head, row, sign in lines:
    cells = [*head, str(row["n"])]
    for name, (_, form) in columns.items():
      cell = ""
      if name in row:
        cell = form.replace("{:", "{:" + sign).format(row[name]["mean"])
        if row[name]["sd"] is not None:
          cell += f" ± {form.format(row[name]['sd'])}"
      cells.append(cell)
    rows.append(cells)
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  texts = [
    "| " + " | ".join(
      cell.ljust(width) if i < len(titles) else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ) + " |"
    for row in rows
  ]  # fmt: skip
  rule = "|".join(
    "-" * (width + 1) + ("-" if i < len(titles) else ":") for i, width in enumerate(widths)
  )
  return "\n".join([texts[0], f"|{rule}|", *texts[1:]])
