"""What was found of each type, as a file that grows by a line for each."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from packing.errors import InputError
from packing.files import write_text
from packing.testing.isolation import ROUNDING

PATH = pathlib.Path(__file__).with_name("record.jsonl")
NO_MASK = "No call: "  # begins what is recorded if `PackedCollator` makes no mask
EQUAL = 1e-4  # the largest relative difference of outputs, loss and gradients


@dataclasses.dataclass
class Record:
  """The versions, and the entry of each type and kind as `trial.try_type` returns it."""

  versions: dict[str, str]
  entries: dict[tuple[str, str], dict[str, Any]]
  path: pathlib.Path = PATH

  def add(self, entry: dict[str, Any]):
    """Adds the entry of a type, or replaces it, and writes the file."""
    self.entries[entry["type"], entry["kind"]] = entry
    lines = [self.versions, *(self.entries[of] for of in sorted(self.entries))]
    write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def read(
  versions: dict[str, str] | None = None, path: pathlib.Path = PATH, *, replace: bool = True
) -> Record:
  """The record, or an empty one if there is none or it is of other versions.

  Args:
    versions: those that are installed; None for whatever the record is of.
    path: of the file.
    replace: whether an empty record may take the place of one of other versions.

  Raises:
    InputError: there is none, and no versions were given; or it is of other versions, and
      must not be replaced.
  """
  if path.exists():
    first, *lines = map(json.loads, path.read_text().splitlines())
    if versions in (None, first):
      return Record(first, {(x["type"], x["kind"]): x for x in lines}, path)
    if not replace:
      raise InputError(
        f"The record is of {_named(first)}, and here are {_named(versions or {})}. Run the "
        "command without types, which tries all of them, or install these versions."
      )
  if versions is None:
    raise InputError(f"{path} does not exist. Run python -m experiments.isolation_atlas.")
  return Record(versions, {}, path)


def _named(versions: dict[str, str]) -> str:
  return " and ".join(f"{name} {version}" for name, version in versions.items())


def verdict(numbers: list[float | None] | str) -> str:
  """`isolated`, `differs`, `leaks`, `refuses` or `no mask`, of what was found of a call.

  `no mask` is for models for which `PackedCollator` makes none.
  """
  if isinstance(numbers, str):
    return "no mask" if numbers.startswith(NO_MASK) else "refuses"
  outputs, influence, derivative, loss, gradients = numbers
  if not (influence or 0) <= ROUNDING:
    return "leaks"
  equal = all(x is None or x <= EQUAL for x in (outputs, loss, gradients))
  return "isolated" if equal and not derivative else "differs"
