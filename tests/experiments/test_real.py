"""Un-padding and packing, really run: the step of training, and what is made of it."""

import dataclasses
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
from experiments.load_balance import __main__ as load_balance
from experiments.load_balance import (
  real,
  real_options,
  real_pictures,
  real_runs,
  real_tables,
)
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.real_steps import Case
from experiments.load_balance.shares import (
  ONE_PROGRAM,
  PACKED,
  UNPADDED,
  Shares,
  count_tokens,
  draw_shares,
  predict,
)
from experiments.load_balance.simulation import Lengths
from experiments.load_balance.unpadded import UnpaddedProgram
from model import BertConfig
from model.layout import lay_out
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

  def test_tokens_beside_a_loop(self):
    shares = self.draw()
    found = count_tokens(shares)
    assert found[UNPADDED].tolist() == [sum(share) for share in shares.unpadded]
    assert found[PACKED].tolist() == [
      sum(length for pack in share for length in pack) for share in shares.packed
    ]
    assert found[PACKED].max() <= round(7 / self.plan.packing_factor) * 512

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


@pytest.mark.slow
class TestRealRun:
  """Of everything, but few steps of a small model with short rows."""

  @pytest.fixture(scope="class")
  @classmethod
  def result(cls):
    histogram = packing.Histogram(np.array([3, 2, 4, 1, 0, 3, 2, 1, 0, 1, 0, 2]))
    plan = packing.pack(histogram, max_sequences_per_pack=3)
    wanted = real_options.DocumentFields(
      devices=[2],
      processes=[2],
      batch=3,
      shares=4,
      steps=1,
      multiple=7,
      size="tiny",
      seed=0,
    )
    return real.run(wanted, Lengths(histogram), plan, COSTS)

  def test_shares_alone(self, result):
    assert result["shares"] == 4
    for way in (UNPADDED, PACKED):
      assert len(result["clock"][way]) == len(result["processor"][way]) == 4
      assert min(result["clock"][way] + result["processor"][way]) > 0
    assert result["pace"] > 0
    assert result["update"] > 0

  def test_steps(self, result):
    devices, processes = result["cases"]
    assert devices["name"] == "2 devices"
    assert devices["pace"] == result["pace"]
    assert set(devices["idle"]) == {"clock", "processor", "together"}
    assert processes["name"] == "2 processes"
    assert set(processes["idle"]) in ({"clock", "processor"}, {"together", "processor"})
    assert processes["gain_one_program"] > 0
    for row in (devices, processes):
      assert row["exchange"] > 0
      assert set(row["seconds"]) == {UNPADDED, PACKED, ONE_PROGRAM}
      for middle, low, high in row["seconds"].values():
        assert 0 < low <= middle <= high
      for found in row["idle"].values():
        for middle, low, high in found.values():
          assert 0 <= low <= middle <= high < 0.5  # of two, one always works

  def test_written(self, result, tmp_path):
    assert json.loads(json.dumps(result)) == result
    text = real_tables.tables(result)
    assert "| 2 devices, composed |" in text
    assert "| 2 processes |" in text
    real_pictures.draw(tmp_path, result)
    assert (tmp_path / "real_idle.png").stat().st_size > 10_000


@pytest.mark.slow
class TestProcesses:
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

  @pytest.fixture
  def worker(self, tmp_path, monkeypatch):
    """Has a script of a shell run instead of Python."""

    def replace(script):
      path = tmp_path / "worker"
      path.write_text(f"#!/bin/sh\n{script}\n")
      path.chmod(0o755)
      monkeypatch.setattr(sys, "executable", str(path))

    return replace

  def test_a_worker_that_never_reads_has_last_words(self, case, worker):
    worker("echo no such thing >&2; exit 3")
    long = dataclasses.replace(case, compiled=list(range(100_000)))  # fills the pipe
    with pytest.raises(Stopped, match=r"Process 0 of 1 .* status 3: no such thing"):
      real_runs.run(long)

  def test_time_is_limited(self, case, worker):
    worker("echo waiting >&2; exec sleep 60")
    start = time.monotonic()
    with pytest.raises(Stopped, match=r"not done after 0\.01 minutes: waiting"):
      real_runs.run(case, limit=0.6)
    assert time.monotonic() - start < 30


