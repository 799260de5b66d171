"""Exhibits as a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.exhibits import Exhibit, Value

QUICK = "Made with `--quick`: runs are short, and what they say has no weight."
_TERMS = """\
- *To the digit*: our number, rounded to the digits that the paper prints, is the paper's.
  *Within a tolerance*: drawn at random, or it depends on the solver; the column "allowed"
  has the largest difference that agrees. *In shape*: a small model and other text; the
  claim is tested, not the number.
- A claim *holds* or *fails* where its test can tell, at the level of 5 %; else it has *no
  power*. That two arms are the same holds by two one-sided tests with a margin, 0.02 nats
  of loss where nothing else is said, and fails where they are shown to differ; both need
  that the same runs can tell apart an arm that is known to differ. That one is larger holds
  where any difference is shown, and fails where one of the margin is ruled out. Claims on
  speed go by quartiles of the clock, those on plans by counting.
- An *arm* is one way to train, run with several seeds. *Pairs* are runs of two arms with
  the same seed: they start from the same weights and, where the text does not say
  otherwise, see the same sequences in the same order.
- *Nats*: of the loss of masked tokens, natural logarithms. *Alone*: the loss where held-out
  sequences are evaluated one a row. *Times unigram*: the accuracy over that of always
  saying the commonest token."""
_AGREES = {True: "yes", False: "**no**", None: ""}
_OUTCOMES = {"holds": "holds", "fails": "**fails**", "no power": "no power"}


def document(
  parts: Mapping[str, Sequence[Exhibit]],
  *,
  machine: str,
  quick: bool,
  failures: Mapping[str, str],
) -> str:
  """The whole report in Markdown.

  Args:
    parts: by the folder of each part, its exhibits; none where it was not made.
    machine: that it was made on.
    quick: whether it was made with less of all.
    failures: the last words of parts that could not be made, by their names.
  """
  overview = summary([exhibit for exhibits in parts.values() for exhibit in exhibits])
  sections = [
    section(exhibit, folder=folder)
    for folder, exhibits in parts.items()
    for exhibit in exhibits
  ]
  warning = ""
  if quick:
    warning += f"\n{QUICK}\n"
  for name, exhibits in parts.items():
    if name in failures:
      warning += f"\n**{name} failed**: {failures[name]}\n"
    elif not exhibits:
      warning += f"\n**{name} was not made**: `python -m experiments.{name}`\n"
  return (
    "# The packing paper, reproduced\n\n"
    "Each table and figure of Krell et al., *Efficient Sequence Packing without "
    "Cross-contamination*, [arXiv 2107.02027](https://arxiv.org/abs/2107.02027), beside "
    "what this project finds. Made by `make reproduce`; each part alone by its command. "
    f"Machine: {machine}.\n{warning}\n"
    f"{_TERMS}\n\n"
    f"{overview}\n\n" + "\n\n".join(sections) + "\n"
  )


def summary(exhibits: Iterable[Exhibit]) -> str:
  """A table of what each came to, with links to their sections."""
  rows = [
    [
      f"[{exhibit.name}](#{_anchor(exhibit)})",
      exhibit.title,
      exhibit.agreement,
      exhibit.state,
      f"`{exhibit.command}`",
    ]
    for exhibit in exhibits
  ]
  return table(["exhibit", "what", "must agree", "what came out", "command"], rows)


def section(exhibit: Exhibit, *, folder: str) -> str:
  """One exhibit in Markdown.

  Args:
    exhibit: what to tell.
    folder: of its pictures, from where the text is.
  """
  parts = [f"## {exhibit.name}: {exhibit.title}", exhibit.finding]
  if exhibit.statements:
    rows = [[x.claim, _OUTCOMES[x.outcome], x.evidence] for x in exhibit.statements]
    parts.append(table(["claim", "outcome", "evidence"], rows))
  parts += [f"![{exhibit.title}]({folder}/{name})" for name in exhibit.pictures]
  if exhibit.values:
    parts.append(_values(exhibit.values))
  if exhibit.text:
    parts.append(exhibit.text)
  parts.append(f"Must agree {exhibit.agreement}. `{exhibit.command}`")
  if exhibit.agreement == "not run here":
    parts[-1] = f"Not run here; with the data: `{exhibit.command}`"
  return "\n\n".join(parts)


def _values(values: Sequence[Value]) -> str:
  """A table of numbers, without the columns that none of them needs."""
  columns = {
    "": [x.name for x in values],
    "paper": [x.paper for x in values],
    "here": [x.here for x in values],
    "difference": [x.difference for x in values],
    "allowed": [x.allowed for x in values],
    "agrees": [_AGREES[x.agrees] for x in values],
    "note": [x.note for x in values],
  }
  shown = {name: cells for name, cells in columns.items() if any(cells)}
  numbers = [
    i for i, x in enumerate(shown) if x in ("paper", "here", "difference", "allowed")
  ]
  return table(list(shown), zip(*shown.values(), strict=True), right=numbers)


def table(
  header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()
) -> str:
  """A table in Markdown.

  Args:
    header: titles of the columns.
    rows: cells.
    right: columns whose cells stand at the right.

  Example:
    >>> print(table(["name", "n"], [["a", "1"]], right=[1]))
    | name | n |
    |---|---:|
    | a | 1 |
  """
  rule = "".join("---:|" if i in right else "---|" for i in range(len(header)))
  lines = [_line(header), f"|{rule}", *(_line(row) for row in rows)]
  return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
  return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _anchor(exhibit: Exhibit) -> str:
  """Of the heading, as GitHub makes it."""
  title = f"{exhibit.name}: {exhibit.title}".lower().replace(" ", "-")
  return "".join(c for c in title if c.isalnum() or c in "-_")
