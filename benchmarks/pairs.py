"""Trains embeddings by pairs, packed and by sentence-transformers, in one run.

    python -m benchmarks.pairs minilm-l6-h384 --data data/pairs --steps 100

FOLDER is a Hugging Face directory of a BERT or ModernBERT, the data what
`python -m pipeline prepare --task pairs` made. Each way begins with the same weights and
makes the same steps. A step has the same records: packed; packed without the mask, a
control that is known to be worse; one a row; or padded to the longest text of their column.
Steps are timed in turns, each awaited, without tokenising, padding or packing. Before and
after, held-out anchors choose among the held-out positives.

Rows are as long as a run with configs/embeddings.py would choose; one record a row has the
shortest rows that hold any record.

For sentence-transformers, `make reference` installs it. It trains on padded texts and, as
it does where it finds FlashAttention, on texts one after another without padding; here each
text attends to itself by PyTorch's attention, since FlashAttention needs a GPU. Version 6
also splits these texts into mini-batches of at most 2,048 tokens (`mini_batch_num_tokens`),
which saves memory and computes each text twice.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import packing
from benchmarks.command import make_parser, write
from lab.machine import machine_and_device
from lab.options import add, run
from lab.statistics import quartiles, ratio, spread
from lab.table import record_table
from lab.timing.turns import in_turns
from model import hf, weights
from model.hf.pooling import read_pooling
from model.losses import PairLoss
from packing.commands.program import positive
from pipeline import SequenceStore, open_dataset, score
from pipeline.batches.packed import PackedBatch, pack_rows
from training.evaluation import embed, prediction_config
from training.mesh import make_mesh, put_batch
from training.optimizer import adamw
from training.step import ModelProgram, TrainingProgram

PACKED, UNPACKED, THEIRS = "packed", "one record a row", "sentence-transformers"
UNMASKED = "packed without the mask"
FLATTENED = f"{THEIRS}, without padding"
MINI_BATCHES = f"{THEIRS}, without padding, mini-batches of tokens"
BY_TEXT = "isopack_by_text"  # the name of an attention
MINI_BATCH_TOKENS = 2048
RATE, DECAY = 3e-5, 0.01
ROWS = 16  # of a batch of held-out texts

Train = Callable[[int], Any]  # the number of a step -> its loss
Embed = Callable[[], list[np.ndarray]]  # vectors of all held-out texts
LayOut = Callable[[SequenceStore, np.ndarray], list[dict[str, np.ndarray]]]  # two columns


def packs_of(
  store: SequenceStore, steps: np.ndarray, row: int, depth: int | None = None
) -> Iterator[np.ndarray]:
  """For each step's records, int64[steps, N], its packs; as many rows in each step."""
  made = []
  for records in steps:
    lengths = store.lengths[records]
    histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=row)
    plan = packing.pack(histogram, max_sequences_per_pack=depth)
    made.append([records[ids] for ids in plan.assign(lengths, seed=0)])
  shape = max(map(len, made)), max(len(pack) for packs in made for pack in packs)
  for packs in made:
    ids = np.full(shape, -1, np.int64)
    for number, pack in enumerate(packs):
      ids[number, : len(pack)] = pack
    yield ids


def ours(
  folder: str,
  train: SequenceStore,
  held_out: SequenceStore,
  steps: np.ndarray,
  row: int,
  *,
  depth: int | None = None,
  attention_mask: str = "segment",
) -> tuple[Train, Embed]:
  """Packed training and embedding, with at most `depth` records a row."""
  stored = weights.encoder_of(hf.open_model(folder))
  config = dataclasses.replace(stored.config, attention_mask=attention_mask)
  mode, mesh = read_pooling(stored).mode, make_mesh(1)
  program = TrainingProgram(
    config,
    adamw(RATE, b1=0.9, b2=0.999, eps=1e-6, weight_decay=DECAY, clip_norm=1.0),
    mesh=mesh,
    seed=0,
    head="encoder",
    pair_loss=PairLoss(mode),
  )
  state = program.init(stored.load())
  packs = packs_of(train, steps, row, depth)
  batches = [put_batch(pack_rows(train, x, row_length=row), mesh) for x in packs]
  evaluation = ModelProgram(prediction_config(config), mesh=mesh, head="encoder")

  def step(number: int) -> jax.Array:
    nonlocal state
    state, values = program.train_step(state, batches[number])
    return values["pair_loss"].mean

  def held_out_batches() -> Iterator[PackedBatch]:
    (ids,) = packs_of(held_out, np.arange(len(held_out))[None], row, depth)
    ids = np.pad(ids, ((0, -len(ids) % ROWS), (0, 0)), constant_values=-1)
    for part in ids.reshape(-1, ROWS, ids.shape[1]):
      yield pack_rows(held_out, part, row_length=row)

  return step, lambda: embed(evaluation, state["params"], held_out_batches(), pooling=mode)


