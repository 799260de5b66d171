"""Fields of a config: what each is, and what its value must be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from training.errors import ConfigError


class Rule(NamedTuple):
  """What a value must be: a test, and the words that complete "expected ..."."""

  holds: Callable[[Any], bool]
  expected: str


def one_of(names: Iterable[str]) -> Rule:
  """A choice."""
  known = tuple(names)
  return Rule(lambda x: x in known, f"one of {', '.join(known)}")


AT_LEAST_1 = Rule(lambda x: x >= 1, "at least 1")
AT_LEAST_0 = Rule(lambda x: x >= 0, "0 or more")
FRACTION = Rule(lambda x: 0 <= x <= 1, "a fraction in [0, 1]")
FRACTION_BELOW_1 = Rule(lambda x: 0 <= x < 1, "a fraction in [0, 1)")
INNER_FRACTION = Rule(lambda x: 0 < x < 1, "a fraction in (0, 1)")
POSITIVE = Rule(lambda x: 0 < x < math.inf, "more than 0, and finite")
NOT_NEGATIVE = Rule(lambda x: 0 <= x < math.inf, "0 or more, and finite")


def option(default: Any, meaning: str, rule: Rule | None = None, **metadata: Any) -> Any:
  """A field of a config.

  Args:
    default: its default, which also gives its type.
    meaning: a sentence for docs/config.md.
    rule: what its value must be.
    metadata: `name`, its name in a config, if that is not GROUP.NAME; `absent`, other
      values that mean nothing for a kind of run without this field; `shared`, whether a
      config that serves several kinds of runs may set it for those without it.
  """
  metadata |= {"meaning": meaning, "rule": rule}
  return dataclasses.field(default=default, metadata=metadata)


class Option(NamedTuple):
  """A field that a config can set.

  Attributes:
    attribute: its name in its part.
    default: its value, if a config does not set it.
    metadata: of `option`, perhaps from a class above its part.
  """

  attribute: str
  default: Any
  metadata: Mapping[str, Any]


def options_of(part: type, group: str = "") -> dict[str, Option]:
  """The fields of a part that a config can set, by their names there.

  Args:
    part: a dataclass.
    group: of its fields in a config, for a class without a `GROUP`.
  """
  found = {}
  for field in dataclasses.fields(part):
    above = (getattr(x, "__dataclass_fields__", {}).get(field.name) for x in part.__mro__)
    # A class may change a default without a word on the meaning.
    known = next((x.metadata for x in above if x and "meaning" in x.metadata), None)
    if known:
      name = f"{group or getattr(part, 'GROUP', '')}.{field.name}".lstrip(".")
      found[known.get("name", name)] = Option(field.name, field.default, known)
  return found


def check_option(
  condition: bool, field: str, value: Any, expected: str, *, remedy: str = ""
):
  """Raises ConfigError with a field, its value and what was expected.

  Args:
    condition: the error is raised if this is false.
    field: the name of the field in a config, without "config.".
    value: its value.
    expected: completes "expected ...".
    remedy: what to do; by default, to set the field.
  """
  if not condition:
    remedy = remedy or f"Set it with --config.{field}=..."
    raise ConfigError(f"config.{field} is {value!r}; expected {expected}. {remedy}")


class Part:
  """A part of a run; each field follows its own rule."""

  GROUP: ClassVar[str] = ""  # of its fields in a config

  def __post_init__(self):
    for name, known in options_of(type(self)).items():
      if rule := known.metadata.get("rule"):
        value = getattr(self, known.attribute)
        check_option(rule.holds(value), name, value, rule.expected)
