"""Numbers read from finished runs.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper), appendix A.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.atom_size import perplexities
from experiments.atom_size.runs import Layout
from lab.part import Part

Run = Mapping[str, Any]
Found = Mapping[Layout, Sequence[Run]]  # a row length's runs, by seed


def span(part: Part, run: Run) -> tuple[float, float]:
  """The start and end, in epochs, of what is compared: the last epoch, or a quick run."""
  if part.quick:
    return 0.0, len(run["nats"]) / run["steps_per_epoch"]
  epochs = _epochs(run)
  return epochs - 1.0, float(epochs)


def _epochs(run: Run) -> int:
  return round(len(run["nats"]) / run["steps_per_epoch"])


def segments_of(part: Part, run: Run) -> np.ndarray:
  """Perplexity in hundredths of the last epoch, or of a quick run."""
  steps, epochs = run["steps_per_epoch"], _epochs(run)
  if part.quick:
    steps, epochs = len(run["nats"]), 1
  return perplexities.last_epoch(
    run["nats"], run["targets"], steps_per_epoch=steps, epochs=epochs
  )


def mean_nats(part: Part, run: Run, *, free: int = 0) -> float:
  """The mean loss over `span`.

  `free` tokens of each epoch are taken to cost nothing, and are not counted.
  """
  middles = (np.arange(len(run["nats"])) + 0.5) / run["steps_per_epoch"]
  start, end = span(part, run)
  compared = middles > start
  targets = np.array(run["targets"])[compared]
  nats = float(np.array(run["nats"])[compared] @ targets)
  return nats / (targets.sum() - free * (end - start))


def held_out(run: Run) -> float:
  """The perplexity of all held-out text at the end."""
  return run["held_out"]["perplexity"]


def nats_of(values: Mapping[Layout, Any]) -> dict[Layout, list[float]]:
  """The logarithms of perplexities."""
  return {layout: np.log(of_layout).tolist() for layout, of_layout in values.items()}
