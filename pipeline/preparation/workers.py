"""Work spread over processes.

A worker is a separate Python process that reads work from its standard input and writes
results to its standard output. It inherits nothing, so it is safe beside JAX and its
threads, and it does not import the caller's program. When the caller exits or is killed,
the worker finishes its shard and exits.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator

from pipeline.preparation.shard_files import ShardSummary, ShardWork, write_shard

_FEW_SHARDS = 2  # so few are written faster without workers


def write_shards(
  work: Iterable[ShardWork | ShardSummary], *, num_workers: int
) -> Iterator[ShardSummary]:
  """Writes shards on several cores; summaries come in any order.

  Args:
    work: what to write; a summary stands for a shard that is written already. At most
      `num_workers` + 3 are in memory.
    num_workers: how many processes; 1 to write the shards in this one.

  Raises:
    InputError, OSError: a worker raised it. The workers are killed.
  """
  work = iter(work)
  first = list(itertools.islice(work, _FEW_SHARDS + 1))
  alone = num_workers <= 1 or len(first) <= _FEW_SHARDS
  work = itertools.chain(first, work)
  del first  # else its shards would stay in memory
  busy: collections.deque[tuple[subprocess.Popen, str]] = collections.deque()
  with contextlib.ExitStack() as started:
    for item in work:
      if isinstance(item, ShardSummary):
        yield item
      elif alone:
        yield write_shard(item)
      else:
        if len(busy) < num_workers:
          process = started.enter_context(_worker())
        else:
          process = busy[0][0]
          yield _result(*busy.popleft())
        with _reported(process, item.shard.name):  # it is idle, and so reads at once
          pickle.dump(item, process.stdin)  # type: ignore[arg-type]
          process.stdin.flush()  # type: ignore[union-attr]
        busy.append((process, item.shard.name))
    while busy:
      yield _result(*busy.popleft())


def _result(process: subprocess.Popen, name: str) -> ShardSummary:
  with _reported(process, name):
    result = pickle.load(process.stdout)  # type: ignore[arg-type]
  if isinstance(result, Exception):
    raise result
  return result


@contextlib.contextmanager
def _reported(process: subprocess.Popen, name: str) -> Iterator[None]:
  """Reports the end of a worker that is writing a shard."""
  try:
    yield
  except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
    process.kill()
    raise OSError(
      f"A worker exited with {process.wait()} while writing {name}. Use fewer workers."
    ) from error


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen]:
  """A worker, which ends with the block; at an error it is killed."""
  with _start() as process:
    try:
      yield process
    except BaseException:
      process.kill()
      with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
      raise


def _start() -> subprocess.Popen:
  root = str(pathlib.Path(__file__).parents[2])
  paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
  environment = os.environ | {
    "PYTHONPATH": os.pathsep.join(paths),
    "RAYON_NUM_THREADS": "1",  # threads of the tokenizer; each core has a worker
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools keep freed memory
  }
  return subprocess.Popen(
    [sys.executable, "-m", "pipeline.preparation.workers"],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env=environment,
    start_new_session=True,  # Ctrl-C reaches only the caller, which kills the workers
  )


def main():
  """Reads work from standard input until it ends."""
  source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # libraries must not print into the results
  while True:
    try:
      work = pickle.load(source)
    except EOFError:
      return
    result: ShardSummary | Exception
    try:
      result = write_shard(work)
    except Exception as error:
      result = error
    with contextlib.suppress(BrokenPipeError):  # the caller is gone
      pickle.dump(result, sink)
      sink.flush()


if __name__ == "__main__":
  main()
