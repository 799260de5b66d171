"""What ends a run: Ctrl-C and SIGTERM, a target, or evaluations that no longer improve.

This module imports only the standard library, so that a program can handle signals before
it imports JAX.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

_SIGNALS = signal.SIGINT, signal.SIGTERM
_PATIENCE = 2.0  # seconds that the main thread has to react; it may be compiling
CLEAR = "\r\x1b[K"  # clears a terminal's line, on which a progress bar or ^C may be


class Signals:
  """Handles Ctrl-C and SIGTERM.

  The training loop checks `heard` after each step, saves and ends. Before and after the
  loop there is nothing to save: the signal raises `KeyboardInterrupt`. If the main thread
  is compiling and runs no Python, or a library or Python's garbage collector drops the
  exception, the process ends after two seconds. A second Ctrl-C ends it at once.

  Attributes:
    heard: the number of the first signal; None until one arrives.
    resume_hint: returns a sentence that says where the same command would resume. While it
      is None, before the program begins, a signal ends the process at once.
  """

  def __init__(self):
    self.heard: int | None = None
    self.resume_hint: Callable[[], str] | None = None
    self._deferred = False

  def listen(self):
    """Installs the handlers; to be called in a program's main thread, not by a library."""
    for number in _SIGNALS:
      if signal.getsignal(number) != signal.SIG_IGN:  # set by nohup and the shell's `&`
        signal.signal(number, self._handle)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=self._watch, args=(read,), daemon=True).start()

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Does not interrupt the block, which checks `heard` itself.

    Raises:
      KeyboardInterrupt: after the block, if a signal arrived after the block's last check;
        before the block, if one arrived earlier and a library swallowed the exception.
    """
    if self.heard:
      raise KeyboardInterrupt
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False
    if self.heard:
      raise KeyboardInterrupt

  def leave(self) -> NoReturn:
    """Prints where a run would resume and ends the process, with status 130 or 143.

    It does not use `sys.exit`, since threads that still compile crash when the interpreter
    shuts down.
    """
    try:
      _say(f"Stopped. {self.resume_hint()}" if self.resume_hint else "Stopped.")
    finally:
      os._exit(128 + (self.heard or signal.SIGINT))

  def _handle(self, number: int, frame: types.FrameType | None):
    """Runs in the main thread, as soon as that runs Python."""
    del frame
    is_first, self.heard = self.heard is None, self.heard or number
    if self.resume_hint is None:
      self.leave()
    elif self._deferred and number == signal.SIGINT:
      signal.raise_signal(signal.SIGTERM)  # JAX passes it on to the other processes
    elif is_first and not self._deferred:
      raise KeyboardInterrupt

  def _watch(self, read: int):
    """Runs in its own thread, whatever the main thread does."""
    interrupts = 0
    while number := os.read(read, 1):
      interrupts += number[0] == signal.SIGINT
      if interrupts == 2:
        self.heard = self.heard or signal.SIGINT
        self.leave()
      if not self._deferred:
        late = threading.Timer(_PATIENCE, self._leave_unless_deferred, [number[0]])
        late.daemon = True
        late.start()
      elif interrupts == 1 and number[0] == signal.SIGINT:
        _say(
          "Finishing this step to save it; the first one compiles. Ctrl-C again exits at "
          "once, without saving."
        )

  def _leave_unless_deferred(self, number: int):
    """Runs in a timer's thread, when the main thread has had enough time."""
    if not self._deferred:
      self.heard = self.heard or number
      self.leave()


def _say(text: str):
  # os.write needs no lock.
  start = CLEAR if sys.stderr.isatty() else ""
  os.write(2, f"{start}{sys.argv[0]}: {text}\n".encode())


signals = Signals()


class Verdict(NamedTuple):
  """What a run's evaluations decide.

  Attributes:
    best_step: the step with the best metric; None before the first evaluation.
    ended: why the run ends: it reached its target, or no longer improves; "" if it goes on.
  """

  best_step: int | None
  ended: str


def judge(
  eval_lines: Sequence[Mapping], *, metric: str, target: float, patience: int
) -> Verdict:
  """Decides from a run's evaluations whether it ends.

  Args:
    eval_lines: the lines of `eval.jsonl`, in order.
    metric: a field of the lines; higher is better.
    target: masked-token accuracy that ends the run, a fraction; 0 for none.
    patience: number of evaluations without improvement that ends the run; 0 for none.

  Example:
    >>> lines = [{"f1": x, "step": t} for t, x in enumerate([0.3, 0.5, 0.5, 0.4])]
    >>> options = {"metric": "f1", "target": 0.0}
    >>> [judge(lines, patience=n, **options).ended for n in (0, 2, 3)]
    ['', 'its evaluations have not improved for train.patience=2', '']
  """
  best, ended = best_of(eval_lines, metric=metric), ""
  if target_reached(eval_lines, target=target):
    ended = f"it has reached train.target_mlm_accuracy={target:g}"
  elif 0 < patience < len(eval_lines):
    values = [line[metric] for line in eval_lines]
    if max(values[-patience:]) <= max(values[:-patience]):
      ended = f"its evaluations have not improved for train.patience={patience}"
  return Verdict(best["step"] if best else None, ended)


def best_of(eval_lines: Sequence[Mapping], *, metric: str) -> Mapping | None:
  """The first line with the best metric; None if there are no lines.

  Example:
    >>> best_of([{"step": 5, "f1": 0.5}, {"step": 10, "f1": 0.5}], metric="f1")["step"]
    5
  """
  return max(eval_lines, key=lambda line: line[metric], default=None)


def target_reached(eval_lines: Iterable[Mapping], *, target: float) -> dict[str, float]:
  """When the held-out masked-token accuracy first reached its target, as in MLPerf.

  Args:
    eval_lines: the lines of `eval.jsonl`, in order, with `seconds` of training and
      `sequences_trained` until then.
    target: a fraction; 0 for no target.

  Returns:
    `step_to_target`, `seconds_to_target` and `sequences_to_target`; empty if the target
    was not reached.

  Example:
    >>> lines = [
    ...   {"step": 5, "seconds": 1.5, "sequences_trained": 70, "mlm_accuracy": 0.31},
    ...   {"step": 10, "seconds": 3.0, "sequences_trained": 140, "mlm_accuracy": 0.34},
    ... ]
    >>> target_reached(lines, target=0.33)
    {'step_to_target': 10, 'seconds_to_target': 3.0, 'sequences_to_target': 140}

  References:
    Mattson et al., https://arxiv.org/abs/1910.01500.
  """
  for line in eval_lines:
    if target and line["mlm_accuracy"] >= target:
      return {
        "step_to_target": line["step"],
        "seconds_to_target": line["seconds"],
        "sequences_to_target": line["sequences_trained"],
      }
  return {}
