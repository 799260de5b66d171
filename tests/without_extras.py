"""A plugin of pytest: no library of an extra in pyproject.toml can be imported."""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
_OTHER_NAMES = {"apache-beam": "apache_beam", "tensorflow-cpu": "tensorflow"}


def names() -> list[str]:
  """Of the modules that requirements.txt does not bring."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  given = _libraries((ROOT / "requirements.txt").read_text().splitlines())
  extras = project["optional-dependencies"].values()
  found = _libraries(line for extra in extras for line in extra) - given
  return sorted(_OTHER_NAMES.get(name, name) for name in found | {"trl"})


def _libraries(lines) -> set[str]:
  return {found[0] for line in lines if (found := re.match(r"[\w-]+", line))}


class _Blind:
  """A finder of modules that finds none of some libraries."""

  def __init__(self, finder, hidden: list[str]):
    self._finder, self._hidden = finder, hidden

  def __getattr__(self, name):
    return getattr(self._finder, name)

  def find_spec(self, name, path=None, target=None):
    hidden = name.partition(".")[0] in self._hidden
    return None if hidden else self._finder.find_spec(name, path, target)


sys.meta_path[:] = [_Blind(finder, names()) for finder in sys.meta_path]
