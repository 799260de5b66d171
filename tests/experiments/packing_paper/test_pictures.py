"""Pictures of the exact parts show the values that they are given."""

import matplotlib.figure
import numpy as np
import pytest

import packing
from experiments.packing_paper import figure_1_lengths as lengths
from experiments.packing_paper import figure_10_longer_rows as longer_rows
from experiments.packing_paper.packs import section_f_residuals as residuals


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
    assert float(title.split()[1]) == pytest.approx(speedup, abs=0.05), name

  longer_rows.draw(tmp_path / "b.png", {64: {1: 1.0, 4: 1.25, 9: 1.5}})
  (line,) = (x for x in drawn[1].axes[0].lines if len(x.get_xdata()) == 3)
  assert line.get_xydata().tolist() == [[1, 1], [4, 1.25], [9, 1.5]]

  residuals.draw(tmp_path / "c.png", np.array([-7, 0, 1, 4]), np.array([-11, -3, 0, 2]))
  assert "leaves 5 sequences over" in drawn[2].get_suptitle()
