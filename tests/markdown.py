"""What the project's Markdown files hold: links, headings, blocks of code, commands."""

from __future__ import annotations

import itertools
import pathlib
import re
import shlex
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Those that say how things are; the others say how they were.
CURRENT = [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "LOG.md")]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"(?:^(?: {4}|\t).*\n)+", re.M)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_SHELL = ("", "bash", "console", "sh", "shell")
_STARTS = ("python ", "make ", "pip ", ".venv/bin/python ", "echo ", "mkdir ")


def name(path: pathlib.Path) -> str:
  return str(path.relative_to(ROOT))


def prose(text: str) -> str:
  """Without its fenced blocks."""
  return _FENCED.sub("", text)


def links(text: str) -> list[str]:
  """Targets of links and pictures, in the order of the text."""
  return _LINK.findall(_SPAN.sub("", prose(text)))


def anchors(text: str) -> set[str]:
  """What headings are called in links, as GitHub does."""
  found: list[str] = []
  for heading in _HEADING.findall(prose(text)):
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
    again = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", x) is not None for x in found)
    found.append(f"{anchor}-{again}" if again else anchor)
  return set(found)


def spans(text: str) -> list[str]:
  """Code within lines, of one line each."""
  return [" ".join(span.split()) for span in _SPAN.findall(prose(text))]


def table(text: str, header: str) -> list[list[str]]:
  """The cells of the rows below a header."""
  lines = text.partition(f"{header}\n")[2].splitlines()[1:]
  rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
  return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def blocks(text: str, language: str) -> list[str]:
  return [code for found, code in _FENCED.findall(text) if found == language]


def commands(text: str) -> list[list[str]]:
  """Commands of the shell, in words: of blocks, and within lines.

  Example:
    >>> commands("Run `python -m packing pack | compare` and `plan.save`.")
    [['python', '-m', 'packing', 'pack'], ['compare']]
  """
  found: list[list[str]] = []
  for line in _shell_lines(text):
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    parts = itertools.groupby(words, lambda word: set(word) <= set("|&;()<>"))
    found += [list(part) for is_end, part in parts if not is_end]
  return found


def _shell_lines(text: str) -> Iterator[str]:
  parts = [code for language in _SHELL for code in blocks(text, language)]
  parts += [part.replace("    ", "", 1) for part in _INDENTED.findall(prose(text))]
  for part in parts:
    lines = iter(part.replace("\\\n", " ").splitlines())
    for line in lines:
      line = re.sub(r"\s#.*", "", line.strip().removeprefix("$ "))
      if line.startswith(_STARTS):
        while line.count("'") % 2:  # a quotation of several lines
          line += "\n" + next(lines)
        yield line
  yield from (span for span in spans(text) if span.startswith(_STARTS))
