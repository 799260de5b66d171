"""Load balance: the paper's numbers, and the simulation beside plain loops."""

import dataclasses
import json

import numpy as np
import pytest

import packing
from experiments.load_balance import __main__ as load_balance
from experiments.load_balance import cost as step_time
from experiments.load_balance import gumbel, measured, tables
from experiments.load_balance import simulation as imbalance
from experiments.load_balance import ways as batching
from experiments.load_balance.cost import Coefficients, Measurement, Network
from experiments.load_balance.simulation import Deal, Lengths
from lab.timing import models

COSTS = Coefficients(step=0.7, row=0.3, token=0.02, token_pair=0.0005)
NETWORK = Network(gradient_bytes=1e6, bandwidth=1e8, latency=1e-4)


@pytest.fixture(scope="module")
def lengths():
  return Lengths(packing.load_histogram("wikipedia_512"))


@pytest.fixture(scope="module")
def plan(lengths):
  return packing.pack(lengths.histogram, algorithm="lpfhp", max_sequences_per_pack=3)


@pytest.fixture
def deal(lengths):
  """5 steps of 7 devices with 3 sequences each."""
  rng = np.random.default_rng(0)
  return Deal(lengths.draw(rng, (5, 7, 3)), np.linspace(0.01, 0.99, 5))


def steps_of(way, deal):
  return way(np.random.default_rng(1), deal)


def padded(lengths):
  return batching.bucketed(COSTS, lengths, bounds=[512], together=True)


class TestPaper:
  one = gumbel.infer_one_device(gumbel.PAPER)

  def test_quantiles_of_the_slowest(self):
    drawn = np.random.default_rng(0).gumbel(*self.one, (20_000, 11)).min(1)
    for p in (0.1, 0.9):
      quantile = gumbel.quantile_of_slowest(self.one, 11, probability=p)
      assert (drawn < quantile).mean() == pytest.approx(p, abs=0.01), p

  def test_the_fit_to_simulated_speedups_is_tested(self, lengths, plan, monkeypatch):
    monkeypatch.setattr(gumbel, "MOST", 8)
    ways = batching.make_ways(COSTS, lengths, {"3": plan})
    found = load_balance.check_paper_method(ways, lengths, 2**16)
    both = {name: ways[name] for name in (batching.PADDING, batching.UNPADDING)}
    steps = imbalance.simulate(both, lengths, devices=8, batch=32, sequences=2**16)
    padding, unpadding = (x.seconds.max(1) for x in steps.values())
    ordered = np.sort(padding / unpadding)
    location, scale = found["several"].values()
    fitted = np.exp(-np.exp((location - ordered) / scale))
    share = np.arange(ordered.size + 1) / ordered.size
    distance = max((share[1:] - fitted).max(), (fitted - share[:-1]).max())
    assert found["steps"] == ordered.size == 256
    assert found["fit"]["distance"] == pytest.approx(distance)
    assert [row["devices"] for row in found["rows"]] == [1, 2, 4, 8]
    several, one = tables.records(
      {"paper_method": found, "rows": [], "batch": 32, "packing": ""}
    )["section E"][2:]
    assert several["alpha"] == f"{location:.3f}"
    assert several["distance"] == f"{distance:.3f}"
    assert one["beta"] == f"{found['one']['scale']:.3f}"


