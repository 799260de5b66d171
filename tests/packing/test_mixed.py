"""Plans for rows of several lengths, against brute force."""

import json

import numpy as np
import pytest

import packing
from packing import InputError
from tests.packing.reference import least_cost


def random_cases(number):
  rng = np.random.default_rng(3)
  for _ in range(number):
    longest = int(rng.integers(4, 24))
    lengths = rng.integers(1, longest + 1, int(rng.integers(1, 9))).tolist()
    rows = {longest + int(rng.integers(0, 4))} | set(rng.integers(1, longest, 2).tolist())
    costs = np.cumsum(rng.integers(1, 12, len(rows))).tolist()
    multiple, separator = (1, 0) if rng.random() < 0.7 else (2, int(rng.integers(0, 3)))
    if multiple * -(-max(lengths) // multiple) > max(rows):
      continue
    options = {"depth": int(rng.integers(1, 7)), "multiple": multiple}
    yield lengths, dict(zip(sorted(rows), costs, strict=True)), options, separator


def test_small_cases_against_brute_force():
  number = optimal = 0
  for lengths, rows, options, separator in random_cases(600):
    plan = packing.pack(
      lengths,
      max_sequence_length=max(lengths),
      row_length=tuple(rows),
      row_cost=tuple(rows.values()),
      algorithm="optimal",
      max_sequences_per_pack=options["depth"],
      length_multiple=options["multiple"],
      separator_tokens=separator,
      target_gap=0,
    )
    least = least_cost(lengths, rows, **options, separator=separator)
    case = lengths, rows, options, separator
    assert plan.lower_bound <= least <= plan.cost, case
    packed = sum(part.histogram.num_tokens for part in plan.plans)
    assert packed == sum(lengths), case
    number, optimal = number + 1, optimal + (plan.cost == least)
  assert number > 400
  assert optimal > 0.97 * number


def test_real_lengths_cost_what_is_proven_to_be_needed():
  histogram = packing.load_histogram("squad_1_1_384")
  rows = (192, 240, 288, 384)
  costs = [length * (1000 + length) for length in rows]  # attention is quadratic
  plan = packing.pack(histogram, row_length=rows, row_cost=costs)
  alone = packing.pack(histogram, row_length=rows[-1:], row_cost=costs[-1:])
  assert plan.lower_bound <= plan.cost <= 1.0001 * plan.lower_bound
  assert plan.cost < 0.97 * alone.cost


@pytest.mark.parametrize("algorithm", list(packing.ALGORITHMS))
def test_each_sequence_lies_once_in_the_shortest_row_that_holds_its_pack(algorithm):
  lengths = np.random.default_rng(0).integers(1, 33, 400)
  plan = packing.pack(
    lengths, max_sequence_length=32, row_length=(32, 12, 20), algorithm=algorithm
  )
  assert list(plan.row_costs) == [12, 20, 32]
  assignments = plan.assign(lengths, seed=5)
  ids = np.concatenate([a.sequence_ids for a in assignments])
  assert sorted(ids.tolist()) == list(range(400))
  shorter = 0
  for part, assignment in zip(plan.plans, assignments, strict=True):
    used = [int(lengths[pack].sum()) for pack in assignment]
    assert all(shorter < n <= part.row_length for n in used), part.row_length
    shorter = part.row_length
  other = np.concatenate([a.sequence_ids for a in plan.assign(lengths, seed=6)])
  assert (ids != other).any()
  with pytest.raises(InputError, match="lengths"):
    plan.assign(lengths[:-1])


def test_the_certificate_tells_cost_and_bound(tmp_path):
  plan = packing.pack([5, 3, 8, 2], max_sequence_length=8, row_length=(4, 8))
  found = plan.certificate()
  found.save(tmp_path / "certificate.json")
  assert json.loads((tmp_path / "certificate.json").read_text())["cost"] == 20
  assert found.num_tokens_in == found.num_tokens_out == 18
  assert "cost                        20" in str(found)
  assert (found.lower_bound, found.gap) == (plan.lower_bound, plan.gap)


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ({"row_length": (4, 8), "row_cost": (1,)}, "expected 2 whole numbers"),
    ({"row_length": (4, 8), "row_cost": (2, 2)}, "expected longer rows to cost more"),
    ({"row_length": (4, 8), "row_cost": (0.5, 2)}, "a whole number"),
    ({"row_length": (8, 8)}, "each once"),
    ({"row_length": ()}, "at least one length"),
    ({"row_length": (4, 7)}, "cannot hold the longest sequence"),
    ({"row_length": 8, "row_cost": 3}, "several row lengths"),
    ({"row_length": 8.0}, "row_length is 8.0; expected a whole number of at least 1"),
  ],
)
def test_mistakes_are_refused(rows, message):
  with pytest.raises(InputError, match=message):
    packing.pack([5, 8], max_sequence_length=8, **rows)