def theirs(
  folder: str,
  train: SequenceStore,
  held_out: SequenceStore,
  steps: np.ndarray,
  *,
  lay_out: LayOut,
  by_tokens: bool = False,
) -> tuple[Train, Embed]:
  """Training and embedding by sentence-transformers, in a plain loop.

  Args:
    lay_out: `padded` or `flattened`.
    by_tokens: whether mini-batches are limited by tokens, with gradient caching.
  """
  import torch
  from sentence_transformers import SentenceTransformer
  from sentence_transformers.sentence_transformer import losses

  model = SentenceTransformer(folder, device="cpu")
  if lay_out is flattened:
    attend_by_text(model)
  if by_tokens:
    loss = losses.CachedMultipleNegativesRankingLoss(
      model, mini_batch_num_tokens=MINI_BATCH_TOKENS
    )
  else:
    loss = losses.MultipleNegativesRankingLoss(model)
  optimizer = torch.optim.AdamW(model.parameters(), RATE, eps=1e-6, weight_decay=DECAY)
  columns = [lay_out(train, records) for records in steps]
  torch.manual_seed(0)

  def step(number: int) -> float:
    model.train()
    value = loss([to_torch(column) for column in columns[number]], None)
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return value.item()

  def to_torch(column: dict[str, np.ndarray]) -> dict:
    return {name: torch.as_tensor(x, dtype=torch.long) for name, x in column.items()}

  def vectors() -> list[np.ndarray]:
    model.eval()
    found = []
    for start in range(0, len(held_out), ROWS):
      records = np.arange(start, min(start + ROWS, len(held_out)))
      with torch.inference_mode():
        parts = [model(to_torch(x)) for x in lay_out(held_out, records)]
      both = [part["sentence_embedding"].numpy() for part in parts]
      found += [vector for pair in zip(*both, strict=True) for vector in pair]
    return found

  return step, vectors


def attend_by_text(model: Any):
  """Lets a SentenceTransformer take `flattened` texts, each attending to itself."""
  import transformers

  from benchmarks.hugging_face import attend_within

  def attend(*arguments, cu_seq_lens_q, dropout=0.0, **options):
    options |= {"lengths": cu_seq_lens_q.diff().tolist(), "ends": cu_seq_lens_q}
    return attend_within(*arguments, dropout_p=dropout, **options)

  transformers.AttentionInterface.register(BY_TEXT, attend)
  model[0].auto_model.set_attn_implementation(BY_TEXT)
  if model[0].model_forward_params is not None:  # as where it finds FlashAttention
    model[0].model_forward_params |= {"cu_seq_lens_q"}


def flattened(store: SequenceStore, records: np.ndarray) -> list[dict[str, np.ndarray]]:
  """Anchors and positives, each column one after another, without padding."""
  columns = []
  for number in (0, 1):
    texts = [text_of(store, record, number) for record in records]
    lengths = [*map(len, texts)]
    column = {
      "input_ids": np.concatenate(texts)[None],
      "position_ids": np.concatenate([*map(np.arange, lengths)])[None],
      "cu_seq_lens_q": np.cumsum([0, *lengths]),
    }
    column["token_type_ids"] = np.zeros_like(column["input_ids"])
    columns.append(column)
  return columns


