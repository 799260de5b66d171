"""The loader beside other ways to fixed-shape batches, on the same sequences in one run.

    python benchmarks/pipeline.py                          everything that is installed
    python benchmarks/pipeline.py --workers 0,1,2          our loader with processes, too
    python benchmarks/pipeline.py --json results/pipeline.json

Sequences have the lengths of a built-in histogram and random tokens, in rows of the
histogram's length. Each way makes batches in one thread; the ways take turns, round after
round, and a round is timed by the processor time of the process, so that other programs
on the machine matter less. Real tokens are counted after the clock has stopped. Peers
read their sequences from arrays in memory, ours from its Arrow file. PyTorch is left out
where it is not installed: `pip install torch`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import grain
import numpy as np

if __package__ in (None, ""):  # as a script: the checkout, not the folder of benchmarks
  sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

import packing
from benchmarks.machine import machine
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.store import SequenceStore, StoredSequence, write_sequences

VOCAB_SIZE, CLS, SEP, MASK, FIRST_WORD = 30522, 101, 102, 103, 999
SPECIAL = (0, 100, CLS, SEP, MASK)
RATE = 0.15
Batches = Iterator[dict]


def _make_sequences(histogram: packing.Histogram, number: int) -> list[np.ndarray]:
  rng = np.random.default_rng(0)
  lengths = np.arange(1, histogram.max_sequence_length + 1)
  drawn = rng.choice(lengths, number, p=histogram.counts / histogram.num_sequences)
  sequences = []
  for length in np.maximum(drawn, 5).tolist():
    ids = rng.integers(FIRST_WORD, VOCAB_SIZE, length, dtype=np.int32)
    ids[[0, length // 2, -1]] = CLS, SEP, SEP
    sequences.append(ids)
  return sequences


def _types(ids: np.ndarray) -> np.ndarray:
  return (np.arange(ids.size) > ids.size // 2).astype(np.int32)


# Ways to batches: each makes an endless iterator of dicts of arrays [B, S].


def _ours(store, plan, batch_size, masking) -> Batches:
  loader = PackedLoader(store, plan, batch_size=batch_size, masking=masking, seed=0)
  step = 0
  while True:
    yield loader[step]
    step += 1


def _grain(sequences, row, batch_size, pack: Callable) -> Batches:
  elements = [{"input_ids": s, "token_type_ids": _types(s)} for s in sequences]
  options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  source = grain.MapDataset.source(elements).seed(0).shuffle().repeat()
  lengths = {"input_ids": row, "token_type_ids": row}
  return iter(pack(source.to_iter_dataset(options), lengths).batch(batch_size))


def _fit(kind: str, depth: int):
  def pack(source, lengths):
    return getattr(grain.experimental, kind)(
      source, length_struct=lengths, num_packing_bins=64, max_sequences_per_bin=depth
    )

  return pack


def _concat(source, lengths):
  return grain.experimental.ConcatThenSplitIterDataset(source, length_struct=lengths)


def _torch(sequences, row, batch_size, *, masked: bool) -> Batches:
  """Padding as Transformers' data collators pad and mask."""
  import torch

  torch.set_num_threads(1)
  elements = [(torch.from_numpy(s), torch.from_numpy(_types(s))) for s in sequences]
  special = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
  special[list(SPECIAL)] = True

  def collate(examples):
    shape = (len(examples), row)
    ids, types = (
      torch.zeros(shape, dtype=torch.int32),
      torch.zeros(shape, dtype=torch.int32),
    )
    attention = torch.zeros(shape, dtype=torch.int32)
    for at, (tokens, token_types) in enumerate(examples):
      ids[at, : tokens.size(0)] = tokens
      types[at, : tokens.size(0)] = token_types
      attention[at, : tokens.size(0)] = 1
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": attention}
    if masked:
      labels = ids.clone()
      chance = torch.full(shape, RATE).masked_fill_(special[ids.long()], 0.0)
      hidden = torch.bernoulli(chance).bool()
      labels[~hidden] = -100
      replaced = torch.bernoulli(torch.full(shape, 0.8)).bool() & hidden
      ids[replaced] = MASK
      random = torch.bernoulli(torch.full(shape, 0.5)).bool() & hidden & ~replaced
      words = torch.randint(VOCAB_SIZE, shape, dtype=torch.int32)
      ids[random] = words[random]
      batch["labels"] = labels
    return batch

  data: Iterable[dict] = torch.utils.data.DataLoader(
    elements,  # type: ignore[arg-type]  # a list is a dataset
    batch_size=batch_size,
    shuffle=True,
    drop_last=True,
    collate_fn=collate,
  )
  while True:
    yield from data


def _real_tokens(batch: dict) -> int:
  for name in ("segment_ids", "input_ids_segment_ids", "attention_mask"):
    if name in batch:
      return int((np.asarray(batch[name]) > 0).sum())
  raise KeyError(f"No field of {list(batch)} tells padding from tokens.")


def _measure(ways: dict[str, Batches], *, rounds: int, batches: int) -> dict[str, dict]:
  """Processor seconds of each way, in turns; the first round is not counted."""
  found: dict[str, dict] = {name: {"rates": [], "real": 0, "all": 0} for name in ways}
  for number in range(rounds + 1):
    for name, way in ways.items():
      start = time.process_time()
      made = [next(way) for _ in range(batches)]
      seconds = time.process_time() - start
      real = sum(map(_real_tokens, made))
      if number:
        found[name]["rates"].append(real / seconds)
        found[name]["real"] += real
        found[name]["all"] += sum(int(np.prod(b["input_ids"].shape)) for b in made)
  return found


