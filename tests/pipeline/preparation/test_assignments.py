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
from pipeline.preparation import ranks
from pipeline.preparation.assignments import read_assignment, write_assignment
from pipeline.preparation.prepare import prepare
from tests.prepared import arguments, contents, needs_beam, settings


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000])
def test_ranks_are_permuted(count):
  found = ranks.permute(np.arange(count), count, key=3)
  assert sorted(found.tolist()) == list(range(count))
  part = ranks.permute(np.arange(count)[count // 2 :], count, key=3)
  np.testing.assert_array_equal(part, found[count // 2 :])
  if count == 1000:
    assert (found != ranks.permute(np.arange(count), count, key=4)).mean() > 0.9
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.15


def test_shards_assigned_separately_make_the_whole_assignment(reference, tmp_path):
  plan = write_assignment(
    reference.directory, tmp_path / "a", max_sequences_per_pack=3, seed=5
  )
  read, found = read_assignment(tmp_path / "a")
  assert read.certificate() == plan.certificate()
  packs, slots = ranks.place(plan, reference.train.lengths, np.zeros(61, int), seed=5)
  np.testing.assert_array_equal(np.diff(found.offsets), np.bincount(packs))
  np.testing.assert_array_equal(found.sequence_ids, np.lexsort((slots, packs)))
  np.testing.assert_array_equal(
    np.sort(found.sequence_ids), np.arange(len(reference.train))
  )
  lengths = reference.train.lengths[found.sequence_ids]
  lengths_of_packs = [tuple(p) for p in np.split(lengths.tolist(), found.offsets[1:-1])]
  expected = [
    tuple(s)
    for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(n)
  ]
  assert lengths_of_packs == expected
  with pytest.raises(packing.InputError, match="exists already"):
    write_assignment(reference.directory, tmp_path / "a")


@pytest.fixture(scope="module")
def assigned(reference, tmp_path_factory):
  """A folder that the command wrote, of the training split."""
  folder = tmp_path_factory.mktemp("assigned") / "a"
  args = ["assign", str(reference.directory), f"--out={folder}", "--seed=3"]
  assert main([*args, "--max-sequences-per-pack=3"]) == 0
  return folder


def loader_of(store, plan, assignment, **options):
  return PackedLoader(
    store, plan, assignment=assignment, batch_size=7, masking=None, seed=0, **options
  )


def test_a_loader_uses_what_the_command_wrote(reference, assigned):
  plan, assignment = read_assignment(assigned)
  loader = loader_of(reference.train, plan, assignment)
  for epoch in (0, 1):
    result = audit(loader, epoch=epoch)
    assert result["sequences"] == len(reference.train)
    assert result["rows"] == plan.num_packs
  assert result["neighbours_kept"] == 1.0
  packs = {tuple(pack) for pack in assignment}
  rows = np.concatenate([b["sequence_ids"] for b in loader.evaluation_batches()])
  assert {tuple(row[row >= 0]) for row in rows} - {()} == packs
  first = np.arange(9)
  again = pickle.loads(pickle.dumps(loader.epochs))  # as a worker gets them
  expected = loader.epochs.sequence_ids(2, first)
  np.testing.assert_array_equal(again.sequence_ids(2, first), expected)


def test_an_assignment_of_something_else_is_refused(reference, assigned):
  plan, assignment = read_assignment(assigned)
  offsets, ids = assignment.offsets, assignment.sequence_ids
  held_out = reference.held_out
  other = packing.pack(plan.histogram, algorithm="none")
  lengths = reference.train.lengths
  swapped, twice = ids.copy(), ids.copy()
  place = int((lengths[ids] != lengths[ids[0]]).argmax())
  swapped[[0, place]] = ids[[place, 0]]
  twice[1] = twice[0]
  for store, planned, found, message in (
    (reference.train, other, assignment, "the plan has"),
    (held_out, plan, assignment, "Assign this dataset"),
    (reference.train, plan, Assignment(offsets, twice), "expected each number once"),
    (reference.train, plan, Assignment(offsets, swapped), "in a slot of"),
    (reference.train, plan, Assignment(offsets, ids - 1), "expected each number once"),
    (reference.train, plan, "frehs", "assignment is 'frehs'; expected 'fresh'"),
  ):
    with pytest.raises(packing.InputError, match=message):
      loader_of(store, planned, found)


@pytest.mark.parametrize("damage", ["cut", "gone", "none"])
def test_damaged_packs_are_reported(assigned, tmp_path, damage):
  folder = shutil.copytree(assigned, tmp_path / "a")
  path = folder / "packs-00000.arrow"
  path.write_bytes(path.read_bytes()[:-100])
  if damage == "gone":
    (folder / "plan.json").unlink()
    shutil.copy(assigned / "packs-00000.arrow", path)
  if damage == "none":
    path.unlink()
  with pytest.raises(packing.InputError, match=r"plan written by|of packs|no packs"):
    read_assignment(folder)


RUNNERS = [[], pytest.param(["--runner=DirectRunner"], marks=needs_beam)]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
  ("damage", "message"),
  [
    ("cut", "is missing or was altered since it was prepared"),
    ("gone", "is missing or was altered since it was prepared"),
    ("another", "sequences; the manifest says"),
    ("seed", "seed is -1; expected at least 0"),
    ("split", "holds no sequences of held_out"),
    ("algorithm", "expected"),
  ],
)
def test_mistakes_of_assign_are_reported_in_one_line(
  reference, tmp_path, capsys, runner, damage, message
):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  first, second = reference.manifest["shards"]["train"][:2]
  options = {
    "seed": ["--seed=-1"],
    "split": ["--split=held_out"],
    "algorithm": ["--algorithm=x"],
  }
  if damage == "cut":
    (folder / second).write_bytes((folder / second).read_bytes()[:-1000])
  elif damage == "gone":
    (folder / second).unlink()
  elif damage == "another":
    shutil.copy(folder / first, folder / second)
  elif damage == "split":
    manifest = dict(reference.manifest, shards=reference.manifest["shards"].copy())
    manifest["shards"]["held_out"] = []
    (folder / "manifest.json").write_text(json.dumps(manifest))
  args = ["assign", str(folder), f"--out={tmp_path / 'a'}", *runner]
  assert main([*args, *options.get(damage, [])]) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.splitlines()[-1].startswith("error: ")
  assert "Traceback" not in error
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_assign_reports_a_full_disk(reference, tmp_path, capsys, runner, monkeypatch):
  write = pa.ipc.new_file

  def full(sink, schema, **options):
    if schema.names == ["sequence_ids"]:
      raise OSError(28, "No space left on device")
    return write(sink, schema, **options)

  monkeypatch.setattr(pa.ipc, "new_file", full)
  out = tmp_path / "a"
  assert main(["assign", str(reference.directory), f"--out={out}", *runner]) == 1
  assert (
    "No space left on device. Make room. Run the same command again."
    in capsys.readouterr().err
  )
  assert not list(tmp_path.iterdir())


@needs_beam
def test_beam_gives_the_same_bytes_plan_and_packs(corpus, reference, tmp_path):
  from pipeline.preparation.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)
  here = write_assignment(reference.directory, tmp_path / "here", seed=5)
  there = write_assignment(dataset.directory, tmp_path / "there", seed=5, runner=runner)
  assert here.certificate() == there.certificate()
  assert contents(tmp_path / "here").keys() == contents(tmp_path / "there").keys()
  for name in ("packs-00000.arrow", "plan.json"):
    assert contents(tmp_path / "here")[name] == contents(tmp_path / "there")[name]


@needs_beam
def test_beam_reports_a_disk_too_full_for_the_error_itself(corpus, tmp_path, monkeypatch):
  from pipeline.preparation import shard_files
  from pipeline.preparation.beam import BeamRunner

  def full(*args, **options):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(shard_files, "write_sequences", full)
    patch.setattr(pathlib.Path, "write_text", lambda path, text: path.touch() or full())
    with pytest.raises(OSError, match="No space left") as stop:
      prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))
  assert stop.value.errno == 28
  prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))


@needs_beam
def test_beam_reports_bad_input_like_a_local_run(corpus, tmp_path, capsys):
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "bad.txt").write_bytes(b"a\n\nb\ncaf\xe9\n")
  args = [*arguments(corpus, tmp_path / "d"), f"--source={tmp_path / 'in'}"]
  assert main([*args, "--runner=DirectRunner"]) == 2
  assert "line 4 is not UTF-8" in capsys.readouterr().err
  assert main([*args, "--runner=NoRunner"]) == 2
  assert "Beam cannot make the runner 'NoRunner'" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


@needs_beam
def test_a_failed_job_is_reported_in_one_line(corpus, tmp_path, capsys, monkeypatch):
  from pipeline.preparation import shard_files

  def broken(*args):
    raise RuntimeError("no such machine")

  monkeypatch.setattr(shard_files, "write_shard", broken)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 1
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("error: The job on DirectRunner failed: ")
  assert "no such machine" in error


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
