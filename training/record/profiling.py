"""A profile of a few steps, for TensorBoard, XProf or Perfetto."""

from __future__ import annotations

import pathlib
import sys

import jax

from training.processes import is_first

_FIRST_STEPS = 10  # steps that are not profiled, since they compile and warm up


class Profile:
  """Profiles steps of a run into `profile/` of its folder; a context manager.

  Args:
    workdir: the run's folder.
    first_step: the step that the run resumes from.
    steps: how many steps to profile; 0 for none.
  """

  def __init__(self, workdir: str | pathlib.Path, *, first_step: int, steps: int):
    self._folder = pathlib.Path(workdir) / "profile"
    self._start = first_step + 1 + _FIRST_STEPS if steps else 0  # no step has number 0
    self._end = self._start + steps
    self._running, self._waits = False, steps > 0

  def __enter__(self) -> Profile:
    return self

  def __exit__(self, *_):
    self._stop()
    if self._waits and is_first():
      print(
        f"No profile: the run ended before step {self._start}, where profiling begins, "
        f"after the first {_FIRST_STEPS} steps of the process.",
        file=sys.stderr,
        flush=True,
      )

  def before(self, step: int):
    """Must be called before each step."""
    if step == self._start:
      jax.profiler.start_trace(self._folder)
      self._running, self._waits = True, False
    elif step == self._end:
      self._stop()

  def _stop(self):
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
