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

Run = Mapping[str, Any]
Found = Mapping[Layout, Sequence[Run]]  # a row length's runs, by seed


def epochs_of(run: Run) -> int:
  """The number of epochs of a run; the last is compared."""
  return round(len(run["nats"]) / run["steps_per_epoch"])


def segments_of(run: Run) -> np.ndarray:
  """Perplexity in hundredths of the last epoch."""
  steps, epochs = run["steps_per_epoch"], epochs_of(run)
  return perplexities.last_epoch(
    run["nats"], run["targets"], steps_per_epoch=steps, epochs=epochs
  )


def mean_nats(run: Run, *, free: int = 0) -> float:
  """The mean loss over the last epoch; `free` of its tokens cost nothing, uncounted."""
  middles = (np.arange(len(run["nats"])) + 0.5) / run["steps_per_epoch"]
  compared = middles > epochs_of(run) - 1
  targets = np.array(run["targets"])[compared]
  nats = float(np.array(run["nats"])[compared] @ targets)
  return nats / (targets.sum() - free)


def held_out(run: Run) -> float:
  """The perplexity of all held-out text at the end."""
  return run["held_out"]["perplexity"]


def nats_of(values: Mapping[Layout, Any]) -> dict[Layout, list[float]]:
  """The logarithms of perplexities."""
  return {layout: np.log(of_layout).tolist() for layout, of_layout in values.items()}
