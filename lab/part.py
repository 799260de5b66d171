"""The parts of a report: each makes some of its exhibits in a folder of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def make(maker: Maker, part: Part) -> list[Exhibit]:
  """Makes the exhibits of a part, and writes exhibits.md and exhibits.json.

  Slow results (runs, measurements, plans) are cached by what they were made from, so a call
  is short if all of them exist. Exhibits get the minutes of all calls for this folder so
  far and, unless they name a machine, that of the runs in this folder or this one.
  """
  part.folder.mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  try:
    exhibits = maker(part)
  finally:
    path = part.folder / "minutes.json"
    minutes = (records.read(path) or 0.0) + (time.monotonic() - start) / 60
    write_json(path, minutes)
  here = machine_of_runs(part.folder) or machine()
  exhibits = [
    dataclasses.replace(x, minutes=minutes, machine=x.machine or here) for x in exhibits
  ]
  text = report.part(part.folder.resolve().name, exhibits, quick=part.quick)
  write_text(part.folder / "exhibits.md", text)
  write_json(part.folder / "exhibits.json", [dataclasses.asdict(x) for x in exhibits])
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
