"""Writes the reference of the config fields, from `configs/base.py` and its comments.

python -m launch.reference > docs/config.md
"""

from __future__ import annotations

import argparse
import itertools
import re

from launch.fields import BASE, base_config, flat

_HEAD = """# The fields of a config

Written by `python -m launch.reference > docs/config.md`, from `configs/base.py`. The other
files in `configs/` change some defaults, and the command line changes any, such as
`--config.train.steps=400`. Before any work, a run rejects unknown fields, values of another
type than the default, and unusable values. Where a field is a choice, its values are
listed, with the default in bold. [training.md](training.md) says what a run does with
them."""
_FIELD = re.compile(r" *config\.([a-z0-9_.]+) = (?!ConfigDict)\S.*?(?:  # (.*))?")


def comments(source: str) -> dict[str, str]:
  """Reads each field's comments: those on the lines above it, then the one beside it.

  Args:
    source: the text of a config file.

  Returns:
    Comments by field, in the order of the file.

  Example:
    >>> comments("# In tokens.\\nconfig.data.length = 9  # or 8\\nconfig.seed = 0")
    {'data.length': 'In tokens. or 8', 'seed': ''}
  """
  found: dict[str, str] = {}
  above: list[str] = []
  for line in source.splitlines():
    if match := _FIELD.fullmatch(line):
      found[match[1]] = " ".join(filter(None, [*above, match[2]]))
      above = []
    elif line.lstrip().startswith("# "):
      above.append(line.lstrip().removeprefix("# "))
    else:
      above = []
  return found


def reference() -> str:
  """The page of `configs/base.py`, in Markdown: a table for each section of its fields.

  Raises:
    ValueError: a field has no comment.
  """
  values, parts = flat(base_config()), [_HEAD]
  descriptions = comments(BASE.read_text())
  if wrong := sorted(name for name in values if not descriptions.get(name)):
    raise ValueError(f"Expected a comment on each field of {BASE}; see {', '.join(wrong)}.")
  for section, names in itertools.groupby(descriptions, lambda x: x.rpartition(".")[0]):
    lines = [f"## {section}", ""] if section else []
    lines += ["| field=default | what it is |", "|---|---|"]
    for name in names:
      value = values[name]
      default, text = repr(value), descriptions[name]
      if isinstance(value, str):
        default, word = f'"{value}"', re.escape(value) or "(?!)"
        text = re.sub(rf"(?<![\w-]){word}(?![\w-])", f"**{value}**", text, count=1)
      lines.append(f"| `{name}={default}` | {text} |")
    parts.append("\n".join(lines))
  return "\n\n".join(parts)


if __name__ == "__main__":
  argparse.ArgumentParser(
    prog="python -m launch.reference",
    description="Prints the reference of the config fields, docs/config.md.",
  ).parse_args()
  print(reference())
