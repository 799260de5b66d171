"""TensorBoard's events of a run, in `tensorboard/` of its folder."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping


def writer(folder: str | pathlib.Path) -> tuple[Callable, Callable]:
  """Makes a function that writes numbers as events at once, and one that ends the file.

  Args:
    folder: where the file of events is made, with the first numbers.

  Returns:
    log(values, step) and close(failed). From the first step on, TensorBoard drops what the
    folder's other files hold, so steps that are trained again are shown once.
  """
  # Here, since it imports PyTorch if installed, in seconds.
  from tensorboardX.event_file_writer import EventsWriter
  from tensorboardX.proto.event_pb2 import Event, SessionLog
  from tensorboardX.proto.summary_pb2 import Summary

  events: list[EventsWriter] = []

  def log(values: Mapping[str, float], step: int):
    if not events:
      pathlib.Path(folder).mkdir(exist_ok=True)
      events.append(EventsWriter(str(pathlib.Path(folder) / "events")))
      start = SessionLog(status=SessionLog.START)
      events[0].write_event(Event(step=step, session_log=start))
    numbers = [Summary.Value(tag=name, simple_value=x) for name, x in values.items()]
    summary = Summary(value=numbers)
    events[0].write_event(Event(wall_time=time.time(), step=step, summary=summary))
    events[0].flush()

  def close(failed: bool):
    del failed
    for one in events:
      one.close()

  return log, close
