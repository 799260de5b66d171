"""What packing needs, and what make says to those who cannot run it."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import house
from tests.house import ROOT
from tests.mutations import MUTATIONS

OURS = {
  *("train", "eval", "predict", "tests", "packing", "pipeline", "model", "training"),
  *("launch", "configs", "lab", "benchmarks", "experiments"),
}


def test_the_tests_of_packing_need_only_packing_and_themselves():
  """Or tiny models of transformers, which no environment of the wheel's tests has."""
  files = house.files("tests/packing")
  assert files
  for path in files:
    ours = {target for target in house.imports(path) if target.parts[0] in OURS}
    others = {t for t in ours if t.parts[0] != "packing" and t not in files}
    tiny = {pathlib.Path("experiments/isolation_atlas", x) for x in ("tiny.py", "trial.py")}
    assert others <= {pathlib.Path("tests/markdown.py"), *tiny}, path


def test_packing_imports_slow_libraries_only_when_it_uses_them():
  slow = "jax flax optax orbax grain torch datasets scipy pyarrow matplotlib tqdm pandas"
  program = "import sys, packing, packing.testing, packing.__main__; "
  program += f"assert not {set(slow.split())} & {{*sys.modules}}"
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("claim", MUTATIONS)
def test_mutations_find_the_line_that_they_break_and_their_tests(claim):
  for file, old, new, tests in MUTATIONS[claim]:
    assert (ROOT / file).read_text().count(old) == 1, (file, old)
    assert old != new
    assert all((ROOT / test).exists() for test in tests.split())


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
