"""Metrics of a training run: JSON lines, and means over steps."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import jax

from launch.record.flops import Cost
from launch.record.progress import warn
from launch.record.trackers import Trackers, for_each
from model.losses import Total
from packing.files import parse_json, write_text
from training.errors import ConfigError

_COUNTED = ("sequences", "real_tokens")
_TRAIN, _EVAL = "metrics.jsonl", "eval.jsonl"
WAITS = ("input", "compute")  # what the loop waits for


class MetricsLog:
  """`metrics.jsonl` and `eval.jsonl` of a run.

  A resumed run drops the lines after its checkpoint, so that each step is in the file once.
  The checkpoint holds the last line of `metrics.jsonl`, and all evaluations, since these
  decide when a run ends. A warning says how many lines are missing from a damaged file.
  Only process 0 writes.

  Args:
    workdir: the run's folder.
    state: from `get_state`; None at the start of a run.
    trackers: they get the numbers of each line too; None for no trackers.
  """

  def __init__(
    self,
    workdir: str | pathlib.Path,
    *,
    state: dict | None = None,
    trackers: Trackers | None = None,
  ):
    self._workdir = pathlib.Path(workdir)
    self._trackers = trackers or {}
    self._counts: dict[str, int] = {}
    self._newest: dict[str, list[dict]] = {}
    for name in (_TRAIN, _EVAL):
      self._resume(name, state[name] if state else {"lines": 0, "newest": []})

  def _resume(self, name: str, state: dict):
    path, newest, count = self._workdir / name, state["newest"], state["lines"]
    start = newest[0]["step"] if newest else 0
    kept = [line for line in _read_lines(path) if line and line["step"] < start] + newest
    self._counts[name], self._newest[name] = count, newest
    if jax.process_index() == 0:
      write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
      if lost := count - len(kept):
        warn(f"{path} was damaged: {lost} of {count} lines are lost.")

  @property
  def last_train_line(self) -> dict:
    """The newest line of `metrics.jsonl`; empty if there is none."""
    return (self._newest[_TRAIN] or [{}])[-1]

  @property
  def evaluations(self) -> list[dict]:
    """The lines of `eval.jsonl`."""
    return self._newest[_EVAL]

  def get_state(self) -> dict[str, dict]:
    """For the checkpoint: how many lines each file has, and the newest."""
    newest = {_TRAIN: self._newest[_TRAIN][-1:], _EVAL: list(self._newest[_EVAL])}
    return {
      name: {"lines": self._counts[name], "newest": lines} for name, lines in newest.items()
    }

  def train(self, step: int, values: dict):
    """Writes a line of `metrics.jsonl`."""
    self._newest[_TRAIN] = []  # only the last line is needed
    self._write(_TRAIN, "train", {"step": step} | values)

  def evaluation(self, step: int, values: dict):
    """Writes a line of `eval.jsonl`."""
    self._write(_EVAL, "eval", {"step": step} | values)

  def _write(self, name: str, tag: str, line: dict):
    self._newest[name].append(line)
    self._counts[name] += 1
    if jax.process_index() != 0:
      return
    path, text = self._workdir / name, json.dumps(line, allow_nan=False) + "\n"
    try:
      with path.open("a") as file:
        file.write(text)
    except OSError as error:
      raise OSError(
        f"Step {line['step']} could not be written to {path}: {error}. Make room and rerun."
      ) from error
    numbers = {
      f"{tag}/{key}": value
      for key, value in line.items()
      if isinstance(value, int | float) and key != "step"
    }
    for_each(self._trackers, lambda log, _: log(numbers, step=line["step"]))


def read_json_lines(path: str | pathlib.Path) -> list[dict]:
  """The lines of `metrics.jsonl` or `eval.jsonl`, which must be intact.

  Raises:
    ConfigError: a line is damaged.
  """
  lines = _read_lines(path)
  intact = [line for line in lines if line is not None]
  if len(intact) < len(lines):
    raise ConfigError(
      f"{path} is damaged in line {lines.index(None) + 1}. Restore it, or delete the line."
    )
  return intact


def _read_lines(path: str | pathlib.Path) -> list[dict | None]:
  """The lines of a file without an unfinished last one; None for a damaged line."""
  path = pathlib.Path(path)
  lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
  return [_parse(line) for line in lines]


def _parse(line: bytes) -> dict | None:
  try:
    found = parse_json(line)
  except ValueError:
    return None
  is_whole = isinstance(found, dict) and isinstance(found.get("step"), int)
  return found if is_whole else None


def means(steps: Sequence[Mapping]) -> dict[str, float]:
  """Averages over all units of several steps, as if they were one step.

  Args:
    steps: for each step, `losses.Total` by name; other values are ignored.

  Returns:
    The means by the same names; and `loss`, the sum of those that end in `_loss`.

  Example:
    >>> means([{"mlm_loss": Total(2.0, 1.0)}, {"mlm_loss": Total(2.0, 3.0)}])["loss"]
    1.0
  """
  result = {}
  for name, first in steps[0].items():
    if isinstance(first, Total):
      units = sum(float(step[name].units) for step in steps)
      result[name] = sum(float(step[name].total) for step in steps) / max(units, 1)
  return result | {"loss": sum(x for name, x in result.items() if name.endswith("_loss"))}


class Meter:
  """Collects the metrics of steps into lines of `metrics.jsonl`.

  Values stay on the device until `line` is called, so that steps need not wait. Time is
  divided into waiting for input, waiting for the device, and the rest:

      with meter.waiting_for("input"):
        batch = program.put_batch(next(batches))

  Args:
    last_line: the line whose totals are continued; empty at the start of a run.
    cost: of a step; without a peak rate, lines have no `peak_share`.
  """

  def __init__(self, last_line: Mapping[str, float], *, cost: Cost):
    self._totals = {name: last_line.get(name, 0) for name in (*_COUNTED, "seconds")}
    self._cost = cost
    self._pending: list[dict] = []  # steps for the next line
    self._start: float | None = None
    self._waited = dict.fromkeys(WAITS, 0.0)

  @property
  def has_steps(self) -> bool:
    """Whether there are steps for the next line."""
    return bool(self._pending)

  def add(self, values: Mapping):
    """Adds the metrics of one step, from `TrainingProgram.train_step`."""
    timed = self._start is not None
    self._pending.append({**values, "timed": timed})
    if not timed:  # the first step compiles, so the clock starts after it
      jax.block_until_ready(values)
      self._begin(time.perf_counter())

  def line(self, **fields: float) -> dict[str, float]:
    """Waits for the steps since the last line, and makes a line from them.

    Args:
      **fields: more fields of the line.

    Returns:
      The `means` of the steps. Totals since the start of the run: `sequences`,
      `real_tokens`, and `seconds` of training, without each process's first step,
      evaluation and saving.
      Since the last line: `padding`, the fraction of tokens that are not real. For the
      timed steps since then: `sequences_per_second`, `real_tokens_per_second` and
      `packs_per_second`; `input_share`, `compute_share` and `rest_share`, fractions of
      their time; and `peak_share`, the fraction of `peak_flops` that their matrix products
      reach. Speeds and shares are 0 if no step was timed.
    """
    with self.waiting_for("compute"):
      steps = jax.device_get(self._pending)
    now = time.perf_counter()
    seconds = now - (now if self._start is None else self._start)
    per_second = 1 / seconds if seconds else 0.0
    timed = [values for values in steps if values["timed"]]
    rate = len(timed) * per_second  # steps a second
    count = {
      name: [sum(int(values[name]) for values in some) for some in (steps, timed)]
      for name in _COUNTED
    }
    for name in _COUNTED:
      self._totals[name] += count[name][0]
    self._totals["seconds"] += seconds
    waited = {name: per_second * self._waited[name] for name in WAITS}
    speeds = {
      **{f"{name}_per_second": per_second * count[name][1] for name in _COUNTED},
      "packs_per_second": rate * self._cost.packs,
      "padding": 1 - count["real_tokens"][0] / (len(steps) * self._cost.tokens),
      **{f"{name}_share": share for name, share in waited.items()},
      "rest_share": max(1 - sum(waited.values()), 0.0) if seconds else 0.0,
    }
    if self._cost.peak.flops:
      speeds["peak_share"] = rate * self._cost.flops / self._cost.peak.flops
    self._pending = []
    self._begin(now)
    return means(steps) | fields | self._totals | speeds

  def _begin(self, now: float):
    self._start = now
    self._waited = dict.fromkeys(WAITS, 0.0)

  @contextlib.contextmanager
  def waiting_for(self, name: str) -> Iterator[None]:
    """Counts the time of the block as waiting for "input" or "compute"; do not nest it.

    Input that arrives while the device still computes earlier steps costs nothing: that
    time counts as "compute".
    """
    start = time.perf_counter()
    yield
    if name == "input" and self._device_is_busy():
      name = "compute"
    self._waited[name] += time.perf_counter() - start

  def _device_is_busy(self) -> bool:
    leaves = jax.tree.leaves(self._pending[-1:])
    return not all(leaf.is_ready() for leaf in leaves if hasattr(leaf, "is_ready"))

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Does not count the time of the block as training; call `line` before it.

    Otherwise steps that still run would finish in the time that is not counted.
    """
    start = time.perf_counter()
    yield
    if self._start is not None:
      self._start += time.perf_counter() - start
