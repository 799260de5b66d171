"""The exception for a user's mistakes, and checks that raise it."""

from __future__ import annotations

import operator

import numpy as np


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
  text = " ".join(repr(value).splitlines())
  return text if len(text) <= 40 else text[:37] + "..."


def check(condition: bool, name: str, value, expected: str):
  """Raises InputError with a name, its value and what was expected.

  Args:
    condition: the error is raised if this is false.
    name: of an argument or a field.
    value: its value, of any type.
    expected: completes "expected ...", with the remedy if that is not clear.

  Example:
    >>> check(False, "effort", -1, "seconds of a core, such as 10")
    Traceback (most recent call last):
    packing.errors.InputError: effort is -1; expected seconds of a core, such as 10.
  """
  if not condition:
    raise InputError(f"{name} is {short_repr(value)}; expected {expected}.")


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
    expected = f"a whole number of at least {at_least}{otherwise}"
  elif number < at_least:
    expected = f"at least {at_least}{otherwise}"
  elif number > at_most:
    expected = f"at most {at_most}"
  else:
    return number
  raise InputError(f"{name} is {short_repr(value)}; expected {expected}.")


def multiples_near(value: int, of: int) -> str:
  """The positive multiples of a number next to another, for a message.

  Example:
    >>> multiples_near(7, 2), multiples_near(1, 2)
    ('6 or 8', '2')
  """
  below = value // of * of
  return " or ".join(str(number) for number in (below, below + of) if number > 0)


def as_array(values) -> np.ndarray:
  """`np.asarray`, but lists of different lengths give objects, which a check then rejects.

  Example:
    >>> as_array([[1, 2], [3]]).dtype
    dtype('O')
  """
  try:
    return np.asarray(values)
  except (TypeError, ValueError):
    return np.full(len(values), None)


def check_numbers(name: str, values, *, axes: int) -> np.ndarray:
  """Returns int64 or float64 numbers after checking that they are finite and at least 0.

  Args:
    name: what the numbers are, for the message.
    values: the numbers, of any type.
    axes: the number of axes that they must have.

  Raises:
    InputError: other values, or another number of axes.

  Example:
    >>> check_numbers("costs", np.array([255, 1], np.uint8), axes=1).dtype
    dtype('int64')
  """
  array = as_array(values)
  if array.ndim != axes or array.dtype.kind not in "biuf":
    raise InputError(
      f"{name} have shape {array.shape} of {array.dtype}; expected {axes}-D numbers."
    )
  if not (right := np.isfinite(array) & (array >= 0)).all():
    raise InputError(f"{name} hold {array[~right][0]}; expected finite numbers from 0 on.")
  # No sum or difference wraps around then.
  return array.astype(np.result_type(array, np.int64), copy=False)
