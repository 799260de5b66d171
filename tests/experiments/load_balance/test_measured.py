"""Measured steps: the un-padded step beside that of training, and the comparison."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
from experiments.load_balance import measured, worker
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.shares import (
  ONE_PROGRAM,
  PACKED,
  UNPADDED,
  count_tokens,
  draw_shares,
  predict,
)
from experiments.load_balance.simulation import Lengths
from experiments.load_balance.unpadded import UnpaddedProgram
from model import BertConfig
from packing.testing import lay_out
from training.mesh import make_mesh, put_batch
from training.optimizer import lamb
from training.step import TrainingProgram
from training.sweep.jobs import cores

COSTS = Coefficients(step=0.7, row=0.3, token=0.02, token_pair=0.0005)
VOCAB_SIZE = 37
DEVICES = 4
ROW_LENGTH = 13
SHAPES = [(5, 1), (10, 3), (13, 4)]


@pytest.fixture(scope="module")
def packs():
  """Of each of 4 devices 2 packs; 3 sequences a device in all."""
  rng = np.random.default_rng(0)

  def sequence(length):
    masked = next(masked for most, masked in SHAPES if length <= most)
    return {
      "input_ids": rng.integers(VOCAB_SIZE, size=length),
      "mlm_positions": rng.choice(length, min(masked, length), replace=False),
      "mlm_labels": rng.integers(VOCAB_SIZE, size=min(masked, length)),
      "sequence_label": int(rng.integers(2)),
    }

  lengths = [[(5, 1), (13,)], [(6, 7), (10,)], [(11, 2), (3,)], [(1, 12), (4,)]]
  return [[sequence(x) for x in pack] for device in lengths for pack in device]


@pytest.fixture(scope="module")
def x64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope="module")
def programs(x64):
  config = BertConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=11,
    max_position_embeddings=ROW_LENGTH,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    dtype=jnp.float64,
    param_dtype=jnp.float64,
  )
  optimizer = lamb(1e-2)
  program = TrainingProgram(config, optimizer, mesh=make_mesh(DEVICES), seed=0)
  return program, UnpaddedProgram(program, optimizer, shapes=SHAPES)


@pytest.fixture(scope="module")
def trained(programs, packs):
  """Parameters after training's own step of the packs."""
  program, _ = programs
  batch = put_batch(lay_out(packs, row_length=ROW_LENGTH), program.mesh)
  state, _ = program.train_step(program.init(), batch)
  return jax.device_get(state["params"])


@pytest.mark.slow
class TestProgram:
  """The steps of two programs beside that of training."""

  @pytest.mark.parametrize("way", [UNPADDED, PACKED])
  def test_is_the_step_of_training(self, programs, packs, trained, way):
    program, own = programs
    state = program.init()
    before = jax.device_get(state["params"])
    if way == UNPADDED:
      batch = lay_out([[s] for pack in packs for s in pack], row_length=ROW_LENGTH)
      batch["branches"] = own.branches(batch)
      assert sorted(set(batch["branches"].tolist())) == [0, 1, 2]
      rows = put_batch(batch, program.mesh)
      split = rows, rows.pop("branches")
      gradients = own.unpadded_gradients(state["params"], *split, own.counts(rows))
    else:
      rows = put_batch(lay_out(packs, row_length=ROW_LENGTH), program.mesh)
      gradients = own.packed_gradients(state["params"], rows, own.counts(rows))
    one = jax.tree.leaves(gradients)[0]
    assert one.shape[0] == DEVICES  # nothing is exchanged yet
    assert one.addressable_shards[0].data.shape[0] == 1
    assert not np.allclose(one[0], one[1])
    state = own.update(state, gradients)
    assert int(state["step"]) == 1
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), before, trained)
    assert max(jax.tree.leaves(moved)) > 1e-4
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12),
      jax.device_get(state["params"]),
      trained,
    )


class TestShares:
  lengths = Lengths(packing.load_histogram("wikipedia_512"))
  plan = packing.pack(lengths.histogram, algorithm="lpfhp", max_sequences_per_pack=3)

  def draw(self):
    return draw_shares(self.lengths, self.plan, number=23, batch=7)

  def test_both_ways_have_about_as_many_sequences(self):
    shares = self.draw()
    assert np.shape(shares.unpadded) == (23, 7)
    assert {len(share) for share in shares.packed} == {round(7 / self.plan.packing_factor)}
    strategies = {tuple(sorted(strategy)) for strategy in self.plan.strategies}
    packs = [tuple(sorted(pack)) for share in shares.packed for pack in share]
    assert set(packs) <= strategies
    assert sum(map(len, packs)) == pytest.approx(23 * 7, rel=0.25)
    assert self.draw() == shares

  def test_prediction_beside_a_loop(self):
    shares = self.draw()
    compiled = [*range(100, 512, 100), 512]
    own, packs = predict(shares, COSTS, compiled=compiled).values()
    for number, share in enumerate(shares.unpadded):
      each = [min(c for c in compiled if c >= length) for length in share]
      assert own[number] == pytest.approx(sum(COSTS.row_seconds(c) for c in each))
      rows = len(shares.packed[number])
      assert packs[number] == pytest.approx(rows * COSTS.row_seconds(512))


SETTINGS = measured.Settings("tiny", (), (), 0, (2,), (2,), 3, 4, 1, 7)


