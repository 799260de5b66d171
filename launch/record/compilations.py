"""Counts how often XLA compiles a function, from JAX's own events."""

from __future__ import annotations

import collections

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
  """Counts compilations since it was created.

  Example:
    >>> counter = CompilationCounter()
    >>> double = jax.jit(lambda x: 2 * x)
    >>> _ = double(1.0), double(2.0)
    >>> counter.count("<lambda>")
    1
  """

  def __init__(self):
    self._counts: collections.Counter[str] = collections.Counter()
    jax.monitoring.register_event_duration_secs_listener(self._on_event)

  def _on_event(self, event: str, duration_secs: float, **details: str | int):
    del duration_secs
    if event == _EVENT:
      self._counts[str(details["fun_name"])] += 1

  def count(self, function_name: str) -> int:
    """Compilations of a jitted function, by its `__name__`."""
    return sum(n for name, n in self._counts.items() if _bare(name) == function_name)


def _bare(name: str) -> str:
  """The name of a jitted function `f`, which JAX reports as `f` or as `jit(f)`."""
  return name.removeprefix("jit(").removesuffix(")")
