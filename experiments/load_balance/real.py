"""Un-padding beside packing, really run: what is seen beside what the cost model foretells.

Devices of one process share its cores, so that one which has finished lends its part to
the others, and nobody is seen to wait. So each share is also measured alone, on one
device, and composed: any n shares are a step of n devices, which takes as long as its
slowest share and then the update of one device. (That of all of them and their exchange
would share the cores as well.)
Processes, each on a core of its own, show the waiting by the clock; where there are
fewer cores than processes, processor time stands in for it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tqdm

import packing
from experiments.load_balance import real_runs
from experiments.load_balance import simulation as imbalance
from experiments.load_balance import ways as batching
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.real_options import DocumentFields
from experiments.load_balance.real_steps import Case
from experiments.load_balance.shares import (
  ONE_PROGRAM,
  PACKED,
  UNPADDED,
  count_tokens,
  draw_shares,
  predict,
)
from experiments.load_balance.simulation import Lengths

_WAYS = (UNPADDED, PACKED)
_COMPOSED = 1000  # steps of shares measured alone


def run(
  wanted: DocumentFields, lengths: Lengths, plan: packing.Plan, costs: Coefficients
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
    device; and `cases`, a row each. What has a spread is median, first and third quartile.

  Raises:
    Stopped: a process failed.
  """
  dealt = [n * wanted.steps_of(n) for n in [*wanted.devices, *wanted.processes]]
  number = max(wanted.shares, *dealt)
  compiled = [*range(wanted.multiple, lengths.longest, wanted.multiple), lengths.longest]
  shares = draw_shares(lengths, plan, number=number, batch=wanted.batch, seed=wanted.seed)
  alone = Case(
    size=wanted.size,
    compiled=compiled,
    shares=shares,
    steps=number,
    ways=list(_WAYS),
    seed=wanted.seed,
  )
  cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else None
  cases: list[tuple[Case, list[int] | None]] = [(alone, None)]
  ways = [*_WAYS, ONE_PROGRAM]
  for n in wanted.devices:
    several = dataclasses.replace(alone, ways=ways, steps=wanted.steps_of(n))
    cases.append((dataclasses.replace(several, devices=n), None))
  for n in wanted.processes:
    several = dataclasses.replace(alone, ways=ways, steps=wanted.steps_of(n))
    cases.append((dataclasses.replace(several, processes=n), cores))
  shown = tqdm.tqdm(cases, desc="really running", disable=not sys.stderr.isatty())
  found = [real_runs.run(case, cores=cores) for case, cores in shown]

  own, packs = predict(shares, costs, compiled=compiled)
  context = _Context(
    wanted=wanted,
    tokens=count_tokens(shares),
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
  pace = _pace(context.clock, context.foretold, wanted.batch)
  return dataclasses.asdict(wanted) | {
    "shares": number,
    "composed": _COMPOSED,
    "machine": found[0][0]["machine"],
    "cores": len(cores) if cores else os.cpu_count(),
    "pace": pace.pace,
    "beyond": pace.beyond,
    "update": context.update,
    "clock": {way: x.tolist() for way, x in context.clock.items()},
    "processor": {way: x.tolist() for way, x in context.processor.items()},
    "foretold": {way: x.tolist() for way, x in context.foretold.items()},
    "cases": rows,
  }


_ByWay = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Context:
  """What all cases are held against; [N], of each share, and seconds of it alone."""

  wanted: DocumentFields
  tokens: _ByWay
  clock: _ByWay
  processor: _ByWay
  foretold: _ByWay
  update: float  # seconds of one device
  step: float


class _Pace(NamedTuple):
  """How shares go beside the cost model.

  Attributes:
    pace: seconds of packing over those foretold: how fast the machine is now.
    beyond: seconds that a sequence of un-padding takes more than is foretold at this pace.
  """

  pace: float
  beyond: float


def _pace(seconds: _ByWay, foretold: _ByWay, batch: int) -> _Pace:
  pace = float(seconds[PACKED].mean() / foretold[PACKED].mean())
  more = seconds[UNPADDED] - pace * foretold[UNPADDED]
  return _Pace(pace, float(more.mean() / batch))


def _devices(context: _Context, n: int, outputs) -> dict[str, Any]:
  """n devices of one process, and shares measured alone, any n of them a step."""
  number = context.clock[UNPADDED].size
  rng = np.random.default_rng([context.wanted.seed, n])
  steps = rng.random((_COMPOSED, number)).argsort(1)[:, :n]  # none twice in a step
  clock, processor, foretold, tokens = (
    {way: x[steps] for way, x in shares.items()}
    for shares in (context.clock, context.processor, context.foretold, context.tokens)
  )
  together = {way: _busy(outputs, way) for way in _WAYS}
  composed = {way: x.max(1) + context.update for way, x in clock.items()}
  walls = {way: _seconds(outputs, way) for way in (*_WAYS, ONE_PROGRAM)}
  seen = {"clock": clock, "processor": processor, "together": together}
  pace = _pace(context.clock, context.foretold, context.wanted.batch)
  return {
    "name": f"{n} devices" if n > 1 else "1 device",
    "devices": n,
    "idle": {how: _idle(x) for how, x in seen.items()},
    "exchange": _exchange(outputs),
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    "composed_seconds": {way: _quartiles(x) for way, x in composed.items()},
    "gain": _gain(tokens, composed, PACKED),
    **_foretell(context, foretold, tokens, pace),
  }


def _processes(context: _Context, outputs, *, own_core: bool) -> dict[str, Any]:
  """Processes of one device each, at their own pace: a core each is not all cores."""
  n = len(outputs)
  busy = {way: _busy(outputs, way) for way in _WAYS}
  processor = {way: _column(outputs, way, "processor") for way in _WAYS}
  walls = {way: _seconds(outputs, way) for way in (*_WAYS, ONE_PROGRAM)}
  dealt = busy[UNPADDED].size
  foretold, tokens = (
    {way: x[:dealt].reshape(-1, n) for way, x in shares.items()}
    for shares in (context.foretold, context.tokens)
  )
  pace = _pace(busy if own_core else processor, foretold, context.wanted.batch)
  seen = {"clock" if own_core else "together": busy, "processor": processor}
  return {
    "name": f"{n} processes" if n > 1 else "1 process",
    "devices": n,
    "idle": {how: _idle(x) for how, x in seen.items()},
    "exchange": _exchange(outputs),
    "seconds": {way: _quartiles(x) for way, x in walls.items()},
    "gain": _gain(tokens, walls, PACKED),
    "gain_one_program": _gain(tokens, walls, ONE_PROGRAM),
    **_foretell(context, foretold, tokens, pace),
  }


def _foretell(context: _Context, foretold: _ByWay, tokens: _ByWay, pace: _Pace):
  """What the cost model says of steps, [K, n], and at the pace seen."""
  more = pace.pace * foretold[UNPADDED] + pace.beyond * context.wanted.batch
  whole = {way: x.max(1) + context.step for way, x in foretold.items()}
  return {
    "foretold": _waiting(foretold[UNPADDED]),
    "foretold_beyond": _waiting(more),
    "gain_foretold": _gain(tokens, whole, PACKED),
    **pace._asdict(),
  }


def _gain(tokens: _ByWay, seconds: _ByWay, way: str) -> float:
  """Real tokens a second of a way of packing over those of un-padding."""
  packed = tokens[PACKED].sum() / seconds[way].sum()
  return float(packed / (tokens[UNPADDED].sum() / seconds[UNPADDED].sum()))


def _idle(seconds: _ByWay) -> dict[str, list[float]]:
  return {way: _waiting(x) for way, x in seconds.items()}


def _waiting(seconds: np.ndarray) -> list[float]:
  """[K, n] -> the part of a step that devices wait for the slowest; quartiles of steps."""
  waiting = 1 - seconds.mean(1) / seconds.max(1)
  return _quartiles(np.maximum(waiting, 0))  # no rounding error


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
  costs: Coefficients, lengths: Lengths, wanted: DocumentFields, devices: int
) -> list[float]:
  """Of simulated steps: any deals, exact lengths, the fixed time of a step."""
  found = imbalance.simulate(
    {batching.UNPADDING: batching.unpadded(costs, lengths)},
    lengths,
    devices=devices,
    batch=wanted.batch,
    sequences=2**18,
    seed=wanted.seed,
  )
  return _waiting(found[batching.UNPADDING].seconds)
