"""The sharded step: its gradients, its compilations, what devices are dealt, its tables."""

import json
import os
from typing import Any

import jax
import numpy as np
import pytest

import packing
from experiments.load_balance import sharded, sharded_tables
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Lengths
from experiments.load_balance.ways import UNPADDING
from lab.timing import models, steps
from launch.record.compilations import CompilationCounter
from model import losses
from tests import forked
from training.mesh import make_mesh

COSTS = Coefficients(step=0.7, row=0.3, token=0.02, token_pair=0.0005)
# Of three devices with 3, 1 and 0 sequences, and of three with 2 packs each.
UNPADDED = [[(7, (5,)), (12, (11,)), (7, (7,))], [(12, (9,))], []]
PACKED = [[(12, (5, 7)), (12, (11,))], [(12, (3, 2, 6)), (12, (12,))], [(12, (9,))] * 2]


@pytest.fixture(scope="module", autouse=True)
def small_vocabulary():
  """Which makes steps short."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (models, steps):
      patch.setattr(module, "VOCAB_SIZE", 97)
    yield


@pytest.fixture(scope="module")
def program(small_vocabulary):
  return models.make_program("tiny", longest=12, mesh=make_mesh(3))


@pytest.fixture(scope="module")
def params(program):
  return program.init()["params"]


def place(shares, program, row_lengths, *, rows=3, max_sequences=3):
  return sharded.place(
    shares,
    program,
    row_lengths=row_lengths,
    rows=rows,
    max_sequences=max_sequences,
    rng=np.random.default_rng(0),
  )


def gradient_of(program):
  """The gradient of a batch's loss; a function of the parameters and the batch."""

  def loss(params, batch):
    return losses.loss(program.apply(params, batch), batch)[0]

  return jax.jit(jax.grad(loss))


def relative_error(found, expected):
  leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
  errors, sizes = zip(*((abs(a - b).max(), abs(b).max()) for a, b in leaves), strict=True)
  return max(errors) / max(sizes)


@pytest.mark.parametrize("shares", [UNPADDED, PACKED], ids=["un-padded", "packed"])
def test_the_gradient_is_that_of_the_sequences_one_by_one(program, params, shares):
  row_lengths = sorted({length for share in shares for length, _ in share})
  batches = place(shares, program, row_lengths)
  found = jax.device_get(sharded.make_step(program)(params, batches))
  alone = [
    without_others({k: x[row] for k, x in batch.items()}, sequence)
    for batch in jax.device_get(batches)
    for row, numbers in enumerate(batch["segment_ids"])
    for sequence in range(1, numbers.max() + 1)
  ]
  lengths = [x for share in shares for _, pack in share for x in pack]
  assert sorted((x["segment_ids"] > 0).sum() for x in alone) == sorted(lengths)
  gradient = gradient_of(program)  # compiled once for all
  each = [jax.device_get(gradient(params, batch)) for batch in alone]
  expected = jax.tree.map(lambda *x: np.mean(x, axis=0), *each)
  assert relative_error(found, expected) < 1e-5


def without_others(row, sequence):
  """A batch of one row, in which only this sequence of a row is left."""
  kept = {k: x.copy() for k, x in row.items()}
  for name in ("segment_ids", "mlm_segment_ids"):
    kept[name][row[name] != sequence] = 0
  kept["sequence_mask"][np.arange(len(row["sequence_mask"])) != sequence - 1] = False
  return {k: x[None] for k, x in kept.items()}


def test_a_method_is_compiled_once_whatever_its_counts(program, params):
  step: Any = sharded.make_step(program)
  counter = CompilationCounter()
  for shares in (UNPADDED, UNPADDED[::-1], [UNPADDED[1]] * 3, [[(7, (1,))], [], []]):
    jax.block_until_ready(step(params, place(shares, program, [7, 12])))
  assert (step._cache_size(), counter.count("sharded_step")) == (1, 1)
  for _ in range(2):
    jax.block_until_ready(step(params, place(PACKED, program, [12])))
  assert (step._cache_size(), counter.count("sharded_step")) == (2, 2)


def test_devices_are_dealt_sequences_and_equally_many_packs():
  histogram = packing.load_histogram("wikipedia_512")
  plan = packing.pack(histogram, algorithm="lpfhp", max_sequences_per_pack=3)
  dealt = sharded.deal(Lengths(histogram), plan, devices=3, steps=5)
  strategies = set(plan.strategies)
  for step in dealt[sharded.PACKING]:
    assert [[n for n, _ in share] for share in step] == [[512] * 4] * 3
    assert {pack for share in step for _, pack in share} <= strategies
  seen = set()
  for step in dealt[UNPADDING]:
    assert [len(share) for share in step] == [8] * 3
    for share in step:
      for row_length, (length,) in share:
        assert 0 <= row_length - length < 128
        assert row_length in (128, 256, 384, 512)
        seen.add(row_length)
  assert len(seen) == 4


