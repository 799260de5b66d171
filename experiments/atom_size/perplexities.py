"""What is read from finished runs: segments, final perplexity and averages.

References:
  The atom-size paper, appendices A.6 and A.7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.atom_size.runs import Layout

SEGMENTS = 100  # of an epoch
Result = Mapping[str, Any]
Found = Mapping[Layout, Sequence[Result]]  # a row length's runs, by seed


def segments_of(run: Result) -> np.ndarray:
  """The perplexity in each segment of the last epoch; a segment is 1 % of an epoch.

  It is exp of the mean loss over all tokens of a segment. The paper averages perplexities
  of steps instead. If steps have few tokens, that average grows with the spread of their
  losses, which depends on the size of atoms.

  Args:
    run: has `nats`, the mean loss of each step from the first on; `targets`, how many
      tokens were predicted in each; and `steps_per_epoch`, which may be a fraction, if
      epochs are laid end to end. A step belongs to the segment that holds its middle.

  Returns:
    float64[SEGMENTS].

  Raises:
    ValueError: a segment has no tokens.

  Example: a run of 2 epochs of 200 steps with a token each, whose loss grows.

    >>> nats = np.log(np.repeat(np.arange(1, 201), 2))
    >>> run = {"nats": nats, "targets": np.ones(400), "steps_per_epoch": 200}
    >>> segments_of(run)[[0, 1, -1]].round(6).tolist()
    [101.0, 102.0, 200.0]

  References:
    The atom-size paper, A.6; the last segment is its final perplexity.
  """
  weights = np.asarray(run["targets"], float)
  segments = np.floor(_places(run) * SEGMENTS).astype(int)
  inside = (segments >= 0) & (segments < SEGMENTS)

  def total(values) -> np.ndarray:
    return np.bincount(segments[inside], weights=values[inside], minlength=SEGMENTS)

  tokens = total(weights)
  if not tokens.all():
    raise ValueError(
      f"Expected a step in each of the {SEGMENTS} segments of the last epoch, found "
      f"{run['steps_per_epoch']:.1f} steps an epoch and {weights.size} in all."
    )
  return np.exp(total(weights * np.asarray(run["nats"], float)) / tokens)


def _places(run: Result) -> np.ndarray:
  """float[T]: the middle of each step, in epochs from the beginning of the last."""
  return (np.arange(len(run["nats"])) + 0.5) / run["steps_per_epoch"] - (epochs_of(run) - 1)


def smooth(values: npt.ArrayLike, alpha: float) -> np.ndarray:
  """An exponential moving average, S_t = a S_(t-1) + (1 - a) y_t.

  The weight a is min(sqrt(alpha), 0.999), and the average starts from the first value.

  Args:
    values: y, one a step.
    alpha: in [0, 1); more is smoother.

  Example:
    >>> smooth([4.0, 8.0], alpha=0.25).tolist()
    [4.0, 6.0]

  References:
    The atom-size paper, A.7, which prints the two weights the other way round; such an
    average would hardly smooth at all.
  """
  weight = min(math.sqrt(alpha), 0.999)
  smoothed = np.array(values, float)
  last = smoothed[0]
  for place, value in enumerate(smoothed):
    last = weight * last + (1 - weight) * value
    smoothed[place] = last
  return smoothed


def epochs_of(run: Result) -> int:
  """The number of epochs of a run; the last is compared."""
  return round(len(run["nats"]) / run["steps_per_epoch"])


def mean_nats(run: Result, *, free: int = 0, start=0.0, end=math.inf) -> float:
  """The mean loss over the last epoch, without `free` of its targets, which cost nothing.

  Or from `start` to `end`, in epochs from the beginning of the last.
  """
  compared = (_places(run) > start) & (_places(run) < end)
  targets = np.array(run["targets"])[compared]
  nats = float(np.array(run["nats"])[compared] @ targets)
  return nats / (targets.sum() - free)


def held_out(run: Result) -> float:
  """The perplexity of all held-out text at the end."""
  return run["held_out"]["perplexity"]


def nats_of(values: Mapping[Layout, Any]) -> dict[Layout, list[float]]:
  """The logarithms of perplexities."""
  return {layout: np.log(of_layout).tolist() for layout, of_layout in values.items()}
