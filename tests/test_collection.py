"""A fresh clone has requirements.txt alone: every test module must be collected there."""

import itertools
import re
import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder

import pytest

from tests.programs import ROOT

_OTHER_NAMES = {"apache-beam": "apache_beam", "tensorflow-cpu": "tensorflow"}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
  """As a plugin of pytest: no library of an extra in pyproject.toml can be imported."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = "\n".join(itertools.chain(*project["optional-dependencies"].values(), ["trl"]))
  given = (ROOT / "requirements.txt").read_text()
  of_extras, ours = (re.findall(r"^[\w-]+", text, re.M) for text in (extras, given))
  hidden = {_OTHER_NAMES.get(name, name) for name in {*of_extras} - {*ours}}
  find = PathFinder.find_spec

  def find_others(name, *place):
    return None if name.partition(".")[0] in hidden else find(name, *place)

  PathFinder.find_spec = find_others  # type: ignore[assignment, method-assign]


@pytest.mark.slow
def test_tests_are_collected_without_any_extra():
  command = f"{sys.executable} -m pytest --collect-only -p tests.test_collection".split()
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert result.returncode == 0, result.stdout[-3000:]
  assert re.search(r"^\d{4} tests collected", result.stdout, re.M), result.stdout[-300:]
