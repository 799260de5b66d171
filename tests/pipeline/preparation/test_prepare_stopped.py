"""Preparations that are killed, run out of disk, meet each other or find damage."""

import contextlib
import errno
import os
import pathlib
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
from pipeline.preparation import beam
from pipeline.preparation import write as writing
from pipeline.preparation.prepare import prepare
from pipeline.preparation.shard_files import ShardWork, write_shard
from pipeline.sources.document import Document
from pipeline.sources.document_shards import DocumentShard
from tests import forked
from tests.prepared import ROOT, arguments, contents, needs_beam, settings


def start(*options) -> forked.Process:
  return forked.Process(["-m", "pipeline", *options], cwd=ROOT)


def test_a_killed_prepare_resumes_and_its_workers_end(corpus, reference, tmp_path):
  process = start(*arguments(corpus, tmp_path / "d", "--workers=2"))
  partial = tmp_path / ".d.partial"
  deadline = time.monotonic() + 60
  while len(list(partial.glob("*/*.summary.json"))) < 3:
    assert time.monotonic() < deadline
    assert process.poll() is None
    time.sleep(0.001)
  workers = subprocess.run(
    ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=False
  ).stdout.split()
  process.kill()
  process.communicate()
  assert not (tmp_path / "d").exists()
  kept = {p.name: p.stat().st_mtime_ns for p in partial.glob("*/train-*.summary.json")}
  assert kept
  while any(_runs(int(pid)) for pid in workers):
    assert time.monotonic() < deadline
    time.sleep(0.01)

  copies = shutil.copytree(partial, tmp_path / "kept")
  chosen = settings(corpus)
  prepare(tmp_path / "d", chosen, num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert not partial.exists()

  # With other settings, what a killed preparation left is not used.
  shutil.copytree(copies, tmp_path / ".e.partial")
  other = prepare(tmp_path / "e", settings(corpus, seed=1), num_workers=1)
  clean = prepare(tmp_path / "f", settings(corpus, seed=1), num_workers=1)
  assert contents(other.directory) == contents(clean.directory)


@pytest.mark.slow
def test_workers_that_outlive_a_prepare_are_waited_for(corpus, tmp_path):
  """Workers of a killed preparation with other settings, stopped for a while."""
  first = start(*arguments(corpus, tmp_path / "d", "--workers=2"))
  deadline = time.monotonic() + 60
  while not list((tmp_path / ".d.partial").glob("*/*.summary.json")):
    assert time.monotonic() < deadline
    assert first.poll() is None
    time.sleep(0.001)
  first.send_signal(signal.SIGSTOP)
  workers = subprocess.run(
    ["ps", "-o", "pid=", "--ppid", str(first.pid)], capture_output=True, check=False
  ).stdout.split()
  assert workers
  for pid in map(int, workers):
    os.kill(pid, signal.SIGSTOP)
  first.kill()
  first.communicate()
  try:
    second = subprocess.Popen(
      [
        sys.executable,
        "-m",
        "pipeline",
        *arguments(corpus, tmp_path / "d", "--workers=2", "--seed=1"),
      ],
      cwd=ROOT,
      stderr=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
    )
    assert second.stderr is not None
    waiting = second.stderr.readline()
  finally:
    for pid in map(int, workers):
      os.kill(pid, signal.SIGCONT)
  _, errors = second.communicate(timeout=60)
  assert "or its last workers" in waiting
  assert second.returncode == 0, errors
  clean = prepare(tmp_path / "e", settings(corpus, seed=1), num_workers=1)
  assert contents(tmp_path / "d") == contents(clean.directory)


def _runs(pid: int) -> bool:
  with contextlib.suppress(OSError):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
  return False


def test_written_shards_are_not_written_again(corpus, stopped, tmp_path, monkeypatch):
  from pipeline.preparation import shard_files

  write, calls = shard_files.write_sequences, []

  def counted(path, rows, **options):
    calls.append(path.name)
    return write(path, rows, **options)

  shutil.copytree(stopped, tmp_path / ".d.partial")
  monkeypatch.setattr(shard_files, "write_sequences", counted)
  dataset = prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert len(calls) == sum(map(len, dataset.manifest["shards"].values())) - 3


def stop(directory, chosen):
  """Prepares until the disk is full at the fourth shard."""
  from pipeline.preparation import shard_files

  calls = []

  def failing(path, rows, **options):
    calls.append(path)
    if len(calls) == 4:
      raise OSError(28, "No space left on device")
    return write(path, rows, **options)

  write = shard_files.write_sequences
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shard_files, "write_sequences", failing)
    with pytest.raises(OSError, match="No space left"):
      prepare(directory, chosen, num_workers=1)


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
  """The folder of a preparation that ended at the fourth shard."""
  folder = tmp_path_factory.mktemp("stopped")
  stop(folder / "d", settings(corpus))
  return folder / ".d.partial"


def test_a_beam_worker_writes_only_missing_shards(corpus, tmp_path):
  shard = DocumentShard("train", 0, 0, [Document({"text": "The cat. A cat."})] * 2)
  options = settings(corpus), str(corpus / "vocab"), str(tmp_path)
  errors = beam.Errors(str(tmp_path), "run")
  inodes = []
  for _ in range(3):
    beam._write(shard, *options, errors)
    inodes.append((tmp_path / f"{shard.name}.arrow").stat().st_ino)
    if len(inodes) == 2:
      (tmp_path / f"{shard.name}.arrow").write_bytes(b"damaged")
  assert inodes[0] == inodes[1] != inodes[2]
  errors.raise_first()


