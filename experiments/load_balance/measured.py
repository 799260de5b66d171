"""Measured training steps on this machine, beside the predictions of the cost model.

Devices of one process share its cores: a device that has finished leaves its cores to the
others, so little waiting shows. Therefore each share is also measured alone, on one device,
and steps are composed: any n shares make a step of n devices, which takes as long as its
slowest share plus the update of one device. Processes, each on a core of its own, show the
waiting in wall-clock time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import packing
from benchmarks import small_bert
from benchmarks.steps import Trainer, compile_step, in_turns, quartiles
from experiments.lab.plans import made_once
from experiments.load_balance import cost, worker
from experiments.load_balance.cost import Coefficients, Measurement
from experiments.load_balance.shares import (
  ONE_PROGRAM,
  PACKED,
  UNPADDED,
  count_tokens,
  draw_shares,
  predict,
)
from experiments.load_balance.simulation import Lengths, simulate
from experiments.load_balance.ways import UNPADDING, unpadded
from experiments.load_balance.worker import Case
from training.mesh import put_batch
from training.record.parameters import count_parameters
from training.step import TrainingProgram
from training.sweep.jobs import cores

COMPOSED = 1000  # steps made of shares that were measured alone
_WAYS = (UNPADDED, PACKED)
_ALONE = "shares alone"  # the case of one device
_ByWay = Mapping[str, np.ndarray]


class Settings(NamedTuple):
  """What is measured.

  Attributes:
    model: size of the BERT.
    row_lengths: L of the steps to which the cost is fitted, in tokens.
    rows: of these steps.
    rounds: steps of each shape.
    devices: numbers of devices of one process; each is a case.
    processes: numbers of processes with one device each; each is a case.
    batch: b, sequences of a share.
    shares: N, to measure alone.
    steps: K, in cases of one or two devices; other cases have fewer, at least two.
    multiple: to which un-padding rounds lengths up, in tokens.
  """

  model: str = "mini"
  row_lengths: Sequence[int] = (64, 128, 256, 384, 512)
  rows: Sequence[int] = (1, 4)
  rounds: int = 9
  devices: Sequence[int] = (2, 4, 8)
  processes: Sequence[int] = (1, 2)
  batch: int = 8
  shares: int = 24
  steps: int = 6
  multiple: int = 128

  def steps_of(self, devices: int) -> int:
    """K of the case with so many devices, in one process or in several."""
    return max(min(self.steps, 2), 2 * self.steps // max(devices, 2))


QUICK = Settings("tiny", (64, 256, 512), (1, 3), 3, (2, 4), (2,), 4, 8, 2, 256)


def measure(
  program: TrainingProgram, row_lengths: Sequence[int], rows: Sequence[int], *, rounds: int
) -> list[Measurement]:
  """Times `train_step` of each length (tokens) with each number of rows, in turns."""
  trainer, runs = Trainer(program), {}
  for shape in itertools.product(row_lengths, rows):
    batch = put_batch(small_bert.full_rows(*shape), program.mesh)
    runs[shape] = trainer.runs(compile_step(program, batch), [batch])
  seconds = in_turns(runs, rounds=rounds, name="measuring")
  return [
    Measurement(*shape, *np.quantile(x, [0.5, 0.25, 0.75]).tolist())
    for shape, x in seconds.items()
  ]


def measure_device(settings: Settings, folder: pathlib.Path) -> dict[str, Any]:
  """Steps of this machine, and the coefficients fitted to them; cached in the folder."""
  path = worker.kept(folder, "steps", settings[:4])
  return made_once(path, functools.partial(_measure_device, settings))


def _measure_device(settings: Settings) -> dict[str, Any]:
  program = small_bert.make_program(settings.model, longest=max(settings.row_lengths))
  measurements = measure(
    program, settings.row_lengths, settings.rows, rounds=settings.rounds
  )
  fitted, errors = cost.fit(measurements)
  return {
    "machine": small_bert.machine_and_device(),
    "model": f"BERT-{settings.model}",
    "parameters": count_parameters(program.abstract_state()["params"]),
    "coefficients": dataclasses.asdict(fitted),
    "rounds": settings.rounds,
    "measurements": [
      x._asdict() | {"relative_error": error}
      for x, error in zip(measurements, errors, strict=True)
    ],
  }


def run(
  settings: Settings,
  folder: pathlib.Path,
  lengths: Lengths,
  plan: packing.Plan,
  costs: Coefficients,
) -> dict[str, Any]:
  """Measures the cases that have no results in the folder; compares all with the model.

  Returns:
    The settings; for each share alone its seconds, measured (`clock`) and `predicted`;
    `update`, its seconds on one device; and `cases`, each with the results of `_compare`
    and with the waiting as `simulated`, for random deals, exact lengths and the fixed time
    of a step.

  Raises:
    Stopped: a process failed.
  """
  compiled = [*range(settings.multiple, lengths.longest, settings.multiple)]
  compiled.append(lengths.longest)
  shares = draw_shares(lengths, plan, number=settings.shares, batch=settings.batch)
  alone = Case(settings.model, compiled, shares, settings.shares, list(_WAYS))
  cases = {_ALONE: alone}
  several = dataclasses.replace(alone, ways=[*_WAYS, ONE_PROGRAM])
  for n in settings.devices:
    cases[f"{n} devices, shared cores"] = dataclasses.replace(
      several, steps=settings.steps_of(n), devices=n
    )
  for n in settings.processes:
    if n <= len(cores()):
      cases[f"{n} processes" if n > 1 else "1 process"] = dataclasses.replace(
        several, steps=settings.steps_of(n), processes=n, pinned=True
      )
  results = worker.run_cases(folder, cases)
  steps = {name: _Steps.of(result) for name, result in results.items()}
  one = steps.pop(_ALONE)
  steps = {f"{n} devices, composed": _compose(one, n) for n in settings.devices} | steps
  predicted = predict(shares, costs, compiled=compiled)
  tokens = count_tokens(shares)
  way = {UNPADDING: unpadded(costs, lengths)}
  rows = []
  for name, measured in steps.items():
    n, batch = measured.shares.shape[1], settings.batch
    simulated = simulate(way, lengths, devices=n, batch=batch, sequences=2**18)
    rows.append(
      {"name": name, "devices": n, "simulated": _waiting(simulated[UNPADDING].seconds)}
      | _compare(measured, predicted, tokens, batch=batch, fixed=costs.step)
    )
  return settings._asdict() | {
    "machine": small_bert.machine_and_device(),
    "cores": len(cores()),
    "composed": COMPOSED,
    "update": one.exchange,
    "clock": {way: x[:, 0].tolist() for way, x in one.busy.items()},
    "predicted": {way: x.tolist() for way, x in predicted.items()},
    "cases": rows,
  }


class _Steps(NamedTuple):
  """Steps of n devices, by way.

  Attributes:
    shares: int[K, n]; the shares of each step.
    busy: float[K, n]; seconds until each device had its gradients; not for `ONE_PROGRAM`.
    seconds: float[K]; of the whole step, until its last process ended.
    exchange: median seconds from the slowest device's gradients to the new parameters.
  """

  shares: np.ndarray
  busy: _ByWay
  seconds: _ByWay
  exchange: float

  @classmethod
  def of(cls, results: Sequence[Mapping[str, Mapping[str, Any]]]) -> _Steps:
    """The steps that `worker.run` returned in all processes."""
    busy = {way: np.concatenate([x[way]["busy"] for x in results], 1) for way in _WAYS}
    seconds = {way: np.max([x[way]["seconds"] for x in results], 0) for way in results[0]}
    exchanges = [seconds[way] - busy[way].max(1) for way in _WAYS]
    shares = np.arange(busy[PACKED].size).reshape(busy[PACKED].shape)
    return cls(shares, busy, seconds, float(np.median(exchanges)))


def _compose(alone: _Steps, devices: int) -> _Steps:
  """Steps made of shares measured alone: each lasts its slowest share plus the update."""
  rng = np.random.default_rng([0, devices])
  order = rng.random((COMPOSED, len(alone.shares))).argsort(1)
  shares = order[:, :devices]  # no share twice in a step
  busy = {way: x[shares, 0] for way, x in alone.busy.items()}
  seconds = {way: x.max(1) + alone.exchange for way, x in busy.items()}
  return _Steps(shares, busy, seconds, alone.exchange)


def _compare(
  steps: _Steps, predicted: _ByWay, tokens: _ByWay, *, batch: int, fixed: float
) -> dict[str, Any]:
  """Measured steps beside the prediction for the same shares.

  Args:
    steps: the measured steps.
    predicted: float[N]; seconds of each share.
    tokens: int[N]; real tokens of each share.
    batch: b, sequences of a share.
    fixed: seconds of a step, whatever is in it.

  Returns:
    Waiting: as `predicted`, `at_pace` and, by way, `measured`. `gain`: real tokens a second
    of each way of packing divided by those of un-padding; and `gain_predicted`. `seconds`
    and `exchange`. `pace`: packing's measured seconds divided by the predicted seconds.
    `beyond`: by how many seconds a sequence of un-padding exceeds the prediction at this
    pace.
  """
  of_shares = {way: x[steps.shares] for way, x in predicted.items()}
  own = of_shares[UNPADDED]
  pace = steps.busy[PACKED].mean() / of_shares[PACKED].mean()
  beyond = (steps.busy[UNPADDED] - pace * own).mean() / batch
  whole = {way: x.max(1) + fixed for way, x in of_shares.items()}
  counted = {way: x[steps.shares].sum() for way, x in tokens.items()}
  return {
    "predicted": _waiting(own),
    "at_pace": _waiting(pace * own + beyond * batch),
    "measured": {way: _waiting(x) for way, x in steps.busy.items()},
    "pace": float(pace),
    "beyond": float(beyond),
    "gain": _gain(counted, steps.seconds),
    "gain_predicted": _gain(counted, whole)[PACKED],
    "seconds": {way: quartiles(x) for way, x in steps.seconds.items()},
    "exchange": steps.exchange,
  }


def _gain(tokens: Mapping[str, int], seconds: _ByWay) -> dict[str, float]:
  """Tokens a second of each way of packing, divided by those of un-padding."""
  unpadding = tokens[UNPADDED] / seconds[UNPADDED].sum()
  return {
    way: float(tokens[PACKED] / x.sum() / unpadding)
    for way, x in seconds.items()
    if way != UNPADDED
  }


def _waiting(seconds: np.ndarray) -> dict[str, float]:
  """[K, n] -> the share of a step that devices wait for the slowest; quartiles of steps."""
  waiting = 1 - seconds.mean(1) / seconds.max(1)
  return quartiles(np.maximum(waiting, 0))  # no rounding error
