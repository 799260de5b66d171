"""Memory and time of `python -m pipeline prepare` on texts of several sizes (Linux).

    python -m benchmarks.prepare                       10 and 200 MB
    python -m benchmarks.prepare --megabytes 10 --workers 1

The text is words drawn by Zipf's law from a vocabulary as large as BERT's, in documents of
a few hundred words; nothing is downloaded. Memory is the private pages of all processes
together, polled ten times a second.
"""

from __future__ import annotations

import os
import pathlib
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.command import add, make_parser, run, several, write
from benchmarks.machine import machine
from benchmarks.small_bert import VOCAB_SIZE
from benchmarks.table import print_table
from pipeline.tokenizer import SPECIAL_TOKENS
from training.command import positive

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS_AT_ONCE = 200_000


def _write_vocabulary(path: pathlib.Path) -> np.ndarray:
  """Writes a vocabulary of random words, and returns them."""
  rng = np.random.default_rng(0)
  words: dict[str, None] = {}
  while len(words) < VOCAB_SIZE - len(SPECIAL_TOKENS) - 1:
    words["".join(rng.choice([*string.ascii_lowercase], rng.integers(2, 11)))] = None
  path.write_text("\n".join([*SPECIAL_TOKENS, ".", *words]) + "\n")
  return np.array([*words])


def _write_text(path: pathlib.Path, words: np.ndarray, num_bytes: int):
  rng = np.random.default_rng(1)
  chances = 1 / np.arange(1, words.size + 1)
  with path.open("w") as file:
    while file.tell() < num_bytes:
      drawn = rng.choice(words, WORDS_AT_ONCE, p=chances / chances.sum()).tolist()
      start = 0
      while start < WORDS_AT_ONCE:
        stop = start + int(rng.integers(5, 30))
        file.write(" ".join(drawn[start:stop]).capitalize())
        file.write(".\n\n" if rng.random() < 0.05 else ". ")
        start = stop


def _private_bytes(pid: int) -> int:
  """Bytes of a process's private pages in memory; 0 if the process has ended."""
  try:
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
  except OSError:
    return 0
  return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _processes(pid: int) -> list[int]:
  """A process and its children."""
  pids = [pid]
  for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
    try:
      pids += map(int, path.read_text().split())
    except OSError:  # the thread has ended
      continue
  return pids


def _measure(command: list[str]) -> dict:
  """Seconds, and the private bytes of each process at the peak of their sum.

  The command shows its own progress and errors.
  """
  start = time.perf_counter()
  process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
  most: list[int] = []
  while process.poll() is None:
    now = [_private_bytes(pid) for pid in _processes(process.pid)]
    most = max(most, now, key=sum)
    time.sleep(0.1)
  if process.returncode:
    raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}")
  return {"seconds": time.perf_counter() - start, "bytes": most}


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  add(parser, "--megabytes", [10, 200], "sizes of the texts", type=several(positive))
  parser.add_argument("--workers", type=positive, help="default: that of prepare")
  options = parser.parse_args(arguments)
  if not _private_bytes(os.getpid()):
    parser.error("memory is read from /proc/PID/smaps_rollup, which only Linux has")
  print(f"{machine()}\n")
  left = ("text", "of which this process, each worker")
  write(options, machine(), texts=print_table(_prepare_all(options), _row, left=left))


def _prepare_all(options) -> Iterator[dict[str, Any]]:
  """Prepares each text; yields its size and the results of `_measure`."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    words = _write_vocabulary(folder / "vocab.txt")
    for megabytes in options.megabytes:
      text = folder / f"{megabytes}.txt"
      _write_text(text, words, megabytes * 10**6)
      command = [sys.executable, "-m", "pipeline", "prepare", f"--source={text}"]
      command += [f"--vocab-file={folder / 'vocab.txt'}", "--max-sequence-length=128"]
      command += [f"--out={folder / str(megabytes)}"]
      if options.workers is not None:
        command += [f"--workers={options.workers}"]
      yield {"text_bytes": text.stat().st_size} | _measure(command)
      text.unlink()


def _row(one: dict[str, Any]) -> dict[str, str]:
  of_each = ", ".join(f"{n / 1e6:.0f}" for n in one["bytes"])
  return {
    "text": f"{one['text_bytes'] / 1e6:.0f} MB",
    "peak": f"{sum(one['bytes']) / 1e6:.0f} MB",
    "of which this process, each worker": f"{of_each} MB",
    "seconds": f"{one['seconds']:.0f}",
  }


if __name__ == "__main__":
  sys.exit(run(main))
