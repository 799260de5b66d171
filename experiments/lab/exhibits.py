"""A table or figure of a paper: what it says, beside what we get."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Agreement = Literal["to the digit", "within a tolerance", "in shape", "not run here"]
Outcome = Literal["holds", "fails", "no power"]


class Value(NamedTuple):
  """A number of the paper beside ours.

  Attributes:
    name: of the quantity.
    paper: as the paper prints it.
    here: ours, with as many digits.
    difference: here - paper; "" where they are not compared.
    agrees: whether ours is close enough; None where they are not compared.
    note: why they differ, where we know.
    allowed: the largest difference that agrees; "" where every digit must.
  """

  name: str
  paper: str
  here: str
  difference: str = ""
  agrees: bool | None = None
  note: str = ""
  allowed: str = ""


class Statement(NamedTuple):
  """A claim of the paper, tested.

  Attributes:
    claim: in words.
    outcome: whether it holds; "no power" where the test cannot decide.
    evidence: estimate, interval, test and number of runs.
  """

  claim: str
  outcome: Outcome
  evidence: str


@dataclasses.dataclass(frozen=True)
class Exhibit:
  """One table, figure or section.

  Attributes:
    name: as the paper calls it, such as "Table 7".
    title: what it shows.
    agreement: how close ours must be.
    finding: our result, in a sentence or two.
    command: that makes it.
    claim: what the paper says, in a sentence.
    values: numbers beside the paper's.
    statements: claims, tested.
    pictures: names of files in the folder of its part.
    text: more, in Markdown, such as a table of our own.
    minutes: that its part took.
    machine: that it was made on.
  """

  name: str
  title: str
  agreement: Agreement
  finding: str
  command: str
  claim: str = ""
  values: Sequence[Value] = ()
  statements: Sequence[Statement] = ()
  pictures: Sequence[str] = ()
  text: str = ""
  minutes: float = 0.0
  machine: str = ""

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
    for outcome, word in (("holds", "hold"), ("fails", "fail"), ("no power", "no power")):
      if number := sum(statement.outcome == outcome for statement in self.statements):
        parts.append(f"{number} {outcome if number == 1 else word}")
    return ", ".join(parts) or ("shown" if self.pictures else "-")


def agreeing(values: Iterable[Value]) -> str:
  """How many numbers agree, in words; "" where none is compared.

  Example:
    >>> agreeing([to_the_digit("a", "1", 1), within("b", "10", 12, tolerance=1)])
    '1 of 1 to the digit, 0 of 1 within their tolerance'
  """
  judged = [value for value in values if value.agrees is not None]
  parts = []
  for some, how in (
    ([x for x in judged if not x.allowed], "to the digit"),
    ([x for x in judged if x.allowed], "within their tolerance"),
  ):
    if some:
      parts.append(f"{sum(x.agrees is True for x in some)} of {len(some)} {how}")
  return ", ".join(parts)


def to_the_digit(name: str, paper: str, here: float, *, note: str = "") -> Value:
  """Compares with a printed number: ours agrees if it rounds to the same digits.

  Args:
    name, paper, note: as of `Value`; `paper` may have commas between thousands.
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
  """Compares with a printed number, and allows a difference.

  Args:
    name, paper, note: as of `Value`; `paper` may have commas between thousands.
    here: ours, in the same unit.
    tolerance: the largest difference, after ours is rounded to as many digits.

  Example:
    >>> within("packs", "40,808", 40778, tolerance=40.5)
    Value(name='packs', ..., difference='-30', agrees=True, note='', allowed='40')
  """
  plain = paper.replace(",", "")
  digits = len(plain.partition(".")[2])
  thousands = "," if "," in paper else ""
  shown = f"{here:{thousands}.{digits}f}"
  apart = round(float(shown.replace(",", "")) - float(plain), digits)
  return Value(
    name,
    paper,
    shown,
    f"{apart:+{thousands}.{digits}f}" if apart else "0",
    abs(apart) <= tolerance,
    note if apart or tolerance else "",
    _largest(tolerance, digits) if tolerance else "",
  )


def _largest(tolerance: float, digits: int) -> str:
  """The largest difference of so many digits within a tolerance."""
  whole = math.floor(tolerance * 10**digits + 1e-9) / 10**digits
  shown = f"{whole:,.{digits}f}"
  return shown.rstrip("0").rstrip(".") if "." in shown else shown


def compared(
  names: Sequence[str], paper: Sequence[str], here: Sequence[float], *, prefix: str = ""
) -> list[Value]:
  """Compares a row of a table, each number to the digit.

  Args:
    names: of the columns.
    paper: the printed numbers.
    here: ours.
    prefix: of the names: which row it is.
  """
  return [
    to_the_digit(f"{prefix}{name}", a, b)
    for name, a, b in zip(names, paper, here, strict=True)
  ]
