"""Times the loader against other ways to make fixed-shape batches, on the same sequences.

    python -m benchmarks.pipeline                     all ways that are installed
    python -m benchmarks.pipeline --json results/pipeline.json

Sequences have the lengths of a built-in histogram and random tokens, in rows of the
histogram's length. Each way makes batches in one thread. The ways take turns in each round,
timed by the processor time of the process, so that other programs on the machine matter
less. Real tokens are counted after the clock has stopped. Our loader reads sequences from
its Arrow file; peers, and our packers in Grain, read arrays in memory. PyTorch is left out
if it is not installed: `pip install torch`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import itertools
import pathlib
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import grain
import numpy as np

import packing
from benchmarks import command
from benchmarks.lengths import draw_lengths
from benchmarks.sample import CLS, DEPTH, MASK, SEP, random_sequences
from lab.machine import machine
from lab.options import add, run
from lab.statistics import ratio
from lab.table import record_table
from lab.timing.models import VOCAB_SIZE
from lab.timing.steps import MASK_RATE
from lab.timing.turns import in_turns
from packing.grain import PackedIterDataset, PackedMapDataset
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.batches.online import OnlineBatches, ShuffledSequences
from pipeline.store import SequenceStore, write_sequences

SPECIAL = (0, 100, CLS, SEP, MASK)
OURS = "isopack, masked"
BATCHES = 40  # of a round
Batches = Iterator[dict]


def _types(ids: np.ndarray) -> np.ndarray:
  return (np.arange(ids.size) >= ids.size // 2).astype(np.int32)


# Ways to make batches: each returns an endless iterator of dicts of arrays [B, S].


READ = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def _elements(sequences) -> list[dict[str, np.ndarray]]:
  return [{"input_ids": s, "token_type_ids": _types(s)} for s in sequences]


def _grain(sequences, batch_size, pack, **options) -> Batches:
  source = grain.MapDataset.source(_elements(sequences)).seed(0).shuffle().repeat()
  return iter(pack(source.to_iter_dataset(READ), **options).batch(batch_size))


def _plan_in_grain(sequences, batch_size, plan: packing.Plan) -> Batches:
  rows = PackedMapDataset(_elements(sequences), plan).shuffle(seed=0).repeat()
  return iter(rows.to_iter_dataset(READ).batch(batch_size))


def _torch(sequences, row, batch_size) -> Batches:
  """Padded batches, padded and masked as by Transformers' data collators."""
  import torch

  torch.set_num_threads(1)
  elements = [(torch.from_numpy(s), torch.from_numpy(_types(s))) for s in sequences]
  special = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
  special[list(SPECIAL)] = True

  def collate(examples):
    shape = (len(examples), row)
    ids, types, attention = (torch.zeros(shape, dtype=torch.int32) for _ in range(3))
    for at, (tokens, token_types) in enumerate(examples):
      ids[at, : tokens.size(0)] = tokens
      types[at, : tokens.size(0)] = token_types
      attention[at, : tokens.size(0)] = 1
    labels = ids.clone()
    chance = torch.full(shape, MASK_RATE).masked_fill_(special[ids.long()], 0.0)
    hidden = torch.bernoulli(chance).bool()
    labels[~hidden] = -100
    replaced = torch.bernoulli(torch.full(shape, 0.8)).bool() & hidden
    ids[replaced] = MASK
    random = torch.bernoulli(torch.full(shape, 0.5)).bool() & hidden & ~replaced
    words = torch.randint(VOCAB_SIZE, shape, dtype=torch.int32)
    ids[random] = words[random]
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": attention}
    return inputs | {"labels": labels}

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
  raise KeyError(f"No field of {list(batch)} separates padding from tokens.")


