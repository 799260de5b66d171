"""Tables of a sweep: the result of each arm, and the effect of each field of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# a field of summary.json: its column, and how a value is shown
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
# a column: the field of summary.json with what always the commonest token, or label, scores
BASELINES = {
  "eval_mlm_accuracy": "unigram_mlm_accuracy",
  "eval_nsp_accuracy": "nsp_majority_accuracy",
}


def pooled(values: Sequence[float]) -> dict[str, Any]:
  """Mean and the sample's standard deviation, None of one value; and the values.

  Example:
    >>> pooled([2.0])
    {'mean': 2.0, 'sd': None, 'values': [2.0]}
  """
  sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return {"mean": float(np.mean(values)), "sd": sd, "values": list(values)}


def varied(arms: Sequence[Mapping]) -> dict[str, list]:
  """Fields that differ between arms, each with its values in the order of the grid.

  Args:
    arms: rows of `sweep.tabulate`.

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
  """The finished runs with a value of a field, by all else that is theirs.

  Args:
    arms: rows of `sweep.tabulate`.
    field: of their points.
    value: of the field.

  Returns:
    Runs of the rows. Two runs with the same key and other values are a pair.
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
  """What each field does by itself, the others being as they may.

  Args:
    arms: rows of `sweep.tabulate`.

  Returns:
    For each value of each field that varies `field`, `value`, `n`, and what `pooled` gives
    of each of `COLUMNS`. Of a field's first value these are the n finished runs with it; of
    any other they are differences to it, over n pairs of runs that differ in nothing else.
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
  """The rows of `sweep.tabulate` in Markdown: mean ± standard deviation.

  The last row is the baseline, over the runs of all arms, where there is one.
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
  """Lines of a head, figures, and the sign that these are shown with."""
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
