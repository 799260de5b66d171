"""Preparing on many machines, with Apache Beam pipelines.

Workers read the source and write to the dataset's folder, so all of them must be able to
reach both: on a shared file system, or anywhere if the runner is on this machine. They run
the same functions as without Beam, and random choices depend only on the seed and on the
position of a document, so the result is the same, byte for byte.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Iterator

from packing import InputError
from pipeline.preparation import shard_files, write
from pipeline.preparation.shard_files import ShardSummary, ShardWork
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import document_shards
from pipeline.sources.partitions import Partition

Part = tuple[str | None, int, Partition]  # of `write.split_parts`


class BeamRunner:
  """Prepares a dataset as a Beam pipeline; a runner for `prepare`.

  Args:
    name: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, ...
    options: options of the Beam runner, such as `--flink_master=localhost:8081`.
    num_workers: how many workers it has. They share partitions if there are fewer of them;
      each that shares a partition reads all of it.

  Raises:
    InputError: Beam is not installed, or does not know the runner.
  """

  def __init__(self, name: str, options: Iterable[str] = (), *, num_workers: int = 1):
    self.name, self._num_workers = name, num_workers
    try:
      import apache_beam as beam
      import apache_beam.options.pipeline_options
    except ImportError as error:
      raise InputError(
        f'--runner needs Beam ({error}): pip install -c requirements.lock -e ".[beam]"'
      ) from error
    self.beam = beam
    try:
      beam.runners.create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
      raise InputError(f"Beam cannot run {name!r} ({error}). Try DirectRunner.") from error
    self._options = beam.options.pipeline_options.PipelineOptions(
      [f"--runner={name}", *options]
    )

  def __call__(
    self, directory: pathlib.Path, preparation: write.Preparation, tokenizer: str
  ) -> Iterator[ShardSummary]:
    """Runs the pipeline.

    Raises:
      OSError: the job failed. The message is the runner's, which quotes its workers.
    """
    beam, settings = self.beam, preparation.settings
    parts = list(write.split_parts(preparation.sources))
    turns = math.ceil(self._num_workers / max(len(parts), 1))
    work = [(part, turn, turns) for part in parts for turn in range(turns)]
    place = str(directory.absolute())
    tokenizer = str(pathlib.Path(tokenizer).absolute())
    try:
      with beam.Pipeline(options=self._options) as pipeline:
        _ = (
          pipeline
          | "work" >> beam.Create(work)
          | "spread" >> beam.Reshuffle()
          | "write" >> beam.Map(_write, settings, tokenizer, place)
        )
    except Exception as error:  # each runner raises its own
      text = str(error)
      if len(text) > 600:  # the worker's error stands before or after its traceback
        text = f"{text[:300]} ... {text[-300:]}"
      raise OSError(f"The job on {self.name} failed: {text}") from error
    yield from shard_files.all_summaries(directory)


def _write(
  work: tuple[Part, int, int], settings: DatasetSettings, tokenizer: str, directory: str
):
  """Reads a partition, and writes the shards whose turn it is that are not there yet.

  A worker holds the documents of one shard at a time, and a runner hands none around.
  """
  part, turn, turns = work
  for number, shard in enumerate(document_shards(settings, *part)):
    if number % turns == turn and not shard_files.load_summary(directory, shard.name):
      shard_files.write_shard(ShardWork(shard, settings, tokenizer, directory))
