"""What each process keeps of its own in a checkpoint, such as its place in a stream."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

from packing.files import parse_json

PARTS = "parts"  # in a checkpoint
_SHA256 = "sha256"


class OwnParts:
  """The parts of this process, which Orbax saves as files of JSON; it finishes later.

  Args:
    parts: JSON values by their names. Other processes have other names.
    fingerprint: that of the state, so that no other checkpoint's part can take a place.
  """

  def __init__(self, parts: Mapping[str, Any], fingerprint: list[int]):
    self._texts = {}
    for name, part in parts.items():
      value = {"part": part, "fingerprint": fingerprint}
      self._texts[name] = json.dumps(value | {_SHA256: sha256(value)})

  async def save(self, directory: Any) -> Awaitable[None]:
    async def write():
      folder = pathlib.Path(await directory.await_creation())
      for name, text in self._texts.items():
        _path(folder, name).write_text(text)

    return write()

  async def load(self, directory: Any) -> Awaitable[None]:
    async def read():
      folder = pathlib.Path(directory)
      self._texts = {name: _path(folder, name).read_text() for name in self._texts}

    return read()


class SavedParts(Mapping[str, Any]):
  """The parts that all processes saved; each is read, and checked, when it is asked for.

  Args:
    checkpoint: its folder.
    count: how many there are, with the names "0", "1", ....
    fingerprint: that of the state.
  """

  def __init__(self, checkpoint: pathlib.Path, count: int, fingerprint: list[int]):
    self._folder, self._fingerprint = checkpoint / PARTS, fingerprint
    self._names = [str(number) for number in range(count)]

  def __getitem__(self, name: str) -> Any:
    """Reads a part.

    Raises:
      KeyError: there is no such part.
      ValueError: it was changed, or belongs to another checkpoint.
      OSError: it cannot be read.
    """
    if name not in self._names:
      raise KeyError(name)
    path = _path(self._folder, name)
    try:
      value = parse_json(path.read_text())
      same = value.pop(_SHA256) == sha256(value)
      same = same and value["fingerprint"] == self._fingerprint
      part = value["part"]
    except (LookupError, TypeError, AttributeError) as error:
      raise ValueError(f"{path} is damaged.") from error
    if not same:
      raise ValueError(f"{path} was changed, or belongs to another checkpoint.")
    return part

  def __iter__(self) -> Iterator[str]:
    return iter(self._names)

  def __len__(self) -> int:
    return len(self._names)


def sha256(value: dict[str, Any]) -> str:
  """SHA-256 of JSON values, as they are read again, with texts as keys."""
  read = json.loads(json.dumps(value))
  return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _path(folder: pathlib.Path, name: str) -> pathlib.Path:
  return folder / f"{name}.json"
