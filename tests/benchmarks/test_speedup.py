"""Realised speed-up: what is in the batches, and the ratios by hand."""

import collections
import json

import numpy as np
import pytest

import packing
from benchmarks import speedup
from lab.timing import models, steps
from lab.timing import speedup as timing
from lab.timing.models import make_config


@pytest.fixture(scope="module")
def plan():
  counts = np.array([0, 0, 5, 4, 7, 0, 3, 0, 0, 0, 2])
  return packing.pack(packing.Histogram(counts), max_sequences_per_pack=3)


@pytest.fixture(scope="module")
def batches(plan):
  return timing.make_batches(plan, rows=3, number=7)


def lengths_of(batch) -> list[tuple[int, ...]]:
  """Of the sequences of each row."""
  slots = np.arange(1, batch["sequence_mask"].shape[1] + 1)
  lengths = (batch["segment_ids"][:, None] == slots[:, None]).sum(-1)
  return [tuple(row[row > 0].tolist()) for row in lengths]


def test_packed_rows_are_packs_of_the_plan_and_have_its_factor(plan, batches):
  rows = [row for batch in batches["packed"] for row in lengths_of(batch)]
  assert len(rows) == 3 * 7
  assert set(rows) <= set(plan.strategies)
  assert len(set(rows)) > 1
  assert abs(sum(map(len, rows)) - 3 * 7 * plan.packing_factor) <= plan.packing_depth


def test_unpacked_rows_are_sequences_of_these_packs(batches):
  packed, alone = (
    collections.Counter(
      length for batch in batches[kind] for row in lengths_of(batch) for length in row
    )
    for kind in ("packed", "unpacked")
  )
  assert alone.total() == 3 * 7
  assert alone <= packed


def test_shapes_are_those_of_training(plan, batches):
  for kind, depth in (("packed", plan.packing_depth), ("unpacked", 1)):
    for batch in batches[kind]:
      assert batch["input_ids"].shape == (3, 11)
      assert batch["cls_positions"].shape == (3, depth)
      assert batch["mlm_positions"].shape == (3, 1 + depth)  # 15 % of 11, and one each


def test_pairs_of_one_sequence_are_counted_in_every_layer():
  config = make_config("tiny", longest=11)
  full = timing.model_flops(config, [steps.full_rows(11, 1, 3)])
  assert full["one_sequence"] == full["model"]
  rng = np.random.default_rng(0)
  packed = steps.random_batch([(6, 5)] * 3, rng, row_length=11, max_sequences=2)
  flops = timing.model_flops(config, [packed])
  others = config.num_layers * 3 * (11**2 - 6**2 - 5**2)  # pairs of two sequences
  assert flops["model"] - flops["one_sequence"] == 12 * others * config.hidden_size


def test_ratios_of_time_are_taken_round_by_round():
  """Three rounds of 2 rows; the medians below are not ratios of medians."""
  seconds = {
    "packed": np.array([1.0, 2, 4]),
    "unpacked": np.array([2.0, 2, 6]),
    "again": np.array([2.0, 1, 9]),
    "fastest": np.array([1.0, 1, 6]),
    "product": np.array([0.5, 1, 1]),
  }
  flops = {"flops": {"packed": 60, "unpacked": 40}, "product_flops": 100}
  drawn = np.array([3, 5, 4])
  ratios = timing.summarise(seconds, drawn, rows=2, packing_factor=2.5, **flops)
  assert ratios["batch_factor"] == 2
  assert ratios["over_factor"] == {"median": 1.5, "low": 1.25, "high": 1.75}
  assert ratios["ratios"] == [2, 1, 1.5]
  assert ratios["speedup"] == {"median": 3, "low": 2.5, "high": 3.5}  # twice that
  assert ratios["over_fastest"]["median"] == 1  # 1, 0.5, 1.5
  assert ratios["noise"]["median"] == 1  # 1, 0.5, 1.5
  # 60/200, 30/100, 15/100, and 20/200, 20/100, 7/100
  share = {kind: ratios["share"][kind]["median"] for kind in ("packed", "unpacked")}
  assert share == pytest.approx({"packed": 0.3, "unpacked": 0.1})


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_a_short_run_prints_its_tables_and_what_the_device_lacks(
  tmp_path, capsys, monkeypatch
):
  for module in (models, steps):
    monkeypatch.setattr(module, "VOCAB_SIZE", 97)  # which makes steps short
  written = tmp_path / "new" / "speedup.json"
  options = "--row-lengths=128 --size=tiny --tokens=300 --depth=2 --rounds=1"
  speedup.main([*options.split(), f"--json={written}"])
  found = json.loads(written.read_text())
  records = {x["attention"]: x for x in found["steps"]}
  assert list(records) == list(steps.MEASURED)
  printed = capsys.readouterr().out
  for name, device in (("cudnn", "NVIDIA GPUs"), ("splash", "TPUs")):
    reason = f"attention_impl={name} runs only on {device}"
    assert printed.count(f"attention {name}: not run: {reason}") == 1
    assert reason in records[name]["not_run"]
  ran = records["xla"]
  assert ran["over_factor"]["median"] * ran["batch_factor"] == pytest.approx(
    ran["speedup"]["median"]
  )
  row = speedup.speedup_row(ran)
  assert row in found["tables"]["speed-up"]
  assert f"| {' | '.join(row)} |\n" in printed
  assert f"| {' | '.join(row.values())} |\n" in printed
  for kind in timing.KINDS:
    assert ran["flops"][kind]["one_sequence"] < ran["flops"][kind]["model"]
