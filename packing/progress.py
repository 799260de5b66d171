"""A sign of life for commands that take more than a few seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_QUIET_SECONDS = 3.0


class Progress:
  """A bar on standard error that appears after some seconds and keeps the time.

  Nothing is shown where standard error is no terminal. Uses tqdm where it is installed;
  otherwise one line says what is going on.
  """

  def __init__(self, total: int):
    self._total = total
    self._done = 0
    self._what = ""
    self._finished = threading.Event()

  def step(self, what: str):
    """Says what is being done now."""
    self._what = what

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
        bar.set_description_str(self._what, refresh=False)
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
