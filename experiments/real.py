"""Un-padding beside packing, really run: what is seen beside what the cost model foretells.

Devices of one process share its cores, so that one which has finished lends its part to
the others, and nobody is seen to wait. So each share is also measured alone, on one
device, and composed: a step takes as long as its slowest share and then the exchange.
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
from experiments.step_time import Coefficients, Network

_WAYS = (UNPADDED, PACKED)
_NO_NETWORK = Network(gradient_bytes=0, bandwidth=1, latency=0)


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
    What was asked for; `alone`, seconds of each share; `foretold`, the same by the cost
    model; `sequence_seconds`, what a sequence takes beyond it; and `devices` and
    `processes`, a row a case.

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

  seconds = {way: _busy(found[0], way)[:, 0] for way in _WAYS}
  own, packs = predict(shares, costs, compiled=compiled)
  foretold = {UNPADDED: own, PACKED: packs}
  beyond = float((seconds[UNPADDED] - own).mean() / wanted.batch)
  simulated = batching.unpadded(costs, lengths)
  split = 1 + len(wanted.devices)
  context = _Context(wanted, shares, seconds, foretold, beyond, costs.step)
  return dataclasses.asdict(wanted) | {
    "machine": found[0][0]["machine"],
    "cores": len(cores) if cores else os.cpu_count(),
    "pinned": cores is not None,
    "sequence_seconds": beyond,
    "alone": {way: x.tolist() for way, x in seconds.items()},
    "foretold": {way: x.tolist() for way, x in foretold.items()},
    "devices": [
      _of_devices(context, n, outputs[0])
      | {"simulated": _simulated(simulated, lengths, wanted, n)}
      for n, outputs in zip(wanted.devices, found[1:split], strict=True)
    ],
    "processes": [
      _of_processes(context, outputs) | {"own_core": bool(cores) and n <= len(cores or ())}
      for n, outputs in zip(wanted.processes, found[split:], strict=True)
    ],
  }


@dataclasses.dataclass(frozen=True)
class _Context:
  """What all rows are held against; seconds are float[N], of each share."""

  wanted: Wanted
  shares: Shares
  alone: Mapping[str, np.ndarray]
  foretold: Mapping[str, np.ndarray]
  beyond: float
  step: float

  def sequences(self, way: str, number: int) -> int:
    """Of the first shares."""
    if way == UNPADDED:
      return number * self.wanted.batch
    return sum(len(pack) for share in self.shares.packed[:number] for pack in share)

  def foretold_idle(self, devices: int, steps: int) -> dict[str, float]:
    """By the cost model, and with what a sequence takes beyond it."""
    own = self.foretold[UNPADDED][: steps * devices].reshape(steps, devices)
    more = own + self.beyond * self.wanted.batch
    return {"predicted": idle(own), "predicted_beyond": idle(more)}

  def gain(self, seconds: Mapping[str, np.ndarray], devices: int) -> float:
    """Sequences a second of packing over those of un-padding.

    Args:
      seconds: [K] of each way, of whole steps.
      devices: n.
    """
    speed = {
      way: self.sequences(way, devices * x.size) / x.sum() for way, x in seconds.items()
    }
    return float(speed[PACKED] / speed[UNPADDED])


def _of_devices(context: _Context, n: int, output: Mapping[str, Any]) -> dict[str, Any]:
  """A row: n devices of one process, and n shares measured alone."""
  steps = context.alone[UNPADDED].size // n
  alone, foretold = (
    {way: x[way][: steps * n].reshape(steps, n) for way in _WAYS}
    for x in (context.alone, context.foretold)
  )
  together = {way: _busy([output], way) for way in _WAYS}
  exchange = _exchange([output])
  composed = {way: x.max(1) + exchange for way, x in alone.items()}
  by_model = {way: x.max(1) + context.step for way, x in foretold.items()}
  walls = {way: _seconds([output], way) for way in (*_WAYS, ONE_PROGRAM)}
  return {
    "devices": n,
    "steps": context.wanted.steps_of(n),
    "composed_steps": steps,
    **context.foretold_idle(n, steps),
    "composed": {way: idle(x) for way, x in alone.items()},
    "together": {way: idle(x) for way, x in together.items()},
    "slowest": _quartiles(alone[UNPADDED].max(1) / alone[UNPADDED].mean(1)),
    "exchange": exchange,
    "composed_seconds": {way: _quartiles(x) for way, x in composed.items()},
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    "gain_predicted": context.gain(by_model, n),
    "gain_composed": context.gain(composed, n),
    "gain": context.gain({way: walls[way] for way in _WAYS}, n),
  }


def _of_processes(context: _Context, outputs: Sequence[Mapping[str, Any]]):
  """A row: processes of one device each."""
  n = len(outputs)
  steps = context.wanted.steps_of(n)
  busy = {way: _busy(outputs, way) for way in _WAYS}
  cpu = {way: _column(outputs, way, "cpu") for way in _WAYS}
  walls = {way: _seconds(outputs, way) for way in _WAYS}
  foretold = {way: x[: steps * n].reshape(steps, n) for way, x in context.foretold.items()}
  by_model = {way: x.max(1) + context.step for way, x in foretold.items()}
  return {
    "processes": n,
    "steps": steps,
    **context.foretold_idle(n, steps),
    "clock": {way: idle(x) for way, x in busy.items()},
    "processor": {way: idle(x) for way, x in cpu.items()},
    "busy": {way: x.tolist() for way, x in busy.items()},
    "slowest": _quartiles(busy[UNPADDED].max(1) / busy[UNPADDED].mean(1)),
    "exchange": _exchange(outputs),
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    "gain_predicted": context.gain(by_model, n),
    "gain": context.gain(walls, n),
  }


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


def _simulated(way, lengths: Lengths, wanted: Wanted, devices: int) -> float:
  """Idle, as the simulation has it: any deals, exact lengths, the fixed time of a step."""
  found = imbalance.simulate(
    {batching.UNPADDING: way},
    lengths,
    devices=devices,
    batch=wanted.batch,
    sequences=2**18,
    seed=wanted.seed,
  )
  return imbalance.summarise(found[batching.UNPADDING], _NO_NETWORK).idle
