"""A sign of life for commands that take more than a few seconds."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_QUIET_SECONDS = 3.0


class Progress:
  """A bar on standard error that appears after some seconds and keeps the time.

  Nothing is shown where standard error is no terminal. Uses tqdm where it is installed;
  otherwise one line says what is going on.

  Attributes:
    stopped: whether the user asked to stop; see `stoppable`.
  """

  def __init__(self, total: int):
    self._total = total
    self._done = 0
    self._what = self._found = ""
    self.stopped = False
    self._finished = threading.Event()

  def step(self, what: str):
    """Says what is being done now."""
    self._what, self._found = what, ""

  def found(self, result: str):
    """Says what there is so far."""
    self._found = result

  @contextlib.contextmanager
  def stoppable(self) -> Iterator[None]:
    """While the block runs, the first Ctrl-C sets `stopped`; the next one interrupts.

    Python handles signals in its main thread alone; in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_):
      self.stopped = True
      signal.signal(signal.SIGINT, before)
      self._found = "stopping; Ctrl-C again to give up"

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
      print(f"{self._what} ... (takes more than a few seconds)", file=sys.stderr)
      return
    start = time.monotonic() - _QUIET_SECONDS
    with tqdm.tqdm(
      total=self._total,
      leave=False,
      disable=None,
      bar_format="{desc} {bar} {n_fmt}/{total_fmt}{postfix}",
    ) as bar:
      while True:
        bar.n = self._done
        what = f"{self._what}: {self._found}" if self._found else self._what
        bar.set_description_str(what, refresh=False)
        bar.set_postfix_str(f"{time.monotonic() - start:.0f} s")
        if self._finished.wait(0.5):
          return


@contextlib.contextmanager
def progress(total: int = 1) -> Iterator[Progress]:
  """Shows progress while the block runs."""
  shown = Progress(total)
  thread = threading.Thread(target=shown._show, daemon=True)
  thread.start()
  try:
    yield shown
  finally:
    shown._finished.set()
    thread.join()
