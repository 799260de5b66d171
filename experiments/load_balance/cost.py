"""How long a training step takes: a device's rows, and the exchange of gradients.

The coefficients of a device are fitted to measured steps, or given.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from packing import InputError


class Measurement(NamedTuple):
  """The median and the quartiles of measured steps with `rows` rows of L tokens each."""

  row_length: int
  rows: int
  seconds: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True)
class Coefficients:
  """Fitted time per step, row and token, in seconds.

  Attributes:
    step: on each step, whatever is in it.
    row: on each row.
    token: on each token of a row.
    token_pair: on each pair of tokens of a row, L squared of them.

  Example:
    >>> Coefficients(step=1.0, row=0.5, token=0.25, token_pair=0.125).row_seconds(4)
    3.5
  """

  step: float
  row: float
  token: float
  token_pair: float

  def row_seconds(self, lengths):
    """The time of a row of this many tokens; a number or an array."""
    return self.row + lengths * (self.token + lengths * self.token_pair)


def fit(measurements: Sequence[Measurement]) -> tuple[Coefficients, list[float]]:
  """Non-negative least squares of the relative errors of the median steps.

  Args:
    measurements: of at least three lengths and two numbers of rows.

  Returns:
    The coefficients, and (fitted - measured) / measured for each measurement.

  Example:
    >>> truth = Coefficients(step=3.0, row=0.0, token=0.2, token_pair=0.01)
    >>> shapes = [(length, rows) for length in (5, 7, 11) for rows in (2, 3)]
    >>> steps = [truth.step + rows * truth.row_seconds(length) for length, rows in shapes]
    >>> fitted, _ = fit([Measurement(*shape, t, t, t) for shape, t in zip(shapes, steps)])
    >>> [round(x, 6) for x in dataclasses.astuple(fitted)]
    [3.0, 0.0, 0.2, 0.01]
  """
  lengths = np.array([x.row_length for x in measurements], float)
  rows = np.array([x.rows for x in measurements], float)
  seconds = np.array([x.seconds for x in measurements])
  terms = np.stack([np.ones_like(rows), rows, rows * lengths, rows * lengths**2], 1)
  scale = np.abs(terms).max(0)  # makes columns equally large, for the solver
  weighted = terms / scale / seconds[:, None]
  solution, _ = scipy.optimize.nnls(weighted, np.ones_like(seconds))
  coefficients = Coefficients(*(solution / scale).tolist())
  return coefficients, (weighted @ solution - 1).tolist()


class Network(NamedTuple):
  """The assumed cost of exchanging gradients.

  Attributes:
    gradient_bytes: of one copy of the gradients.
    bandwidth: bytes a second of each link.
    latency: seconds of each hop.
  """

  gradient_bytes: float
  bandwidth: float = 25e9
  latency: float = 1e-6

  def seconds(self, devices: int) -> float:
    """Of a ring all-reduce: n - 1 hops to add, n - 1 to share, each with 1/n of the bytes.

    Example:
      >>> Network(gradient_bytes=8e9, bandwidth=1e9, latency=0.5).seconds(4)
      15.0
    """
    hops = 2 * (devices - 1)
    return hops / devices * self.gradient_bytes / self.bandwidth + hops * self.latency


def read_coefficients(path: str | pathlib.Path) -> dict[str, Any]:
  """Reads a `coefficients.json` that an earlier run wrote, or a file like it.

  Returns:
    The object: `coefficients`, in seconds by name, `parameters`, and any other keys.

  Raises:
    InputError: the file cannot be read, or lacks one of these.
  """
  try:
    device = json.loads(pathlib.Path(path).read_text())
    Coefficients(**device["coefficients"])
    Network(4 * device["parameters"])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{path} does not hold coefficients ({error}). Give a coefficients.json that python "
      "-m experiments.load_balance wrote."
    ) from error
  return device