class TestComposition:
  """The arithmetic alone: shares take what is foretold, slower, and more a sequence.

  On processes all is twice as slow again.
  """

  pace, beyond, exchange = 1.5, 0.01, 0.5

  @pytest.fixture(scope="class")
  @classmethod
  def result(cls):
    wanted = real_options.DocumentFields(
      devices=[2, 4],
      processes=[2],
      batch=3,
      shares=400,
      steps=6,
      multiple=1,
      size="tiny",
      seed=0,
    )

    def run(case, *, cores):
      own, packs = predict(case.shares, COSTS, compiled=case.compiled)
      scale = 1 if case.processes == 1 else 2
      shares = {
        UNPADDED: scale * (cls.pace * own + 3 * cls.beyond),
        PACKED: scale * cls.pace * packs,
      }
      shares[ONE_PROGRAM] = 0.9 * shares[PACKED]
      n = case.devices * case.processes

      def step(way, number, process):
        everyone = shares[way][number * n : (number + 1) * n]
        mine = everyone[process * case.devices :][: case.devices]
        found = {"way": way, "step": number}
        found["seconds"] = float(everyone.max() + scale * cls.exchange)
        return found | {"busy": mine.tolist(), "processor": float(mine.sum())}

      def output(process):
        steps = [step(way, k, process) for way in case.ways for k in range(case.steps)]
        return {"steps": steps[::-1], "machine": "none"}

      return [output(process) for process in range(case.processes)]

    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(real_runs, "run", run)
      return real.run(wanted, TestShares.lengths, TestShares.plan, COSTS)

  def test_what_is_seen_is_what_is_foretold(self, result):
    names = [x["name"] for x in result["cases"]]
    assert names == ["2 devices", "4 devices", "2 processes"]
    for row in result["cases"]:
      scale = 2 if row["name"] == "2 processes" else 1
      assert row["pace"] == pytest.approx(scale * self.pace)
      assert row["beyond"] == pytest.approx(scale * self.beyond)
      assert row["exchange"] == pytest.approx(scale * self.exchange)
      alone = "clock" if scale == 1 else "processor"  # 2 processes may share one core
      assert row["idle"][alone][UNPADDED] == pytest.approx(row["foretold_beyond"])
      for found in row["idle"].values():
        assert found[PACKED] == pytest.approx([0, 0, 0], abs=1e-12)
      for more, none in zip(row["foretold_beyond"], row["foretold"], strict=True):
        assert 0 < more < none
    assert result["pace"] == pytest.approx(self.pace)

  def test_composed_steps_are_as_the_simulation_has_them(self, result):
    few, many, _ = result["cases"]
    for row in (few, many):
      assert row["foretold"] == pytest.approx(row["simulated"], abs=0.03)
    for one, other in zip(few["foretold"], many["foretold"], strict=True):
      assert other > one + 0.05

  def test_gains_beside_a_loop(self, result):
    shares = draw_shares(TestShares.lengths, TestShares.plan, number=400, batch=3, seed=0)
    tokens = {way: x.tolist() for way, x in count_tokens(shares).items()}
    own, packs = predict(shares, COSTS, compiled=range(1, 513))
    seconds = {UNPADDED: 0.0, PACKED: 0.0, ONE_PROGRAM: 0.0}
    for k in range(0, 12, 2):  # 6 steps of 2 processes
      seconds[UNPADDED] += 2 * (self.pace * max(own[k : k + 2]) + 3 * self.beyond + 0.5)
      seconds[PACKED] += 2 * (self.pace * max(packs[k : k + 2]) + 0.5)
      seconds[ONE_PROGRAM] += 2 * (0.9 * self.pace * max(packs[k : k + 2]) + 0.5)
    row = result["cases"][2]
    padded = sum(tokens[UNPADDED][:12]) / seconds[UNPADDED]
    for way, name in ((PACKED, "gain"), (ONE_PROGRAM, "gain_one_program")):
      packed = sum(tokens[PACKED][:12]) / seconds[way]
      assert row[name] == pytest.approx(packed / padded)

  def test_tables_and_pictures(self, result, tmp_path):
    text = real_tables.tables(result)
    cells = " | ".join(
      "{:.1f}% ({:.1f} to {:.1f})".format(*(100 * q for q in x["foretold"]))
      for x in result["cases"]
    )
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

  @pytest.mark.parametrize("model", ["BERT-base", None])
  def test_coefficients_of_another_model(self, tmp_path, coefficients, capsys, model):
    if model is None:
      record = json.loads(coefficients.read_text())
      del record["model"]
      coefficients.write_text(json.dumps(record))
    given = f"--coefficients={coefficients}"
    assert self.run(tmp_path, given, "--real-devices=2", "--size=tiny") == 2
    told = f"coefficients are of {model or 'a model not named'}, --size is tiny"
    assert told in capsys.readouterr().err

  def test_a_multiple_that_leaves_one_length(self, tmp_path, capsys):
    assert self.run(tmp_path, "--real-multiple=512") == 2
    assert "--real-multiple is 512, the longest length 512" in capsys.readouterr().err

  def test_a_failure_leaves_the_simulation(
    self, tmp_path, coefficients, capsys, monkeypatch
  ):
    def fail(*_, **__):
      raise Stopped("Process 0 was lost.")

    monkeypatch.setattr(real_runs, "run", fail)
    given = [f"--coefficients={coefficients}", "--real-devices=2", "--size=base"]
    small = ["--devices=1,4", "--batches=2", "--batch=2", "--sequences=100", "--depths=2"]
    assert self.run(tmp_path, *given, *small) == 1
    assert "error: Process 0 was lost." in capsys.readouterr().err
    result = json.loads((tmp_path / "out" / "load_balance.json").read_text())
    assert result["rows"]
    assert "real" not in result
    assert (tmp_path / "out" / "load_balance.md").exists()
    assert (tmp_path / "out" / "speedup.png").exists()

  def test_more_devices_make_fewer_steps(self):
    parser = real_options.Parser()
    real_options.add_to(parser)
    parser.set_defaults(quick=False, coefficients=None, size="mini", seed=0)
    wanted = real_options.wanted(parser, parser.parse_args([]))
    assert [wanted.steps_of(n) for n in (1, 2, 4, 8)] == [6, 6, 3, 2]
    assert dataclasses.replace(wanted, steps=1).steps_of(8) == 1

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