@pytest.mark.slow
def test_steps_are_measured_once(tmp_path, monkeypatch):
  """Of everything, but few steps of a small model with short rows."""
  histogram = packing.Histogram(np.array([3, 2, 4, 1, 0, 3, 2, 1, 0, 1, 0, 2]))
  plan = packing.pack(histogram, max_sequences_per_pack=3)
  given = SETTINGS, tmp_path, Lengths(histogram), plan, COSTS
  result = measured.run(*given)
  assert [len(result["clock"][way]) for way in (UNPADDED, PACKED)] == [4, 4]
  names = [x["name"] for x in result["cases"]]
  assert names[:2] == ["2 devices, composed", "2 devices, shared cores"]
  assert names[2:] == ["2 processes"] * (len(cores()) > 1)
  for row in result["cases"]:
    assert row["exchange"] > 0
    assert min(row["gain"].values()) > 0
    for x in [*row["seconds"].values(), *row["measured"].values()]:
      assert 0 <= x["low"] <= x["median"] <= x["high"]
    for x in row["measured"].values():
      assert x["high"] < 0.5  # of two, one always works
  monkeypatch.setattr(worker, "run_together", pytest.fail)  # not called
  assert measured.run(*given) == result


class TestComposition:
  """The arithmetic alone: shares take what is predicted, slower, and more a sequence.

  On processes all is twice as slow again.
  """

  pace, beyond, exchange = 1.5, 0.01, 0.5
  settings = SETTINGS._replace(devices=(2, 4), shares=400, steps=6, multiple=1)

  @pytest.fixture(scope="class")
  @classmethod
  def result(cls):
    def run_cases(folder, cases):
      return {name: outputs(case) for name, case in cases.items()}

    def outputs(case):
      predicted = predict(case.shares, COSTS, compiled=case.compiled)
      scale = 2 if case.pinned else 1
      shares = {
        UNPADDED: scale * (cls.pace * predicted[UNPADDED] + 3 * cls.beyond),
        PACKED: scale * cls.pace * predicted[PACKED],
      }
      shares[ONE_PROGRAM] = 0.9 * shares[PACKED]
      n = case.devices * case.processes
      found = []
      for process in range(case.processes):
        ways = {}
        for way in case.ways:
          steps = shares[way][: case.steps * n].reshape(case.steps, n)
          mine = steps[:, process * case.devices :][:, : case.devices]
          seconds = steps.max(1) + scale * cls.exchange
          ways[way] = {"seconds": seconds.tolist(), "busy": mine.tolist()}
        found.append(ways)
      return found

    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(worker, "run_cases", run_cases)
      patch.setattr(measured, "cores", lambda: [0, 1])
      given = pathlib.Path(), TestShares.lengths, TestShares.plan, COSTS
      return measured.run(cls.settings, *given)

  def test_what_is_measured_is_what_is_predicted(self, result):
    names = [f"{n} devices, {how}" for how in ("composed", "shared cores") for n in (2, 4)]
    assert [x["name"] for x in result["cases"]] == [*names, "2 processes"]
    for row in result["cases"]:
      scale = 2 if row["name"] == "2 processes" else 1
      assert row["pace"] == pytest.approx(scale * self.pace)
      assert row["beyond"] == pytest.approx(scale * self.beyond)
      assert row["exchange"] == pytest.approx(scale * self.exchange)
      assert row["measured"][UNPADDED] == pytest.approx(row["at_pace"])
      assert max(row["measured"][PACKED].values()) == pytest.approx(0, abs=1e-12)
      for name, value in row["at_pace"].items():
        assert 0 < value < row["predicted"][name]

  def test_composed_steps_are_as_the_simulation_has_them(self, result):
    few, many = result["cases"][:2]
    for row in (few, many):
      assert row["predicted"] == pytest.approx(row["simulated"], abs=0.03)
    for name, value in few["predicted"].items():
      assert many["predicted"][name] > value + 0.05
    wall = few["seconds"][UNPADDED]["median"]
    own = np.array(result["clock"][UNPADDED])
    assert wall > np.median(own) + self.exchange

  def test_gains_beside_a_loop(self, result):
    shares = draw_shares(TestShares.lengths, TestShares.plan, number=400, batch=3)
    tokens = count_tokens(shares)
    assert tokens[UNPADDED].tolist() == [sum(share) for share in shares.unpadded]
    assert tokens[PACKED].tolist() == [sum(map(sum, share)) for share in shares.packed]
    own, packs = predict(shares, COSTS, compiled=range(1, 513)).values()
    seconds = {UNPADDED: 0.0, PACKED: 0.0, ONE_PROGRAM: 0.0}
    for k in range(0, 12, 2):  # 6 steps of 2 processes
      seconds[UNPADDED] += 2 * (self.pace * max(own[k : k + 2]) + 3 * self.beyond + 0.5)
      seconds[PACKED] += 2 * (self.pace * max(packs[k : k + 2]) + 0.5)
      seconds[ONE_PROGRAM] += 2 * (0.9 * self.pace * max(packs[k : k + 2]) + 0.5)
    padded = sum(tokens[UNPADDED][:12]) / seconds[UNPADDED]
    for way, gain in result["cases"][-1]["gain"].items():
      assert gain == pytest.approx(sum(tokens[PACKED][:12]) / seconds[way] / padded)

  def test_more_devices_have_fewer_steps(self):
    settings = measured.Settings()
    assert [settings.steps_of(n) for n in (1, 2, 4, 8)] == [6, 6, 3, 2]
    assert settings._replace(steps=1).steps_of(8) == 1
