"""Where documents come from."""

from __future__ import annotations

import ast
import pathlib
import re
import sysconfig
from collections.abc import Iterator

from packing import InputError

# Not English prose, not part of every installation, or not the library's own.
_SKIPPED_FOLDERS = {"__pycache__", "idlelib", "lib2to3", "site-packages", "test", "tests"}
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])|\n\s*\n")


def standard_library_documents(root: str | pathlib.Path | None = None) -> Iterator[str]:
  """English that every CPython carries: its help topics and its docstrings.

  Sources are parsed, never imported. A text that occurs twice (an inherited docstring)
  is given once, so that no held-out document is also trained on.

  Args:
    root: the folder of the standard library's sources; None for this interpreter's.

  Yields:
    One document a help topic of `pydoc_data.topics` and a docstring of a module, class
    or function, in the order of the files' names.

  Raises:
    InputError: the folder has no help topics or no sources.
  """
  root = pathlib.Path(root or sysconfig.get_path("stdlib"))
  topics = root / "pydoc_data" / "topics.py"
  if not topics.is_file():
    raise InputError(
      f"Expected the standard library's sources with {topics}; it is not there. Install "
      "the full Python (on Debian: apt install libpython3-stdlib), or name one with "
      "--config.data.source=stdlib:/path/to/lib/python3.X."
    )
  seen = set()
  for text in _topics(topics):
    seen.add(text)
    yield text
  for path in sorted(root.rglob("*.py")):
    if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts) and path != topics:
      for text in _docstrings(path):
        if text not in seen:
          seen.add(text)
          yield text


def _topics(path: pathlib.Path) -> Iterator[str]:
  for node in ast.parse(path.read_bytes()).body:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
      yield from ast.literal_eval(node.value).values()


def _docstrings(path: pathlib.Path) -> Iterator[str]:
  try:
    tree = ast.parse(path.read_bytes())
  except SyntaxError:  # templates and fixtures of other versions
    return
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  for node in ast.walk(tree):
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
      yield text


def split_sentences(text: str) -> list[str]:
  """Splits a document at sentence ends and blank lines, and folds white space.

  Example:
    >>> split_sentences("Open a file.  Return it; or\\nfail.\\n\\nSee also: close")
    ['Open a file.', 'Return it; or fail.', 'See also: close']
  """
  parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
  return [part for part in parts if any(map(str.isalnum, part))]
