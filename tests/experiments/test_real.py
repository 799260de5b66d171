"""Un-padding and packing, really run: the step of training, and what is made of it."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
from experiments import (
  load_balance,
  real,
  real_options,
  real_pictures,
  real_runs,
  real_tables,
)
from experiments.imbalance import Lengths
from experiments.real_steps import Case
from experiments.shares import ONE_PROGRAM, PACKED, UNPADDED, Shares, draw_shares, predict
from experiments.step_time import Coefficients
from experiments.unpadded import UnpaddedProgram
from model import BertConfig
from model.layout import lay_out, one_a_row
from training.command import Stopped
from training.mesh import make_mesh, put_batch
from training.optimizer import lamb
from training.step import TrainingProgram

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


class TestProgram:
  """The steps of two programs beside that of training."""

  @pytest.mark.parametrize("way", [UNPADDED, PACKED])
  def test_is_the_step_of_training(self, programs, packs, trained, way):
    program, own = programs
    state = program.init()
    before = jax.device_get(state["params"])
    if way == UNPADDED:
      batch = one_a_row(packs, row_length=ROW_LENGTH)
      lengths = (batch["segment_ids"] > 0).sum(1).tolist()
      batch["branches"] = np.array([own.branch(x) for x in lengths], np.int32)
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

  def draw(self, seed=0):
    return draw_shares(self.lengths, self.plan, number=23, batch=7, seed=seed)

  def test_both_ways_have_about_as_many_sequences(self):
    shares = self.draw()
    assert np.shape(shares.unpadded) == (23, 7)
    assert {len(share) for share in shares.packed} == {round(7 / self.plan.packing_factor)}
    strategies = {tuple(sorted(strategy)) for strategy in self.plan.strategies}
    packs = [tuple(sorted(pack)) for share in shares.packed for pack in share]
    assert set(packs) <= strategies
    assert sum(map(len, packs)) == pytest.approx(23 * 7, rel=0.25)
    assert self.draw() == shares != self.draw(seed=1)

  def test_prediction_beside_a_loop(self):
    shares = self.draw()
    compiled = [*range(100, 512, 100), 512]
    own, packs = predict(shares, COSTS, compiled=compiled)
    for number, share in enumerate(shares.unpadded):
      each = [min(c for c in compiled if c >= length) for length in share]
      assert own[number] == pytest.approx(sum(COSTS.row_seconds(c) for c in each))
      rows = len(shares.packed[number])
      assert packs[number] == pytest.approx(rows * COSTS.row_seconds(512))


@pytest.fixture(scope="module")
def case():
  shares = Shares(
    [[1, 5], [12, 3], [8, 8], [2, 7], [11, 12], [1, 1], [6, 4], [9, 2]],
    [[[5, 6]], [[12]], [[1, 3, 7]], [[8, 2]], [[12]], [[4]], [[1, 1]], [[6, 6]]],
  )
  ways = [UNPADDED, PACKED]
  return Case(size="tiny", compiled=[7, 12], shares=shares, steps=2, ways=ways)


class TestProcesses:
  def test_steps_by_the_clock(self, case, compilation_cache, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is most of it
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compilation_cache))
    case = dataclasses.replace(case, processes=2)
    outputs = real_runs.run(case)
    assert len(outputs) == 2
    for output in outputs:
      steps = output["steps"]
      found = sorted((x["way"], x["step"]) for x in steps)
      assert found == sorted((way, k) for way in case.ways for k in range(2))
      for step in steps:
        (busy,) = step["busy"]
        assert 0 < busy < step["seconds"]
        assert step["processor"] > 0

  def test_a_failure_is_a_line_and_ends_all(self, case):
    broken = dataclasses.replace(case, size="huge", processes=2)
    with pytest.raises(Stopped, match=r"Process \d of 2 .* status 1: .*huge") as caught:
      real_runs.run(broken)
    assert "\n" not in str(caught.value)

  def test_ends_with_whoever_started_it(self, case):
    process = subprocess.Popen(
      [sys.executable, "-m", "experiments.real_steps"],
      cwd=real_runs.ROOT,
      stdin=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )
    process.communicate(json.dumps(dataclasses.asdict(case)).encode(), timeout=60)
    assert process.returncode == 1


class TestComposition:
  """Devices at a pace of 1.5 times the model's, and a bit more on each sequence."""

  pace, beyond, exchange = 1.5, 0.01, 0.5

  @pytest.fixture
  def wanted(self):
    return real_options.Wanted(
      devices=[2, 4], processes=[2], batch=3, steps=5, multiple=64, size="tiny", seed=0
    )

  @pytest.fixture
  def result(self, wanted, monkeypatch):
    """Of the arithmetic alone."""

    def run(case, *, cores):
      own, packs = predict(case.shares, COSTS, compiled=case.compiled)
      pace = self.pace
      shares = {UNPADDED: pace * own + 3 * self.beyond, PACKED: pace * packs}
      n = case.devices * case.processes

      def step(way, number, process):
        everyone = shares[way][number * n : (number + 1) * n]
        mine = everyone[process * case.devices :][: case.devices]
        seconds = everyone.max() + self.exchange
        found = {"way": way, "step": number, "seconds": float(seconds)}
        return found | {"busy": mine.tolist(), "processor": float(mine.sum())}

      def output(process):
        steps = [step(way, k, process) for way in shares for k in range(case.steps)]
        steps += [
          {"way": ONE_PROGRAM, "step": k, "seconds": 1.0, "busy": [], "processor": 1.0}
          for k in range(case.steps)
        ]
        return {"steps": steps[::-1], "machine": "none"}

      return [output(process) for process in range(case.processes)]

    monkeypatch.setattr(real_runs, "run", run)
    return real.run(wanted, TestShares.lengths, TestShares.plan, COSTS)

  def test_what_is_seen_is_what_is_foretold(self, result):
    assert result["pace"] == pytest.approx(self.pace)
    assert result["beyond"] == pytest.approx(self.beyond)
    names = [x["name"] for x in result["cases"]]
    assert names == ["2 devices", "4 devices", "2 processes"]
    for row in result["cases"]:
      for found in row["idle"].values():
        assert found[UNPADDED] == pytest.approx(row["foretold_beyond"])
        assert found[PACKED] == 0
      assert 0 < row["foretold_beyond"] < row["foretold"]
      assert row["exchange"] == pytest.approx(self.exchange)
      assert row["foretold"] == pytest.approx(row["simulated"], abs=0.15)
    few, many, _ = (row["foretold"] for row in result["cases"])
    assert few < many

  def test_gain_beside_a_loop(self, result, wanted):
    shares = draw_shares(TestShares.lengths, TestShares.plan, number=20, batch=3, seed=0)
    alone = result["clock"]
    row = result["cases"][1]
    seconds = {
      way: sum(max(alone[way][k * 4 : k * 4 + 4]) + self.exchange for k in range(5))
      for way in (UNPADDED, PACKED)
    }
    packed = sum(len(pack) for share in shares.packed for pack in share)
    expected = (packed / seconds[PACKED]) / (60 / seconds[UNPADDED])
    assert row["gain"] == pytest.approx(expected)

  def test_tables_and_pictures(self, result, tmp_path):
    text = real_tables.tables(result)
    cells = " | ".join(f"{x['foretold']:.1%}" for x in result["cases"])
    assert f"| foretold for the sequences dealt | {cells} |" in text
    assert "| 2 devices | 4 devices | 2 processes |" in text
    assert "| 4 devices, composed |" in text
    real_pictures.draw(tmp_path, result)
    pictures = {path.name for path in tmp_path.iterdir() if path.stat().st_size > 10_000}
    assert pictures == {"real_idle.png", "real_step.png"}


class TestOptions:
  @pytest.fixture
  def coefficients(self, tmp_path):
    path = tmp_path / "given.json"
    record = {"parameters": 9, "model": "BERT-base"}
    path.write_text(json.dumps(record | {"coefficients": dataclasses.asdict(COSTS)}))
    return path

  def run(self, tmp_path, *options):
    return load_balance.main([f"--workdir={tmp_path / 'out'}", *options])

  def test_coefficients_of_another_model(self, tmp_path, coefficients, capsys):
    given = f"--coefficients={coefficients}"
    assert self.run(tmp_path, given, "--real-devices=2", "--size=tiny") == 2
    assert "coefficients are of BERT-base, --size is tiny" in capsys.readouterr().err

  @pytest.mark.parametrize(
    ("option", "message"),
    [
      ("--real-devices=0", "'0' is no list of numbers"),
      ("--real-processes=all", "'all' is no list of numbers"),
      ("--real-steps=0", "--real-steps is 0; expected more than 0"),
    ],
  )
  def test_mistakes(self, tmp_path, capsys, option, message):
    with pytest.raises(SystemExit) as leaving:
      self.run(tmp_path, option)
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err
