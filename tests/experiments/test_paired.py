"""Paired runs: the same sequences, masks and weights; what is finished stays so."""

import _thread
import functools
import itertools
import json
import os
import pathlib
import sys
import threading
import time

import flax.nnx as nnx
import jax
import ml_collections
import numpy as np
import pytest

import packing
from experiments.lab import paired_run as paired
from experiments.lab import streams, study
from experiments.lab.paired_run import Arm
from model import BertForPreTraining, hf
from model.testing import relative_difference
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.store import SequenceStore, StoredSequence, write_sequences
from tests import packs
from tests.stdlib_corpus import make_library
from training.command import Stopped
from training.sweep import jobs as schedule

ROW_LENGTH = 31
VOCAB_SIZE = 37
MASKING = Masking(0.15, seed=5, mask_id=4, special_ids=(0, 2, 3, 4), vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  rng = np.random.default_rng(0)
  rows = []
  for length in rng.integers(3, ROW_LENGTH + 1, 53).tolist():
    ids = rng.integers(5, VOCAB_SIZE, length)
    ids[0], ids[-1] = 2, 3
    rows.append(StoredSequence(ids.tolist(), int(rng.integers(1, length)), 1))
  path = tmp_path_factory.mktemp("store") / "s.arrow"
  write_sequences(path, rows, batch_size=7)
  return SequenceStore(path)


@pytest.fixture(scope="module")
def plan(store):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=ROW_LENGTH)
  return packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=3)


def make_loader(store, plan, rows):
  return PackedLoader(store, plan, batch_size=rows, masking=MASKING, seed=7)


def take(batches, steps):
  return list(itertools.islice(batches, steps))


def examples(batch):
  """Of each sequence its number, tokens, types, masked places and labels, in order."""
  found = []
  for row, slot in np.argwhere(batch["sequence_mask"]):
    own = batch["segment_ids"][row] == slot + 1
    masked = batch["mlm_segment_ids"][row] == slot + 1
    start = batch["cls_positions"][row, slot]
    found.append(
      (
        int(batch["sequence_ids"][row, slot]),
        batch["input_ids"][row, own].tolist(),
        batch["token_type_ids"][row, own].tolist(),
        batch["position_ids"][row, own].tolist(),
        (batch["mlm_positions"][row, masked] - start).tolist(),
        batch["mlm_labels"][row, masked].tolist(),
        int(batch["sequence_labels"][row, slot]),
      )
    )
  return found


class TestStreams:
  ROWS = 4
  STEPS = 23  # more than two epochs, which end within steps

  def test_unpacked_steps_have_the_sequences_and_masks_of_packed_ones(self, store, plan):
    loader = make_loader(store, plan, self.ROWS)
    assert plan.num_packs % self.ROWS
    assert 2 * plan.num_packs < self.STEPS * self.ROWS
    packed, unpacked = (
      take(streams.stream(loader, kind, rows=self.ROWS), self.STEPS)
      for kind in ("packed", "unpacked")
    )
    for a, b in zip(packed, unpacked, strict=True):
      assert examples(a) == examples(b)
      assert b["sequence_mask"].shape[1] == 1
      assert len(b["input_ids"]) % streams.ROWS == 0
    assert len({len(b["input_ids"]) for b in unpacked}) > 1

  def test_constant_steps_have_the_same_order(self, store, plan):
    loader = make_loader(store, plan, self.ROWS)
    packed = take(streams.stream(loader, "packed", rows=self.ROWS), self.STEPS)
    constant = take(streams.stream(loader, "constant", rows=7), 20)
    assert {len(b["input_ids"]) for b in constant} == {7}
    expected = [x for batch in packed for x in examples(batch)]
    found = [x for batch in constant for x in examples(batch)]
    assert len(found) == 140
    assert found == expected[:140]

  def test_twice_the_rows_are_the_same_stream(self, store, plan):
    few, many = (
      [
        x
        for batch in take(streams.stream(make_loader(store, plan, n), "packed", rows=n), k)
        for x in examples(batch)
      ]
      for n, k in ((4, 14), (8, 7))
    )
    assert few == many

  def test_refuses_other_rows(self, store, plan):
    with pytest.raises(ValueError, match="loader's 4 rows, found 5"):
      streams.stream(make_loader(store, plan, 4), "packed", rows=5)