class TestWaysBesidePlainLoops:
  def test_padding(self, lengths, deal):
    found = steps_of(padded(lengths), deal)
    row = 0.3 + 0.02 * 512 + 0.0005 * 512**2
    assert found.seconds == pytest.approx(np.full((5, 7), 0.7 + 3 * row))
    assert found.sequences.tolist() == [21] * 5

  @pytest.mark.parametrize("at_once", [False, True])
  def test_unpadding(self, lengths, deal, at_once):
    found = steps_of(batching.unpadded(COSTS, lengths, at_once=at_once), deal)
    for step in range(5):
      for device in range(7):
        each = [
          0.3 + 0.02 * length + 0.0005 * length**2
          for length in deal.lengths[step, device].tolist()
        ]
        seconds = 3 * max(each) if at_once else sum(each)
        assert found.seconds[step, device] == pytest.approx(0.7 + seconds)

  def test_balancing(self, lengths, deal):
    weights = COSTS.row_seconds(np.arange(513.0))
    found = batching.balanced(deal.lengths, weights)
    for step in range(5):
      heaviest_first = sorted(deal.lengths[step].ravel().tolist(), reverse=True)
      loads = [0.0] * 7
      for first in range(0, 21, 7):
        order = sorted(range(7), key=loads.__getitem__)
        for device, length in zip(order, heaviest_first[first : first + 7], strict=True):
          loads[device] += weights[length]
      given = weights[deal.lengths[step]].sum(1).max()
      slowest = weights[found[step]].sum(1).max()
      assert slowest == pytest.approx(min(max(loads), given))
      assert sorted(found[step].ravel()) == sorted(deal.lengths[step].ravel())

  @pytest.mark.parametrize("together", [True, False])
  def test_sorted_batches(self, deal, together):
    small = Lengths(packing.Histogram(np.array([40, 2, 0, 31, 5])))  # 26 batches of 3
    found = steps_of(batching.sorted_batches(COSTS, small, together=together), deal)
    ordered = np.repeat([1, 2, 4, 5], [40, 2, 31, 5])
    possible = [
      0.7 + 3 * COSTS.row_seconds(ordered[i : i + 3].max()) for i in range(0, 78, 3)
    ]
    for step in found.seconds:
      assert all(min(abs(possible - seconds)) < 1e-12 for seconds in step)
      if together:
        assert any(step.tolist() == possible[i : i + 7] for i in range(20))
    assert len(np.unique(found.seconds)) > 1

  @pytest.mark.parametrize("together", [True, False])
  def test_buckets(self, lengths, deal, together):
    way = batching.bucketed(COSTS, lengths, bounds=[128, 300, 512], together=together)
    found = steps_of(way, deal)
    possible = {0.7 + 3 * COSTS.row_seconds(bound) for bound in (128, 300, 512)}
    assert set(found.seconds.ravel()) <= possible
    assert all((len(set(step)) == 1) == together for step in found.seconds.tolist())
    many = Deal(np.ones((1, 20_000, 1), int), np.zeros(1))  # as likely as their sequences
    short = steps_of(way, many).seconds == 0.7 + COSTS.row_seconds(128)
    share = lengths.histogram.counts[:128].sum() / lengths.histogram.num_sequences
    assert together or short.mean() == pytest.approx(share, abs=0.02)

  def test_packs_are_equal(self, lengths, plan, deal):
    found = steps_of(batching.packed(COSTS, plan), deal)
    rows = round(3 / plan.packing_factor)
    assert found.seconds == pytest.approx(
      np.full((5, 7), 0.7 + rows * COSTS.row_seconds(512))
    )
    assert (found.sequences >= 7 * rows).all()
    assert imbalance.summarise(found, NETWORK).idle == pytest.approx(0, abs=1e-12)

  def test_packs_that_compute_own_attention_only_are_not(self, lengths, deal):
    way = packing.pack(
      packing.Histogram(np.array([0, 0, 6, 0, 0, 3])), max_sequences_per_pack=2
    )
    assert sorted(way.strategies) == [(3, 3), (6,)]
    found = steps_of(batching.packed(COSTS, way, own_attention=True), deal)
    rows = round(3 / way.packing_factor)
    step = 0.7 + rows * (0.3 + 0.02 * 6)
    possible = {step + 0.0005 * (18 * i + 36 * (rows - i)) for i in range(rows + 1)}
    assert {round(x, 9) for x in found.seconds.ravel()} == {round(x, 9) for x in possible}


