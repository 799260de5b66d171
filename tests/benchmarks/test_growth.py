"""Growth: exponents that are known, and the shapes of the curves."""

import numpy as np
import pytest

from benchmarks import growth


def test_the_exponent_of_a_power_law_is_found_round_by_round():
  x = np.array([3.0, 5, 7, 11])
  y = np.stack([0.2 * x**1.7, 9 * x**-0.5, np.full(4, 6.0)])
  np.testing.assert_allclose(growth.exponents(x, y), [1.7, -0.5, 0], atol=1e-12)


def test_the_upper_half_has_an_exponent_of_its_own():
  """Flat up to the middle, then a square; and one round that was twice as slow."""
  x = [1, 2, 4, 8, 16]
  y = np.array([1.0, 1, 1, 4, 16])
  found = growth.growth(x, np.stack([y, y, 2 * y]), [5, 5, 5, 10, 20])
  assert found["time_exponent_upper"] == pytest.approx({"median": 2, "low": 2, "high": 2})
  assert 0.5 < found["time_exponent"]["median"] < 1.5
  assert found["memory_exponent_upper"] == pytest.approx(1)
  assert found["seconds"][3] == {"median": 4, "low": 4, "high": 6}


def test_an_even_number_of_points_has_half_of_them_above():
  y = np.array([7.0, 7, 1, 8])
  found = growth.growth([1, 2, 4, 8], y[None], y.astype(int).tolist())
  assert found["memory_exponent_upper"] == pytest.approx(3)


@pytest.mark.parametrize("name", growth.CURVES)
def test_a_curve_varies_one_thing(name):
  shapes = growth.CURVES[name]
  for field in growth.Shape._fields:
    values = {getattr(shape, field) for shape in shapes}
    assert len(values) == (len(shapes) if field == name else 1)


@pytest.mark.parametrize("shape", [growth.Shape("mini", 64, 16, 3), growth.LONG])
def test_rows_are_full(shape):
  batch = growth.make_batch(shape)
  assert batch["segment_ids"].shape == (shape.rows, shape.row_length)
  assert (batch["segment_ids"] > 0).all()
  assert batch["sequence_mask"].all()
  assert batch["sequence_mask"].shape == (shape.rows, shape.depth)
