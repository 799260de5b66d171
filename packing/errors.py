"""The exception for a user's mistakes, and checks that raise it."""

from __future__ import annotations

import operator


class InputError(ValueError):
  """A user's input cannot be used.

  The message says what was expected, what was found and what to do. Commands print it
  without a traceback and exit with status 2.
  """


class UnsolvedError(InputError):
  """The problem needs too much memory, or has too many lengths, for this algorithm."""


def short_repr(value) -> str:
  """The value as text for a message, cut to 40 characters.

  Example:
    >>> short_repr("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
  """
  text = repr(value)
  return text if len(text) <= 40 else text[:37] + "..."


def check_integer(
  name: str, value, *, at_least: int, at_most: int = 2**62, otherwise: str = ""
) -> int:
  """Returns a value after checking that it is a whole number within its range.

  Args:
    name: the argument's name, for the message.
    value: the value to check, of any type.
    at_least: the smallest number allowed.
    at_most: the largest number allowed.
    otherwise: what else is allowed, for the message.

  Raises:
    InputError: not a whole number, or out of range.

  Example:
    >>> check_integer("depth", 3, at_least=1)
    3
  """
  try:
    number: int | None = operator.index(value)
  except TypeError:
    number = None
  if number is None or isinstance(value, bool):
    raise InputError(
      f"{name} is {short_repr(value)}; expected a whole number of at least "
      f"{at_least}{otherwise}."
    )
  if number < at_least:
    raise InputError(
      f"{name} is {short_repr(value)}; expected at least {at_least}{otherwise}."
    )
  if number > at_most:
    raise InputError(f"{name} is {short_repr(value)}; expected at most {at_most}.")
  return number