def padded(store: SequenceStore, records: np.ndarray) -> list[dict[str, np.ndarray]]:
  """Anchors and positives, each padded to the longest of the column."""
  columns = []
  for number in (0, 1):
    texts = [text_of(store, record, number) for record in records]
    ids = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in zip(ids, texts, strict=True):
      row[: len(text)] = text
    mask = np.arange(ids.shape[1]) < np.array([*map(len, texts)])[:, None]
    types = np.zeros_like(ids)
    columns.append({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
  return columns


def text_of(store: SequenceStore, record: int, number: int) -> np.ndarray:
  """The tokens of a record's text."""
  assert store.texts is not None
  first = store.texts.ends[record]
  start = store.texts.lengths[first : first + number].sum()
  length = store.texts.lengths[first + number]
  return store.gather(np.array([record]))[start : start + length]


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__, "pairs")
  parser.add_argument("folder", help="a Hugging Face directory")
  parser.add_argument("--data", required=True, metavar="DIR", help="a prepared dataset")
  add(parser, "--steps", 100, "that each way trains")
  add(parser, "--records", 64, "in a step")
  parser.add_argument(
    "--row-length",
    type=positive,
    help="tokens of a packed row (default: as a run with configs/embeddings.py chooses)",
  )
  add(parser, "--held-out", 1000, "records to score")
  options = parser.parse_args(arguments)
  try:
    dataset = open_dataset(options.data)
    everything = dataset.train, dataset.held_out
    if any(s.texts is None or s.texts.most != 2 for s in everything):
      parser.error(f"{options.data} holds no pairs, or negatives")
    train, held_out = dataset.train, some_of(dataset.held_out, options.held_out)
    drawn = np.random.default_rng(0).permutation(len(train))
    steps = np.resize(drawn, (options.steps + 1, options.records))
    lengths = np.concatenate([train.lengths, held_out.lengths])
    limit = dataset.manifest["settings"]["max_sequence_length"]
    histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=limit)
    row = options.row_length or packing.choose_row_length(histogram)
    longest = min(-(-histogram.longest // 8) * 8, limit)
    ways = {PACKED: ours(options.folder, train, held_out, steps, row)}
    ways[UNMASKED] = ours(
      options.folder, train, held_out, steps, row, attention_mask="none"
    )
    ways[UNPACKED] = ours(options.folder, train, held_out, steps, longest, depth=1)
    version = ""
    if importlib.util.find_spec("sentence_transformers"):
      version = importlib.metadata.version("sentence_transformers")
      way = functools.partial(theirs, options.folder, train, held_out, steps)
      ways[THEIRS] = way(lay_out=padded)
      ways[FLATTENED] = way(lay_out=flattened)
      if splits_by_tokens():
        ways[MINI_BATCHES] = way(lay_out=flattened, by_tokens=True)
  except (packing.InputError, weights.WeightsError) as error:
    parser.error(str(error).rstrip("."))
  here, losses = machine_and_device(), dict[str, list[float]]()

  def after(name: str, loss):
    losses.setdefault(name, []).append(float(loss))

  def scored() -> dict[str, dict[str, float]]:
    return {name: score("pairs", held_out, way[1]()) for name, way in ways.items()}

  before = scored()
  runs = {name: step for name, (step, _) in ways.items()}
  seconds = in_turns(runs, rounds=options.steps, name="pairs", after=after)
  rates = {name: options.records / x for name, x in seconds.items()}
  trained = scored()
  print(
    f"{here}\n{options.steps} steps of {options.records} records, "
    f"{lengths.mean():.1f} tokens on average and at most {histogram.longest}\n"
    f"rows of {row} tokens; one record a row, of {longest}"
    + (f"; sentence-transformers {version}" if version else "")
    + "\n"
  )
  records = [
    {
      "way": name,
      "records a second (quartiles)": spread(quartiles(rates[name]), 1),
      "packed is faster (quartiles)": ratio(rates[PACKED], rates[name]),
      "loss of the last 10 steps": f"{np.mean(losses[name][-10:]):.3f}",
    }
    | {
      f"{metric}, before and after": f"{was[metric]:.1%}, {trained[name][metric]:.1%}"
      for metric in ("accuracy_at_1", "accuracy_at_10", "mrr")
    }
    for name, was in before.items()
  ]
  print(record_table(records, left=["way"]))
  if THEIRS not in ways:
    print("\nNo peer: sentence-transformers is not installed (make reference).")
  rates = {name: x.tolist() for name, x in rates.items()}
  rows = {"row_length": row, "unpacked": longest, "sentence_transformers": version}
  write(
    options,
    here,
    tables={"ways": records},
    rows=rows,
    rates=rates,
    losses=losses,
    before=before,
    after=trained,
  )


def splits_by_tokens() -> bool:
  """Whether this version of sentence-transformers has `mini_batch_num_tokens`."""
  from sentence_transformers.sentence_transformer import losses

  loss = losses.CachedMultipleNegativesRankingLoss
  return "mini_batch_num_tokens" in inspect.signature(loss).parameters


def some_of(store: SequenceStore, number: int) -> SequenceStore:
  """A store of some records, drawn at random; of all, if there are not more."""
  size = min(number, len(store))
  chosen = {*np.random.default_rng(0).choice(len(store), size, replace=False).tolist()}
  records = (x for n, x in enumerate(store.records()) if n in chosen)
  return SequenceStore.from_sequences([tuple(x.values()) for x in records], store.schema)


if __name__ == "__main__":
  sys.exit(run(main))