def _table(found: dict[str, dict], ours: str) -> str:
  lines = [
    "| batches | M real tokens a second of processor time (quartiles) | ours is faster "
    "(quartiles) | real / all tokens |",
    "|---|---:|---:|---:|",
  ]
  for name, way in found.items():
    low, middle, high = np.quantile(way["rates"], [0.25, 0.5, 0.75]) / 1e6
    ratios = np.divide(found[ours]["rates"], way["rates"])
    few, ratio, many = np.quantile(ratios, [0.25, 0.5, 0.75])
    lines.append(
      f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) | {ratio:.1f} ({few:.1f} to "
      f"{many:.1f}) | {way['real'] / way['all']:.3f} |"
    )
  return "\n".join(lines)


def _workers(
  store, plan, batch_size, masking, numbers: list[int], rounds: int, batches: int
) -> dict[str, list]:
  """Batches in the background: real tokens a second of the clock, in turns."""
  found: dict[str, list] = {f"processes: {n}" if n else "a thread": [] for n in numbers}
  iterators = [
    PackedLoader(
      store, plan, batch_size=batch_size, masking=masking, seed=0, workers=n
    ).iterate()
    for n in numbers
  ]
  for number in range(rounds + 1):
    for iterator, name in zip(iterators, found, strict=True):
      next(iterator)  # it runs while others are measured: what lies ready is not counted
      for _ in range(16):
        next(iterator)
      start = time.perf_counter()
      made = [next(iterator) for _ in range(batches)]
      seconds = time.perf_counter() - start
      if number:
        found[name].append(sum(map(_real_tokens, made)) / seconds)
  for iterator in iterators:
    iterator.close()
  return found


def _machine() -> str:
  return (
    f"{machine()}; Python {platform.python_version()}, NumPy {np.__version__}, Grain "
    f"{importlib.metadata.version('grain')}"
  )


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--histogram", default="wikipedia_512", help="default: wikipedia_512")
  parser.add_argument("--sequences", type=int, default=40_000, help="default: 40000")
  parser.add_argument("--depth", type=int, default=3, help="sequences a pack (default: 3)")
  parser.add_argument("--batch-size", type=int, default=32, help="rows (default: 32)")
  parser.add_argument("--rounds", type=int, default=9, help="default: 9")
  parser.add_argument("--batches", type=int, default=40, help="of a round (default: 40)")
  parser.add_argument(
    "--record-batch", type=int, default=8192, help="sequences of an Arrow record batch"
  )
  parser.add_argument("--workers", help="such as 0,1,2: our loader by the clock as well")
  parser.add_argument("--json", metavar="F.json", help="write all numbers here")
  options = parser.parse_args()

  histogram = packing.load_histogram(options.histogram)
  row, size = histogram.max_sequence_length, options.batch_size
  sequences = _make_sequences(histogram, options.sequences)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "sequences.arrow"
    rows = (StoredSequence(s.tolist(), s.size // 2 + 1, 0) for s in sequences)
    write_sequences(path, rows, batch_size=options.record_batch)
    store = SequenceStore(path)
    plan = packing.pack(
      packing.Histogram.from_lengths(store.lengths, max_sequence_length=row),
      algorithm="optimal",
      max_sequences_per_pack=options.depth,
    )
    masking = Masking(
      rate=RATE, seed=0, mask_id=MASK, special_ids=SPECIAL, vocab_size=VOCAB_SIZE
    )
    ways = {
      "isopack, masked": _ours(store, plan, size, masking),
      "isopack": _ours(store, plan, size, None),
      "Grain first-fit, 64 bins": _grain(
        sequences, row, size, _fit("FirstFitPackIterDataset", options.depth)
      ),
      "Grain best-fit, 64 bins": _grain(
        sequences, row, size, _fit("BestFitPackIterDataset", options.depth)
      ),
      "Grain concat-then-split": _grain(sequences, row, size, _concat),
    }
    if importlib.util.find_spec("torch"):
      ways["PyTorch DataLoader, padded, masked"] = _torch(sequences, row, size, masked=True)
      ways["PyTorch DataLoader, padded"] = _torch(sequences, row, size, masked=False)
    else:
      print("PyTorch is not installed and left out", file=sys.stderr)
    found = _measure(ways, rounds=options.rounds, batches=options.batches)
    print(
      f"{_machine()}\n{len(store):,} sequences of {options.histogram}, batches of {size}"
    )
    print(_table(found, "isopack, masked"))
    results: dict = {"machine": _machine(), "options": vars(options), "ways": found}
    if options.workers:
      numbers = [int(n) for n in options.workers.split(",")]
      results["workers"] = _workers(
        store, plan, size, masking, numbers, options.rounds, options.batches
      )
      print("\n| made ahead by | M real tokens a second of the clock (quartiles) |")
      print("|---|---:|")
      for name, rates in results["workers"].items():
        low, middle, high = np.quantile(rates, [0.25, 0.5, 0.75]) / 1e6
        print(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
  if options.json:
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
  main()
