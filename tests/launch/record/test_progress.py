"""A bar for people, lines for logs."""

import io
import types

import pytest

from launch.record import progress

LINE = {
  "loss": 4.1239,
  "mlm_accuracy": 0.1234,
  "sequences_per_second": 1260.4,
  "padding": 0.0121,
  "learning_rate": 0.1,
}


@pytest.fixture
def now(monkeypatch):
  """A clock that the test moves."""
  now = [50.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(progress, "time", clock)
  return now


def show(monkeypatch, now, *, terminal=False) -> str:
  stderr = io.StringIO()
  monkeypatch.setattr(stderr, "isatty", lambda: terminal)
  monkeypatch.setattr(stderr, "fileno", lambda: 2)
  monkeypatch.setattr(progress.sys, "stderr", stderr)
  with progress.Progress("training", total=300, done=100) as shown:
    for step in range(101, 112):
      now[0] += 2.0 if step > 101 else 1000.0
      shown.update()
      if step in (101, 111):
        shown.line(step, LINE)
  return stderr.getvalue()


def test_a_log_has_a_line_for_each_line_of_metrics(monkeypatch, now):
  first, second = show(monkeypatch, now).splitlines()
  figures = "loss 4.124, accuracy 12.3%, 1,260 sequences/s, padding 1.2%"
  assert first == f"training: 101/300 steps, {figures}"  # one step, which compiled
  # 189 steps of 2 seconds are left.
  assert second == f"training: 111/300 steps, {figures}, 06:18 left"


@pytest.mark.parametrize("terminal", [True, False])
def test_another_process_shows_nothing(monkeypatch, now, terminal):
  assert "111/300" in show(monkeypatch, now, terminal=terminal)
  monkeypatch.setattr(progress.jax, "process_index", lambda: 1)
  assert show(monkeypatch, now, terminal=terminal) == ""


def test_what_is_gone_through_is_counted(monkeypatch, now, capsys):
  monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
  with progress.Progress("evaluating", total=3, unit="batches") as shown:
    assert list(shown.over("abc")) == ["a", "b", "c"]
  assert "3/3" in capsys.readouterr().err
