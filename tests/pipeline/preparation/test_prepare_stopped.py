"""Preparations that are killed, run out of disk, meet each other or find damage."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

import packing
from pipeline.__main__ import main
from pipeline.dataset import open_dataset
from pipeline.preparation import shard_files, workers
from pipeline.preparation import write as writing
from pipeline.preparation.prepare import prepare
from pipeline.preparation.shard_files import ShardWork, write_shard
from pipeline.sources.document import Document
from pipeline.sources.document_shards import DocumentShard
from tests import forked
from tests.pipeline import processes
from tests.prepared import ROOT, arguments, contents, settings

DAMAGES = "cut", "altered", "gone"
SHARD = DocumentShard("train", 0, 0, [Document({"text": "The cat. A cat."})] * 2)


def damage(path, how):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content if how == "altered" else content[:-100])
  if how == "gone":
    path.unlink()


def assert_as_prepared_anew(folder, chosen):
  clean = prepare(folder.with_name("clean"), chosen, num_workers=1)
  assert contents(folder) == contents(clean.directory)


def start(*options) -> forked.Process:
  return forked.Process(["-m", "pipeline", *options], cwd=ROOT)


def workers_of(process, partial, *, shards) -> list[int]:
  """The workers of a preparation that has written some shards, and is stopped then."""
  deadline = time.monotonic() + 60
  while len(list(partial.glob("*/*.summary.json"))) < shards:
    assert time.monotonic() < deadline
    assert process.poll() is None
    time.sleep(0.001)
  os.kill(process.pid, signal.SIGSTOP)
  return processes.children_of(process.pid)


def test_a_killed_prepare_resumes_and_its_workers_end(corpus, reference, tmp_path):
  words = arguments(corpus, tmp_path / "d", "--workers=2")
  first = start(*words)
  workers = workers_of(first, tmp_path / ".d.partial", shards=3)
  assert workers
  first.kill()
  first.communicate()
  assert not (tmp_path / "d").exists()
  processes.assert_they_end(workers)
  assert main(words) == 0
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_two_processes_make_one_dataset(corpus, reference, tmp_path):
  both = [start(*arguments(corpus, tmp_path / "d")) for _ in range(2)]
  outputs = [process.communicate() for process in both]
  assert [process.returncode for process in both] == [0, 0], outputs
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


def count_shards(patch, *, fails_at=None) -> list:
  """The shards written from now on; the disk is full at one of them."""
  write, calls = shard_files.write_sequences, []

  def counted(path, rows, **options):
    calls.append(path.name)
    if len(calls) == fails_at:
      raise OSError(28, "No space left on device")
    return write(path, rows, **options)

  patch.setattr(shard_files, "write_sequences", counted)
  return calls


def stop(directory, chosen):
  """Prepares until the disk is full at the fourth shard."""
  with pytest.MonkeyPatch.context() as patch:
    count_shards(patch, fails_at=4)
    with pytest.raises(OSError, match="No space left"):
      prepare(directory, chosen, num_workers=1)


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
  """The folder of a preparation that ended at the fourth shard."""
  folder = tmp_path_factory.mktemp("stopped")
  stop(folder / "d", settings(corpus))
  return folder / ".d.partial"


@pytest.mark.parametrize(
  ("end", "how"),
  [("arrow", ""), *(("arrow", how) for how in DAMAGES), ("summary.json", "gone")],
)
def test_only_shards_that_are_missing_or_damaged_are_written_again(
  corpus, reference, stopped, tmp_path, monkeypatch, end, how
):
  shutil.copytree(stopped, tmp_path / ".d.partial")
  if how:
    damage(min((tmp_path / ".d.partial").glob(f"*/train-*.{end}")), how)
  written = count_shards(monkeypatch)
  dataset = prepare(tmp_path / "d", settings(corpus), num_workers=1)
  left = sum(map(len, dataset.manifest["shards"].values())) - 3
  assert len(written) == left + bool(how)
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_shards_of_another_format_are_written_again(
  corpus, reference, stopped, tmp_path, monkeypatch
):
  shutil.copytree(stopped, tmp_path / ".d.partial")
  monkeypatch.setattr("pipeline.preparation.prepare._SHARDS", 0)
  written = count_shards(monkeypatch)
  dataset = prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert len(written) == sum(map(len, dataset.manifest["shards"].values()))
  assert contents(tmp_path / "d") == contents(reference.directory)


@pytest.mark.parametrize("changed", ["vocab", "source"])
def test_files_of_the_same_size_with_other_content_start_clean(corpus, tmp_path, changed):
  vocab, source = tmp_path / "vocab", tmp_path / "in" / "a.txt"
  source.parent.mkdir()
  shutil.copy(corpus / "vocab", vocab)
  shutil.copy(corpus / "0.txt", source)
  chosen = settings(corpus, source=str(source), vocab_file=str(vocab), shard_bytes=1000)
  stop(tmp_path / "d", chosen)
  changes = {"vocab": (vocab, "\na\nb\n", "\nb\na\n"), "source": (source, "cat", "hat")}
  path, old, new = changes[changed]
  before = path.stat()
  path.write_text(path.read_text().replace(old, new))
  assert path.stat().st_size == before.st_size
  os.utime(path, ns=(0, before.st_mtime_ns + 1))
  prepare(tmp_path / "d", chosen, num_workers=1)
  assert_as_prepared_anew(tmp_path / "d", chosen)


@pytest.mark.parametrize("error", [packing.InputError("bad text"), KeyboardInterrupt()])
def test_workers_end_when_the_work_fails(corpus, tmp_path, monkeypatch, error):
  started, start = [], workers._start

  def noted():
    started.append(start())
    return started[-1]

  def work():
    yield from [
      ShardWork(SHARD, settings(corpus), str(corpus / "vocab"), str(tmp_path))
    ] * 3
    raise error

  monkeypatch.setattr(workers, "_start", noted)
  with pytest.raises(type(error)):
    list(workers.write_shards(work(), num_workers=2))
  assert len(started) == 2
  assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize("answer", ["pickle.dumps('x' * 99)[:50]", "b''"])
def test_a_worker_that_is_killed_while_it_writes_is_reported(corpus, monkeypatch, answer):
  half = f"import pickle, sys; sys.stdout.buffer.write({answer})"

  def start():
    return subprocess.Popen(
      [sys.executable, "-c", half], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

  monkeypatch.setattr(workers, "_start", start)
  long = SHARD._replace(documents=[Document({"text": "x" * 1_000_000})])
  work = [ShardWork(long, settings(corpus), "vocab", "d")] * 3
  with pytest.raises(OSError, match=r"A worker exited .* while writing train-"):
    list(workers.write_shards(work, num_workers=2))


def test_a_source_that_vanishes_is_named_and_can_come_back(
  corpus, reference, tmp_path, monkeypatch, capsys
):
  source, write = shutil.copytree(corpus, tmp_path / "in"), writing.write_dataset

  def vanish(*args, **options):
    (source / "2.txt").unlink()
    return write(*args, **options)

  args = arguments(corpus, tmp_path / "d", f"--source={source}")
  with monkeypatch.context() as patch:
    patch.setattr(writing, "write_dataset", vanish)
    assert main(args) == 2
  *_, error = capsys.readouterr().err.splitlines()
  assert error.startswith("error: ")
  assert "No such file" in error
  assert str(source / "2.txt") in error
  left = len(list((tmp_path / ".d.partial").glob("*/*.summary.json")))
  shutil.copy2(corpus / "2.txt", source)
  written = count_shards(monkeypatch)
  assert main([*args, "--workers=1"]) == 0
  dataset = open_dataset(tmp_path / "d")
  assert dataset.manifest["sha256"] == reference.manifest["sha256"]
  assert len(written) == sum(map(len, dataset.manifest["shards"].values())) - left
  assert left > 2
  assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "in"]


@contextlib.contextmanager
def before_the_end(act):
  """Acts on the folder when all shards are written."""
  write, seen = writing.write_dataset, []

  def acting(directory, *args, **options):
    manifest = write(directory, *args, **options)
    act(directory)
    seen.append(directory)
    return manifest

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(writing, "write_dataset", acting)
    yield
  assert seen


def test_a_worker_of_a_killed_run_writes_nothing_into_another(corpus, stopped, tmp_path):
  """For example, a worker of a Beam job whose driver is gone holds no lock."""
  shutil.copytree(stopped, tmp_path / ".d.partial")
  (theirs,) = [path for path in (tmp_path / ".d.partial").iterdir() if path.is_dir()]
  left = ShardWork(SHARD, settings(corpus), str(corpus / "vocab"), str(theirs))

  def write_too(_=None):
    with pytest.raises(FileNotFoundError):
      write_shard(left)

  with before_the_end(write_too):
    prepare(tmp_path / "d", settings(corpus, seed=1), num_workers=1)
  write_too()
  assert [path.name for path in tmp_path.iterdir()] == ["d"]
  assert_as_prepared_anew(tmp_path / "d", settings(corpus, seed=1))


def test_a_full_disk_is_reported_and_resumed_later(corpus, reference, tmp_path):
  """A limit on file size simulates the full disk."""
  args = arguments(corpus, tmp_path / "d", "--workers=2")
  process = start(*args)
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
  _, errors = process.communicate()
  assert process.returncode == 1, errors
  assert "Make room. Run the same command again: it resumes" in errors
  assert "Traceback" not in errors
  assert not (tmp_path / "d").exists()
  assert main(args) == 0
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_a_shard_that_is_damaged_makes_no_dataset(corpus, tmp_path):
  def cut(directory):
    damage(min(directory.glob("train-*.arrow")), "cut")

  with before_the_end(cut), pytest.raises(packing.InputError, match="or was altered"):
    prepare(tmp_path / "d", settings(corpus), num_workers=1)
  shutil.rmtree(tmp_path / "d")
  dataset = prepare(tmp_path / "d", settings(corpus), num_workers=1)
  path = dataset.directory / dataset.manifest["shards"]["train"][3]
  for how in DAMAGES[1:]:  # when it is whole, and is opened
    damage(path, how)
    with pytest.raises(packing.InputError, match=rf"{path.name} is missing or was alter"):
      open_dataset(dataset.directory)
