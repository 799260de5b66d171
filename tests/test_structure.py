"""The house: who may import whom, and what make says to those who cannot run it."""

import collections
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import house
from tests.house import ROOT

OURS = {"train", "eval", "predict", "tests", *house.MAY_IMPORT}


@pytest.mark.parametrize("package", house.MAY_IMPORT)
def test_packages_import_one_way(package):
  files = house.files(package)
  assert files
  for path in files:
    others = {target.parts[0].removesuffix(".py") for target in house.imports(path)}
    assert (others - {package}) & OURS <= house.MAY_IMPORT[package], path


@pytest.mark.parametrize("package", house.ROOMS)
def test_rooms_import_what_stands_below_them(package):
  rooms = house.ROOMS[package].split()
  assert {house.room(path) for path in house.files(package)} == {*rooms, "__init__"}
  assert house.arrows(package)
  assert house.upward(package) == []
  assert house.circles(package) == []


def test_a_circle_is_seen_also_in_functions_and_for_types(tmp_path):
  (tmp_path / "packing").mkdir()
  (tmp_path / "packing/plan.py").write_text("def save():\n  import packing.pack\n")
  (tmp_path / "packing/pack.py").write_text(
    "if TYPE_CHECKING:\n  from packing import plan\n"
  )
  assert house.upward("packing", tmp_path) == ["packing/plan.py -> packing/pack.py"]
  assert [len(circle) for circle in house.circles("packing", tmp_path)] == [2]


def test_packing_needs_no_jax():
  for path in house.files("packing"):
    others = {target.parts[0] for target in house.imports(path)}
    assert not others & {"jax", "flax", "optax", "orbax", "grain"}, path


@pytest.mark.parametrize("package", house.ROOMS)
def test_a_folder_can_be_taken_in_at_a_glance(package):
  folders = collections.Counter(
    path.parent for path in house.files(package) if path.name != "__init__.py"
  )
  assert {str(folder): n for folder, n in folders.items() if n > 14} == {}


@pytest.fixture
def checkout(tmp_path):
  for name in ("Makefile", "requirements.txt", "requirements.lock"):
    shutil.copy(ROOT / name, tmp_path)
  return tmp_path


def interpreter(folder, script) -> pathlib.Path:
  path = folder / "python-for-test"
  path.write_text(f"#!/bin/sh\n{script}\n")
  path.chmod(0o755)
  return path


@pytest.mark.parametrize(
  ("script", "message"),
  [
    (None, "Expected Python 3.11 or newer; there is no"),
    ('test "$1" = -V && echo Python 3.9.2 && exit 0; exit 1', "is Python 3.9.2"),
    ('case "$2" in *ensurepip*) exit 1;; esac', "Expected the venv module"),
  ],
)
def test_make_says_in_one_line_what_it_needs(checkout, script, message):
  python = interpreter(checkout, script) if script else checkout / "missing"
  result = subprocess.run(
    ["make", "train", f"PYTHON={python}"],
    cwd=checkout,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 2
  lines = [x for x in (result.stdout + result.stderr).splitlines() if "make" not in x[:6]]
  assert len(lines) == 1
  assert message in lines[0]
  assert not (checkout / ".venv").exists()


# Says what it was asked to do, into a file beside it; makes an environment like itself.
PYTHON = """
echo "$@" >> "$(dirname "$0")/asked"
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;
esac
"""


def make(checkout, *words):
  outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # these tests may be run by make
  result = subprocess.run(
    ["make", f"PYTHON={checkout}/python-for-test", *words],
    cwd=checkout,
    env={name: value for name, value in os.environ.items() if name not in outer},
    capture_output=True,
    text=True,
    check=False,
  )
  return result.returncode, result.stdout


@pytest.fixture
def environment(checkout, request):
  """A `.venv` that make did not make, and a file in it; a link to it if asked for."""
  interpreter(checkout, PYTHON)
  path = checkout / getattr(request, "param", ".venv")
  (path / "bin").mkdir(parents=True)
  shutil.copy(checkout / "python-for-test", path / "bin" / "python")
  (path / "mine").touch()
  if path.name != ".venv":
    (checkout / ".venv").symlink_to(path, target_is_directory=True)
  return path


@pytest.mark.parametrize("environment", [".venv", "shared"], indirect=True)
def test_make_installs_into_an_environment_that_is_there(checkout, environment):
  status, told = make(checkout, ".venv/installed")
  assert status == 0
  assert "into .venv" in told
  assert "what else is there stays" in told
  asked = (environment / "bin" / "asked").read_text()
  assert "-m pip install" in asked
  assert "-r requirements.txt -c requirements.lock" in asked
  assert not (checkout / "asked").exists()  # PYTHON had nothing to do
  assert (environment / "mine").exists()
  _, told = make(checkout, "clean")
  assert "make did not make .venv" in told
  assert (environment / "mine").exists()


def test_make_installs_in_place_what_requirements_newly_ask_for(checkout):
  interpreter(checkout, PYTHON)
  status, told = make(checkout, ".venv/installed")
  assert status == 0
  assert "Making .venv with" in told
  (checkout / ".venv" / "by-make-reference").touch()
  assert "up to date" in make(checkout, ".venv/installed")[1]
  later = (checkout / ".venv" / "installed").stat().st_mtime + 1
  os.utime(checkout / "requirements.txt", (later, later))
  status, told = make(checkout, ".venv/installed")
  assert status == 0
  assert "Making" not in told
  assert "Installing requirements.txt into .venv" in told
  assert (checkout / ".venv" / "by-make-reference").exists()
  assert (checkout / "asked").read_text().count("-m venv") == 1
  make(checkout, "clean")
  assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
  ("script", "message"),
  [
    ("", "Expected a Python in .venv"),
    ('test "$1" = -V && echo Python 3.9.2 && exit 0; exit 1', "it has Python 3.9.2"),
    ('case "$2" in pip|ensurepip) exit 1;; esac', "Expected pip in .venv"),
    ('case "$3" in install) exit 1;; esac', ""),
  ],
)
def test_make_refuses_an_environment_of_no_use_and_leaves_it(
  checkout, environment, script, message
):
  python = environment / "bin" / "python"
  if script:
    python.write_text(f"#!/bin/sh\n{script}\n")
  else:
    python.unlink()
    python.symlink_to("/nowhere/python")  # of a Python that was upgraded
  status, told = make(checkout, ".venv/installed")
  assert status == 2
  if message:
    assert told.count("\n") == 1
  assert message in told
  assert (environment / "mine").exists()
  assert not (environment / "installed").exists()


@pytest.mark.slow
def test_make_with_a_real_environment(checkout):
  """Of one's own, with nothing to install; pip itself is missing, as uv leaves it."""
  for name in ("requirements.txt", "requirements.lock"):
    (checkout / name).write_text("")
  venv = [sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"]
  subprocess.run(venv, check=True)
  (checkout / ".venv" / "mine").touch()
  status, told = make(checkout, ".venv/installed")
  assert (status, told.splitlines()[-1]) == (0, "Installed.")
  assert (checkout / ".venv" / "mine").exists()


def test_the_packer_alone_is_imported_quickly():
  """SciPy serves one algorithm; to import it takes longer than all the rest."""
  program = "import sys, packing; print([x for x in sys.modules if x == 'scipy'])"
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  assert result.stdout == "[]\n"
