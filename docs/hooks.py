"""What the site has besides the pages of docs/; named in mkdocs.yml.

README.md is its first page. Other pages of the checkout outside docs/ stand in project/,
and links lead there. The pages of api/ are made from docstrings, which are read and not
run.
"""

from __future__ import annotations

import os
import pathlib
import re

import griffe
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages whose address is not that of their file.
_PLACES = {"index.md": ROOT / "README.md", "documents.md": DOCS / "README.md"}
# How pages rank in a search, by the start of their address: guides before all others.
_BOOSTS = {"api/": 0.2, "project/": 0.1}
_REPORTS, _REPORT_BOOST = ("exhibits.md", "REPORT.md"), 0.1
_LINK = re.compile(r"(?<=\]\()[^)\s:#]+")
# A function of the name of its file, which griffe finds first.
_HIDDEN = {
  "packing": "\n::: packing.pack.pack\n    options: {show_root_heading: true, "
  "show_root_full_path: false, show_root_toc_entry: true}\n"
}
_DOCTEST = re.compile(r"^( *)>>> .*\n(?:\1\S.*\n?)*", re.MULTILINE)


def on_files(files, config):
  """Adds the pages of mkdocs.yml that are not files of docs/ at their own address."""
  files.remove(files.get_file_from_path("README.md"))
  for page in _pages(config.nav):
    folder, _, name = page.partition("/")
    if folder == "project" or page in _PLACES:
      files.append(File.generated(config, page, abs_src_path=str(_file(page))))
    elif folder == "api":
      module = name.removesuffix(".md")
      text = f"# {module}\n\n::: {module}\n{_HIDDEN.get(module, '')}"
      files.append(File.generated(config, page, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  """Points links at the places of their files, and ranks the page in searches.

  Files outside docs/ are copied to project/.
  """
  here = page.file.src_uri
  boosts = [boost for start, boost in _BOOSTS.items() if here.startswith(start)]
  boosts += [_REPORT_BOOST] * here.endswith(_REPORTS)
  page.meta["search"] = {"boost": min(boosts, default=1)}
  if here.startswith("api/"):
    return markdown
  folder = _file(here).parent

  def place(match: re.Match[str]) -> str:
    target = pathlib.Path(os.path.normpath(folder / match[0]))
    if not target.is_file():
      return match[0]  # strict mode names it
    if target in _PLACES.values():
      uri = next(uri for uri, file in _PLACES.items() if file == target)
    elif target.is_relative_to(DOCS):
      uri = target.relative_to(DOCS).as_posix()
    else:
      uri = f"project/{target.relative_to(ROOT).as_posix()}"
      if uri not in files.src_uris:
        files.append(File.generated(config, uri, abs_src_path=str(target)))
    return os.path.relpath(uri, pathlib.PurePosixPath(here).parent)

  return _LINK.sub(place, markdown)


def on_page_content(html, page, config, files):
  """Points the links of notebooks, which are to files, at pages."""
  if not page.file.src_uri.endswith(".ipynb"):
    return html
  return re.sub(r'href="\.\./(\w+)\.md"', r'href="../../\1/"', html)


def _pages(nav) -> list[str]:
  if isinstance(nav, str):
    return [nav]
  parts = nav.values() if isinstance(nav, dict) else nav
  return [page for part in parts for page in _pages(part)]


def _file(uri: str) -> pathlib.Path:
  if uri in _PLACES:
    return _PLACES[uri]
  folder, _, name = uri.partition("/")
  return ROOT / name if folder == "project" else DOCS / uri


class Docstrings(griffe.Extension):
  """Makes docstrings fit Markdown, and finds the names that pipeline imports late."""

  def on_package(self, *, pkg, **kwargs):
    for item in _objects(pkg):
      if item.docstring:
        item.docstring.value = _DOCTEST.sub(_fence, item.docstring.value)
    if pkg.path == "pipeline":
      ours = [name for name, path in pkg.imports.items() if path.startswith("pipeline.")]
      pkg.exports = ours


def _objects(parent):
  yield parent
  for member in parent.members.values():
    if not member.is_alias:
      yield from _objects(member)


def _fence(match: re.Match[str]) -> str:
  indent, code = match[1], match[0].removesuffix("\n")
  return f"{indent}```pycon\n{code}\n{indent}```\n"
