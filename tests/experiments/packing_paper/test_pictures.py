"""Pictures of the exact parts show the values that they are given."""

import matplotlib.figure
import numpy as np
import pytest

import packing
from experiments.packing_paper import figure_1_lengths as lengths
from experiments.packing_paper import figure_10_longer_rows as longer_rows
from experiments.packing_paper import section_f_residuals as residuals


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were saved."""
  found = []
  save = matplotlib.figure.Figure.savefig

  def keep(self, *args, **options):
    found.append(self)
    save(self, *args, **options)

  monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
  return found


def test_the_pictures_show_what_they_are_given(tmp_path, drawn):
  names = [name for name in packing.histogram_names() if name.startswith("wikipedia")]
  histograms = {name: packing.load_histogram(name) for name in names}
  lengths.draw(tmp_path / "a.png", histograms)
  panels = dict(zip(names, drawn[0].axes, strict=False))
  for name, speedup in (("128", 1.2), ("384", 1.7), ("512", 2.0)):  # as the paper says
    title = panels[f"wikipedia_{name}"].get_title()
    assert float(title.split()[1]) == pytest.approx(speedup, abs=0.05)
  (text,) = panels["wikipedia_512"].texts  # of the bar that does not fit
  counts = histograms["wikipedia_512"].counts
  assert text.get_text() == f"{counts[-1] / counts.sum():.1%} at 512"

  curves = {64: {1: 1.0, 4: 1.25, 9: 1.5}, 128: {1: 1.0, 16: 3.0}}
  longer_rows.draw(tmp_path / "b.png", curves)
  assert [line.get_xydata().tolist() for line in drawn[1].axes[0].lines] == [
    [[1, 1], [4, 1.25], [9, 1.5]],
    [[1, 1], [16, 3]],
  ]

  plain, weighted = np.array([-7, 0, 1, 4]), np.array([-11, -3, 0, 2])
  residuals.draw(tmp_path / "c.png", plain, weighted)
  assert "leaves 5 sequences over" in drawn[2].get_suptitle()
  for axes, residual in zip(drawn[2].axes, (plain, weighted), strict=True):
    heights = np.array([bar.get_height() for bar in axes.patches]).reshape(2, -1)
    left, missing = heights  # the legend has their sums
    assert left.tolist() == np.maximum(residual, 0).tolist()
    assert missing.tolist() == np.minimum(residual, 0).tolist()
  assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in "abc")