def test_a_model_without_next_sentence_starts_from_the_same_weights():
  @functools.partial(jax.jit, static_argnums=0)
  def draw(config):
    model = BertForPreTraining(config, rngs=nnx.Rngs(3))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))

  full, without = (
    jax.device_get(draw(packs.small_config(num_layers=1, next_sentence=there)))
    for there in (True, False)
  )
  assert full.keys() - without.keys() == {"pooler", "nsp"}
  for name, values in without.items():
    jax.tree.map(np.testing.assert_array_equal, values, full[name])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A study with an arm that fails, run twice."""
  folder = tmp_path_factory.mktemp("study")
  (folder / "library").mkdir()
  overrides = {
    "data.source": f"stdlib:{make_library(folder / 'library')}",
    "data.directory": str(folder / "data"),
    "data.max_sequence_length": 64,
    "data.vocab_size": 500,
    "data.held_out_fraction": 0.1,
    "data.dupe_factor": 1,
    "packing.algorithm": "optimal",
    "packing.adjust": "reduce_batch",
    "optimizer.name": "sgd",  # Adam's kind makes the noise of a zero gradient its size
    "optimizer.learning_rate": 0.3,
    "optimizer.warmup_steps": 2,
    "train.batch_size": 8,
    "train.steps": 9,
  }
  arms = [
    Arm("unpacked", {}, "unpacked", keep=True),
    Arm("packed", {}, keep=True),
    Arm("broken", {"train.micro_batch_size": 4}),
  ]
  one = study.Study(folder, arms, 1, overrides)
  told, times = [], []
  for _ in range(2):
    with pytest.raises(Stopped) as error:
      one.run_all(jobs=2)
    told.append(str(error.value))
    paths = [folder / "runs" / f"{arm.name},seed=1.json" for arm in arms]
    times.append([p.stat().st_mtime_ns if p.exists() else None for p in paths])
  return one, told, times


@pytest.mark.slow
class TestStudy:
  def test_packed_training_is_unpacked_training(self, trained):
    one, *_ = trained
    found = one.results()
    (packed,), (unpacked,) = found["packed"], found["unpacked"]
    assert packed["recipe"] == unpacked["recipe"]
    assert packed["sequences_a_step"] == unpacked["sequences_a_step"]
    assert [x["step"] for x in packed["curve"]] == [x["step"] for x in unpacked["curve"]]
    for a, b in zip(packed["curve"], unpacked["curve"], strict=True):
      assert a == pytest.approx(b, rel=1e-5)
    tokens = [x["real_tokens"] for x in packed["curve"]]
    assert tokens == [x["real_tokens"] for x in unpacked["curve"]]
    _, params = hf.import_bert(one.folder / "runs" / "packed,seed=1")
    _, others = hf.import_bert(one.folder / "runs" / "unpacked,seed=1")
    assert relative_difference(params, others) < 1e-5

  def test_what_is_evaluated(self, trained):
    one, *_ = trained
    (run,) = one.results()["packed"]
    last = run["evaluations"][-1]
    assert last["step"] == run["recipe"]["steps"] == run["curve"][-1]["step"]
    assert last["own"] == last["alone"]
    assert last["own"]["mlm_loss"] < run["evaluations"][0]["own"]["mlm_loss"]
    counts = run["sequences_a_step"]
    assert sum(int(n) * k for n, k in counts["steps"].items()) == last["sequences"]
    assert sum(counts["steps"].values()) == last["step"]

  def test_what_failed_is_told_and_what_is_finished_stays(self, trained):
    _, told, times = trained
    for words in told:
      assert "1 of 3 runs failed. broken,seed=1: " in words
      assert "config.train.micro_batch_size is 4; expected 0" in words
    assert times[0] == times[1]
    assert times[0][2] is None

  def test_another_config_is_not_finished(self, trained):
    one, *_ = trained
    arm, run = one.runs[1]
    assert study.read(one.path(run), arm, run.config) is not None
    other = run.config.copy_and_resolve_references()
    other.train.steps += 1
    assert study.read(one.path(run), arm, other) is None
    renamed = Arm(arm.name, {}, "constant", keep=True)
    assert study.read(one.path(run), renamed, run.config) is None
    newer = ml_collections.ConfigDict(run.config.to_dict())
    newer.data.field_to_come = 3
    assert study.read(one.path(run), arm, newer) is not None  # made before there was one
    del newer.data.seed
    assert study.read(one.path(run), arm, newer) is None


def sleeper(folder: pathlib.Path, name: str, seconds: float) -> schedule.Task:
  """Writes its process number, sleeps, and writes a file when it is done."""
  code = (
    "import json, os, pathlib, sys, time\n"
    f"pathlib.Path({str(folder / (name + '.pid'))!r}).write_text(str(os.getpid()))\n"
    f"time.sleep({seconds})\n"
    f"pathlib.Path({str(folder / name)!r}).write_text(json.dumps(sorted("
    "os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []))"
  )
  path = folder / name
  return schedule.Task(
    name, [sys.executable, "-c", code], folder / f"{name}.log", path.exists
  )


class TestSchedule:
  def test_stopped_it_leaves_no_process_and_goes_on_later(self, tmp_path):
    tasks = [sleeper(tmp_path, "short", 0), sleeper(tmp_path, "long", 60)]

    def interrupt():
      while not ((tmp_path / "short").exists() and (tmp_path / "long.pid").exists()):
        time.sleep(0.02)
      _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
      schedule.run_all(tasks, jobs=2)
    with pytest.raises(ProcessLookupError):
      os.kill(int((tmp_path / "long.pid").read_text()), 0)
    assert not (tmp_path / "long").exists()

    first = (tmp_path / "short").stat().st_mtime_ns
    tasks[1] = sleeper(tmp_path, "long", 0)
    assert schedule.run_all(tasks, jobs=2) == {}
    assert (tmp_path / "long").exists()
    assert (tmp_path / "short").stat().st_mtime_ns == first

  @pytest.mark.skipif(len(schedule.cores()) < 2, reason="needs two cores")
  @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinities")
  def test_each_has_cores_of_its_own(self, tmp_path):
    names = ("a", "b")
    tasks = [sleeper(tmp_path, name, 0.3) for name in names]
    schedule.run_all(tasks, jobs=2)
    a, b = (set(json.loads((tmp_path / name).read_text())) for name in names)
    assert a | b == set(schedule.cores())
    assert not a & b


def test_arms_see_the_same_packs(plan):
  config = (
    study.Study(
      pathlib.Path("nowhere"),
      [Arm("packed", {})],
      1,
      {"train.steps": 331, "train.batch_size": 4, "optimizer.warmup_steps": 9},
    )
    .runs[0][1]
    .config
  )
  found = {}
  for name, adjust, kind in (
    ("few", "reduce_batch", "packed"),
    ("many", "lamb_betas", "packed"),
    ("constant", "reduce_batch", "constant"),
  ):
    config.packing.adjust = adjust
    found[name] = paired.plan_run(config, plan, batches=kind)
  few, many, constant = (found[name] for name in ("few", "many", "constant"))
  ratio = many.recipe.rows / few.recipe.rows
  assert few.recipe.steps * few.recipe.rows == many.recipe.steps * many.recipe.rows
  assert [x / ratio for x in few.points] == list(many.points)
  assert [x / ratio for x in few.evaluated] == list(many.evaluated)
  assert few.points[-1] == few.evaluated[-1] == few.recipe.steps
  packs = few.recipe.steps * few.recipe.rows
  assert constant.rows * constant.recipe.steps == pytest.approx(
    packs * plan.packing_factor, abs=constant.rows
  )
  assert constant.points[-1] == constant.recipe.steps
