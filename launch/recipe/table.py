"""A table of the recipes without and with packing."""

from __future__ import annotations

from collections.abc import Callable

from launch.recipe.adjustment import ABOVE_DEFAULT, Recipe


def table(before: Recipe, after: Recipe) -> str:
  """The two recipes side by side, as text.

  Args:
    before: the recipe without packing.
    after: its translation by `packed`.
  """

  def number(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) else f"{x:,.1f}"

  p = f"{after.packing_factor:.3f}"
  lines = [("recipe", "without packing", "packed", f"packing.adjust={after.adjust}")]

  def add(
    name: str, value: Callable[[Recipe], float | None], show=number, change="", note=""
  ):
    a, b = value(before), value(after)
    if a is None or b is None:
      lines.append((name, "not known", "not known", ""))
      return
    ratio = f"x {b / a:.3f}" if a else ""
    effect = "" if a == b else change or ratio
    lines.append((name, show(a), show(b), "; ".join(filter(None, (effect, note)))))

  def short(x: float) -> str:
    return f"{x:.4g}"

  kept = "for the same sequences in all" if after.rounding else ""
  add("steps", lambda r: r.steps, note=kept if after.steps != before.steps else "")
  asked = before.shortened_from
  why = f"a tenth, since the configured {asked:,} would outlast the run" if asked else ""
  add("of these warm-up", lambda r: r.warmup_steps, note=why)
  add("rows a step", lambda r: r.rows)
  add("micro-batches a step", lambda r: r.accumulation)
  add("sequences a row", lambda r: r.packing_factor, lambda x: f"{x:.3f}")
  rounded = f"{after.rounding:+.2%} by rounding the rows" if after.rounding else ""
  add("sequences a step", lambda r: r.sequences, change=rounded)
  add("real tokens a step", lambda r: r.real_tokens, lambda x: f"{x:,.0f}")
  add("sequences in all", lambda r: r.steps * r.sequences, lambda x: f"{x:,.0f}")
  add("epochs", lambda r: r.epochs, short)
  add("learning rate", lambda r: r.learning_rate, short)
  add("beta 1", lambda r: r.b1, lambda x: f"{x:.6f}", change=f"** {p}")
  add("beta 2", lambda r: r.b2, lambda x: f"{x:.6f}", change=f"** {p}")
  found = "ended lowest of four"
  if above := ABOVE_DEFAULT.get(after.adjust):
    found = f"ended {above:.3f} nats above reduce_batch"
  elif after.adjust != "reduce_batch":
    found = "was not tried"
  widths = [max(len(line[i]) for line in lines) for i in range(3)]
  rows = [
    f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip()
    for a, b, c, d in lines
  ]
  if after.packing_factor > 1:
    rows.append(f"In our study {after.adjust} {found} (docs/training.md).")
  return "\n".join(rows)
