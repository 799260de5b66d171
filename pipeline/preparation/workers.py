"""Work spread over processes, with results in the order of the work.

A worker is a separate Python process that reads work from its standard input and writes
results to its standard output. It inherits only a lock, so it is safe beside JAX and its
threads, and it does not import the caller's program. When the caller exits or is killed,
the worker finishes its shard and exits; until then it holds the lock.
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
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.preparation.shard_files import ShardSummary, ShardWork, write_shard

_FEW_SHARDS = 2  # so few are written faster without workers


def write_shards(
  work: Iterable[ShardWork | ShardSummary], *, num_workers: int, lock: int | None = None
) -> Iterator[ShardSummary]:
  """Writes shards on several cores; summaries come in the order of the work.

  Args:
    work: what to write; a summary stands for a shard that is written already. At most
      `num_workers` + 2 are in memory.
    num_workers: how many processes; 1 to write the shards in this one.
    lock: file descriptor of a lock that the workers hold too, until they exit.

  Raises:
    InputError, OSError: a worker raised it. The workers are killed.
  """
  work = iter(work)
  first = list(itertools.islice(work, _FEW_SHARDS + 1))
  alone = num_workers <= 1 or len(first) <= _FEW_SHARDS
  work = itertools.chain(first, work)
  del first  # else its shards would stay in memory
  if alone:
    for item in work:
      yield item if isinstance(item, ShardSummary) else write_shard(item)
    return
  pending: collections.deque[Future] = collections.deque()
  with _Pool(num_workers, lock) as pool:
    for item in work:
      pending.append(pool.submit(item))
      if len(pending) > num_workers + 1:
        yield pending.popleft().result()
    while pending:
      yield pending.popleft().result()


class _Pool:
  """A pool of threads, each of which passes work to one process."""

  def __init__(self, size: int, lock: int | None):
    self._lock = lock
    self._threads = ThreadPoolExecutor(size)
    self._local = threading.local()
    self._processes: list[subprocess.Popen] = []
    self._closed = False
    self._starting = threading.Lock()  # so that __exit__ knows each process

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    with self._starting:
      self._closed = True
    self._threads.shutdown(wait=False, cancel_futures=True)
    for process in self._processes:
      if exception[0] is not None:
        process.kill()
      with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    for process in self._processes:
      process.wait()
    self._threads.shutdown()
    for process in self._processes:
      process.stdout.close()  # type: ignore[union-attr]

  def submit(self, item: ShardWork | ShardSummary) -> Future:
    if isinstance(item, ShardSummary):
      future: Future = Future()
      future.set_result(item)
      return future
    return self._threads.submit(self._run, item)

  def _run(self, item: ShardWork) -> ShardSummary:
    process: subprocess.Popen | None = getattr(self._local, "process", None)
    with self._starting:
      if self._closed:
        raise RuntimeError("The pool is closed.")
      if process is None:
        process = self._local.process = _start(self._lock)
        self._processes.append(process)
    try:
      assert process.stdin is not None
      assert process.stdout is not None
      pickle.dump(item, process.stdin)
      process.stdin.flush()
      result = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
      process.kill()
      raise OSError(
        f"A worker exited with status {process.wait()} while writing {item.shard.name}. "
        "Use fewer workers, which need less memory, and run the command again."
      ) from error
    if isinstance(result, Exception):
      raise result
    return result


def _start(lock: int | None) -> subprocess.Popen:
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
    pass_fds=() if lock is None else (lock,),
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
