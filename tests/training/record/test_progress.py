"""A bar for people, lines for logs."""

import fcntl
import io
import os
import pty
import struct
import termios
import types

import pytest

from training.record import progress

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
  assert "3/3 batches" in capsys.readouterr().err


@pytest.fixture
def frames(monkeypatch, now):
  """What a terminal of some columns shows after each step, the first of which compiles."""

  def show(columns, *, total=1700, steps=25):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as stderr:
      monkeypatch.setattr(progress.sys, "stderr", stderr)
      seen = []

      def look(bar):
        bar.refresh()
        print(end="|end", file=stderr, flush=True)
        text = b""
        while not text.endswith(b"|end"):  # a terminal may give it in pieces
          text += os.read(ours, 4096)
        seen.append(text.decode().removesuffix("|end").split("\r")[-1])

      with progress.Progress("training", total=total) as shown:
        look(shown._bar)
        for step in range(1, steps + 1):
          now[0] += 2.0 if step > 1 else 1000.0
          shown.update()
          if step % 5 == 0:
            shown.line(step, LINE | {"loss": 10.5 / step, "mlm_accuracy": step / 25})
          look(shown._bar)
    os.close(ours)
    return seen

  return show


@pytest.mark.parametrize(
  ("columns", "figure"), [(60, ""), (80, "accuracy"), (100, "sequences/s")]
)
def test_a_bar_keeps_its_width_and_has_the_figures_that_fit(frames, columns, figure):
  seen = frames(columns)
  assert {len(frame.split("|")[1]) for frame in seen} == {8}
  assert max(map(len, seen)) <= columns
  assert figure in seen[-1]


def test_a_bar_says_that_it_compiles_and_tells_the_time_left_after_ten_steps(frames):
  seen = frames(80)
  assert ["compiling" in frame for frame in seen] == [True] + 25 * [False]
  assert "left" not in "".join(seen[:10])
  assert "56:20 left" in seen[10]  # 1690 steps of 2 seconds, without the one that compiled
  assert "?" not in "".join(seen)
