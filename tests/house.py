"""How large the house is: python -m tests.house [FOLDER] counts its code and its documents.

Who may import whom is in pyproject.toml, as contracts of import-linter.
"""

from __future__ import annotations

import ast
import io
import pathlib
import subprocess
import sys
import tokenize
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
PARTS = {
  "packing": ("packing",),
  "pipeline": ("pipeline",),
  "model": ("model",),
  "training": ("training",),
  "launch": ("launch",),
  "programs": ("*.py", "configs"),
  "lab": ("lab",),
  "experiments": ("experiments",),
  "benchmarks": ("benchmarks",),
  "tests": ("tests",),
}
_NOT_CODE = {
  *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
  *(tokenize.ENCODING, tokenize.ENDMARKER),
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


def code_lines(source: str) -> int:
  """Lines with code: not blank, and not only of a comment or of a docstring.

  Example:
    >>> code_lines('"A module."\\n\\nx = 1  # one\\n# two\\ny = [\\n  2,\\n]\\n')
    4
  """
  lines = set[int]()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type not in _NOT_CODE:
      lines.update(range(token.start[0], token.end[0] + 1))
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
      lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
  return len(lines)


def sizes(root: pathlib.Path = ROOT) -> str:
  """Files and lines of code by part, words of the documents, and tracked files."""
  lines = ["part         files   code"]
  for part, places in PARTS.items():
    paths = [
      path
      for place in places
      for path in (root.glob(place) if "*" in place else files(place, root))
    ]
    code = sum(code_lines((root / path).read_text()) for path in paths)
    lines.append(f"{part:<11} {len(paths):>6} {code:>6}")
  documents = [root / "README.md", *root.glob("docs/*.md")]
  words = sum(len(path.read_text().split()) for path in documents)
  tracked = subprocess.run(
    ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
  )
  return "\n".join(
    [
      *lines,
      f"README and docs: {words:,} words",
      f"LOG.md: {len((root / 'LOG.md').read_text().split()):,} words",
      f"tracked files: {len(tracked.stdout.splitlines()):,}",
    ]
  )


if __name__ == "__main__":
  print(sizes(pathlib.Path(*sys.argv[1:]).absolute() if sys.argv[1:] else ROOT))