def _measure(ways: Mapping[str, Batches], *, rounds: int) -> dict[str, dict]:
  """Measures real tokens a second of each way, in turns."""
  real: dict[str, list[int]] = {name: [] for name in ways}
  tokens = dict.fromkeys(ways, 0)

  def count(name: str, made: list[dict]):
    real[name].append(sum(map(_real_tokens, made)))
    tokens[name] += sum(int(np.prod(batch["input_ids"].shape)) for batch in made)

  seconds = in_turns(
    {name: functools.partial(_take, way, BATCHES) for name, way in ways.items()},
    rounds=rounds,
    name="batches",
    clock="processor",
    after=count,
  )
  return {
    name: {
      "rates": (real[name] / seconds[name]).tolist(),
      "real": sum(real[name]),
      "all": tokens[name],
    }
    for name in ways
  }


def _take(way: Batches, number: int, _=None) -> list[dict]:
  return [next(way) for _ in range(number)]


def _way_table(measured: dict[str, dict]) -> str:
  records = [
    {
      "batches": name,
      "M real tokens a second of processor time (quartiles)": ratio(way["rates"], 1e6),
      "ours is faster (quartiles)": ratio(measured[OURS]["rates"], way["rates"], 1),
      "real / all tokens": f"{way['real'] / way['all']:.3f}",
    }
    for name, way in measured.items()
  ]
  return record_table(records, left=["batches"])


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "pipeline")
  command.add_histogram(parser)
  add(parser, "--sequences", 40_000)
  add(parser, "--batch-size", 32, "rows in a batch")
  add(parser, "--rounds", 9)
  options = parser.parse_args(arguments)
  if options.sequences < options.batch_size:
    parser.error(
      f"--sequences is {options.sequences}; expected at least a batch, {options.batch_size}"
    )
  here = (
    f"{machine()}; Python {platform.python_version()}, NumPy {np.__version__}, Grain "
    f"{importlib.metadata.version('grain')}"
  )
  histogram = packing.load_histogram(options.histogram)
  row, size = histogram.max_sequence_length, options.batch_size
  rng = np.random.default_rng(0)
  lengths = np.maximum(draw_lengths(histogram, options.sequences, rng), 5)
  stored = list(random_sequences(lengths, rng))
  sequences = [np.array(x.input_ids, np.int32) for x in stored]
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "sequences.arrow"
    write_sequences(path, stored, batch_size=8192)
    store = SequenceStore(path)
    drawn = packing.Histogram.from_lengths(store.lengths, max_sequence_length=row)
    plan = packing.pack(drawn, algorithm="optimal", max_sequences_per_pack=DEPTH)
    masking = Masking(MASK_RATE, 0, MASK, SPECIAL, VOCAB_SIZE)
    loader = functools.partial(
      PackedLoader, store, plan, batch_size=size, seed=0, masking=masking
    )
    from_grain = functools.partial(_grain, sequences, size)
    theirs = grain.experimental
    whole = {"length_struct": {"input_ids": row, "token_type_ids": row}}
    fit = {"num_packing_bins": 64, "max_sequences_per_bin": DEPTH} | whole
    online = {"row_length": row, "open_packs": 64, "max_sequences_per_pack": DEPTH}
    while_reading = OnlineBatches(
      ShuffledSequences(store, seed=0),
      plan,
      batch_size=size,
      masking=masking,
    )
    ways = {
      OURS: map(loader().__getitem__, itertools.count()),
      "isopack, packed while reading, masked": (x for x, _ in while_reading.produce()),
      "isopack in Grain, a plan": _plan_in_grain(sequences, size, plan),
      "isopack in Grain, 64 open packs": from_grain(PackedIterDataset, **online),
      "Grain first-fit, 64 bins": from_grain(theirs.FirstFitPackIterDataset, **fit),
      "Grain best-fit, 64 bins": from_grain(theirs.BestFitPackIterDataset, **fit),
      "Grain concat-then-split": from_grain(theirs.ConcatThenSplitIterDataset, **whole),
    }
    if importlib.util.find_spec("torch"):
      ways["PyTorch DataLoader, padded, masked"] = _torch(sequences, row, size)
    else:
      print("PyTorch is left out: it is not installed", file=sys.stderr)
    measured = _measure(ways, rounds=options.rounds)
    print(f"{here}\n{len(store):,} sequences of {options.histogram}, batches of {size}")
    print(_way_table(measured))
  command.write(options, here, ways=measured)


if __name__ == "__main__":
  sys.exit(run(main))
