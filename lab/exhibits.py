"""A table or figure of a paper: what the paper says, and what we get."""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from packing import InputError

Agreement = Literal["to the digit", "within a tolerance", "in shape", "not run here"]
Outcome = Literal["holds", "fails", "equivalent", "no power"]


class Value(NamedTuple):
  """A number of the paper beside ours."""

  name: str  # of the quantity
  paper: str  # as the paper prints it
  here: str  # ours, with as many digits
  difference: str = ""  # here - paper; "" if they are not compared
  agrees: bool | None = None  # None if they are not compared
  note: str = ""  # why they differ, if known
  allowed: str = ""  # the largest difference that agrees; "" if every digit must agree


class Statement(NamedTuple):
  """A claim of the paper, tested."""

  claim: str
  outcome: Outcome
  evidence: str  # estimate, interval, test and number of runs
  # What `statistics.judge` made outcome and evidence from; None if it did not make them.
  test: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Exhibit:
  """One table, figure or section."""

  name: str  # as the paper calls it, such as "Table 7"
  title: str  # what it shows
  agreement: Agreement  # how close ours must be
  finding: str  # our result, in a sentence or two
  command: str  # that makes it
  claim: str = ""  # what the paper says, in a sentence
  values: Sequence[Value] = ()
  statements: Sequence[Statement] = ()
  pictures: Sequence[str] = ()  # names of files in the folder of its part
  text: str = ""  # more, in Markdown, such as a table of our own
  minutes: float = 0.0  # that its part took
  machine: str = ""  # that it was made on

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> Exhibit:
    """The exhibit that `dataclasses.asdict` turned into `fields`."""
    values = [Value(*x) for x in fields["values"]]
    statements = [Statement(*x) for x in fields["statements"]]
    return cls(**{**fields, "values": values, "statements": statements})

  @property
  def state(self) -> str:
    """How many numbers agree and how many statements hold, in a few words.

    "shown" if there is only a picture, "-" if there is nothing to judge.
    """
    parts = [summary] if (summary := agreeing(self.values)) else []
    several = {"holds": "hold", "fails": "fail"}
    counts = collections.Counter(statement.outcome for statement in self.statements)
    parts += [
      f"{number} {outcome if number == 1 else several.get(outcome, outcome)}"
      for outcome in get_args(Outcome)
      if (number := counts[outcome])
    ]
    return ", ".join(parts) or ("shown" if self.pictures else "-")


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a report: where it works, and how much it does."""

  folder: pathlib.Path  # for its pictures and for results that it keeps
  command: str  # that makes it
  quick: bool = False  # whether to do only a little, to see that it works
  seeds: int | None = None  # how many runs each arm has; None for the default of the part
  jobs: int = 1  # runs at a time
  data: str | None = None  # the folder of real data, if there is one

  def exhibit(
    self,
    name: str,
    title: str,
    finding: str,
    *,
    agreement: Agreement = "in shape",
    **fields: Any,
  ) -> Exhibit:
    """An exhibit that this part's command makes, unless `fields` name another command."""
    return Exhibit(name, title, agreement, finding, **{"command": self.command} | fields)

  def not_run(
    self,
    name: str,
    title: str,
    why: str,
    *,
    printed: Mapping[str, str] | None = None,
    **fields: Any,
  ) -> Exhibit:
    """An exhibit of what is not run here, with the numbers that the paper prints."""
    values = [Value(what, number, "not run") for what, number in (printed or {}).items()]
    return self.exhibit(name, title, why, agreement="not run here", values=values, **fields)

  def real_data(self) -> str:
    """The folder of real data.

    Raises:
      InputError: none is given.
    """
    if self.data is None:
      raise InputError(
        "--data is not given; expected a folder with real data; lab/real_data.py lists it."
      )
    return self.data

  def sibling(self, name: str) -> Part:
    """Another part of the same report, whose results this part needs too."""
    return dataclasses.replace(self, folder=self.folder.parent / name)


def judged(
  claim: str, holds: bool, evidence: str, *, fails: bool | None = None
) -> Statement:
  """A statement that is judged by counts or by an interval.

  Without `fails`, it holds or fails. With `fails`, it has no power if neither `holds` nor
  `fails` is true.
  """
  undecided = fails is not None and not fails
  outcome: Outcome = "holds" if holds else "no power" if undecided else "fails"
  return Statement(claim, outcome, evidence)


def agreeing(values: Iterable[Value]) -> str:
  """How many numbers agree, in words; "" if none is compared.

  Example:
    >>> agreeing([to_the_digit("a", "1", 1), within("b", "10", 12, tolerance=1)])
    '1 of 1 to the digit, 0 of 1 within their tolerance'
  """
  compared = [value for value in values if value.agrees is not None]
  exact = [value.agrees for value in compared if not value.allowed]
  loose = [value.agrees for value in compared if value.allowed]
  return ", ".join(
    f"{sum(map(bool, agree))} of {len(agree)} {how}"
    for agree, how in ((exact, "to the digit"), (loose, "within their tolerance"))
    if agree
  )


def to_the_digit(name: str, paper: str, here: float, *, note: str = "") -> Value:
  """Compares with a printed number: ours agrees if it rounds to the same digits.

  Args:
    name, paper, note: as in `Value`; `paper` may have commas between thousands.
    here: ours, in the same unit.

  Example:
    >>> to_the_digit("efficiency (%)", "99.949", 99.94943)
    Value(name='efficiency (%)', paper='99.949', here='99.949', ... agrees=True, ...)
    >>> to_the_digit("packs", "8,168,000", 8166708).difference
    '-1,292'
  """
  return within(name, paper, here, tolerance=0, note=note)


def within(
  name: str, paper: str, here: float, *, tolerance: float, note: str = ""
) -> Value:
  """Like `to_the_digit`, but allows a difference after ours is rounded to as many digits.

  Example:
    >>> within("packs", "40,808", 40778, tolerance=40.5)
    Value(name='packs', ..., difference='-30', agrees=True, note='', allowed='40')
  """
  plain = paper.replace(",", "")
  digits = len(plain.partition(".")[2])
  thousands = "," if "," in paper else ""
  shown = f"{here:{thousands}.{digits}f}"
  apart = round(float(shown.replace(",", "")) - float(plain), digits)
  allowed = ""
  if tolerance:  # `allowed` is the largest difference within it that has as many digits
    allowed = f"{math.floor(tolerance * 10**digits + 1e-9) / 10**digits:,.{digits}f}"
    allowed = allowed.rstrip("0").rstrip(".") if digits else allowed
  return Value(
    name,
    paper,
    shown,
    f"{apart:+{thousands}.{digits}f}" if apart else "0",
    abs(apart) <= tolerance,
    note if apart or tolerance else "",
    allowed,
  )


def compared(
  names: Sequence[str], paper: Sequence[str], here: Sequence[float], *, prefix: str = ""
) -> list[Value]:
  """Compares a row of a table `to_the_digit`; `prefix` says which row it is."""
  rows = zip(names, paper, here, strict=True)
  return [to_the_digit(f"{prefix}{name}", printed, ours) for name, printed, ours in rows]
