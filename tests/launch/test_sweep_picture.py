"""The picture of a sweep."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from launch.record import plots as drawing
from launch.sweep import picture as sweep_picture
from tests.launch.record.test_report import picture, share_of

FIRST, SECOND = map(to_rgba, drawing.colours(2))


@pytest.fixture
def axes_of(tmp_path, monkeypatch):
  """Draws; returns the axes as they are when the picture is saved, and its pixels."""

  def draw(function, *arguments, **options):
    found = []
    save = drawing.save

    def keep(figure, path):
      found.extend(figure.axes)
      save(figure, path)

    with monkeypatch.context() as patched:
      patched.setattr(drawing, "save", keep)
      function(tmp_path / "picture.png", *arguments, **options)
    return found, picture(tmp_path / "picture.png")

  return draw


def curves_of(axis) -> list[np.ndarray]:
  """float[points, 2] of each line with points."""
  return [line.get_xydata() for line in axis.lines if len(line.get_xydata())]


def texts(labels) -> list[str]:
  return [label.get_text() for label in labels]


def test_the_picture_of_a_sweep_has_every_run_and_the_means(axes_of):
  def lines(last):
    return [{"step": t, "mlm_accuracy": last * t / 30} for t in (10, 20, 30)]

  arms = {"with": [lines(0.2), lines(0.4)], "without": [lines(0.1)]}
  (left, right), pixels = axes_of(sweep_picture.draw, arms)
  assert texts(left.get_yticklabels()) == ["with", "without"]
  ends = [[[0.2, 0], [0.4, 0]], [[pytest.approx(0.3), 0]], [[0.1, 1]], [[0.1, 1]]]
  assert [curve.tolist() for curve in curves_of(left)] == ends
  last = [curve[-1].tolist() for curve in curves_of(right)]
  assert last == [[30, pytest.approx(y)] for y in (0.2, 0.4, 0.3, 0.1, 0.1)]
  for colour in (FIRST, SECOND):
    assert share_of(pixels, colour) > 5e-4
