"""A line of progress for commands that take more than a few seconds."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_QUIET_SECONDS = 3.0
_CLEARED = "\r\x1b[K"  # the line of a terminal


class Progress:
  """A line on standard error, which appears after its block has run some seconds.

  It is shown only on terminals.

  Attributes:
    stopped: whether the user asked to stop; see `stoppable`.
  """

  def __init__(self):
    self._step = self._result = ""
    self.stopped = False
    self._finished = threading.Event()
    self._thread = threading.Thread(target=self._show, daemon=True)

  def __enter__(self) -> Progress:
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._finished.set()
    self._thread.join()

  def step(self, step: str):
    """Names what is running now."""
    self._step, self._result = step, ""

  def found(self, result: str):
    """Shows the result so far."""
    self._result = result

  @contextlib.contextmanager
  def stoppable(self) -> Iterator[None]:
    """While the block runs, the first Ctrl-C sets `stopped`; the next one interrupts.

    Python handles signals only in its main thread; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_):
      self.stopped = True
      signal.signal(signal.SIGINT, before)
      self._result = "stopping; press Ctrl-C again to abort"

    signal.signal(signal.SIGINT, stop)
    try:
      yield
    finally:
      signal.signal(signal.SIGINT, before)

  def _show(self):
    if self._finished.wait(_QUIET_SECONDS) or not sys.stderr.isatty():
      return
    start = time.monotonic() - _QUIET_SECONDS
    while True:
      text = f"{self._step}: {self._result}" if self._result else self._step
      text += f", {time.monotonic() - start:.0f} s"
      print(_CLEARED + text, end="", file=sys.stderr, flush=True)
      if self._finished.wait(0.5):
        print(_CLEARED, end="", file=sys.stderr, flush=True)
        return
