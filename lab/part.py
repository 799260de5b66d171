"""The parts of a report: each makes some of its exhibits in a folder of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lab import records, report
from lab.exhibits import Exhibit, Part
from lab.machine import machine
from model.weights import WeightsError
from packing import InputError
from packing.files import write_json, write_text
from training.errors import ConfigError

# What a part raises if its input is wrong.
MISTAKES = (InputError, ConfigError, WeightsError, OSError)


Maker = Callable[[Part], Sequence[Exhibit]]
ByAndBy = Callable[[Part], Iterator[Sequence[Exhibit]]]


def make(maker: Maker, part: Part) -> list[Exhibit]:
  """Makes the exhibits of a part, and writes exhibits.md and exhibits.json.

  Slow results (runs, measurements, plans) are cached by what they were made from, so a call
  is short if all of them exist. Exhibits get the minutes of all calls for this folder so
  far and, unless they name a machine, that of the runs in this folder or this one.
  """

  def once(part: Part) -> Iterator[Sequence[Exhibit]]:
    yield maker(part)

  return make_by_and_by(once, part)


def make_by_and_by(maker: ByAndBy, part: Part) -> list[Exhibit]:
  """As `make`, where the maker yields all exhibits again whenever it knows more.

  They are written each time, so a call that is ended loses nothing. Returns the last.
  """
  part.folder.mkdir(parents=True, exist_ok=True)
  path = part.folder / "minutes.json"
  start, before = time.monotonic(), records.read(path) or 0.0
  exhibits: list[Exhibit] = []

  def minutes() -> float:
    return before + (time.monotonic() - start) / 60

  try:
    for made in maker(part):
      here = machine_of_runs(part.folder) or machine()
      exhibits = [
        dataclasses.replace(x, minutes=minutes(), machine=x.machine or here) for x in made
      ]
      text = report.part(part.folder.resolve().name, exhibits, quick=part.quick)
      write_text(part.folder / "exhibits.md", text)
      as_dicts = [dataclasses.asdict(exhibit) for exhibit in exhibits]
      write_json(part.folder / "exhibits.json", as_dicts)
  finally:
    write_json(path, minutes())
  return exhibits


def machine_of_runs(folder: pathlib.Path) -> str:
  """The machines that the runs in a folder were made on; "" if none is known."""
  of_folder = records.read_all(folder).items()
  return machines_of(record for name, record in of_folder if name.startswith("runs/"))


def machines_of(made: Iterable[Mapping[str, Any]]) -> str:
  """The machines that runs or measurements name, each once; older ones name none."""
  names = {x["machine"].partition("; cpu")[0] for x in made if "machine" in x}
  return " and ".join(sorted(names))


def read(folder: str | os.PathLike[str]) -> list[Exhibit]:
  """The exhibits that `make` wrote last; none if it has written none."""
  path = pathlib.Path(folder, "exhibits.json")
  content = json.loads(path.read_text()) if path.exists() else []
  if isinstance(content, dict):  # a copy of what `experiments.publish` wrote for a study
    content = next(iter(content.values()), [])
  return [Exhibit.from_dict(x) for x in content]
