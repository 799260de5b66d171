"""The same work on many machines, as Apache Beam pipelines.

Workers read the source and write to the dataset's folder, so both have to lie where all of
them reach them: on a shared file system, or with a runner on this machine anywhere. The
functions are those that run without Beam; random choices hang on
the seed and on where a document stands, so the result is the same, byte for byte.
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
from pipeline.sources.document_shards import HELD_OUT, DocumentShard, document_shards
from pipeline.sources.partitions import Partition

_ERROR_SUFFIX = ".partial-error-"  # removed when the preparation is started again


def import_beam():
  """Apache Beam.

  Raises:
    InputError: it is not installed.
  """
  try:
    import apache_beam
    import apache_beam.options.pipeline_options
  except ImportError as error:
    raise InputError(
      f"--runner needs Apache Beam ({error}). Install it: pip install -c requirements.lock "
      '-e ".[beam]".'
    ) from error
  return apache_beam


class BeamRunner:
  """Prepares a dataset as a Beam pipeline; goes where `prepare` takes a runner.

  Args:
    name: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, ...
    options: of the runner, such as `--flink_master=localhost:8081`.

  Raises:
    InputError: Beam is not installed, or knows no such runner.
  """

  def __init__(self, name: str, options: Iterable[str] = ()):
    self.name = name
    self.beam = beam = import_beam()
    try:
      beam.runners.create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
      raise InputError(
        f"Beam cannot make the runner {name!r} ({error}). Expected DirectRunner, "
        "FlinkRunner, SparkRunner, DataflowRunner or another that is installed."
      ) from error
    self._options = beam.options.pipeline_options.PipelineOptions(
      [f"--runner={name}", *options]
    )

  @contextlib.contextmanager
  def pipeline(self, directory: str | pathlib.Path) -> Iterator[tuple[Any, Errors]]:
    """A pipeline, run at the end, and where its workers leave their errors.

    Raises:
      InputError, OSError: the first that was left; or the job failed otherwise.
    """
    errors = Errors(str(directory), uuid.uuid4().hex)
    try:
      with self.beam.Pipeline(options=self._options) as pipeline:
        yield pipeline, errors
    except Exception as error:  # runners raise what they like
      errors.raise_first()
      raise OSError(f"The job on {self.name} failed: {str(error)[:600]}") from error
    errors.raise_first()

  def __call__(
    self,
    directory: pathlib.Path,
    settings: DatasetSettings,
    sources: write.Sources,
    tokenizer: str,
  ) -> Iterator[ShardSummary]:
    beam = self.beam
    parts = [
      (split if HELD_OUT in sources else None, number, partition)
      for split, partitions in sources.items()
      for number, partition in enumerate(partitions)
    ]
    place = str(directory.absolute())
    tokenizer = str(pathlib.Path(tokenizer).absolute())
    with self.pipeline(place) as (pipeline, errors):
      _ = (
        pipeline
        | "partitions" >> beam.Create(parts)
        | "spread partitions" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(_read, settings, errors)
        | "spread shards" >> beam.Reshuffle()
        | "cut and write" >> beam.Map(_write, settings, tokenizer, place, errors)
      )
    yield from shard_files.all_summaries(directory)


@dataclasses.dataclass(frozen=True)
class Errors:
  """Errors of workers as files, since runners wrap and repeat what is raised.

  Attributes:
    directory: where they are left.
    run: tells them from those of another run, whose workers may outlive it.
  """

  directory: str
  run: str

  @contextlib.contextmanager
  def left(self, name: str) -> Iterator[None]:
    """Leaves what is raised inside, and goes on."""
    try:
      yield
    except (InputError, OSError) as error:
      number = error.errno if isinstance(error, OSError) else None
      found = {"input": isinstance(error, InputError), "errno": number, "text": str(error)}
      path = pathlib.Path(self.directory) / f".{name}{_ERROR_SUFFIX}{self.run}"
      path.touch()
      with contextlib.suppress(OSError):  # no space for it; an empty file tells that
        path.write_text(json.dumps(found))

  def raise_first(self):
    """Raises what was left, if anything was."""
    for path in sorted(pathlib.Path(self.directory).glob(f".*{_ERROR_SUFFIX}{self.run}")):
      text = path.read_text()
      if not text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.directory)
      found = json.loads(text)
      if found["input"]:
        raise InputError(found["text"])
      error = OSError(found["text"])
      error.errno = found["errno"]
      raise error


def _read(
  part: tuple[str | None, int, Partition], settings: DatasetSettings, errors: Errors
) -> Iterator[DocumentShard]:
  split, number, partition = part
  with errors.left(f"partition-{split or 'all'}-{number:05d}"):
    yield from document_shards(
      partition,
      number,
      split=split,
      held_out_fraction=settings.held_out_fraction,
      shard_bytes=settings.shard_bytes,
      seed=settings.seed,
    )


def _write(
  shard: DocumentShard,
  settings: DatasetSettings,
  tokenizer: str,
  directory: str,
  errors: Errors,
):
  if shard_files.load_summary(directory, shard.name) is None:
    with errors.left(shard.name):
      shard_files.write_shard(ShardWork(shard, settings, tokenizer, directory))
