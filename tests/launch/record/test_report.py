"""What a finished run shows: its table and its pictures."""

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgba

import packing
from launch.record import plots, report

BY_LENGTH = [
  {"from": 1, "to": 48, "sequences": 713, "mlm_accuracy": 0.4137},
  {"from": 49, "to": 97, "sequences": 1709, "mlm_accuracy": 0.2639},
]
EVALUATION = {
  "unigram_mlm_accuracy": 0.0739,
  "nsp_majority_accuracy": 0.5231,
  "mlm_accuracy_by_length": BY_LENGTH,
}
SUMMARY = {
  **EVALUATION,
  "sequences": 81_239,
  "packs": 40_213,
  "packing_factor": 2.0202,
  "efficiency": 0.9747,
  "padding_tokens": 123_457,
  "unpacked_padding_tokens": 987_654,
  "compilations": 1,
  "sequences_per_second": 431.0,
  "real_tokens_per_second": 37_903.0,
  "train_mlm_accuracy": 0.3719,
  "train_nsp_accuracy": 0.6143,
  "eval_mlm_accuracy": 0.3371,
  "eval_nsp_accuracy": 0.5867,
}
MEASURED = {
  "packed_sequences_per_second": 449.0,
  "unpacked_sequences_per_second": 229.0,
  "speedup_measured": 1.93,
  "speedup_low": 1.87,
  "speedup_high": 2.11,
}


def test_the_summary_shows_its_figures_in_order_each_beside_its_name():
  table = report.summary_table(SUMMARY | MEASURED)
  for words, *figures in (
    ("sequences -> packs", "81,239", "40,213"),
    ("packing factor", "2.02"),
    ("efficiency", "97.47"),
    ("padding avoided", "87.5", "987,654", "123,457"),
    ("masked-token accuracy", "37.2", "33.7", "7.4"),
    ("next-sentence accuracy", "61.4", "58.7", "52.3"),
    ("training speed", "431", "37,903"),
    ("1 to 48 tokens", "41.4", "713"),
    ("49 to 97 tokens", "26.4", "1709"),
    ("packed : unpacked", "449", "229", "1.93", "1.87", "2.11"),
  ):
    (line,) = [x for x in table.splitlines() if x.strip().startswith(words)]
    places = [line.find(figure) for figure in figures]
    assert min(places) >= 0, line
    assert places == sorted(places), line
  assert "packed : unpacked" not in report.summary_table(SUMMARY)  # it was not measured
  assert "0.96 of the packing factor" in table
  longer = {"row_length": 384, "unpacked_row_length": 192}  # a packed row is two of those
  table = report.summary_table(SUMMARY | MEASURED | longer)
  assert "1.93 times" in table
  assert "of the packing factor" not in table
  result = EVALUATION | {"step": 1409, "sequences": 2422, "loss": 3.3171, "mlm_loss": 2.71}
  result |= {"nsp_loss": 0.61, "mlm_accuracy": 0.3371, "nsp_accuracy": 0.5867}
  table = report.evaluation_table(result)
  for figure in ("1409", "2,422", "3.317", "33.71", "7.39", "58.67", "52.31", "41.4"):
    assert figure in table, figure


def picture(path) -> np.ndarray:
  """uint8[height, width, 3]."""
  assert path.read_bytes().startswith(b"\x89PNG\r\n")
  pixels = np.rint(image.imread(path)[..., :3] * 255).astype(np.uint8)
  height, width, _ = pixels.shape
  assert 600 <= width <= 3000
  assert 250 <= height <= 2000
  return pixels


def share_of(pixels, colour) -> float:
  distance = np.abs(pixels - 255.0 * np.array(colour[:3])).max(-1)
  return float((distance < 4).mean())


def test_the_picture_of_packs_has_as_much_padding_as_the_packs(tmp_path):
  """The first 10 - `padding` of 10 columns are two sequences."""
  padding = 3
  segment_ids = np.zeros((7, 30), np.int32)
  segment_ids[:, : 3 * (10 - padding)] = 1
  segment_ids[:, : 3 * (10 - padding) // 3] = 2
  path = tmp_path / "plots" / "packing.png"  # a folder that is not there yet
  histogram = packing.Histogram.from_lengths([3, 5, 5, 30], max_sequence_length=30)
  plots.plot_packing(path, histogram, segment_ids, efficiency=1 - padding / 10)
  pixels = picture(path)
  right = pixels[:, pixels.shape[1] // 2 :]  # 14 sequences in four colours
  shares = [share_of(right, to_rgba(f"C{i}")) for i in range(4)]
  assert min(shares) > 0.01
  # White lines between sequences are drawn over their ends.
  assert share_of(right, (0.88, 0.88, 0.88)) / sum(shares) == pytest.approx(
    padding / (10 - padding), rel=0.1
  )
  assert [p.name for p in path.parent.iterdir()] == ["packing.png"]


def test_the_learning_curve_differs_with_the_lines(tmp_path):
  """One of scores below 0 too."""
  pictures = []
  for slope, name in ((0.3, "mlm_accuracy"), (0.1, "mlm_accuracy"), (0.3, "score")):
    first = 0.0 if name == "mlm_accuracy" else -0.5
    lines = [
      {"step": t, "loss": 5 - slope * t, name: first + slope * t / 10} for t in range(9)
    ]
    held_out = [line | {"unigram_mlm_accuracy": 0.07} for line in lines[::4]]
    plots.plot_learning_curve(tmp_path / "curve.png", lines, held_out, metric=name)
    pictures.append(picture(tmp_path / "curve.png"))
    held_out_line = share_of(pictures[-1][:, -700:], (213 / 255, 94 / 255, 0))
    assert held_out_line > 1e-3
  assert (pictures[0] != pictures[1]).any()
