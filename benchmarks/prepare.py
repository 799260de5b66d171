"""Measures the preparation of many documents, with Apache Beam on several processes.

    python -m benchmarks.prepare --documents 100000,1000000
    python -m benchmarks.prepare --documents 1000000 --kill

Writes made-up documents as JSON lines, and a vocabulary. For each number of documents, runs
`python -m pipeline prepare` as it is, and then as a Beam pipeline on a Dask cluster of
worker processes on this machine, and compares the bytes of both. With --kill, one worker is
killed when half of the documents are written. Memory is private memory, without mapped
files: the most that any worker had, and the most that the command had. This needs Linux,
and the extra dask.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import command
from lab.machine import machine
from lab.options import add, run
from lab.table import record_table
from pipeline.dataset import MANIFEST
from pipeline.tokenizer import SPECIAL_TOKENS

ROOT = pathlib.Path(__file__).parents[1]
WORDS = 5000  # in the vocabulary
DOCUMENTS_A_FILE = 100_000
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"


def write_documents(folder: pathlib.Path, number: int):
  """Writes a vocabulary, and documents of 4 to 20 words in several files."""
  rng = np.random.default_rng(0)
  words = np.array([f"w{n}" for n in range(WORDS)])
  (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]))
  (folder / "documents").mkdir()
  for first in range(0, number, DOCUMENTS_A_FILE):
    lengths = rng.integers(4, 21, min(DOCUMENTS_A_FILE, number - first))
    chosen = words[rng.integers(WORDS, size=lengths.sum())].tolist()
    ends = np.cumsum(lengths).tolist()
    path = folder / "documents" / f"{first // DOCUMENTS_A_FILE:05d}.jsonl"
    with path.open("w") as file:
      for start, end in zip([0, *ends], ends, strict=False):
        file.write(json.dumps({"text": " ".join(chosen[start:end])}) + "\n")


def prepare(
  folder: pathlib.Path, name: str, *options: str, watch: Callable[[int], None]
) -> float:
  """Runs `pipeline prepare`; returns its seconds.

  Args:
    folder: of the documents.
    name: of the dataset in this folder.
    options: more options.
    watch: called again and again with the id of the process.
  """
  words = [
    *(sys.executable, "-m", "pipeline", "prepare", "--task=documents"),
    *(f"--source={folder / 'documents'}", f"--vocab-file={folder / 'vocab.txt'}"),
    *("--max-sequence-length=32", f"--out={folder / name}", *options),
  ]
  started = time.perf_counter()
  with (folder / f"{name}.log").open("w+") as log:
    process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    while process.poll() is None:
      watch(process.pid)
      time.sleep(0.2)
    if process.returncode:
      log.seek(0)
      raise RuntimeError(f"prepare exited with {process.returncode}: {log.read()[-2000:]}")
  return time.perf_counter() - started


def private_memory(process: int) -> int:
  """Bytes of a process's private memory; 0 if it has ended."""
  with contextlib.suppress(OSError):
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    told = status.partition("RssAnon:")[2]  # which a process lacks between end and wait
    return int(told.split()[0]) * 1024 if told else 0
  return 0


def children(process: int) -> list[int]:
  """Ids of the processes that a process has started, and of those that they have."""
  found: list[int] = []
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      parent = int(path.read_text().rpartition(")")[2].split()[1])
      if parent == process:
        found += [int(path.parent.name), *children(int(path.parent.name))]
  return found


def digest(folder: pathlib.Path) -> str:
  """SHA-256 of the digests of all files of a dataset, which its manifest has."""
  digests = json.loads((folder / MANIFEST).read_text())["sha256"]
  return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def measure_plain(folder: pathlib.Path, workers: int) -> dict[str, Any]:
  """Measures `prepare` with worker processes of its own."""
  most = {"worker": 0, "command": 0}

  def watch(process: int):
    most["command"] = max(most["command"], private_memory(process))
    own = map(private_memory, children(process))
    most["worker"] = max(most["worker"], *own, 0)

  seconds = prepare(folder, "plain", f"--workers={workers}", watch=watch)
  return {"seconds": seconds, "memory": most, "digest": digest(folder / "plain")}


