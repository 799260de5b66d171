"""Apache Beam beside this process."""

import os
import pathlib
import signal
import sys

import pytest

from pipeline.__main__ import main
from pipeline.preparation import shard_files
from pipeline.preparation.prepare import prepare
from pipeline.sources import partitions
from pipeline.sources.document_shards import document_shards
from tests.prepared import arguments, contents, needs_beam, settings


@needs_beam
def test_beam_gives_the_same_bytes(corpus, reference, tmp_path):
  from pipeline.preparation.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)


@needs_beam
@pytest.mark.parametrize(("num_workers", "partition_bytes"), [(7, 1), (7, 10**9), (2, 1)])
def test_workers_share_partitions_only_if_there_are_fewer_and_hold_one_shard(
  num_workers, partition_bytes, corpus, tmp_path, monkeypatch
):
  """Each shard is written before the next is read, so no others are in memory."""
  from pipeline.preparation import beam

  events: list[tuple[str, str]] = []

  def read(settings, *part):
    events.append(("open", str(part[1])))
    for shard in document_shards(settings, *part):
      events.append(("read", shard.name))
      yield shard

  def write(work):
    events.append(("write", work.shard.name))
    return write_shard(work)

  write_shard = shard_files.write_shard
  monkeypatch.setattr(partitions, "PARTITION_BYTES", partition_bytes)
  alone = prepare(tmp_path / "alone", settings(corpus), num_workers=1)
  monkeypatch.setattr(beam, "document_shards", read)
  monkeypatch.setattr(shard_files, "write_shard", write)
  runner = beam.BeamRunner("DirectRunner", num_workers=num_workers)
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(alone.directory)
  opened = [part for event, part in events if event == "open"]
  number = len(set(opened))
  assert number == (3 if partition_bytes == 1 else 1)
  assert len(opened) == number * -(-num_workers // number)
  written = [name for event, name in events if event == "write"]
  assert len(written) == len(set(written)) > number
  last = ""
  for event, name in events:
    assert event != "write" or name == last
    last = name


@needs_beam
@pytest.mark.extra("distributed")
def test_several_processes_give_the_same_bytes_though_one_is_killed(
  corpus, tmp_path, monkeypatch
):
  """On Dask, an engine for several processes that needs no other program.

  Its tasks are partitions of the source, here one for each of 9 files.
  """
  import distributed

  from pipeline.preparation.beam import BeamRunner

  class KilledOnce(distributed.WorkerPlugin):
    """Notes each process that runs tasks; the first second task kills its process."""

    def __init__(self, folder: pathlib.Path):
      self.folder, self.begun = folder, 0

    def transition(self, key, start, finish, **_):
      if finish != "executing":
        return
      self.begun += 1
      (self.folder / f"{os.getpid()}").touch()
      killed = self.folder / "killed"
      if self.begun == 2 and not killed.exists():
        killed.mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

  monkeypatch.setattr(partitions, "PARTITION_BYTES", 1)
  texts, notes = tmp_path / "texts", tmp_path / "notes"
  texts.mkdir()
  notes.mkdir()
  for number in range(9):
    text = (corpus / f"{number % 3}.txt").read_text()
    (texts / f"{number}.txt").write_text(f"A {number}.\n\n{text}")
  chosen = settings(corpus, source=str(texts))
  alone = prepare(tmp_path / "alone", chosen, num_workers=1)
  with (
    distributed.LocalCluster(
      n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster,
    distributed.Client(cluster) as client,
  ):
    client.register_plugin(KilledOnce(notes))
    runner = BeamRunner(
      "apache_beam.runners.dask.dask_runner.DaskRunner",
      [f"--dask_client_address={cluster.scheduler_address}", "--dask_npartitions=8"],
    )
    dataset = prepare(tmp_path / "d", chosen, runner=runner)
    for other in [*distributed.Client._instances]:  # the runner leaves its own open
      other.close()
  assert (notes / "killed").is_dir()
  assert len([path for path in notes.iterdir() if path.name.isdigit()]) >= 2
  assert contents(dataset.directory) == contents(alone.directory)


@needs_beam
@pytest.mark.parametrize(
  ("runner", "text", "status", "message"),
  [
    ("DirectRunner", b"a\n\nb\ncaf\xe9\n", 1, "line 4 is not UTF-8"),
    ("NoRunner", b"a.\n\nb.\n", 2, "Beam cannot run 'NoRunner'"),
    ("DirectRunner", b"a.\n\nb.\n", 1, "division by zero"),
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
  assert status == 2 or "error: The job on DirectRunner failed: " in error
  assert not (tmp_path / "d").exists()


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
