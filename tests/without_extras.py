"""A plugin of pytest: no library of an extra in pyproject.toml can be imported."""

import itertools
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
_OTHER_NAMES = {"apache-beam": "apache_beam", "tensorflow-cpu": "tensorflow"}


def names() -> set[str]:
  """Of the modules that requirements.txt does not bring."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = itertools.chain(*project["optional-dependencies"].values())
  given = _libraries((ROOT / "requirements.txt").read_text().splitlines())
  return {_OTHER_NAMES.get(name, name) for name in _libraries([*extras, "trl"]) - given}


def _libraries(lines) -> set[str]:
  return {found[0] for line in lines if (found := re.match(r"[\w-]+", line))}


sys.modules.update(dict.fromkeys(names()))  # type: ignore[arg-type]  # None: not to be found
