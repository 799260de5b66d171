"""Measures large datasets: disk, memory, and the time before the first batch.

    python -m benchmarks.scale           10^6 and 10^7 sequences, in 8 GB of disk
    python -m benchmarks.scale --sequences 100000000 --sparse     in 4 GB

Sequences have the lengths of a built-in histogram and random tokens of 16 bits, in an Arrow
file with its index. With --sparse the tokens are a hole in the file, all of them zero; then
nothing is read from the disk, so cold reading is left out. Each number of sequences is
measured in processes of their own, which make packed and masked batches as a run does.
Private memory is the memory of a process without mapped files, less what it had before it
opened the dataset. This needs Linux, for /proc and for dropping files from memory.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import packing
from benchmarks import command
from benchmarks.lengths import draw_lengths
from benchmarks.sample import DEPTH, MASK
from lab.machine import machine
from lab.options import add, run
from lab.table import record_table
from lab.timing.models import VOCAB_SIZE
from lab.timing.steps import MASK_RATE
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.index import file_names, write_index
from pipeline.store import SCHEMA, SequenceStore, read_batches, with_small_tokens

SPECIAL = (0, 100, 101, 102, MASK)
RECORDS = 1 << 12  # sequences in a record batch, as `prepare` writes them
SPLIT, TOKENS = "train", "train.arrow"
EPOCHS_COUNTED, _ROWS_COUNTED = 2, 1 << 12


class _WithHoles:
  """A file that is written with holes in place of long runs of zeros."""

  def __init__(self, path: pathlib.Path):
    self._file = path.open("wb")

  def write(self, data: bytes) -> int:
    zeros = memoryview(data).nbytes >= RECORDS * 32 and not any(data[:64])
    if zeros:
      self._file.seek(len(data), os.SEEK_CUR)
    else:
      self._file.write(data)
    return len(data)

  def __getattr__(self, name: str):
    return getattr(self._file, name)


def write_dataset(
  folder: pathlib.Path, histogram: packing.Histogram, number: int, *, sparse: bool
) -> dict[str, float]:
  """Writes sequences and their index; returns the seconds and bytes of the index.

  Args:
    folder: where to write.
    histogram: of the lengths, in tokens.
    number: of sequences.
    sparse: whether the tokens are a hole in the file.
  """
  rng = np.random.default_rng(0)
  schema = with_small_tokens(SCHEMA, VOCAB_SIZE)
  path = folder / TOKENS
  sink = pa.PythonFile(_WithHoles(path), "w") if sparse else pa.OSFile(str(path), "wb")
  with sink, pa.ipc.new_file(sink, schema) as writer:
    for first in range(0, number, RECORDS):
      lengths = draw_lengths(histogram, min(RECORDS, number - first), rng)
      ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
      if sparse:
        tokens = np.zeros(ends[-1], np.uint16)
      else:
        tokens = rng.integers(1000, VOCAB_SIZE, ends[-1], np.uint16)
      columns = [
        pa.ListArray.from_arrays(ends, tokens),
        pa.array(lengths // 2, pa.int32()),
        pa.array(lengths % 2, pa.int32()),
      ]
      writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
  started = time.perf_counter()
  write_index(folder, SPLIT, read_batches([path], reads_ahead=True))
  seconds = time.perf_counter() - started
  size = sum((folder / name).stat().st_size for name in file_names(SPLIT))
  return {"index_seconds": seconds, "index_bytes": size / number}


def open_loader(
  folder: pathlib.Path, *, batch_size: int, masked: bool = True, reads_ahead: bool = True
) -> PackedLoader:
  """The loader of a run over the dataset.

  Args:
    folder: of the dataset.
    batch_size: rows in a batch.
    masked: whether tokens are masked.
    reads_ahead: whether the loader asks for sequences before it needs them, as runs do.
  """
  index = [folder / name for name in file_names(SPLIT)]
  store = SequenceStore(folder / TOKENS, index, reads_ahead=True)
  store.reads_ahead = reads_ahead
  plan = packing.pack(store.histogram, algorithm="auto", max_sequences_per_pack=DEPTH)
  masking = Masking(MASK_RATE, 0, MASK, SPECIAL, VOCAB_SIZE) if masked else None
  return PackedLoader(store, plan, batch_size=batch_size, masking=masking, seed=0)


def measure(folder: pathlib.Path, *, batch_size: int, batches: int) -> dict[str, Any]:
  """Measures a process that makes batches.

  Returns:
    `first_batch`, in seconds from the start; `next_epoch` and `batch`, the seconds of the
    first batch of the next epoch, and the median of others; `rates`, real tokens a second
    of processor time, by round; `private`, in bytes, the most at any time.
  """
  before = _private_memory()
  with _Peak() as peak:
    started = time.perf_counter()
    loader = open_loader(folder, batch_size=batch_size)
    _ = loader[0]
    first = time.perf_counter() - started
    seconds, rates = [], []
    for _ in range(5):  # the first reads from the disk
      steps = [
        _timed(functools.partial(loader.__getitem__, step)) for step in range(batches)
      ]
      seconds += [taken for _, taken, _ in steps]
      real = sum(int((batch["segment_ids"] > 0).sum()) for batch, *_ in steps)
      rates.append(real / sum(busy for *_, busy in steps))
    step = -(-loader.num_rows // batch_size)
    _, next_epoch, _ = _timed(functools.partial(loader.__getitem__, step))
  return {
    "first_batch": first,
    "next_epoch": next_epoch,
    "batch": float(np.median(seconds)),
    "rates": rates[1:],
    "private": peak.bytes - before,
  }


def measure_cold(
  folder: pathlib.Path, *, reads_ahead: bool, first: int, batch_size: int, batches: int
) -> float:
  """Sequences a second of batches, not masked, whose sequences are not in memory.

  Args:
    folder: of the dataset.
    reads_ahead: as of `open_loader`.
    first: the step to begin with.
    batch_size, batches: how many rows and steps.
  """
  loader = open_loader(folder, batch_size=batch_size, masked=False, reads_ahead=reads_ahead)
  for path in folder.iterdir():
    with path.open("rb") as file:
      os.fsync(file.fileno())  # only what is on the disk leaves the memory
      os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
  made = loader.iterate(first)
  started = time.perf_counter()
  number = sum(int(x["sequence_mask"].sum()) for x in itertools.islice(made, batches))
  seconds = time.perf_counter() - started
  made.close()
  return number / seconds


def exactly_once(folder: pathlib.Path) -> dict[str, Any]:
  """Whether each sequence occurs once in each of two epochs, and the seconds to count."""
  started = time.perf_counter()
  loader = open_loader(folder, batch_size=_ROWS_COUNTED, masked=False)
  rows, number = EPOCHS_COUNTED * loader.num_rows, len(loader.store)
  counts, total = np.zeros(number, np.uint8), 0
  for first in range(0, rows, _ROWS_COUNTED):
    # The rows of a step are sorted by their epoch; the last step reaches into a later one.
    contents = loader.contents_of_step(first // _ROWS_COUNTED)[: rows - first]
    sequences = contents[contents >= 0]
    np.add.at(counts, sequences, 1)
    total += sequences.size
  is_once = total == EPOCHS_COUNTED * number and bool((counts == EPOCHS_COUNTED).all())
  return {"exactly_once": is_once, "seconds": time.perf_counter() - started}


def private_of_workers(folder: pathlib.Path, *, workers: int, batch_size: int) -> int:
  """Bytes of private memory that processes have together, each with a loader of its own."""
  with multiprocessing.get_context("spawn").Pool(workers) as pool:
    measured = functools.partial(_private_of_worker, folder, batch_size)
    return sum(pool.map(measured, range(workers), chunksize=1))


def _private_of_worker(folder: pathlib.Path, batch_size: int, number: int) -> int:
  before = _private_memory()
  loader = open_loader(folder, batch_size=batch_size)
  loader = loader.for_process(number, batch_size)
  for step in range(50):
    _ = loader[step]
  return _private_memory() - before


def _timed(make: Callable[[], Any]) -> tuple[Any, float, float]:
  """A value, and the seconds and processor seconds that it took."""
  started, busy = time.perf_counter(), time.process_time()
  made = make()
  return made, time.perf_counter() - started, time.process_time() - busy


def _private_memory() -> int:
  """Bytes that this process has beside mapped files."""
  status = pathlib.Path("/proc/self/status").read_text()
  return int(status.partition("RssAnon:")[2].split()[0]) * 1024


class _Peak:
  """The most private memory of this process, looked at every 5 ms.

  Attributes:
    bytes: that memory.
  """

  def __enter__(self) -> _Peak:
    self.bytes, self._ended = _private_memory(), threading.Event()
    self._thread = threading.Thread(target=self._look)
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._ended.set()
    self._thread.join()

  def _look(self):
    while not self._ended.wait(0.005):
      self.bytes = max(self.bytes, _private_memory())


def _alone(function: Callable, *arguments, **options) -> Any:
  """Calls a function in a new process."""
  with multiprocessing.get_context("spawn").Pool(1) as pool:
    return pool.apply(function, arguments, options)


def measure_number(number: int, options) -> dict[str, Any]:
  """Measures a dataset with this number of sequences."""
  histogram, size = packing.load_histogram(options.histogram), options.batch_size
  with tempfile.TemporaryDirectory(dir=options.folder, prefix="scale-") as name:
    folder = pathlib.Path(name)
    measured: dict[str, Any] = {"sequences": number}
    measured |= _alone(write_dataset, folder, histogram, number, sparse=options.sparse)
    measured |= _alone(measure, folder, batch_size=size, batches=options.batches)
    measured["workers"] = _alone_workers(folder, options)
    if options.count:
      measured["counted"] = _alone(exactly_once, folder)
    if not options.sparse:
      measured["cold"] = {
        str(ahead): [
          _alone(
            measure_cold,
            folder,
            reads_ahead=ahead,
            first=1000 + 1000 * turn,
            batch_size=size,
            batches=options.batches,
          )
          for turn in range(3)
        ]
        for ahead in (False, True)
      }
  return measured


def _alone_workers(folder: pathlib.Path, options) -> dict[str, int]:
  return {
    str(number): private_of_workers(folder, workers=number, batch_size=options.batch_size)
    for number in (1, options.workers)
  }


def _records(measured: list[dict]) -> Iterator[dict[str, str]]:
  for one in measured:
    workers = {number: f"{x / 2**20:.0f}" for number, x in one["workers"].items()}
    record = {
      "sequences": f"{one['sequences']:,}",
      "index, bytes each": f"{one['index_bytes']:.0f}",
      "s to make it": f"{one['index_seconds']:.1f}",
      "s to the first batch": f"{one['first_batch']:.1f}",
      "ms a batch": f"{1e3 * one['batch']:.1f}",
      "ms of a new epoch's first": f"{1e3 * one['next_epoch']:.0f}",
      "M tokens a processor second": f"{np.median(one['rates']) / 1e6:.1f}",
      "private MiB, at most": f"{one['private'] / 2**20:.0f}",
      f"of {' and '.join(workers)} workers": " and ".join(workers.values()),
    }
    if "counted" in one:
      record["each once in two epochs"] = str(one["counted"]["exactly_once"])
      record["s to count"] = f"{one['counted']['seconds']:.0f}"
    if "cold" in one:
      cold = {name: np.median(rates) for name, rates in one["cold"].items()}
      record["sequences a second, one by one"] = f"{cold['False']:,.0f}"
      record["read ahead"] = f"{cold['True']:,.0f}"
    yield record


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "scale")
  command.add_histogram(parser)
  command.add_numbers(parser, "--sequences", [10**6, 10**7], "numbers of sequences")
  parser.add_argument("--sparse", action="store_true", help="leave the tokens out")
  parser.add_argument(
    "--count",
    action="store_true",
    help="count each sequence in two epochs",
  )
  command.add_folder(parser)
  add(parser, "--batch-size", 32, "rows in a batch")
  add(parser, "--batches", 200, "in a round")
  add(parser, "--workers", 8, "processes that share a dataset")
  options = parser.parse_args(arguments)
  if sys.platform != "linux":
    parser.error("this benchmark needs Linux")
  mean = packing.load_histogram(options.histogram)
  tokens = 0 if options.sparse else 2 * mean.num_tokens / mean.num_sequences
  needed = max(options.sequences) * (tokens + 28 + 12)
  command.check_disk(parser, options.folder, needed, "--sparse, fewer --sequences")
  measured = [measure_number(number, options) for number in options.sequences]
  print(f"{machine()}; {options.histogram}, batches of {options.batch_size} rows")
  records = list(_records(measured))
  print(record_table(records, left=[]))
  command.write(options, machine(), measured=measured, tables={"scale": records})


if __name__ == "__main__":
  sys.exit(run(main))
