"""Growth: exponents that are known, and all of a short run."""

import json

import numpy as np
import pytest

from benchmarks import growth


def test_the_exponent_of_a_power_law_is_fitted_round_by_round():
  x = np.array([3.0, 5, 7, 11])
  y = np.stack([0.2 * x**1.7, 9 * x**-0.5, np.full(4, 6.0)])
  np.testing.assert_allclose(growth.exponents(x, y), [1.7, -0.5, 0], atol=1e-12)


def test_the_upper_half_has_an_exponent_of_its_own():
  """Flat up to the middle, then a square; and one round that was twice as slow."""
  x = [1, 2, 4, 8, 16]
  y = np.array([1.0, 1, 1, 4, 16])
  curve = growth.growth(x, np.stack([y, y, 2 * y]), [5, 5, 5, 10, 20])
  assert curve["time_exponent_upper"] == pytest.approx({"median": 2, "low": 2, "high": 2})
  assert 0.5 < curve["time_exponent"]["median"] < 1.5
  assert curve["memory_exponent_upper"] == pytest.approx(1)
  assert curve["seconds"][3] == {"median": 4, "low": 4, "high": 6}
  even = growth.growth([1, 2, 4, 8], np.ones((1, 4)), [7, 7, 1, 8])  # the last two
  assert even["memory_exponent_upper"] == pytest.approx(3)


@pytest.mark.slow
def test_a_short_run_measures_writes_and_draws(tmp_path, capsys, monkeypatch):
  shapes = [growth.Shape("tiny", row_length, 1, 1) for row_length in (13, 29)]
  monkeypatch.setattr(growth, "CURVES", {"row_length": shapes})
  files = {name: tmp_path / "new" / f"growth.{name}" for name in ("json", "png")}
  growth.main(["--rounds=1", f"--json={files['json']}", f"--picture={files['png']}"])
  curve = json.loads(files["json"].read_text())["curves"]["row_length"]
  assert curve["x"] == [13, 29]
  assert all(point["median"] > 0 for point in curve["seconds"])
  assert curve["bytes"][0] < curve["bytes"][1]
  assert min(curve["argument_bytes"]) < curve["bytes"][0]
  assert files["png"].read_bytes().startswith(b"\x89PNG")
  printed = capsys.readouterr().out
  assert "| row length S, tokens | 13 | 29 |" in printed
  assert f"{curve['memory_exponent']:.2f}" in printed
