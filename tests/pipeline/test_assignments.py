"""Assignments by length and rank, and Apache Beam beside this process."""

import pathlib
import sys

import numpy as np
import pytest

import packing
from pipeline import ranks
from pipeline.__main__ import main
from pipeline.assignments import read_assignment, write_assignment
from pipeline.dataset import prepare
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


def test_shards_assigned_apart_are_the_whole_assignment(reference, tmp_path):
  plan = write_assignment(
    reference.directory, tmp_path / "a", max_sequences_per_pack=3, seed=5
  )
  found = read_assignment(tmp_path / "a")
  whole = ranks.assign(plan, reference.train.lengths, seed=5)
  np.testing.assert_array_equal(found.offsets, whole.offsets)
  np.testing.assert_array_equal(found.sequence_ids, whole.sequence_ids)
  np.testing.assert_array_equal(
    np.sort(found.sequence_ids), np.arange(len(reference.train))
  )
  lengths = reference.train.lengths[found.sequence_ids]
  packs = [tuple(p) for p in np.split(lengths.tolist(), found.offsets[1:-1])]
  expected = [
    tuple(s)
    for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(n)
  ]
  assert packs == expected
  with pytest.raises(packing.InputError, match="is there already"):
    write_assignment(reference.directory, tmp_path / "a")


@needs_beam
def test_beam_gives_the_same_bytes_plan_and_packs(corpus, reference, tmp_path):
  from pipeline.beam import BeamRunner

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
def test_beam_tells_a_disk_without_space_for_the_error(corpus, tmp_path, monkeypatch):
  from pipeline import shards
  from pipeline.beam import BeamRunner

  def full(*args, **options):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(shards, "write_sequences", full)
    patch.setattr(pathlib.Path, "write_text", lambda path, text: path.touch() or full())
    patch.setattr("pipeline.dataset._start_or_go_on", lambda *args: None)
    with pytest.raises(OSError, match="No space left") as stop:
      prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))
  assert stop.value.errno == 28
  prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))


@needs_beam
def test_beam_tells_bad_input_as_the_local_run_does(corpus, tmp_path, capsys):
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "bad.txt").write_bytes(b"a\n\nb\ncaf\xe9\n")
  args = [*arguments(corpus, tmp_path / "d"), f"--source={tmp_path / 'in'}"]
  assert main([*args, "--runner=DirectRunner"]) == 2
  assert "line 4 is no UTF-8" in capsys.readouterr().err
  assert main([*args, "--runner=NoRunner"]) == 2
  assert "Beam cannot make the runner 'NoRunner'" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
