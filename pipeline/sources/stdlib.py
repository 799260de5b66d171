"""English text from Python's standard library, and a sentence splitter."""

from __future__ import annotations

import ast
import itertools
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Iterator

from packing import InputError

# Not English prose, not part of every installation, or not the library's own.
_SKIPPED_FOLDERS = {"__pycache__", "idlelib", "lib2to3", "site-packages", "test", "tests"}
_FORMULA_WORDS = 4  # the most words of sentences that may repeat, such as: See also
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])|\n\s*\n")


def standard_library_documents(paths: Iterable[pathlib.Path]) -> Iterator[list[str]]:
  """The help topics and docstrings of a CPython: English that is always installed.

  Sources are parsed, never imported. Topics quote each other and docstrings are copied
  from class to class, so a sentence of more than a few words is given only once, ignoring
  case and punctuation. So no such sentence is both held out and trained on. Phrases
  within sentences still recur, as in any text.

  Args:
    paths: the files, as `source_files` gives them; each is read only when it is reached.

  Returns:
    The sentences of each document: one document for each help topic in
    `pydoc_data.topics` and each docstring of a module, class or function, in file order.
  """
  paths = iter(paths)
  topics = _topics(next(paths))
  texts = itertools.chain.from_iterable(map(docstrings, paths))
  return _unrepeated(itertools.chain(topics, texts))


def source_files(root: str | pathlib.Path | None = None) -> list[pathlib.Path]:
  """The files to read, the help topics first.

  Args:
    root: the folder of the standard library's sources; None for this interpreter's.

  Raises:
    InputError: the folder has no help topics.
  """
  root = pathlib.Path(root or sysconfig.get_path("stdlib"))
  topics = root / "pydoc_data" / "topics.py"
  if not topics.is_file():
    raise InputError(f"There is no {topics}. Install all of Python, or give stdlib:FOLDER.")
  return [topics] + [
    path
    for path in sorted(root.rglob("*.py"))
    if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts) and path != topics
  ]


def _unrepeated(texts: Iterator[str]) -> Iterator[list[str]]:
  seen: set[tuple[str, ...]] = set()
  for text in texts:
    sentences = [s for s in split_sentences(text) if _words(s) not in seen]
    seen.update(w for w in map(_words, sentences) if len(w) > _FORMULA_WORDS)
    if sentences:
      yield sentences


def _words(sentence: str) -> tuple[str, ...]:
  return tuple(re.findall(r"\w+", sentence.lower()))


def _topics(path: pathlib.Path) -> Iterator[str]:
  for node in ast.parse(path.read_bytes()).body:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
      yield from ast.literal_eval(node.value).values()


def docstrings(path: pathlib.Path) -> Iterator[str]:
  """The docstrings of a Python file, the module's first; none if it does not parse."""
  try:
    tree = ast.parse(path.read_bytes())
  except (SyntaxError, ValueError):  # templates, and fixtures for other versions
    return
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  for node in ast.walk(tree):
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
      yield text


def split_sentences(text: str) -> list[str]:
  """Splits a document at sentence ends and blank lines, and collapses white space.

  Example:
    >>> split_sentences("Open a file.  Return it; or\\nfail.\\n\\nSee also: close")
    ['Open a file.', 'Return it; or fail.', 'See also: close']
  """
  parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
  return [part for part in parts if any(map(str.isalnum, part))]
