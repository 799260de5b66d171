"""benchmarks.packers: the unit of memory, and mistakes."""

import types

import pytest

from benchmarks import packers


@pytest.mark.parametrize(("system", "peak"), [("darwin", 3 * 2**20), ("freebsd14", 3072)])
def test_peak_memory_is_in_kilobytes(system, peak, monkeypatch):
  """Without Linux's /proc; macOS counts bytes."""
  usage = types.SimpleNamespace(ru_maxrss=peak)
  with monkeypatch.context() as patch:
    patch.setattr(packers.pathlib.Path, "exists", lambda _: False)
    patch.setattr(packers.resource, "getrusage", lambda _: usage)
    patch.setattr(packers.sys, "platform", system)
    found = packers._peak_kilobytes()
  assert found == 3072
