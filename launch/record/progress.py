"""The progress of a run: a bar on a terminal, lines in a log."""

from __future__ import annotations

import datetime
import importlib.util
import sys
import time
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import jax

from training.stopping import CLEAR

if typing.TYPE_CHECKING:
  import tqdm

_Item = TypeVar("_Item")
_FEWEST_STEPS = 10  # steps before the time left is estimated
# How metrics are shown, by their names.
_SHOWN = {
  "loss": "loss {:.3f}",
  "mlm_accuracy": "accuracy {:.1%}",
  "causal_accuracy": "accuracy {:.1%}",
  "sequence_accuracy": "accuracy {:.1%}",
  "answer_accuracy": "exact {:.1%}",
  "sequences_per_second": "{:,.0f} sequences/s",
  "padding": "padding {:.1%}",
}


def warn(text: str):
  """Prints a line on standard error, in place of a progress bar, which is drawn again."""
  clear = CLEAR if sys.stderr.isatty() else ""
  print(f"{clear}WARNING: {text}", file=sys.stderr, flush=True)


class Progress:
  """Shows the progress of a run; a context manager.

  On a terminal it is the bar of tqdm on standard error, with the newest metrics. In a log
  it prints one line per `line`, without carriage returns. Only process 0 shows anything.

  Args:
    name: what is done, such as "training".
    total: the number of all steps.
    done: the number of steps done before.
    unit: the plural name of a step.

  Example:
    >>> with Progress("training", total=10) as progress:  # on standard error
    ...   for step in range(1, 11):
    ...     progress.update()
    ...     if step % 5 == 0:
    ...       progress.line(step, {"loss": 1 / step})
  """

  def __init__(self, name: str, *, total: int, done: int = 0, unit: str = "steps"):
    self._name, self._total, self._unit = name, total, unit
    self._shown = jax.process_index() == 0
    self._start = self._done = done
    self._first_ended = 0.0
    self._bar: tqdm.tqdm | None = None
    # Without tqdm, as benchmarks.accelerator must run, it prints lines.
    if self._shown and sys.stderr.isatty() and importlib.util.find_spec("tqdm"):
      import tqdm

      self._bar = tqdm.tqdm(
        desc=name, total=total, initial=done, unit=f" {unit}", dynamic_ncols=True
      )

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *_):
    if self._bar is not None:
      self._bar.close()

  def update(self):
    """Counts a step as done."""
    self._done += 1
    if self._done == self._start + 1:  # the first step compiles
      self._first_ended = time.perf_counter()
    if self._bar is not None:
      self._bar.update()

  def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
    """Yields the items, counting each as a step."""
    for item in items:
      yield item
      self.update()

  def line(self, step: int, values: Mapping[str, float]):
    """Shows the most important metrics of a line of `metrics.jsonl`."""
    parts = [form.format(values[name]) for name, form in _SHOWN.items() if name in values]
    if self._bar is not None:
      self._bar.set_postfix_str(", ".join(parts), refresh=False)
    elif self._shown:
      number = f"{step:>{len(str(self._total))}}/{self._total}"
      parts = [f"{self._name}: {number} {self._unit}", *parts, *self._time_left()]
      print(", ".join(parts), file=sys.stderr, flush=True)

  def _time_left(self) -> list[str]:
    steps = self._done - self._start
    if steps < _FEWEST_STEPS:
      return []
    pace = (time.perf_counter() - self._first_ended) / (steps - 1)
    left = datetime.timedelta(seconds=round(pace * (self._total - self._done)))
    return [f"{str(left).removeprefix('0:')} left"]