class TestSimulation:
  def simulate(self, lengths, plan, *, devices=7):
    ways = batching.make_ways(COSTS, lengths, {"3": plan})
    sizes = {"devices": devices, "batch": 3, "sequences": 1}
    return imbalance.simulate(ways, lengths, **sizes)

  def test_draws_are_those_of_the_histogram(self, lengths):
    drawn = lengths.draw(np.random.default_rng(0), (3, 5, 4_000))
    histogram = lengths.histogram
    mean = histogram.num_tokens / histogram.num_sequences
    assert drawn.shape == (3, 5, 4_000)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.mean((1, 2)) == pytest.approx(np.full(3, mean), rel=0.03)  # in no order
    assert (drawn == 512).mean() == pytest.approx(
      histogram.counts[511] / 16_279_552, abs=0.01
    )

  def test_balancing_is_never_worse_and_nothing_idles_below_none(
    self, lengths, plan, monkeypatch
  ):
    monkeypatch.setattr(imbalance, "CHUNK", 100)  # which changes no number of steps
    found = self.simulate(lengths, plan)
    slowest = {name: steps.seconds.max(1) for name, steps in found.items()}
    assert (slowest[batching.BY_TIME] <= slowest[batching.UNPADDING] + 1e-9).all()
    assert (slowest[batching.BY_TIME] < slowest[batching.UNPADDING] - 1e-9).any()
    for steps in found.values():
      summary = imbalance.summarise(steps, NETWORK)
      assert summary.steps == imbalance.FEWEST_STEPS
      assert 0 <= summary.idle <= 1
      assert summary.mean <= summary.percentile_99
    assert imbalance.summarise(found[batching.UNPADDING], NETWORK).idle > 0.1

  def test_one_device_never_waits(self, lengths, plan):
    found = self.simulate(lengths, plan, devices=1)
    for steps in found.values():
      summary = imbalance.summarise(steps, NETWORK)
      assert summary.idle == pytest.approx(0, abs=1e-12)
      assert summary.mean == pytest.approx(steps.seconds.mean())  # nothing to exchange
    plain, by_time = found[batching.UNPADDING], found[batching.BY_TIME]
    assert plain.seconds.tolist() == by_time.seconds.tolist()

  def test_summary(self):
    steps = imbalance.Steps(np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([5, 6]))
    found = imbalance.summarise(steps, Network(4.0, 2.0, 0.5))
    exchange = 2 / 2 * 4 / 2 + 2 * 0.5
    assert found.mean == pytest.approx((3 + 6) / 2 + exchange)
    assert found.deviation == pytest.approx(1.5)
    assert found.sequences_per_second == pytest.approx(11 / (9 + 2 * exchange))
    assert found.idle == pytest.approx(1 - (2 + 4) / 9)


class TestCosts:
  def test_a_fit_is_never_negative(self):
    shapes = [(length, rows) for length in (64, 256, 512) for rows in (1, 3)]
    steps = [
      Measurement(*shape, *[0.5 + shape[1] * shape[0] * 1e-3] * 3) for shape in shapes
    ]
    found, errors = step_time.fit(steps)
    assert found.token_pair == pytest.approx(0, abs=1e-9)
    assert found.token == pytest.approx(1e-3)
    assert min(dataclasses.astuple(found)) >= 0
    assert max(map(abs, errors)) < 1e-6

  @pytest.mark.slow
  def test_real_steps_are_measured(self):
    program = models.make_program("tiny", longest=16)
    (found,) = measured.measure(program, [16], [3], rounds=3)
    assert (found.row_length, found.rows) == (16, 3)
    assert 0 < found.low <= found.seconds <= found.high


class TestCommand:
  @pytest.fixture
  def coefficients(self, tmp_path):
    path = tmp_path / "given.json"
    record = {"parameters": 1_000_000, "coefficients": dataclasses.asdict(COSTS)}
    path.write_text(json.dumps(record))
    return path

  @pytest.fixture
  def small(self, monkeypatch):
    small = load_balance.FULL._replace(devices=(1, 4), batches=(2, 32), sequences=100)
    monkeypatch.setattr(load_balance, "FULL", small)
    monkeypatch.setattr(load_balance, "DEPTHS", (2,))

  def run(self, workdir, coefficients):
    return load_balance.main([f"--workdir={workdir}", f"--coefficients={coefficients}"])

  @pytest.mark.slow
  def test_the_same_coefficients_write_the_same_bytes(
    self, tmp_path, coefficients, small, capsys
  ):
    for name in ("a", "b"):
      assert self.run(tmp_path / name, coefficients) == 0
    folder, other = tmp_path / "a", tmp_path / "b"
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(written) == 3
    for name, content in written.items():
      assert (other / name).read_bytes() == content, name
    result = json.loads(written["load_balance.json"])
    assert {(x["devices"], x["batch"]) for x in result["rows"]} == {
      (n, b) for n in (1, 4) for b in (2, 32)
    }
    assert all(x["speedup"] == 1 for x in result["rows"] if x["way"] == "padding")
    shown = result["tables"]["speed-up"]
    assert shown[0] == {"method": "padding", "1": "1.000", "4": "1.000"}
    assert batching.BY_TIME not in [row["method"] for row in shown]
    assert [row["method"] for row in result["tables"]["batches"]] == [
      f"{way}, batch {batch}"
      for batch in (2, 32)
      for way in (batching.UNPADDING, "packing, depth 2")
    ]
    assert written["load_balance.md"].decode() in capsys.readouterr().out

  @pytest.mark.parametrize("content", ["", "[]", '{"parameters": 3}', None])
  def test_a_file_without_coefficients(self, tmp_path, capsys, content):
    path = tmp_path / "broken.json"
    if content is not None:
      path.write_text(content)
    assert self.run(tmp_path / "a", path) == 2
    assert "does not hold coefficients" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
