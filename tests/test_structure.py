"""The house: who may import whom, and what make says to those who cannot run it."""

import ast
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MAY_IMPORT = {
  "packing": set(),
  "model": set(),
  "pipeline": {"packing"},
  "training": {"model"},
  "configs": set(),
}


def imports(path: pathlib.Path) -> set[str]:
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name.split(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names.add((node.module or "").split(".")[0])
  return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package):
  ours = {"train", "eval", "predict", "experiments", "benchmarks", "tests", *MAY_IMPORT}
  paths = list((ROOT / package).rglob("*.py"))
  assert paths
  for path in paths:
    found = imports(path) & ours - {package}
    assert found <= MAY_IMPORT[package], path


def test_packing_needs_no_jax():
  for path in (ROOT / "packing").rglob("*.py"):
    assert not imports(path) & {"jax", "flax", "optax", "orbax", "grain"}, path


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


def test_the_packer_alone_is_imported_quickly():
  """SciPy serves one algorithm; to import it takes longer than all the rest."""
  program = "import sys, packing; print([x for x in sys.modules if x == 'scipy'])"
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  assert result.stdout == "[]\n"
