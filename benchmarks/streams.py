"""Measures how several processes read and pack a stream of documents.

    python -m benchmarks.streams

Writes made-up documents as JSON lines, in a file for each of the most processes. For each
number of processes, every process reads its own files by `datasets`, tokenizes and packs
the documents, and makes its rows of each batch, until its files have no whole batch left.
The processes run one after the other, as if each had a machine of its own; together they
read as many sequences a second as all of them have, divided by the processor seconds of
the slowest. This needs the library datasets.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import packing
from benchmarks import command
from lab.machine import machine
from lab.options import add, run
from lab.table import record_table
from packing.problem import Geometry
from pipeline.batches.online import OnlineBatches
from pipeline.batches.plans import online_plan
from pipeline.batches.streamed import StreamedSequences
from pipeline.settings import DatasetSettings
from pipeline.sources.streams import open_stream
from pipeline.tokenizer import SPECIAL_TOKENS, load_tokenizer

WORDS = 5000  # in the vocabulary
DEPTH = 8
_LONGEST = 128  # tokens
_LENGTHS = np.arange(10, 103)  # about those of the documents; they decide only the plan


def write_documents(folder: pathlib.Path, *, documents: int, files: int):
  """Writes a vocabulary, and documents of 8 to 100 words in several files."""
  rng = np.random.default_rng(0)
  words = np.array([f"w{number}" for number in range(WORDS)])
  (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]))
  (folder / "documents").mkdir()
  for number in range(files):
    with (folder / "documents" / f"{number}.jsonl").open("w") as file:
      for _ in range(number, documents, files):
        text = " ".join(rng.choice(words, rng.integers(8, 101)))
        file.write(json.dumps({"text": text}) + "\n")


def read(folder: pathlib.Path, index: int, count: int, batch_size: int) -> dict[str, Any]:
  """Reads one process's part of the documents, in batches, until there is no whole one.

  Returns:
    `documents` and `sequences` of the batches, and `seconds` of the processor.
  """
  settings = DatasetSettings("", _LONGEST, task="documents")
  tokenizer = load_tokenizer(str(folder / "vocab.txt"))
  stream = open_stream(f"hf:{folder / 'documents'}")
  histogram = packing.Histogram.from_lengths(_LENGTHS, max_sequence_length=_LONGEST)
  geometry = Geometry.for_histogram(
    histogram, row_length=_LONGEST, max_sequences_per_pack=DEPTH
  )
  batches = OnlineBatches(
    StreamedSequences(stream, settings, tokenizer),
    online_plan(_LENGTHS, histogram, geometry, seed=0),
    batch_size=batch_size,
    masking=None,
    process_index=index,
    process_count=count,
  )
  started = time.process_time()
  sequences = sum(int(batch["sequence_mask"].sum()) for batch in batches)
  seconds = time.process_time() - started
  (state,) = batches.get_state()["of_parts"].values()
  documents = state["reader"]["documents"]["read"]
  return {"documents": documents, "sequences": sequences, "seconds": seconds}


def measure(folder: pathlib.Path, count: int, batch_size: int) -> list[dict[str, Any]]:
  """What `read` returns in each of some processes, which run one after the other."""
  context, parts = multiprocessing.get_context("spawn"), []
  for index in range(count):
    with context.Pool(1) as pool:
      parts.append(pool.apply(read, (folder, index, count, batch_size)))
  return parts


def _rate(parts: list[dict[str, Any]]) -> float:
  slowest = max(part["seconds"] for part in parts)
  return sum(part["sequences"] for part in parts) / slowest


def _records(measured: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
  one = np.median([_rate(parts) for parts in measured[0]["rounds"]])
  for entry in measured:
    documents = [part["documents"] for part in entry["rounds"][0]]
    rates = [_rate(parts) for parts in entry["rounds"]]
    low, middle, high = np.percentile(rates, [25, 50, 75])
    yield {
      "processes": f"{entry['processes']}",
      "documents that each reads": f"{min(documents):,} to {max(documents):,}",
      "sequences a second": f"{middle:,.0f} ({low:,.0f} to {high:,.0f})",
      f"times {measured[0]['processes']}": f"{middle / one:.2f}",
    }


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "streams")
  add(parser, "--documents", 40_000, "in all files")
  add(parser, "--batch-size", 32, "rows in a batch, over all processes")
  add(parser, "--rounds", 5, "in turns")
  what = "numbers of processes, each of which divides the last"
  command.add_numbers(parser, "--processes", [1, 2, 4], what)
  options = parser.parse_args(arguments)
  counts = options.processes
  if any(counts[-1] % count for count in counts):
    parser.error(f"--processes is {counts}; expected numbers that divide the last one")
  os.environ["HF_HUB_OFFLINE"] = "1"  # the documents are in a folder
  measured: list[dict[str, Any]] = [{"processes": n, "rounds": []} for n in counts]
  with tempfile.TemporaryDirectory(prefix="streams-") as name:
    folder = pathlib.Path(name)
    write_documents(folder, documents=options.documents, files=counts[-1])
    for _ in range(options.rounds):
      for entry in measured:
        made = measure(folder, entry["processes"], options.batch_size)
        entry["rounds"].append(made)
  print(f"{machine()}; {options.documents:,} documents, {options.batch_size} rows")
  records = list(_records(measured))
  print(record_table(records, left=[]))
  command.write(options, machine(), measured=measured, tables={"streams": records})


if __name__ == "__main__":
  sys.exit(run(main))