def measure_dask(folder: pathlib.Path, workers: int, *, kill: bool) -> dict[str, Any]:
  """Measures `prepare` on a Dask cluster, one of whose workers may be killed."""
  import distributed

  most, killed = {"worker": 0, "command": 0}, False
  plain = len([*(folder / "plain").glob("*.arrow")])

  with (
    distributed.LocalCluster(
      n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster,
    distributed.Client(cluster) as client,
  ):
    own = [*client.run(os.getpid).values()]

    def watch(process: int):
      nonlocal killed
      most["command"] = max(most["command"], private_memory(process))
      most["worker"] = max(most["worker"], *map(private_memory, own))
      if kill and not killed:
        written = sum(1 for _ in (folder / ".dask.partial").glob("*/*.arrow"))
        if written > plain // 2:
          os.kill(own[0], signal.SIGKILL)
          killed = True
          own[:] = _replaced(client, own)

    options = [
      f"--runner={DASK}",
      f"--runner-option=--dask_client_address={cluster.scheduler_address}",
      "--runner-option=--dask_partition_size=1",
    ]
    seconds = prepare(folder, "dask", *options, watch=watch)
  return {
    "seconds": seconds,
    "memory": most,
    "digest": digest(folder / "dask"),
    "killed": killed,
  }


def _replaced(client, before: list[int]) -> list[int]:
  """The ids of a cluster's workers, once the first of those before has a successor."""
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline:
    with contextlib.suppress(OSError):  # the connection to the killed one
      now = [*client.run(os.getpid).values()]
      if len(now) == len(before) and before[0] not in now:
        return now
    time.sleep(0.2)
  raise RuntimeError("The killed worker was not replaced within a minute.")


def measure(number: int, options) -> dict[str, Any]:
  """Measures a number of documents, both ways."""
  with tempfile.TemporaryDirectory(dir=options.folder, prefix="prepare-") as name:
    folder = pathlib.Path(name)
    write_documents(folder, number)
    files = (folder / "documents").iterdir()
    size = sum(path.stat().st_size for path in files)
    plain = measure_plain(folder, options.workers)
    dask = measure_dask(folder, options.workers, kill=options.kill)
  return {"documents": number, "bytes": size, "plain": plain, "dask": dask}


def _records(measured: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
  for one in measured:
    plain, dask = one["plain"], one["dask"]
    yield {
      "documents": f"{one['documents']:,}",
      "MB": f"{one['bytes'] / 1e6:,.0f}",
      "s, prepare alone": f"{plain['seconds']:,.0f}",
      "s, Beam on Dask": f"{dask['seconds']:,.0f}",
      "documents a second": f"{one['documents'] / dask['seconds']:,.0f}",
      "MiB of a worker": f"{dask['memory']['worker'] / 2**20:,.0f}",
      "MiB of the command": f"{dask['memory']['command'] / 2**20:,.0f}",
      "a worker killed": "yes" if dask["killed"] else "no",
      "same bytes": "yes" if plain["digest"] == dask["digest"] else "no",
    }


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "prepare")
  command.add_numbers(parser, "--documents", [100_000, 1_000_000], "numbers of documents")
  parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
  command.add_folder(parser)
  add(parser, "--workers", 2, "worker processes")
  options = parser.parse_args(arguments)
  if sys.platform != "linux":
    parser.error("this benchmark needs Linux")
  needed = max(options.documents) * 400
  command.check_disk(parser, options.folder, needed, "fewer --documents")
  measured = [measure(number, options) for number in options.documents]
  print(f"{machine()}; {options.workers} workers")
  records = list(_records(measured))
  print(record_table(records, left=[]))
  command.write(options, machine(), measured=measured, tables={"prepare": records})


if __name__ == "__main__":
  sys.exit(run(main))