def test_waiting_beside_plain_numbers():
  shares = [
    [[(128, (100,)), (512, (500,))], [(128, (3,))]],
    [[(256, (200,))], [(256, (129,)), (256, (256,))]],
  ]
  dealt = np.array([[5.0, 3.0], [4.0, 6.0]])  # by the clock, and of the processor
  found = sharded.compare(shares, dealt, np.array([[4.0, 4.0], [4.0, 8.0]]), costs=COSTS)
  assert found["blocks"] == {"mean": (5 + 1 + 2 + 4) / 4, "most": (5 + 4) / 2}
  assert found["waiting"]["blocks"] == pytest.approx(((1 - 3 / 5) + (1 - 3 / 4)) / 2)
  first, second = COSTS.row_seconds(128), COSTS.row_seconds(512)
  half = (first + second + first) / 2 / (first + second)
  assert found["waiting"]["cost"] == pytest.approx((1 - half + 1 / 4) / 2)
  assert found["waiting"]["measured"] == {
    "mean": 0.25,
    "median": 0.25,
    "low": 0.25,
    "high": 0.25,
  }
  assert found["seconds"]["median"] == 4.5
  assert found["to_alike"]["median"] == pytest.approx((5 / 4 + 1) / 2)
  assert found["real_tokens"] == pytest.approx((100 + 500 + 3 + 200 + 129 + 256) / 9)


def test_what_is_expected_is_what_sequences_need():
  lengths = Lengths(packing.Histogram(np.array([0] * 127 + [3] + [0] * 255 + [1])))
  found = sharded.expect(COSTS, lengths, devices=2, sequences=2**16)
  rng = np.random.default_rng(0)
  drawn = rng.choice([128, 384], size=(20_000, 2, 8), p=[0.75, 0.25])
  for name, weights in (("blocks", drawn), ("cost", COSTS.row_seconds(drawn))):
    expected = packing.waiting(weights.sum(2), devices=2)
    assert found[name] == pytest.approx(expected, rel=0.02)


def test_one_core_measures_nothing():
  result = {"expected": {2: {"blocks": 0.125, "cost": 0.25}}, "measured": None}
  assert [*sharded_tables.records(result)] == ["devices"]
  assert "No step was measured" in sharded_tables.tables(result)


# A program of its own, since it divides the CPU into devices.
SMALL = """
import sys
from experiments.load_balance import __main__ as study
from experiments.load_balance import measured
from lab.timing import models, steps

models.VOCAB_SIZE = steps.VOCAB_SIZE = 97
measured.SIZE, measured.ROW_LENGTHS, study.DEPTHS = "tiny", (64, 128, 256), ("max",)
study.cores = lambda: [0, 1]
study.QUICK = study.QUICK._replace(
  devices=(1, 2, 4), batches=(32,), sequences=2**10, rounds=1, steps=1
)
sys.exit(study.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_make_balance_from_end_to_end(tmp_path):
  program, folder = tmp_path / "small.py", tmp_path / "balance"
  program.write_text(SMALL)
  environment = os.environ | {"PYTHONPATH": os.getcwd()}
  arguments = [program, "--quick", f"--workdir={folder}"]
  result = forked.run(arguments, env=environment)
  assert result.returncode == 0, result.stderr[-3000:]
  simulated, step = (
    (folder / f"{name}.md").read_text() for name in ("load_balance", "sharded_step")
  )
  assert simulated in result.stdout
  assert step in result.stdout
  written = json.loads((folder / "sharded_step.json").read_text())
  measured = written["measured"]
  assert (measured["devices"], measured["compilations"]) == (2, 2)
  unpadded, packed = (measured["methods"][x] for x in (UNPADDING, sharded.PACKING))
  assert unpadded["waiting"]["blocks"] > 0
  assert packed["waiting"]["blocks"] == packed["waiting"]["cost"] == 0
  assert packed["blocks"] == {"mean": 16, "most": 16}
  assert min(x["seconds"]["low"] for x in (unpadded, packed)) > 0
  rows = written["tables"]["devices"]
  assert [(row["devices"], row["measured"] > "") for row in rows] == [
    ("2", True),
    ("4", False),
  ]
  assert (folder / "sharded_step.png").stat().st_size > 10_000
