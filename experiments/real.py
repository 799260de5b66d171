"""Un-padding beside packing, really run: what is seen beside what the cost model foretells.

Devices of one process share its cores, so that one which has finished lends its part to
the others, and nobody is seen to wait. So each share is also measured alone, on one
device, and composed: a step takes as long as its slowest share and then the update of one
device. (That of all of them and their exchange would share the cores as well.)
Processes, each on a core of its own, show the waiting by the clock; where there are
fewer cores than processes, processor time stands in for it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm

import packing
from experiments import batching, imbalance, real_runs
from experiments.imbalance import Lengths, idle
from experiments.real_options import Wanted
from experiments.real_steps import Case
from experiments.shares import ONE_PROGRAM, PACKED, UNPADDED, Shares, draw_shares, predict
from experiments.step_time import Coefficients

_WAYS = (UNPADDED, PACKED)


def run(
  wanted: Wanted, lengths: Lengths, plan: packing.Plan, costs: Coefficients
) -> dict[str, Any]:
  """Runs all cases, one after the other.

  Args:
    wanted: what is to be run.
    lengths: of the dataset.
    plan: of the packs.
    costs: of a device, to foretell the same steps.

  Returns:
    What was asked for; of each share alone its seconds by the `clock`, by `processor`
    time and `foretold` by the cost model; `pace`, seconds seen over foretold of packing;
    `beyond`, seconds that a sequence of un-padding takes more than that; `update`, of one
    device; and `cases`, a row each.

  Raises:
    Stopped: a process failed.
  """
  most = max(n * wanted.steps_of(n) for n in [*wanted.devices, *wanted.processes])
  compiled = [*range(wanted.multiple, lengths.longest, wanted.multiple), lengths.longest]
  shares = draw_shares(lengths, plan, number=most, batch=wanted.batch, seed=wanted.seed)
  alone = Case(
    size=wanted.size,
    compiled=compiled,
    shares=shares,
    steps=len(shares.unpadded),
    ways=list(_WAYS),
    seed=wanted.seed,
  )
  cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else None
  cases: list[tuple[Case, list[int] | None]] = [(alone, None)]
  for n in wanted.devices:
    steps, ways = wanted.steps_of(n), [*_WAYS, ONE_PROGRAM]
    cases.append((dataclasses.replace(alone, devices=n, steps=steps, ways=ways), None))
  for n in wanted.processes:
    several = dataclasses.replace(alone, processes=n, steps=wanted.steps_of(n))
    cases.append((several, cores))
  shown = tqdm.tqdm(cases, desc="really running", disable=not sys.stderr.isatty())
  found = [real_runs.run(case, cores=cores) for case, cores in shown]

  own, packs = predict(shares, costs, compiled=compiled)
  context = _Context(
    wanted=wanted,
    shares=shares,
    clock={way: _busy(found[0], way)[:, 0] for way in _WAYS},
    processor={way: _column(found[0], way, "processor")[:, 0] for way in _WAYS},
    foretold={UNPADDED: own, PACKED: packs},
    update=_exchange(found[0]),
    step=costs.step,
  )
  split = 1 + len(wanted.devices)
  rows = [
    _devices(context, n, outputs)
    for n, outputs in zip(wanted.devices, found[1:split], strict=True)
  ]
  rows += [
    _processes(context, outputs, own_core=cores is not None and n <= len(cores))
    for n, outputs in zip(wanted.processes, found[split:], strict=True)
  ]
  for row in rows:
    row["simulated"] = _simulated(costs, lengths, wanted, row["devices"])
  return dataclasses.asdict(wanted) | {
    "machine": found[0][0]["machine"],
    "cores": len(cores) if cores else os.cpu_count(),
    "pace": context.pace,
    "beyond": context.beyond,
    "update": context.update,
    "clock": {way: x.tolist() for way, x in context.clock.items()},
    "processor": {way: x.tolist() for way, x in context.processor.items()},
    "foretold": {way: x.tolist() for way, x in context.foretold.items()},
    "cases": rows,
  }


@dataclasses.dataclass(frozen=True)
class _Context:
  """What all cases are held against; seconds are float[N], of each share alone."""

  wanted: Wanted
  shares: Shares
  clock: Mapping[str, np.ndarray]
  processor: Mapping[str, np.ndarray]
  foretold: Mapping[str, np.ndarray]
  update: float  # seconds of one device
  step: float

  @property
  def pace(self) -> float:
    """Seconds of a share of packing over those foretold: how fast the machine is now."""
    return float(self.clock[PACKED].mean() / self.foretold[PACKED].mean())

  @property
  def beyond(self) -> float:
    """Seconds that a sequence of un-padding takes beyond the cost model at this pace."""
    more = self.clock[UNPADDED] - self.pace * self.foretold[UNPADDED]
    return float(more.mean() / self.wanted.batch)

  def foretell(self, n: int, steps: int, seconds: Mapping[str, np.ndarray]):
    """What the cost model says of the first steps of n devices, and what was seen.

    Args:
      n: devices.
      steps: K.
      seconds: [K'] of each way, of whole steps that were seen.
    """
    foretold = {way: _grouped(x, n)[:steps] for way, x in self.foretold.items()}
    more = self.pace * foretold[UNPADDED] + self.beyond * self.wanted.batch
    whole = {way: x.max(1) + self.step for way, x in foretold.items()}
    return {
      "foretold": idle(foretold[UNPADDED]),
      "foretold_beyond": idle(more),
      "gain_foretold": self._gain(whole, n),
      "gain": self._gain(seconds, n),
    }

  def _gain(self, seconds: Mapping[str, np.ndarray], n: int) -> float:
    """Sequences a second of packing over those of un-padding."""
    speed = {way: self._sequences(way, n * x.size) / x.sum() for way, x in seconds.items()}
    return float(speed[PACKED] / speed[UNPADDED])

  def _sequences(self, way: str, number: int) -> int:
    """Of the first shares."""
    if way == UNPADDED:
      return number * self.wanted.batch
    return sum(len(pack) for share in self.shares.packed[:number] for pack in share)


def _devices(context: _Context, n: int, outputs) -> dict[str, Any]:
  """n devices of one process, and shares measured alone, n of them a step."""
  alone = {way: _grouped(x, n) for way, x in context.clock.items()}
  processor = {way: _grouped(x, n) for way, x in context.processor.items()}
  together = {way: _busy(outputs, way) for way in _WAYS}
  composed = {way: x.max(1) + context.update for way, x in alone.items()}
  walls = {way: _seconds(outputs, way) for way in (*_WAYS, ONE_PROGRAM)}
  seen = {"clock": alone, "processor": processor, "together": together}
  return {
    "name": f"{n} devices" if n > 1 else "1 device",
    "devices": n,
    "processes": 1,
    "idle": {how: _idle(x) for how, x in seen.items()},
    "slowest": _quartiles(alone[UNPADDED].max(1) / alone[UNPADDED].mean(1)),
    "exchange": _exchange(outputs),
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    "composed_seconds": {way: _quartiles(x) for way, x in composed.items()},
    **context.foretell(n, len(alone[UNPADDED]), composed),
  }


def _processes(context: _Context, outputs, *, own_core: bool) -> dict[str, Any]:
  """Processes of one device each."""
  n = len(outputs)
  busy = {way: _busy(outputs, way) for way in _WAYS}
  processor = {way: _column(outputs, way, "processor") for way in _WAYS}
  walls = {way: _seconds(outputs, way) for way in _WAYS}
  seen = {"clock" if own_core else "together": busy, "processor": processor}
  return {
    "name": f"{n} processes" if n > 1 else "1 process",
    "devices": n,
    "processes": n,
    "idle": {how: _idle(x) for how, x in seen.items()},
    "slowest": _quartiles(busy[UNPADDED].max(1) / busy[UNPADDED].mean(1)),
    "busy": {way: x.tolist() for way, x in busy.items()},
    "exchange": _exchange(outputs),
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    **context.foretell(n, len(busy[UNPADDED]), walls),
  }


def _grouped(shares: np.ndarray, n: int) -> np.ndarray:
  """[N] -> [K, n]: n shares after each other are a step."""
  return shares[: shares.size // n * n].reshape(-1, n)


def _idle(seconds: Mapping[str, np.ndarray]) -> dict[str, float]:
  return {way: idle(x) for way, x in seconds.items()}


def _busy(outputs: Sequence[Mapping[str, Any]], way: str) -> np.ndarray:
  """[K, n] over the devices of all processes."""
  return np.concatenate([np.array(_steps(x, way, "busy")) for x in outputs], axis=1)


def _column(outputs: Sequence[Mapping[str, Any]], way: str, name: str) -> np.ndarray:
  """[K, processes]."""
  return np.stack([_steps(x, way, name) for x in outputs], axis=1)


def _steps(output: Mapping[str, Any], way: str, name: str) -> list:
  steps = [x for x in output["steps"] if x["way"] == way]
  return [x[name] for x in sorted(steps, key=lambda x: x["step"])]


def _seconds(outputs: Sequence[Mapping[str, Any]], way: str) -> np.ndarray:
  """[K]; a step ends when its last process ends."""
  return _column(outputs, way, "seconds").max(1)


def _exchange(outputs: Sequence[Mapping[str, Any]]) -> float:
  """Median seconds from the slowest device's gradients to the new parameters."""
  each = [_seconds(outputs, way) - _busy(outputs, way).max(1) for way in _WAYS]
  return float(np.median(np.concatenate(each)))


def _quartiles(values: np.ndarray) -> list[float]:
  """Median, first and third."""
  return np.quantile(values, [0.5, 0.25, 0.75]).tolist()


def _simulated(
  costs: Coefficients, lengths: Lengths, wanted: Wanted, devices: int
) -> float:
  """Idle, as the simulation has it: any deals, exact lengths, the fixed time of a step."""
  found = imbalance.simulate(
    {batching.UNPADDING: batching.unpadded(costs, lengths)},
    lengths,
    devices=devices,
    batch=wanted.batch,
    sequences=2**18,
    seed=wanted.seed,
  )
  return idle(found[batching.UNPADDING].seconds)
