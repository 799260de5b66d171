"""Apache Beam beside this process."""

import os
import pathlib
import pickle
import signal
import sys

import pytest

from pipeline.__main__ import main
from pipeline.preparation import shard_files
from pipeline.preparation.prepare import prepare
from pipeline.sources import partitions
from pipeline.sources.document_shards import document_shards
from pipeline.tasks.registry import find_task
from tests.prepared import arguments, contents, needs_beam, settings


@needs_beam
def test_beam_gives_the_same_bytes(corpus, reference, tmp_path):
  from pipeline.preparation.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)


@needs_beam
def test_workers_that_take_turns_at_a_partition_give_the_same_bytes(
  corpus, reference, tmp_path, monkeypatch
):
  from pipeline.preparation import beam

  monkeypatch.setattr(beam, "_TURN_BYTES", 5000)
  runner = beam.BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)


@needs_beam
def test_turns_at_a_partition_are_small_and_take_each_shard_once(corpus, monkeypatch):
  """A runner hands around what is to read, and no documents."""
  from pipeline.preparation import beam

  monkeypatch.setattr(beam, "_TURN_BYTES", 5000)
  chosen = settings(corpus)
  fields = find_task(chosen)[0].document_fields(chosen)
  opened = partitions.open_source(str(corpus), fields)
  parts = [(None, number, partition) for number, partition in enumerate(opened)]
  work = [turn for part in parts for turn in beam._turns(part)]
  assert len(parts) < len(work) <= len(parts) * beam._MOST_TURNS
  assert len(pickle.dumps(work)) < sum(x.stat().st_size for x in corpus.iterdir()) / 10
  monkeypatch.setattr(beam.shard_files, "load_summary", lambda *_: None)
  written: list[str] = []
  monkeypatch.setattr(
    beam.shard_files, "write_shard", lambda work: written.append(work.shard.name)
  )
  for turn in work:
    beam._write(turn, chosen, "", "")
  shards = [x.name for part in parts for x in document_shards(chosen, *part)]
  assert len(shards) > 2
  assert sorted(written) == sorted(shards)


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
