"""Exhibits as Markdown: the report, and the index of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from lab.exhibits import Exhibit, Outcome, Value
from lab.statistics import LEVEL, decide
from lab.table import table

QUICK = "Made with `--quick`: runs are short, and their results prove nothing."
_TERMS = """\
- *To the digit*: our number equals the paper's in every digit that the paper prints.
  *Within a tolerance*: the number is random or depends on the solver, and the column
  "allowed" has the largest difference that still agrees. *In shape*: our model is small and
  our text another, so we test the claim and not the number.
- A claim *holds* or *fails* if a test decides it at the 5 % level; otherwise it has *no
  power*: neither it nor its opposite is shown. A margin says which differences matter:
  0.02 nats of loss unless another is named. "One arm has more" is *equivalent* if the
  difference is shown to be within the margin. Otherwise it holds if the 95 % interval is
  above 0 and the mean difference is at least the margin, and fails if the difference is
  shown to be below the margin. "Two arms are equal" holds if two one-sided tests show that
  they differ by less than the margin, and fails if they are shown to differ by more. It has
  no power unless an arm that is known to differ is shown to do so. `decide` in
  lab/statistics.py has all rules. Claims on the cost of packing use the 95 % interval of a
  median of measured ratios; claims on plans use counts.
- An *arm* is one way to train, run with several seeds: three on docstrings, or eight for
  most claims that three could not decide. The other five were added after the results of
  the first three had been seen, which each claim that uses them says. Runs of two arms with
  the same seed are *paired*: they start from the same weights and, unless the text says
  otherwise, see the same sequences in the same order.
- *Nats* are the unit of the masked-token loss (natural logarithm). *Alone* is the loss on
  held-out sequences, one per row. *Times unigram* is the accuracy divided by that of always
  predicting the most frequent token."""
NEAR = 0.02  # a p from here to `LEVEL` is borderline
_AGREES = {True: "yes", False: "**no**", None: ""}
_OUTCOMES = {outcome: outcome for outcome in get_args(Outcome)} | {"fails": "**fails**"}


def document(
  parts: Mapping[str, Sequence[Exhibit]],
  *,
  quick: bool = False,
  failures: Mapping[str, str] | None = None,
) -> str:
  """The whole report, from the exhibits and failures of each part, by the part's folder."""
  exhibits = [exhibit for part in parts.values() for exhibit in part]
  text = [
    "# The packing paper, reproduced",
    "Each table and figure of Krell et al., *Efficient Sequence Packing without "
    "Cross-contamination*, [arXiv 2107.02027](https://arxiv.org/abs/2107.02027), beside "
    "what we get. Made by `make reproduce`; each part alone by its command. "
    f"{_machines(exhibits)}",
    QUICK if quick else "",
  ]
  for name, made in parts.items():
    if failures and name in failures:
      text.append(f"**{name} failed**: {failures[name]}")
    elif not made:
      text.append(
        f"**{name} was not made**: `python -m experiments.reproduce --only {name}`"
      )
  text += [f"{_TERMS}\n{_by_chance(exhibits)}".strip(), index(exhibits)]
  text += [section(x, folder=name) for name, part in parts.items() for x in part]
  return "\n\n".join(filter(None, text)) + "\n"


def part(name: str, exhibits: Sequence[Exhibit], *, quick: bool = False) -> str:
  """The report of one part; its pictures are in the same folder."""
  text = [f"# {name}", _machines(exhibits), QUICK if quick else "", index(exhibits)]
  text += [section(exhibit, folder=".") for exhibit in exhibits]
  return "\n\n".join(filter(None, text)) + "\n"


def _by_chance(exhibits: Sequence[Exhibit]) -> str:
  """How many outcomes may be wrong, and those near the level; "" without claims."""
  claims = [(x, exhibit.name) for exhibit in exhibits for x in exhibit.statements]
  tested = [(x, name, *decide(x.test)) for x, name in claims if x.test]
  near = [
    f'"{x.claim}" ({name}: {outcome}, p = {p:.3f})'
    for x, name, outcome, p in tested
    if NEAR <= p < LEVEL
  ]
  if not tested:
    return ""
  return (
    f"- Of {len(claims)} claims, {len(tested)} are tested over seeds, each at the "
    f"{100 * LEVEL:g} % level, without a\n  correction for their number: up to about "
    f"{LEVEL * len(tested):.0f} outcomes may be wrong by chance.\n  Borderline, "
    f"with p from {NEAR:g} to {LEVEL:g}: {'; '.join(near) or 'none'}."
  )


def _machines(exhibits: Iterable[Exhibit]) -> str:
  machines = dict.fromkeys(y for x in exhibits for y in x.machine.split(" and ") if y)
  return f"Machine: {'; '.join(machines)}." if machines else ""


def index(exhibits: Iterable[Exhibit], *, report: str = "") -> str:
  """A table of all exhibits, with links into the file `report`, "" for the same file."""
  rows = [
    [
      f"[{exhibit.name}]({report}#{_anchor(exhibit)})",
      exhibit.claim or exhibit.title,
      exhibit.agreement,
      exhibit.state,
      _minutes(exhibit),
      f"`{exhibit.command}`",
    ]
    for exhibit in exhibits
  ]
  header = ["exhibit", "what the paper says", "must agree", "result", "minutes", "command"]
  return table(header, rows, left=(0, 1, 2, 3, 5))


def _minutes(exhibit: Exhibit) -> str:
  if exhibit.agreement == "not run here" or not exhibit.minutes:
    return ""
  return f"{exhibit.minutes:.1f}" if exhibit.minutes >= 0.05 else "< 0.1"


def section(exhibit: Exhibit, *, folder: str) -> str:
  """One exhibit in Markdown; its pictures are in `folder`, relative to the text."""
  parts = [f"## {exhibit.name}: {exhibit.title}", exhibit.finding]
  if exhibit.statements:
    rows = [[x.claim, _OUTCOMES[x.outcome], x.evidence] for x in exhibit.statements]
    parts.append(table(["claim", "outcome", "evidence"], rows, left=range(3)))
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
  """A table of numbers, without columns that are empty."""
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
  words = [i for i, x in enumerate(shown) if x in ("", "agrees", "note")]
  return table(shown, zip(*shown.values(), strict=True), left=words)


def _anchor(exhibit: Exhibit) -> str:
  """The anchor of an exhibit's heading, as GitHub makes it."""
  title = f"{exhibit.name}: {exhibit.title}".lower().replace(" ", "-")
  return "".join(c for c in title if c.isalnum() or c in "-_")
