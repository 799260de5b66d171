"""Which rows of a batch a process has, and whether a saved position fits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from packing import InputError
from packing.errors import check, check_integer, multiples_near, short_repr


def block_of_process(batch_size: int, process_index: int, process_count: int) -> slice:
  """The rows of each batch that a process has; all have as many.

  Raises:
    InputError: the processes do not divide the batch, or a number is out of range.
  """
  check_integer("batch_size", batch_size, at_least=1)
  check_integer("process_count", process_count, at_least=1)
  check_integer("process_index", process_index, at_least=0, at_most=process_count - 1)
  divides = batch_size % process_count == 0
  near = multiples_near(batch_size, process_count)
  expected = f"a multiple of the {process_count} processes, such as {near}"
  check(divides, "batch_size", batch_size, expected)
  size = batch_size // process_count
  return slice(process_index * size, (process_index + 1) * size)


def check_same_state(state: Mapping[str, Any], own: Mapping[str, Any], same: Iterable[str]):
  """Raises InputError if a state has other fields than `own`, or differs in those named."""
  if state.keys() != own.keys():
    raise InputError(
      f"The state has the fields {', '.join(state)}; expected {', '.join(own)}. Resume "
      "with the config and the version of this code that it was saved with."
    )
  for name in same:
    if state.get(name) != own.get(name):
      raise InputError(
        f"The state was saved with {name}={short_repr(state[name])}; this is "
        f"{short_repr(own[name])}. Resume with the same {name}."
      )


def ids_sha256(ids: np.ndarray) -> str:
  """SHA-256 of the sequences that come next, which tells whether their order is the same.

  Args:
    ids: int64; numbers of sequences, of any shape.
  """
  return hashlib.sha256(np.ascontiguousarray(ids, "<i8").tobytes()).hexdigest()


def check_same_order(saved: Any, ids: np.ndarray):
  """Raises InputError if other sequences come next than when a state was saved.

  NumPy, which draws the order of balanced rows, does not promise the same in each version.

  Args:
    saved: `ids_sha256` of those that came next.
    ids: those that come next.
  """
  if saved != ids_sha256(ids):
    raise InputError(
      "The next rows are not those that the run would have read, so some sequences would "
      "be missed and others repeated. Another version of isopack or NumPy may order them "
      "differently: resume with the versions, and the seed, that the run began with."
    )
