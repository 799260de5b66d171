"""The house: who may import whom, and what make says to those who cannot run it."""

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
  for path in set(files):
    others = {target.parts[0].removesuffix(".py") for target in house.imports(path)}
    assert (others - {package}) & OURS <= house.MAY_IMPORT[package], path


def test_the_tests_of_packing_need_only_packing_and_themselves():
  """Or tiny models of transformers, which no environment of the wheel's tests has."""
  files = house.files("tests/packing")
  assert files
  for path in files:
    ours = {target for target in house.imports(path) if target.parts[0] in OURS}
    others = {t for t in ours if t.parts[0] != "packing" and t not in files}
    tiny = {pathlib.Path("experiments/isolation_atlas", x) for x in ("tiny.py", "trial.py")}
    assert others <= {pathlib.Path("tests/markdown.py"), *tiny}, path


@pytest.mark.parametrize("package", house.ROOMS)
def test_rooms_import_what_stands_below_them(package):
  rooms = house.ROOMS[package].split()
  assert {house.room(path) for path in house.files(package)} == {*rooms, "__init__"}
  assert house.arrows(package)
  assert house.upward(package) == []
  assert house.circle(package) == []


def test_a_circle_is_seen_also_in_functions_and_for_types(tmp_path):
  (tmp_path / "packing").mkdir()
  (tmp_path / "packing/plan.py").write_text("def save():\n  import packing.pack\n")
  (tmp_path / "packing/pack.py").write_text(
    "if TYPE_CHECKING:\n  from packing import plan\n"
  )
  assert house.upward("packing", tmp_path) == ["packing/plan.py -> packing/pack.py"]
  assert len({*house.circle("packing", tmp_path)}) == 2


FRAMEWORKS = {"jax", "flax", "optax", "orbax", "grain", "torch", "datasets"}
# Of packing: rooms for a framework, and the file that differentiates what is loaded.
FOR_FRAMEWORKS = {"torch", "grain", "datasets", "frameworks"}


def test_packing_needs_no_framework_and_scipy_only_when_it_is_used():
  for path in house.files("packing"):
    if not FOR_FRAMEWORKS & {house.room(path), path.stem}:
      others = {target.parts[0] for target in house.imports(path)}
      assert not others & FRAMEWORKS, path
  slow = FRAMEWORKS | {"scipy", "pyarrow", "matplotlib", "tqdm", "pandas"}
  program = "import sys, packing, packing.testing, packing.__main__; "
  program += f"assert not {slow} & {{*sys.modules}}"
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.fixture
def checkout(tmp_path):
  for name in ("Makefile", "requirements.txt", "requirements.lock"):
    shutil.copy(ROOT / name, tmp_path)
  return tmp_path


def make(checkout, *words):
  outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # these tests may be run by make
  result = subprocess.run(
    ["make", f"PYTHON={checkout}/python-for-test", *words],
    cwd=checkout,
    env={k: v for k, v in os.environ.items() if k not in outer} | {"LC_ALL": "C"},
    capture_output=True,
    text=True,
  )
  told = (result.stdout + result.stderr).splitlines(keepends=True)
  return result.returncode, "".join(x for x in told if ": *** " not in x)


def interpreter(path, script):
  path.write_text(f"#!/bin/sh\n{script}\n")
  path.chmod(0o755)


# Says what it was asked to do, into a file beside it; makes an environment like itself.
PYTHON = """
echo "$@" >> "$(dirname "$0")/asked"
case "$1 $2 $3" in "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";; esac
"""


@pytest.mark.parametrize("there", [False, True])
def test_make_installs_into_an_environment_that_it_makes_or_finds(checkout, there):
  interpreter(checkout / "python-for-test", PYTHON)
  if there:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(checkout / "python-for-test", checkout / ".venv" / "bin" / "python")
  assert make(checkout, ".venv/installed")[0] == 0
  asked = checkout / ".venv" / "bin" / "asked"
  assert asked.read_text().count("-r requirements.txt -c requirements.lock") == 1
  assert (checkout / "asked").exists() != there  # PYTHON had nothing to do
  assert "up to date" in make(checkout, ".venv/installed")[1]
  later = (checkout / ".venv" / "installed").stat().st_mtime + 1
  os.utime(checkout / "requirements.txt", (later, later))
  assert make(checkout, ".venv/installed")[0] == 0
  assert asked.read_text().count("-r requirements.txt -c requirements.lock") == 2


@pytest.mark.parametrize("script", [None, "exit 1"])
def test_make_says_in_one_line_which_python_it_needs(checkout, script):
  if script:
    interpreter(checkout / "python-for-test", script)
  status, told = make(checkout, ".venv/installed")
  assert (status, told.count("\n")) == (2, 1)
  assert "Expected Python 3.11 or newer" in told
  assert not (checkout / ".venv").exists()
