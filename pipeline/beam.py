"""The same work on many machines, as Apache Beam pipelines.

Workers read the source and write to the dataset's folder, so both have to lie where all of
them reach them: on a shared file system, or with a runner on this machine anywhere. The
functions are those that run without Beam; random choices hang on
the seed and on where a document stands, so the result is the same, byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterable, Iterator

from packing import InputError
from pipeline import preparation, shards
from pipeline.documents import HELD_OUT, DocumentShard, document_shards
from pipeline.settings import Settings
from pipeline.shards import ShardSummary, ShardWork
from pipeline.sources import Partition

_ERROR_SUFFIX = ".partial-error"  # removed when the preparation is started again


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

  def pipeline(self):
    return self.beam.Pipeline(options=self._options)

  def __call__(
    self,
    directory: pathlib.Path,
    settings: Settings,
    sources: preparation.Sources,
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
    with self.pipeline() as pipeline:
      _ = (
        pipeline
        | "partitions" >> beam.Create(parts)
        | "spread partitions" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(_read, settings, place)
        | "spread shards" >> beam.Reshuffle()
        | "cut and write" >> beam.Map(_write, settings, tokenizer, place)
      )
    _raise_what_was_left(directory)
    yield from shards.all_summaries(directory)


def _read(
  part: tuple[str | None, int, Partition], settings: Settings, directory: str
) -> Iterator[DocumentShard]:
  split, number, partition = part
  try:
    yield from document_shards(
      partition,
      number,
      split=split,
      held_out_fraction=settings.held_out_fraction,
      shard_bytes=settings.shard_bytes,
      seed=settings.seed,
    )
  except (InputError, OSError) as error:
    _leave(error, directory, f"partition-{split or 'all'}-{number:05d}")


def _write(shard: DocumentShard, settings: Settings, tokenizer: str, directory: str):
  if shards.load_summary(directory, shard.name) is None:
    try:
      shards.write_shard(ShardWork(shard, settings, tokenizer, directory))
    except (InputError, OSError) as error:
      _leave(error, directory, shard.name)


def _leave(error: InputError | OSError, directory: str, name: str):
  """Writes an error as data, since runners wrap and repeat what is raised."""
  number = error.errno if isinstance(error, OSError) else None
  found = {"input": isinstance(error, InputError), "errno": number, "text": str(error)}
  path = pathlib.Path(directory) / f".{name}{_ERROR_SUFFIX}"
  path.touch()
  with contextlib.suppress(OSError):  # no space for it; an empty file tells that
    path.write_text(json.dumps(found))


def _raise_what_was_left(directory: pathlib.Path):
  for path in sorted(directory.glob(f".*{_ERROR_SUFFIX}")):
    text = path.read_text()
    if not text:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    found = json.loads(text)
    if found["input"]:
      raise InputError(found["text"])
    error = OSError(found["text"])
    error.errno = found["errno"]
    raise error