def test_errors_of_another_runs_workers_are_not_raised(tmp_path):
  mine, theirs = (beam.Errors(str(tmp_path), run) for run in ("mine", "theirs"))
  with theirs.left("train-00000-00000"):
    raise packing.InputError("bad text")
  mine.raise_first()
  with pytest.raises(packing.InputError, match="bad text"):
    theirs.raise_first()
  with mine.left("train-00000-00001"):
    raise OSError(errno.EDQUOT, "Disk quota exceeded")
  with pytest.raises(OSError, match="Disk quota exceeded") as stop:
    mine.raise_first()
  assert stop.value.errno == errno.EDQUOT


@pytest.mark.parametrize("changed", ["vocab", "source"])
def test_files_of_the_same_size_with_other_content_start_clean(corpus, tmp_path, changed):
  vocab, source = tmp_path / "vocab", tmp_path / "in" / "a.txt"
  source.parent.mkdir()
  shutil.copy(corpus / "vocab", vocab)
  shutil.copy(corpus / "0.txt", source)
  chosen = settings(corpus, source=str(source), vocab_file=str(vocab), shard_bytes=1000)
  stop(tmp_path / "d", chosen)
  path = {"vocab": vocab, "source": source}[changed]
  before = path.stat()
  if changed == "vocab":
    path.write_text(path.read_text().replace("\na\nb\n", "\nb\na\n"))
  else:
    path.write_text(path.read_text().replace("cat", "hat"))
  assert path.stat().st_size == before.st_size
  os.utime(path, ns=(0, before.st_mtime_ns + 1))
  prepare(tmp_path / "d", chosen, num_workers=1)
  prepare(tmp_path / "e", chosen, num_workers=1)
  assert contents(tmp_path / "d") == contents(tmp_path / "e")


def test_a_worker_of_a_killed_run_writes_nothing_into_another(
  corpus, stopped, tmp_path, monkeypatch
):
  """For example, a worker of a Beam job whose driver is gone holds no lock."""
  shutil.copytree(stopped, tmp_path / ".d.partial")
  (theirs,) = [path for path in (tmp_path / ".d.partial").iterdir() if path.is_dir()]
  shard = DocumentShard("train", 0, 0, [Document({"text": "The cat. A cat."})])
  left = ShardWork(shard, settings(corpus), str(corpus / "vocab"), str(theirs))
  write, orphans = writing.write_dataset, []

  def beside_a_worker(directory, *args, **options):
    manifest = write(directory, *args, **options)
    with pytest.raises(FileNotFoundError):
      write_shard(left)
    orphans.append(directory)
    return manifest

  monkeypatch.setattr(writing, "write_dataset", beside_a_worker)
  prepare(tmp_path / "d", settings(corpus, seed=1), num_workers=1)
  with pytest.raises(FileNotFoundError):
    write_shard(left)
  assert len(orphans) == 1
  assert [path.name for path in tmp_path.iterdir()] == ["d"]
  monkeypatch.undo()
  clean = prepare(tmp_path / "e", settings(corpus, seed=1), num_workers=1)
  assert contents(tmp_path / "d") == contents(clean.directory)


@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
@pytest.mark.parametrize("pattern", ["train-*.arrow", "train-*.summary.json"])
def test_a_shard_that_was_damaged_is_written_again(
  corpus, reference, stopped, tmp_path, pattern, damage
):
  shutil.copytree(stopped, tmp_path / ".d.partial")
  path = min((tmp_path / ".d.partial").glob(f"*/{pattern}"))
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content if damage == "altered" else b"")
  if damage == "gone":
    path.unlink()
  prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_a_shard_that_is_damaged_at_the_end_makes_no_dataset(
  corpus, reference, tmp_path, monkeypatch
):
  write = writing.write_dataset

  def damaging(directory, *args, **options):
    manifest = write(directory, *args, **options)
    min(directory.glob("train-*.arrow")).write_bytes(b"")
    return manifest

  with monkeypatch.context() as patch:
    patch.setattr(writing, "write_dataset", damaging)
    with pytest.raises(OSError, match="arrow is not what was written to it"):
      prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert not (tmp_path / "d").exists()
  prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)


@pytest.mark.parametrize(
  "options",
  [
    ["--workers=1"],
    ["--workers=2"],
    pytest.param(["--runner=DirectRunner"], marks=needs_beam),
  ],
)
def test_a_full_disk_is_reported_and_resumed_later(corpus, reference, tmp_path, options):
  """A limit on file size simulates the full disk."""
  args = arguments(corpus, tmp_path / "d", *options)
  process = start(*args)
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
  _, errors = process.communicate()
  assert process.returncode == 1, errors
  assert "Make room. Run the same command again: it resumes" in errors
  assert "Traceback" not in errors
  assert not (tmp_path / "d").exists()
  assert main(args) == 0
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_two_processes_make_one_dataset(corpus, reference, tmp_path):
  both = [start(*arguments(corpus, tmp_path / "d")) for _ in range(2)]
  outputs = [process.communicate() for process in both]
  assert [process.returncode for process in both] == [0, 0], outputs
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
def test_an_altered_shard_is_detected(reference, tmp_path, damage):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  path = folder / reference.manifest["shards"]["train"][3]
  content = bytearray(path.read_bytes())
  if damage == "cut":
    path.write_bytes(content[:-100])
  elif damage == "gone":
    path.unlink()
  else:
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  with pytest.raises(packing.InputError, match=rf"{path.name} is missing or was altered"):
    open_dataset(folder)
