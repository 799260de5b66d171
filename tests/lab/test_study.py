"""Paired runs: the same sequences, masks and weights; finished runs are kept."""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import sys

import flax.nnx as nnx
import jax
import numpy as np
import pyarrow as pa
import pytest

import packing
from lab.machine import machine
from lab.studies import identity, streams, study
from lab.studies.paired_run import make_schedule
from lab.studies.study import Arm, Study
from launch import workdir
from launch.door import read_settings
from launch.settings import OPTIONS
from launch.sweep.jobs import Job
from model import BertForPreTraining, hf
from model.testing import relative_difference
from packing.files import write_json
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.store import (
  SCHEMA,
  SequenceStore,
  StoredSequence,
  with_small_tokens,
  write_sequences,
)
from tests import forked, packs
from tests.programs import ROOT
from tests.stdlib_corpus import make_library
from training.errors import ConfigError, Stopped

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
      assert packs.examples(a) == packs.examples(b)
      assert b["sequence_mask"].shape[1] == 1
      assert len(b["input_ids"]) % streams.ROWS == 0
    assert len({len(b["input_ids"]) for b in unpacked}) > 1

  def test_constant_steps_have_the_same_order(self, store, plan):
    loader = make_loader(store, plan, self.ROWS)
    packed = take(streams.stream(loader, "packed", rows=self.ROWS), self.STEPS)
    constant = take(streams.stream(loader, "constant", rows=7), 20)
    assert {len(b["input_ids"]) for b in constant} == {7}
    expected = [x for batch in packed for x in packs.examples(batch)]
    found = [x for batch in constant for x in packs.examples(batch)]
    assert len(found) == 140
    assert found == expected[:140]

  def test_sorted_steps_are_alike_and_come_in_random_order(self, store, plan):
    loader = make_loader(store, plan, self.ROWS)
    per_epoch = -(-len(store) // 7)
    batches = take(streams.stream(loader, "sorted", rows=7), 3 * per_epoch)
    again = take(streams.stream(loader, "sorted", rows=7), 3 * per_epoch)
    assert {len(b["input_ids"]) for b in batches} == {7}
    longest = [int((b["segment_ids"] > 0).sum(1).max()) for b in batches]
    for epoch in range(3):
      part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
      found = [x[0] for batch in batches[part] for x in packs.examples(batch)]
      assert sorted(found) == list(range(len(store)))
      assert longest[part] != sorted(longest[part])
      ordered = [b for _, b in sorted(zip(longest[part], range(per_epoch), strict=True))]
      lengths = [
        store.lengths[[x[0] for x in packs.examples(batches[part][b])]] for b in ordered
      ]
      ends = [(int(x.min()), int(x.max())) for x in lengths]
      assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert longest[:per_epoch] != longest[per_epoch : 2 * per_epoch]
    assert [packs.examples(b) for b in again] == [packs.examples(b) for b in batches]
    of_epoch = plan.num_packs // self.ROWS  # steps that are whole
    packed = take(streams.stream(loader, "packed", rows=self.ROWS), of_epoch)
    first = {x[0]: x for batch in batches[:per_epoch] for x in packs.examples(batch)}
    for x in (x for batch in packed for x in packs.examples(batch)):
      assert first[x[0]] == x  # masks too

  def test_rows_are_cut_out_of_the_stream_of_sequences(self, store, plan):
    """Every token in its order; a part of a sequence sees itself, or the whole row."""
    loader = make_loader(store, plan, self.ROWS)
    steps = 40
    pieces, joined = (
      take(streams.stream(loader, kind, rows=3), steps) for kind in streams.CUT[::-1]
    )
    ids = np.concatenate([streams.sequences(loader, step)[0] for step in range(steps)])
    tokens, lengths = store.gather(ids), store.lengths[ids]
    positions = np.concatenate([np.arange(n) for n in lengths])
    number = 0
    for step, (batch, one) in enumerate(zip(pieces, joined, strict=True)):
      plain = batch["input_ids"].copy()
      masked = batch["mlm_segment_ids"] > 0
      rows = np.nonzero(masked)[0]
      plain[rows, batch["mlm_positions"][masked]] = batch["mlm_labels"][masked]
      here = slice(3 * ROW_LENGTH * step, 3 * ROW_LENGTH * (step + 1))
      np.testing.assert_array_equal(plain.ravel(), tokens[here])
      begins = positions[here].reshape(3, -1) == 0
      begins[:, 0] = True
      np.testing.assert_array_equal(batch["segment_ids"], begins.cumsum(1))
      np.testing.assert_array_equal(batch["position_ids"] == 0, begins)
      counts = begins.sum(1)
      np.testing.assert_array_equal(batch["sequence_mask"].sum(1), counts)
      used = batch["sequence_ids"][batch["sequence_mask"]]
      np.testing.assert_array_equal(used, number + np.arange(counts.sum()))
      number += counts.sum()
      for name in ("input_ids", "mlm_positions", "mlm_labels"):
        np.testing.assert_array_equal(one[name], batch[name])
      assert (one["segment_ids"] == 1).all()
      np.testing.assert_array_equal(one["position_ids"], [np.arange(ROW_LENGTH)] * 3)
      np.testing.assert_array_equal(one["mlm_segment_ids"], masked)
      assert one["sequence_mask"].tolist() == [[True]] * 3
    assert len({batch["sequence_ids"].shape for batch in pieces}) == 1
    assert any((batch["sequence_mask"].sum(1) > 3).any() for batch in pieces)


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


def small(folder):
  """Fields of short runs on a small corpus in a folder."""
  (folder / "library").mkdir()
  return {
    "data.source": f"stdlib:{make_library(folder / 'library')}",
    "data.directory": str(folder / "data"),
    "data.max_sequence_length": 64,
    "data.vocab_size": 500,
    "data.dupe_factor": 1,
    "train.batch_size": 8,
  }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A study with an arm that fails, run twice."""
  folder = tmp_path_factory.mktemp("study")
  overrides = small(folder) | {
    "data.held_out_fraction": 0.1,
    "packing.algorithm": "optimal",
    "packing.adjust": "reduce_batch",
    "optimizer.name": "sgd",  # Adam's kind makes the noise of a zero gradient its size
    "optimizer.learning_rate": 0.3,
    "optimizer.warmup_steps": 2,
    "train.steps": 9,
  }
  arms = [
    Arm("unpacked", {}, "unpacked", keep=True),
    Arm("packed", {}, keep=True),
    Arm("broken", {"train.micro_batch_size": 4}),
  ]
  one = Study(folder, arms, overrides, seeds=1, jobs=2)
  messages, times = [], []
  for _ in range(2):
    with pytest.raises(Stopped) as error:
      one.run()
    messages.append(str(error.value))
    paths = [folder / "runs" / f"{arm.name},seed=1.json" for arm in arms]
    times.append([p.stat().st_mtime_ns if p.exists() else None for p in paths])
  return one, messages, times


@pytest.mark.slow
class TestStudy:
  def test_packed_training_is_unpacked_training(self, trained):
    one, *_ = trained
    packed, unpacked = (one.results()[arm][0] for arm in ("packed", "unpacked"))
    assert packed["recipe"] == unpacked["recipe"]
    assert packed["sequences_a_step"] == unpacked["sequences_a_step"]
    first, last = packed["evaluations"][0], packed["evaluations"][-1]
    assert last["step"] == packed["recipe"]["steps"] == packed["curve"][-1]["step"]
    assert last["own"] == last["alone"]
    assert last["own"]["mlm_loss"] < first["own"]["mlm_loss"]
    counts = packed["sequences_a_step"]["steps"]
    assert sum(int(n) * steps for n, steps in counts.items()) == last["sequences"]
    assert sum(counts.values()) == last["step"]
    for a, b in zip(packed["curve"], unpacked["curve"], strict=True):
      assert a.pop("seconds") != b.pop("seconds")
      assert a == pytest.approx(b, rel=1e-5)
      assert (a["step"], a["real_tokens"]) == (b["step"], b["real_tokens"])
    params = hf.open_model(one.folder / "runs" / "packed,seed=1").load()
    others = hf.open_model(one.folder / "runs" / "unpacked,seed=1").load()
    assert relative_difference(params, others) < 1e-5

  def test_a_failure_is_reported_and_finished_runs_are_kept(self, trained):
    _, messages, times = trained
    for message in messages:
      assert "1 of 3 runs failed. broken,seed=1: " in message
      assert "config.train.micro_batch_size is 4; expected 0" in message
    assert times[0] == times[1]
    assert times[0][2] is None

  def test_another_config_is_not_finished(self, trained, tmp_path):
    one, *_ = trained
    arm, run = one.runs[1]

    def is_finished(*, arm=arm, **data) -> bool:
      given = dict(run.settings.given)
      given["train.steps"] += data.pop("more_steps", 0)
      given |= {f"data.{name}": value for name, value in data.items()}
      data_part = dataclasses.replace(run.settings.data, directory=given["data.directory"])
      settings = dataclasses.replace(run.settings, given=given, data=data_part)
      return study.read(one.path(run), arm, settings) is not None

    assert is_finished()
    kept = json.loads(one.path(run).read_text())
    kept["run"]["keep"] = False  # as older files have it
    one.path(run).write_text(json.dumps(kept))
    assert is_finished()
    assert not is_finished(more_steps=1)
    assert not is_finished(arm=Arm(arm.name, {}, "constant", keep=True))
    assert not is_finished(seed=run.settings.data.seed + 1)
    rate = kept["run"]["config"]["data"].pop("mask_rate")  # newer than the file
    assert rate == OPTIONS["data.mask_rate"].default
    one.path(run).write_text(json.dumps(kept))
    assert is_finished()
    assert not is_finished(mask_rate=rate / 2)
    moved = tmp_path / "moved"
    moved.symlink_to(run.settings.data.directory)
    assert is_finished(directory=str(moved))  # the same data in another place


class TestArmsThatStartFromOthers:
  def make(self, folder):
    arms = [Arm("first", {}, keep=True), Arm("second", {}, starts_from="first")]
    overrides = {"train.steps": 300, "data.directory": str(folder / "none")}
    return Study(folder, arms, overrides, seeds=2)

  def test_each_starts_from_its_own_seed(self, tmp_path):
    runs = {run.name: run for _, run in self.make(tmp_path).runs}
    given = runs["second,seed=2"].settings.model.init_from
    assert given == str(tmp_path / "runs" / "first,seed=2")
    assert runs["second,seed=2"].fields["model.init_from"] == given
    assert runs["first,seed=2"].settings.model.init_from == ""

  def test_it_is_finished_if_it_started_from_what_is_there(self, tmp_path):
    one = self.make(tmp_path)
    arm, run = next((a, r) for a, r in one.runs if r.name == "second,seed=1")
    path, before = one.path(run), tmp_path / "runs" / "first,seed=1.json"
    path.parent.mkdir()
    write_json(path, {"run": study.identity(arm, run.settings), "started_from": "digest"})
    assert study.read(path, arm, run.settings) is None  # there is nothing to start from
    write_json(before, {"parameters_digest": "digest"})
    assert study.read(path, arm, run.settings) is not None
    write_json(before, {"parameters_digest": "another"})
    assert study.read(path, arm, run.settings) is None

  def test_parameters_are_trained_again_only_if_they_are_needed(
    self, tmp_path, monkeypatch
  ):
    one = self.make(tmp_path)
    (tmp_path / "runs").mkdir()
    for arm, run in one.runs:
      result = {"run": study.identity(arm, run.settings), "parameters_digest": "digest"}
      write_json(
        one.path(run), result | ({"started_from": "digest"} if arm.starts_from else {})
      )
    given: list[str] = []

    def run_jobs(queue, **_):
      given.extend(job.name for job in queue if not job.is_finished())
      return {}

    monkeypatch.setattr(study, "run_jobs", run_jobs)
    monkeypatch.setattr(study, "prepare_dataset", lambda _: None)
    assert {len(results) for results in one.run().values()} == {2}
    assert given == []
    one.run(kept=one.kept_of("first"))
    assert given == ["first,seed=1", "first,seed=2"]
    one.kept_of("first")[0].mkdir()
    one.path(one.runs[3][1]).unlink()  # second, seed 2
    given.clear()
    with pytest.raises(Stopped, match="first,seed=2, which it starts from, is missing"):
      one.run()
    assert given == ["first,seed=2"]


def write_dataset(folder, sequences, *, shards=1, vocab_size=70_000):
  """A prepared dataset as far as its identity goes; of a small vocabulary in 16 bits."""
  folder.mkdir()
  names = [f"train-{i}.arrow" for i in range(shards)]
  schema = with_small_tokens(SCHEMA, vocab_size)
  for name, part in zip(
    names, np.array_split(np.arange(len(sequences)), shards), strict=True
  ):
    write_sequences(folder / name, [sequences[i] for i in part], schema=schema)
  manifest = {"tokenizer": {"file": "vocab.txt"}, "sha256": {"vocab.txt": "a digest"}}
  write_json(
    folder / "manifest.json", manifest | {"shards": {"train": names, "held_out": []}}
  )
  return folder


def test_every_run_is_known_by_the_dataset_that_it_had(tmp_path):
  """Those that are only timed, too; whatever files and types hold the sequences."""
  rows = [StoredSequence([2, *range(5, 5 + n), 3], n + 2, 0) for n in (3, 1, 4)]
  program = tmp_path / "timed.py"
  program.write_text(
    "from lab.studies.study import worker\n"
    "worker(lambda arm, config, keep_in: {'seconds': 1.0})\n"
  )
  place = write_dataset(tmp_path / "data", rows)
  options = [f"--config={ROOT}/configs/quickstart.py", f"--out={tmp_path / 'timed.json'}"]
  result = forked.run([program, *options, f"--config.data.directory={place}"], cwd=ROOT)
  assert result.returncode == 0, result.stderr
  made = json.loads((tmp_path / "timed.json").read_text())
  # Published records have such digests, so how they are computed stays.
  assert made["dataset"].startswith("a42ba7fd8f16eac8")
  assert made["machine"].startswith(f"{machine()}; cpu, jax ")

  def found(folder):
    settings = read_settings(options[0].removeprefix("--config="))
    settings = settings.changed({"data.directory": str(folder)})
    return study.read(tmp_path / "timed.json", Arm("run", {}), settings)

  assert found(place) == made
  assert found(write_dataset(tmp_path / "b", rows, shards=3, vocab_size=40)) == made
  rows[1] = rows[1]._replace(input_ids=[2, 6, 3])
  assert found(write_dataset(tmp_path / "c", rows)) is None


def test_text_is_a_part_of_the_data(tmp_path):
  digests = set()
  for texts in (["ab", "c"], ["a", "bc"], ["ab", "c"]):
    digest = hashlib.sha256()
    identity._add(digest, pa.chunked_array([pa.array([texts])]))
    digests.add(digest.hexdigest())
  assert len(digests) == 2


@pytest.mark.slow
def test_a_run_by_train_py_has_a_record_and_continues_only_itself(tmp_path):
  options = small(tmp_path) | {"optimizer.warmup_steps": 1}
  folders: set = set()
  for steps in (2, 3):
    values = options | {"train.steps": steps}
    one = Study(
      tmp_path, [Arm("packed", {})], values, seeds=1, module="lab.studies.trained_run"
    )
    ((arm, run),) = one.runs
    study.prepare_data([run])
    job = one.job(arm, run)
    assert not job.is_finished()
    words = [word for word in job.command[1:] if word != "--end_with_parent"]
    result = forked.run(words, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert job.is_finished()
    (record,) = one.results()["packed"]
    assert record["summary"]["steps"] == steps
    (folder,) = set(one.path(run).with_suffix("").iterdir()) - folders
    folders.add(folder)
    assert workdir.read_summary(folder) == record["summary"]
  one.path(run).unlink()  # the run has ended, and only its record is missing
  assert "is finished" in forked.run(words, cwd=ROOT).stdout
  assert one.results()["packed"] == [record]
  refused = forked.run([*words, "--config.train.steps=0"], cwd=ROOT)
  assert refused.returncode == 2
  assert "train.steps is 0; expected at least 1" in refused.stderr.splitlines()[-1]


def test_parameters_of_other_rows_than_those_of_the_record_are_deleted(tmp_path):
  settings = read_settings(f"{ROOT}/configs/quickstart.py")
  path, arm = tmp_path / "runs" / "run.json", Arm("run", {}, keep=True)
  kept = path.with_suffix("")

  def write(sequences, loss):
    kept.mkdir(parents=True, exist_ok=True)  # as the run has kept them
    curve = [{"step": 7, "sequences": sequences, "real_tokens": 999}]
    own = {"mlm_loss": loss}
    result = {"curve": curve, "evaluations": [{"own": own}]}
    study.write_record(path, arm, settings, result)

  write(70, 2.5)
  before = path.read_bytes()
  write(70, 2.5004)  # of another machine
  assert kept.is_dir()
  for sequences, loss in ((71, 2.5), (70, 2.6)):
    with pytest.raises(packing.InputError, match="its rows are not those of its record"):
      write(sequences, loss)
    assert not kept.exists()  # so that it does not count as finished
  assert path.read_bytes() == before
  study.write_record(path, Arm("run", {}), settings, {})  # keeps nothing to compare


@pytest.mark.parametrize(
  ("name", "another"),
  [
    ("model.safetensors", ""),
    ("model-1.safetensors", "model-2.safetensors"),
    ("checkpoints/0/params/d/a", "checkpoints/0/params/d/b"),
  ],
)
def test_weights_have_a_digest_in_every_form(name, another, tmp_path):
  """Of Hugging Face, in one file or several, or imported."""
  assert identity.weights_digest(str(tmp_path)) is None
  last = tmp_path / (another or name)
  last.parent.mkdir(parents=True, exist_ok=True)
  (tmp_path / name).write_bytes(b"one")
  digests = set()
  for content in (b"two", b"three"):
    last.write_bytes(content)
    digests.add(identity.weights_digest(str(tmp_path)))
  assert len(digests - {None}) == 2
  if not another:
    assert hashlib.sha256(b"three").hexdigest() in digests


@pytest.mark.parametrize("given", ["", "elsewhere"])
def test_runs_share_a_folder_of_compiled_programs(given, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  if given:  # what is set already stays
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
  out = tmp_path / "environment.json"
  program = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
  job = Job("one", [sys.executable, "-c", program], tmp_path / "log", out.exists)
  assert not study.run_jobs([job], number=1)
  environment = json.loads(out.read_text())
  expected = given or str(tmp_path / "data" / "compiled")
  assert environment["JAX_COMPILATION_CACHE_DIR"] == expected


def test_arms_see_the_same_packs(plan):
  fields = {"train.steps": 331, "train.batch_size": 4, "optimizer.warmup_steps": 9}
  ((_, run),) = Study(pathlib.Path("nowhere"), [Arm("packed", {})], fields, seeds=1).runs

  def schedule(adjust: str, batches: str, **others):
    settings = run.settings.changed({"packing.adjust": adjust, **others})
    return make_schedule(settings, plan, batches=batches)

  few, many = schedule("reduce_batch", "packed"), schedule("lamb_betas", "packed")
  ratio = many.recipe.rows / few.recipe.rows
  packs = few.recipe.steps * few.recipe.rows
  assert packs == many.recipe.steps * many.recipe.rows
  assert [x / ratio for x in few.points] == list(many.points)
  assert [x / ratio for x in few.evaluated] == list(many.evaluated)
  assert few.points[-1] == few.evaluated[-1] == few.recipe.steps
  constant = schedule("reduce_batch", "constant")
  assert constant.rows * constant.recipe.steps == pytest.approx(
    packs * plan.packing_factor, abs=constant.rows
  )
  assert constant.points[-1] == constant.recipe.steps
  with pytest.raises(ConfigError, match="next_sentence is True; expected False with batch"):
    schedule("reduce_batch", "pieces")  # would learn labels that are all 0
  with pytest.raises(ConfigError, match="is 'online'; expected another, since all arms"):
    schedule("reduce_batch", "packed", **{"packing.algorithm": "online"})
  cut = schedule("reduce_batch", "pieces", **{"model.next_sentence": False})
  row = plan.histogram.max_sequence_length
  assert cut.rows * cut.recipe.steps * row == pytest.approx(
    packs / plan.num_packs * plan.histogram.num_tokens, abs=cut.rows * row
  )
