"""How the house is built: python -m tests.house [FOLDER] prints its rooms and its size.

A room is a file or a folder of a package. An arrow is an import of one file by another,
including imports in functions and below `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import graphlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]

# From the ground up: a room imports only rooms that stand before it.
ROOMS = {
  "packing": "errors files splitmix permutation histogram problem algorithms certificate "
  "assignment plan planfile row arrow epochs online batches pack row_length commands torch "
  "grain datasets testing __main__",
  "pipeline": "settings mapped index store tokenizer sources tasks dataset preparation "
  "batches prediction __main__",
  "model": "config dropout layer_norm masks attention losses products blocks bert "
  "modern_bert gpt2 models files weights hf testing __main__",
  "training": "errors memory compiler stopping mesh optimizer processes step process_parts "
  "checkpoint evaluation",
  "launch": "options parts settings door workdir command computation recipe machine plans "
  "data init_from record shares prepare_run summary sweep audit",
  "lab": "machine table options pages pictures exhibits statistics records real_data "
  "timing report part plans studies command",
  "experiments": "finetuning load_balance packing_paper contamination atom_size real_size "
  "isolation_atlas "
  "reproduce publish",
}
# A package imports these others.
MAY_IMPORT: dict[str, set[str]] = {
  "packing": set(),
  "model": {"packing"},
  "pipeline": {"packing"},
  "training": {"packing", "model"},
  "launch": {"packing", "model", "pipeline", "training"},
  "configs": {"launch"},
  "lab": {"packing", "model", "pipeline", "training", "launch"},
  "benchmarks": {"packing", "model", "pipeline", "training", "launch", "lab"},
  "experiments": {"packing", "model", "pipeline", "training", "launch", "lab"},
}


def files(package: str, root: pathlib.Path = ROOT) -> list[pathlib.Path]:
  """The Python files of a package, from the root of the checkout."""
  return sorted(path.relative_to(root) for path in (root / package).rglob("*.py"))


def imports(path: pathlib.Path, root: pathlib.Path = ROOT) -> Iterator[pathlib.Path]:
  """What a file imports of the checkout, as files; of other libraries, their names."""
  for node in ast.walk(ast.parse((root / path).read_text())):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield _file(alias.name, root)
    elif isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:
        inner = _file(f"{node.module}.{alias.name}", root)
        yield inner if inner.suffix else _file(node.module, root)


def _file(module: str, root: pathlib.Path) -> pathlib.Path:
  path = pathlib.Path(*module.split("."))
  for file in (path.with_suffix(".py"), path / "__init__.py"):
    if (root / file).exists():
      return file
  return path


def room(path: pathlib.Path) -> str:
  """The file or folder of its package that a file is in."""
  return path.parts[1] if len(path.parts) > 2 else path.stem


def arrows(
  package: str, root: pathlib.Path = ROOT
) -> set[tuple[pathlib.Path, pathlib.Path]]:
  """Imports between files of a package; its own `__init__` does not count."""
  return {
    (path, target)
    for path in files(package, root)
    for target in imports(path, root)
    if path != pathlib.Path(package, "__init__.py") != target != path
    and target.suffix
    and target.parts[0] == package
  }


def upward(package: str, root: pathlib.Path = ROOT) -> list[str]:
  """Arrows to a room above, or to one that `ROOMS` does not list."""
  order = ROOMS[package].split()

  def is_upward(a: str, b: str) -> bool:
    if a not in order or b not in order:
      return True
    return order.index(b) > order.index(a)

  pairs = sorted(arrows(package, root))
  return [f"{a} -> {b}" for a, b in pairs if is_upward(room(a), room(b))]


def circle(package: str, root: pathlib.Path = ROOT) -> list[pathlib.Path]:
  """Files that import each other in a circle; empty if none do."""
  order = graphlib.TopologicalSorter[pathlib.Path]()
  for a, b in arrows(package, root):
    order.add(a, b)
  try:
    order.prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return []


def table(root: pathlib.Path = ROOT) -> str:
  """Files, lines and arrows of each package."""
  lines = ["package      files  lines  arrows  upward"]
  for package in ROOMS:
    paths = files(package, root)
    length = sum(len((root / path).read_text().splitlines()) for path in paths)
    counts = len(arrows(package, root)), len(upward(package, root))
    lines.append(
      f"{package:<11} {len(paths):>6} {length:>6}  {counts[0]:>6}  {counts[1]:>6}"
    )
  return "\n".join(lines)


# What is counted together.
PARTS = {
  "product": ("packing", "pipeline", "model", "training", "launch", "configs", "*.py"),
  "experiments": ("experiments", "lab"),
  "benchmarks": ("benchmarks",),
  "tests": ("tests",),
}


def sizes(root: pathlib.Path = ROOT) -> str:
  """Lines of Python by part, words of the documents, and tracked files."""

  def count(paths, of) -> int:
    return sum(len(of((root / path).read_text())) for path in paths)

  lines = ["part         lines"]
  for part, places in PARTS.items():
    paths = [
      path
      for place in places
      for path in (root.glob(place) if "*" in place else files(place, root))
    ]
    lines.append(f"{part:<11} {count(paths, str.splitlines):>6}")
  documents = [root / "README.md", *root.glob("docs/*.md")]
  tracked = subprocess.run(
    ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
  )
  return "\n".join(
    [
      *lines,
      f"README and docs: {count(documents, str.split):,} words",
      f"LOG.md: {count([root / 'LOG.md'], str.split):,} words",
      f"tracked files: {len(tracked.stdout.splitlines()):,}",
    ]
  )


if __name__ == "__main__":
  folder = pathlib.Path(*sys.argv[1:]).absolute() if sys.argv[1:] else ROOT
  print(f"{table(folder)}\n\n{sizes(folder)}")
