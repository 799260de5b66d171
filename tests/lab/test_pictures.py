"""What all pictures share."""

import matplotlib.backends.backend_agg
import pytest

from lab import pictures


@pytest.mark.parametrize("width", [5, 7.2, 9, 11])
def test_a_long_title_is_whole(width, tmp_path):
  drawing = pictures.figure(width)
  drawing.subplots()
  pictures.save(drawing, tmp_path / "long.png", "More words in rows of 1,024 tokens. " * 6)
  canvas = matplotlib.backends.backend_agg.FigureCanvasAgg(drawing)
  (title,) = drawing.texts
  extent = title.get_window_extent(canvas.get_renderer())
  assert extent.x0 >= 0
  assert extent.x1 <= drawing.bbox.width
  lines = title.get_text().splitlines()
  assert len(lines) > 1
  assert min(map(len, lines)) > max(map(len, lines)) / 2  # no word stands alone
