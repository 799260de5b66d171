"""Pictures of a run."""

from __future__ import annotations

import os
import pathlib

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PACKS_SHOWN = 40
_PADDING = "0.88"
_TRAIN, _HELD_OUT, _BASELINE = "tab:blue", "tab:orange", "tab:gray"


def plot_packing(
  path: str | pathlib.Path,
  lengths: np.ndarray,
  segment_ids: np.ndarray,
  *,
  efficiency: float,
):
  """Draws the lengths of the sequences, and how the packs are filled.

  Args:
    path: of the PNG.
    lengths: int[num_sequences], in tokens.
    segment_ids: int32[B, S] of some packs; the first 40 are drawn.
    efficiency: real tokens / all tokens of the whole plan, a fraction.
  """
  row_length = segment_ids.shape[1]
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
  bins = np.arange(1, row_length + 2) - 0.5
  left.hist(lengths, bins, color=_TRAIN)
  left.set_yscale("log")
  left.axvline(
    lengths.mean(), color=_BASELINE, linestyle="--", label=f"mean {lengths.mean():.0f}"
  )
  left.legend(frameon=False, loc="upper left")
  left.set(
    xlabel="length in tokens", ylabel="sequences", title=f"{lengths.size:,} sequences"
  )
  shown = segment_ids[:PACKS_SHOWN]
  depth = int(segment_ids.max())
  colours = [_PADDING, *plt.colormaps["viridis"](np.linspace(0.15, 0.9, depth))]
  right.imshow(
    shown,
    cmap=matplotlib.colors.ListedColormap(colours),
    vmin=-0.5,
    vmax=depth + 0.5,
    aspect="auto",
    interpolation="nearest",
  )
  names = ["padding", *(f"sequence {i}" for i in range(1, depth + 1))]
  handles = [
    matplotlib.patches.Patch(color=c, label=n) for c, n in zip(colours, names, strict=True)
  ]
  figure.legend(handles=handles, loc="outside lower right", ncols=len(names), frameon=False)
  right.set(
    xlabel="position in the row, in tokens",
    ylabel="pack",
    title=f"{len(shown)} packs; {efficiency:.1%} of all tokens are real",
  )
  _save(figure, path)


def plot_learning_curve(
  path: str | pathlib.Path, train: list[dict], evaluation: list[dict]
):
  """Draws loss and masked-token accuracy over steps.

  Args:
    path: of the PNG.
    train: lines of `metrics.jsonl`.
    evaluation: lines of `eval.jsonl`.
  """
  figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
  panels = (("loss", "loss in nats"), ("mlm_accuracy", "masked-token accuracy"))
  for axis, (name, label) in zip(axes, panels, strict=True):
    for lines, legend, style in (
      (train, "training", {"color": _TRAIN, "alpha": 0.8}),
      (evaluation, "held out", {"color": _HELD_OUT, "marker": "o"}),
    ):
      steps = [line["step"] for line in lines]
      axis.plot(steps, [line[name] for line in lines], label=legend, **style)
    axis.set(xlabel="step", ylabel=label)
    axis.grid(alpha=0.3)
  if evaluation:
    axes[1].axhline(
      evaluation[-1]["unigram_mlm_accuracy"],
      color=_BASELINE,
      linestyle="--",
      label="always the commonest token",
    )
  axes[1].set_ylim(bottom=0)
  axes[1].yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  axes[1].legend(frameon=False)
  _save(figure, path)


def _save(figure, path: str | pathlib.Path):
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f".{path.name}")
  figure.savefig(partial, dpi=130, format="png")
  os.replace(partial, path)
  plt.close(figure)
