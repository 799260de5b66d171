"""A progress bar for commands that take more than a few seconds."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_QUIET_SECONDS = 3.0


class Progress:
  """A progress bar on standard error, which appears after its block has run some seconds.

  It is shown only on terminals, by tqdm. Without tqdm, one line names what is running.

  Args:
    total: how often `done` will be called.

  Attributes:
    stopped: whether the user asked to stop; see `stoppable`.
  """

  def __init__(self, total: int = 1):
    self._total = total
    self._done = 0
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

  def done(self):
    """Counts one of `total` as done."""
    self._done += 1

  def _show(self):
    if self._finished.wait(_QUIET_SECONDS) or not sys.stderr.isatty():
      return
    try:
      import tqdm
    except ImportError:
      print(f"{self._step} ... (takes more than a few seconds)", file=sys.stderr)
      return
    start = time.monotonic() - _QUIET_SECONDS
    form = "{desc} {bar} {n_fmt}/{total_fmt}{postfix}"
    with tqdm.tqdm(total=self._total, leave=False, bar_format=form) as bar:
      while True:
        bar.n = self._done
        text = f"{self._step}: {self._result}" if self._result else self._step
        bar.set_description_str(text, refresh=False)
        bar.set_postfix_str(f"{time.monotonic() - start:.0f} s")
        if self._finished.wait(0.5):
          return
