"""What a run writes down as it goes: JSON lines and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
import tensorboardX

from model.losses import Total
from training.files import read_json_lines, write_text

_COUNTED = ("sequences", "real_tokens")


class MetricsLog:
  """`metrics.jsonl`, `eval.jsonl` and TensorBoard events of a run; a context manager.

  A run that goes on from a checkpoint drops the lines after it, so that each step
  stands in the file once.

  Args:
    workdir: the run's folder.
    first_step: the step that the run goes on from.

  Attributes:
    last_train_line: the last line of `metrics.jsonl` that was kept; empty if none.
  """

  def __init__(self, workdir: str | pathlib.Path, *, first_step: int):
    self._workdir = pathlib.Path(workdir)
    self.last_train_line: dict = {}
    for name in ("eval.jsonl", "metrics.jsonl"):
      kept = [
        line for line in read_json_lines(self._workdir / name) if line["step"] <= first_step
      ]
      write_text(self._workdir / name, "".join(json.dumps(line) + "\n" for line in kept))
    self.last_train_line = kept[-1] if kept else {}
    self._events = tensorboardX.SummaryWriter(
      str(self._workdir / "tensorboard"), purge_step=first_step + 1
    )

  def __enter__(self) -> MetricsLog:
    return self

  def __exit__(self, *_):
    self._events.close()

  def train(self, step: int, values: dict):
    self._write("metrics.jsonl", "train", step, values)

  def evaluation(self, step: int, values: dict):
    self._write("eval.jsonl", "eval", step, values)

  def _write(self, name: str, tag: str, step: int, values: dict):
    with (self._workdir / name).open("a") as file:
      file.write(json.dumps({"step": step} | values, allow_nan=False) + "\n")
    for key, value in values.items():
      if isinstance(value, int | float):
        self._events.add_scalar(f"{tag}/{key}", value, step)


def means(steps: Sequence[Mapping]) -> dict[str, float]:
  """Averages over all units of several steps, as if they were one.

  Args:
    steps: `losses.Total` by name; other values are left out.

  Returns:
    The means by the same names; and `loss`, the sum of those that end in `_loss`.

  Example:
    >>> means([{"mlm_loss": Total(2.0, 1.0)}, {"mlm_loss": Total(2.0, 3.0)}])["loss"]
    1.0
  """
  found = {}
  for name, first in steps[0].items():
    if isinstance(first, Total):
      units = sum(float(step[name].units) for step in steps)
      found[name] = sum(float(step[name].total) for step in steps) / max(units, 1)
  return found | {"loss": sum(x for name, x in found.items() if name.endswith("_loss"))}


class Meter:
  """Gathers the metrics of steps into lines of `metrics.jsonl`.

  Values stay on the device until a line is asked for, so that steps need not wait.

  Args:
    last_line: the line to count on from; empty at the start of a run.
  """

  def __init__(self, last_line: Mapping[str, float]):
    self._totals = {name: last_line.get(name, 0) for name in (*_COUNTED, "seconds")}
    self._pending: list[Mapping] = []
    self._start: float | None = None
    self._untimed = 0  # of the pending steps, the first so many

  def add(self, values: Mapping):
    """Takes the metrics of one step: `sequences`, `real_tokens` and totals."""
    self._pending.append(values)
    if self._start is None:  # the first step compiles; time begins after it
      jax.block_until_ready(values)
      self._start, self._untimed = time.perf_counter(), 1

  def line(self, **fields: float) -> dict[str, float]:
    """Means over the units of all steps since the last line.

    Args:
      **fields: more to put into the line.

    Returns:
      What `means` gives; `sequences` and `real_tokens` since the start of the run;
      `seconds` of training since then, without each process's first step, evaluation and
      saving; and `sequences_per_second` and `real_tokens_per_second` since the last line,
      of the steps that are timed.
    """
    steps = jax.device_get(self._pending)
    now = time.perf_counter()
    seconds = now - (self._start or now)
    speeds = {}
    for name in _COUNTED:
      counts = [int(values[name]) for values in steps]
      self._totals[name] += sum(counts)
      timed = sum(counts[self._untimed :])
      speeds[f"{name}_per_second"] = timed / seconds if timed else 0.0
    self._totals["seconds"] += seconds
    self._pending, self._start, self._untimed = [], now, 0
    return means(steps) | fields | self._totals | speeds

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What happens inside does not count as training. Ask for a line first."""
    yield
    self._start = time.perf_counter()
