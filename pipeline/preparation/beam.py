"""Preparing on many machines, with Apache Beam pipelines.

Workers read the source and write to the dataset's folder, so all of them must be able to
reach both: on a shared file system, or anywhere if the runner is on this machine. They run
the same functions as without Beam, and random choices depend only on the seed and on the
position of a document, so the result is the same, byte for byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from packing import InputError
from pipeline.preparation import shard_files, write
from pipeline.preparation.shard_files import ShardSummary, ShardWork
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import DocumentShard
from pipeline.sources.partitions import Partition

_ERROR_SUFFIX = ".partial-error-"  # the next preparation removes these


class BeamRunner:
  """Prepares a dataset as a Beam pipeline; a runner for `prepare`.

  Args:
    name: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, ...
    options: options of the Beam runner, such as `--flink_master=localhost:8081`.

  Raises:
    InputError: Beam is not installed, or does not know the runner.
  """

  def __init__(self, name: str, options: Iterable[str] = ()):
    self.name = name
    try:
      import apache_beam as beam
      import apache_beam.options.pipeline_options
    except ImportError as error:
      raise InputError(
        f"--runner needs Apache Beam ({error}). Install it: pip install -c "
        'requirements.lock -e ".[beam]".'
      ) from error
    self.beam = beam
    try:
      beam.runners.create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
      raise InputError(
        f"Beam cannot create the runner {name!r} ({error}). Expected DirectRunner, "
        "FlinkRunner, SparkRunner, DataflowRunner or another installed one."
      ) from error
    self._options = beam.options.pipeline_options.PipelineOptions(
      [f"--runner={name}", *options]
    )

  @contextlib.contextmanager
  def pipeline(self, directory: str | pathlib.Path) -> Iterator[tuple[Any, Errors]]:
    """A pipeline, which runs when the block ends, and the errors of its workers.

    Raises:
      InputError, OSError: the first error of a worker.
      OSError: the job failed for another reason.
    """
    errors = Errors(str(directory), uuid.uuid4().hex)
    try:
      with self.beam.Pipeline(options=self._options) as pipeline:
        yield pipeline, errors
    except Exception as error:  # each runner raises its own
      errors.raise_first()
      raise OSError(f"The job on {self.name} failed: {str(error)[:600]}") from error
    errors.raise_first()

  def __call__(
    self, directory: pathlib.Path, preparation: write.Preparation, tokenizer: str
  ) -> Iterator[ShardSummary]:
    beam, settings = self.beam, preparation.settings
    parts = list(write.split_parts(preparation.sources))
    place = str(directory.absolute())
    tokenizer = str(pathlib.Path(tokenizer).absolute())
    with self.pipeline(place) as (pipeline, errors):
      _ = (
        pipeline
        | "partitions" >> beam.Create(parts)
        | "spread partitions" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(_read, settings, errors)
        | "spread shards" >> beam.Reshuffle()
        | "write" >> beam.Map(_write, settings, tokenizer, place, errors)
      )
    yield from shard_files.all_summaries(directory)


@dataclasses.dataclass(frozen=True)
class Errors:
  """Errors of workers, recorded in files, since runners wrap and repeat exceptions.

  Attributes:
    directory: where the files are.
    run: distinguishes them from those of another run, whose workers may still exist.
  """

  directory: str
  run: str

  @contextlib.contextmanager
  def recorded(self, name: str) -> Iterator[None]:
    """Writes an error that the block raises to a file, and continues after the block."""
    try:
      yield
    except (InputError, OSError) as error:
      cause = error.__cause__ if isinstance(error, InputError) else error
      values = {
        "input": isinstance(error, InputError),
        "errno": cause.errno if isinstance(cause, OSError) else None,
        "text": str(error),
      }
      path = pathlib.Path(self.directory) / f".{name}{_ERROR_SUFFIX}{self.run}"
      path.touch()
      with contextlib.suppress(OSError):  # an empty file means that the disk is full
        path.write_text(json.dumps(values))

  def raise_first(self):
    """Raises the first error of a worker, if there is one."""
    for path in sorted(pathlib.Path(self.directory).glob(f".*{_ERROR_SUFFIX}{self.run}")):
      text = path.read_text()
      if not text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.directory)
      values = json.loads(text)
      error = OSError(values["text"])
      error.errno = values["errno"]
      if values["input"]:
        raise InputError(values["text"]) from error
      raise error


def _read(
  part: tuple[str | None, int, Partition], settings: DatasetSettings, errors: Errors
) -> Iterator[DocumentShard]:
  split, number, partition = part
  with errors.recorded(f"partition-{split or 'all'}-{number:05d}"):
    yield from write.read_shards(settings, split, number, partition)


def _write(
  shard: DocumentShard,
  settings: DatasetSettings,
  tokenizer: str,
  directory: str,
  errors: Errors,
):
  if shard_files.load_summary(directory, shard.name) is None:
    with errors.recorded(shard.name):
      shard_files.write_shard(ShardWork(shard, settings, tokenizer, directory))
