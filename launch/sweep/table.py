"""The table of a sweep: the result of each arm."""

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
# most frequent token or label.
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


def table(arms: Sequence[Mapping]) -> str:
  """The arms in Markdown: mean ± standard deviation.

  The last row is the baseline over the runs of all arms, if there is one.
  """
  titles = list(arms[0]["point"])
  lines = [([str(value) for value in arm["point"].values()], arm) for arm in arms]
  figures = [run["figures"] for arm in arms for run in arm["runs"] if run["finished"]]
  row: dict[str, Any] = {"n": len(figures)}
  for name, field in BASELINES.items():
    if values := [some[field] for some in figures if field in some]:
      row[name] = pooled(values)
  if len(row) > 1:
    lines.append((["most-frequent baseline", *[""] * (len(titles) - 1)], row))
  return _markdown(titles, lines)


def _markdown(titles: Sequence[str], lines: Sequence[tuple[list[str], Mapping]]) -> str:
  """A table, from lines of the first cells and of figures."""
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
