"""Assignments by length and rank, and Apache Beam beside this process."""

import json
import pathlib
import pickle
import shutil
import sys

import numpy as np
import pyarrow as pa
import pytest

import packing
from packing import Assignment
from pipeline.__main__ import main
from pipeline.batches.audit import audit
from pipeline.batches.loader import PackedLoader
from pipeline.preparation import ranks, shard_files
from pipeline.preparation.assignments import read_assignment, write_assignment
from pipeline.preparation.prepare import prepare
from tests.prepared import arguments, contents, needs_beam, settings

RUNNERS = [[], pytest.param(["--runner=DirectRunner"], marks=needs_beam)]


def full(*args, **options):
  raise OSError(28, "No space left on device")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000])
def test_ranks_are_permuted(count):
  found = ranks.permute(np.arange(count), count, key=3)
  assert sorted(found.tolist()) == list(range(count))
  part = ranks.permute(np.arange(count)[count // 2 :], count, key=3)
  np.testing.assert_array_equal(part, found[count // 2 :])
  assert count < 1000 or abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.15


def test_shards_assigned_separately_make_the_whole_assignment(reference, tmp_path):
  store, limit = reference.train, {"max_sequences_per_pack": 3}
  plan = write_assignment(reference.directory, tmp_path / "a", seed=5, **limit)
  read, found = read_assignment(tmp_path / "a")
  assert read.certificate() == plan.certificate()
  packs, slots = ranks.place(plan, store.lengths, np.zeros(61, int), seed=5)
  np.testing.assert_array_equal(np.diff(found.offsets), np.bincount(packs))
  np.testing.assert_array_equal(found.sequence_ids, np.lexsort((slots, packs)))
  np.testing.assert_array_equal(np.sort(found.sequence_ids), np.arange(len(store)))
  lengths = [tuple(store.lengths[pack].tolist()) for pack in found]
  counts = zip(plan.strategies, plan.repeat_counts, strict=True)
  assert lengths == [tuple(strategy) for strategy, n in counts for _ in range(n)]
  with pytest.raises(packing.InputError, match="exists already"):
    write_assignment(reference.directory, tmp_path / "a")
  write_assignment(reference.directory, tmp_path / "b", seed=6, **limit)
  other = read_assignment(tmp_path / "b")[1].sequence_ids
  assert (found.sequence_ids != other).mean() > 0.5


@pytest.fixture(scope="module")
def assigned(reference, tmp_path_factory):
  """A folder that the command wrote, of the training split."""
  folder = tmp_path_factory.mktemp("assigned") / "a"
  args = ["assign", str(reference.directory), f"--out={folder}", "--seed=3"]
  assert main([*args, "--max-sequences-per-pack=3"]) == 0
  return folder


def loader_of(store, plan, assignment):
  options = {"batch_size": 7, "masking": None, "seed": 0}
  return PackedLoader(store, plan, assignment=assignment, **options)


def test_a_loader_uses_what_the_command_wrote(reference, assigned):
  plan, assignment = read_assignment(assigned)
  loader = loader_of(reference.train, plan, assignment)
  for epoch in (0, 1):
    result = audit(loader, epoch=epoch)
    assert result["sequences"] == len(reference.train)
    assert result["rows"] == plan.num_packs
  assert result["neighbours_kept"] == 1.0
  rows = np.concatenate([b["sequence_ids"] for b in loader.evaluation_batches()])
  assert {tuple(row[row >= 0]) for row in rows} - {()} == {*map(tuple, assignment)}
  again = pickle.loads(pickle.dumps(loader.epochs))  # as a worker gets them
  found = (epochs.sequence_ids(2, np.arange(9)) for epochs in (loader.epochs, again))
  np.testing.assert_array_equal(*found)


def test_an_assignment_of_something_else_is_refused(reference, assigned):
  plan, assignment = read_assignment(assigned)
  offsets, ids = assignment.offsets, assignment.sequence_ids
  other = packing.pack(plan.histogram, algorithm="none")
  lengths = reference.train.lengths
  swapped, twice = ids.copy(), ids.copy()
  place = int((lengths[ids] != lengths[ids[0]]).argmax())
  swapped[[0, place]] = ids[[place, 0]]
  twice[1] = twice[0]
  for store, planned, found, message in (
    (reference.train, other, assignment, "the plan has"),
    (reference.held_out, plan, assignment, "Assign this dataset"),
    (reference.train, plan, Assignment(offsets, twice), "expected each number once"),
    (reference.train, plan, Assignment(offsets, swapped), "in a slot of"),
  ):
    with pytest.raises(packing.InputError, match=message):
      loader_of(store, planned, found)


def cut(path):
  path.write_bytes(path.read_bytes()[:-100])


def test_damaged_packs_are_reported(assigned, tmp_path):
  for name, damage, message in (
    ("packs-00000.arrow", cut, "is not a file of packs"),
    ("packs-00000.arrow", pathlib.Path.unlink, "holds no packs"),
    ("plan.json", pathlib.Path.unlink, "plan written by"),
  ):
    folder = shutil.copytree(assigned, tmp_path / message)
    damage(folder / name)
    with pytest.raises(packing.InputError, match=message):
      read_assignment(folder)


def copy_the_first(path):
  shutil.copy(min(path.parent.glob("train-*.arrow")), path)


def in_manifest(change):
  def damage(path):
    manifest = json.loads((path.parent / "manifest.json").read_text())
    change(manifest)
    (path.parent / "manifest.json").write_text(json.dumps(manifest))

  return damage


def empty_held_out(manifest):
  manifest["shards"]["held_out"] = []


def without_settings(manifest):
  del manifest["settings"]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
  ("damage", "option", "message"),
  [
    (cut, "--seed=0", "is missing or was altered since it was prepared"),
    (copy_the_first, "--seed=0", "sequences; the manifest says"),
    (in_manifest(empty_held_out), "--split=held_out", "has no held_out sequences"),
    (in_manifest(without_settings), "--seed=0", "is not a prepared dataset"),
    (pathlib.Path.exists, "--seed=-1", "seed is -1; expected at least 0"),
    (pathlib.Path.exists, "--algorithm=x", "expected"),
  ],
)
def test_mistakes_of_assign_are_reported_in_one_line(
  reference, tmp_path, capsys, runner, damage, option, message
):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  damage(folder / reference.manifest["shards"]["train"][1])
  assert main(["assign", str(folder), f"--out={tmp_path / 'a'}", option, *runner]) == 2
  error = capsys.readouterr().err
  assert message in error.splitlines()[-1]
  assert "Traceback" not in error
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_assign_reports_a_full_disk(reference, tmp_path, capsys, runner, monkeypatch):
  write = pa.ipc.new_file

  def new_file(sink, schema, **options):
    is_packs = schema.names == ["sequence_ids"]
    return (full if is_packs else write)(sink, schema, **options)

  monkeypatch.setattr(pa.ipc, "new_file", new_file)
  args = ["assign", str(reference.directory), f"--out={tmp_path / 'a'}", *runner]
  assert main(args) == 1
  error = capsys.readouterr().err
  assert "No space left on device. Make room. Run the same command again." in error
  assert not list(tmp_path.iterdir())


@needs_beam
def test_beam_gives_the_same_bytes_plan_and_packs(corpus, reference, tmp_path):
  from pipeline.preparation.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)
  here, there = tmp_path / "here", tmp_path / "there"
  plan = write_assignment(reference.directory, here, seed=5)
  other = write_assignment(dataset.directory, there, seed=5, runner=runner)
  assert plan.certificate() == other.certificate()
  assert contents(here) == contents(there)


@needs_beam
def test_beam_reports_a_disk_too_full_for_the_error_itself(corpus, tmp_path, monkeypatch):
  from pipeline.preparation.beam import BeamRunner

  with monkeypatch.context() as patch:
    patch.setattr(shard_files, "write_sequences", full)
    patch.setattr(pathlib.Path, "write_text", lambda path, text: path.touch() or full())
    with pytest.raises(OSError, match="No space left") as stop:
      prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))
  assert stop.value.errno == 28
  prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))


@needs_beam
@pytest.mark.parametrize(
  ("runner", "text", "status", "message"),
  [
    ("DirectRunner", b"a\n\nb\ncaf\xe9\n", 2, "line 4 is not UTF-8"),
    ("NoRunner", b"a.\n\nb.\n", 2, "Beam cannot create the runner 'NoRunner'"),
    ("DirectRunner", b"a.\n\nb.\n", 1, "error: The job on DirectRunner failed: "),
  ],
)
def test_what_fails_on_beam_is_reported_in_one_line(
  corpus, tmp_path, capsys, monkeypatch, runner, text, status, message
):
  monkeypatch.setattr(shard_files, "write_shard", lambda work: 1 / 0)
  (tmp_path / "a.txt").write_bytes(text)
  words = arguments(corpus, tmp_path / "d", f"--source={tmp_path}", f"--runner={runner}")
  assert main(words) == status
  error = capsys.readouterr().err.splitlines()[-1]
  assert message in error
  assert status == 2 or "division by zero" in error
  assert not (tmp_path / "d").exists()


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
