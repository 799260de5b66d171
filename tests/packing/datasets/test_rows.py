"""Datasets of Hugging Face: every example once, with epochs, shards, workers, resuming."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

import packing
from tests.packing.examples import (
  EXAMPLES,
  LENGTHS,
  OPTIONS,
  PLAN,
  ROW,
  assert_equal,
  every_token_once,
  neighbours,
)
from tests.packing.killed import resumed

datasets = pytest.importorskip("datasets")
from packing.datasets import pack_dataset, pack_iterable_dataset  # noqa: E402
from tests import markdown  # noqa: E402

pytestmark = pytest.mark.extra("datasets")

DATASET = datasets.Dataset.from_list(EXAMPLES)


def make_stream(shards=3, **more):
  return pack_iterable_dataset(
    DATASET.to_iterable_dataset(num_shards=shards), **(OPTIONS | more)
  )


def rows_of(packs, width):
  batch = packing.make_rows(packs, ROW, max_sequences=width)
  assert {"labels", "score", "sequence_mask", "token_type_ids"} < batch.keys()
  return [{name: x[i] for name, x in batch.items()} for i in range(len(packs))]


# ---- a plan --------------------------------------------------------------------------


def test_records_are_the_rows_of_make_rows():
  (seed,) = np.random.SeedSequence([5, 2]).generate_state(1)
  packs = [[EXAMPLES[i] for i in pack] for pack in PLAN.assign(LENGTHS, seed=int(seed))]
  assert_equal(
    pack_dataset(DATASET, PLAN, seed=5, epoch=2), rows_of(packs, PLAN.packing_depth)
  )


def test_each_epoch_has_every_example_once_with_other_neighbours(tmp_path):
  DATASET.save_to_disk(tmp_path)
  stored = datasets.load_from_disk(tmp_path)
  epochs = [pack_dataset(stored, PLAN, epoch=epoch) for epoch in (0, 1, 0)]
  for rows in epochs:
    every_token_once(rows)
  assert_equal(epochs[0], epochs[2])
  assert neighbours(epochs[0]) != neighbours(epochs[1])
  assert neighbours(epochs[0]) != neighbours(pack_dataset(stored, PLAN, seed=1))


def test_rows_can_be_shuffled_sharded_and_read_in_batches():
  rows = pack_dataset(DATASET, PLAN)
  shuffled = rows.shuffle(seed=0)
  every_token_once([shuffled.shard(3, i)[:] for i in range(3)])
  assert shuffled[:5]["labels"].shape == (5, PLAN.packing_depth)
  np.testing.assert_array_equal(shuffled[:5]["score"][4], shuffled[4]["score"])


def test_a_dataset_with_indices_or_a_format_is_packed_as_it_is_read():
  numbers = np.random.default_rng(1).permutation(61)[:20]
  plan = packing.pack(LENGTHS[numbers], max_sequence_length=ROW)
  packs = [[EXAMPLES[numbers[i]] for i in pack] for pack in assigned(plan, numbers)]
  expected = rows_of(packs, plan.packing_depth)
  for kind in ("numpy", "arrow", "pandas"):
    part = DATASET.select(numbers).with_format(kind)
    assert_equal(pack_dataset(part, plan), expected)
  tokens = part.with_format("arrow", columns=["input_ids"])
  assert "labels" not in pack_dataset(tokens, plan)[0]


def assigned(plan, numbers):
  (seed,) = np.random.SeedSequence([0, 0]).generate_state(1)
  return plan.assign(LENGTHS[numbers], seed=int(seed))


def test_tokens_made_when_they_are_read_need_lengths_or_are_read_once():
  texts = datasets.Dataset.from_dict({"text": ["ab", "c", "defg"]})
  made = texts.with_transform(lambda x: {"input_ids": [[*map(ord, t)] for t in x["text"]]})
  plan = packing.pack([2, 1, 4], max_sequence_length=5)
  for lengths in (None, [2, 1, 4]):
    rows = pack_dataset(made, plan, lengths=lengths)
    tokens = np.sort(np.concatenate([row["input_ids"] for row in rows]))
    assert tokens[tokens > 0].tolist() == [*range(97, 104)]


@pytest.mark.parametrize("kind", ["plan", "stream"])
@pytest.mark.extra("torch")
def test_workers_of_a_loader_read_rows(kind):
  pytest.importorskip("torch")
  from torch.utils.data import DataLoader

  from packing.torch import PackedCollator

  rows = pack_dataset(DATASET, PLAN) if kind == "plan" else make_stream(shards=4)
  loader = DataLoader(
    rows,
    batch_size=4,
    num_workers=2,
    multiprocessing_context="spawn",
    collate_fn=PackedCollator(row_length=ROW),
  )
  batches = list(loader)
  every_token_once([{"input_ids": batch["input_ids"].numpy()} for batch in batches])
  assert tuple(batches[0]["attention_mask"].shape) == (4, 1, ROW, ROW)
  assert tuple(batches[0]["labels"].shape) == (4, PLAN.packing_depth)


def test_what_cannot_be_packed_is_refused():
  with pytest.raises(packing.InputError, match="lengths"):
    pack_dataset(DATASET.select(range(60)), PLAN)
  with pytest.raises(packing.InputError, match="epoch"):
    pack_dataset(DATASET, PLAN, epoch=-1)
  with pytest.raises(packing.InputError, match="use pack_iterable_dataset"):
    pack_dataset(DATASET.to_iterable_dataset(), PLAN)
  with pytest.raises(packing.InputError, match="no input_ids"):
    pack_dataset(DATASET.rename_column("input_ids", "tokens"), PLAN)
  text = DATASET.add_column("text", ["words"] * 61)
  with pytest.raises(packing.InputError, match="text is 'words'; expected one number"):
    pack_dataset(text, PLAN)[0]


@pytest.mark.parametrize(
  ("columns", "message"),
  [
    (
      {"input_ids": ["words"]},
      "'input_ids' of the dataset is string; expected tokens in",
    ),
    ({"input_ids": [None]}, "'input_ids' of the dataset is null; expected tokens in"),
    ({"input_ids": []}, "'input_ids' of the dataset is null; expected tokens in"),
    ({"input_ids": [[1], None]}, "has 1 missing values"),
    ({"input_ids": [[5, 6, 0]], "attention_mask": [[1, 1, 0]]}, "padding=False"),
  ],
)
def test_columns_that_are_not_lists_of_tokens_are_refused(columns, message):
  dataset = datasets.Dataset.from_dict(columns)
  with pytest.raises(packing.InputError, match=message):
    pack_dataset(dataset, packing.pack([3], max_sequence_length=4))
  if columns["input_ids"]:
    rows = pack_iterable_dataset(dataset.to_iterable_dataset(), row_length=4)
    with pytest.raises(packing.InputError, match=r"as input_ids|padding=False"):
      list(rows)


def test_what_the_page_shows_runs():
  page = markdown.ROOT / "docs/how_to_pack.md"
  blocks = markdown.blocks(page.read_text(), "python")
  shown = [block for block in blocks if "pack_dataset" in block or "rows.state" in block]
  sequences = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1, 2], [6, 5]]
  plan = packing.pack([*map(len, sequences)], max_sequence_length=8)
  names: dict[str, Any] = {"sequences": sequences, "plan": plan}
  exec("".join(shown), names)
  assert len(shown) == 2
  names["rows"].load_state_dict(names["state"])
  assert list(names["rows"]) == []


# ---- a stream ------------------------------------------------------------------------


def test_a_stream_comes_whole_in_the_rows_of_make_rows():
  packer = packing.StreamPacker(**OPTIONS)
  for example in EXAMPLES:
    packer.add(example)
  packer.flush()
  rows = list(make_stream())
  assert_equal(rows, rows_of(list(packer.take()), 3))
  every_token_once(rows)


def test_the_features_are_those_of_the_rows():
  rows = make_stream()
  assert rows.features["input_ids"] == datasets.List(datasets.Value("int32"), length=ROW)
  for row in rows.take(3):
    assert row.keys() == rows.features.keys()
    for name, feature in rows.features.items():
      assert row[name].shape == (feature.length,)
      assert row[name].dtype == np.dtype(feature.feature.dtype)

  whole = [{"input_ids": [5] * n, "score": n} for n in (3, 5, 2)]
  cast = datasets.Dataset.from_list(whole).to_iterable_dataset()
  cast = cast.cast_column("score", datasets.Value("float32"))
  for row in pack_iterable_dataset(cast, **OPTIONS):
    assert row["score"].dtype == np.float32
    assert np.isnan(row["score"]).tolist() == (~row["sequence_mask"]).tolist()

  def generate():
    yield from EXAMPLES

  unknown = datasets.IterableDataset.from_generator(generate)
  rows = pack_iterable_dataset(unknown, **OPTIONS)
  assert rows.features is None
  every_token_once(rows)


@pytest.mark.extra("torch")
def test_a_stream_that_shares_out_its_shards_is_not_shared_out_again():
  pytest.importorskip("torch")
  from torch.utils.data import DataLoader

  from packing.torch import PackedIterableDataset

  stream = DATASET.to_iterable_dataset(num_shards=2)
  packs = PackedIterableDataset(stream, row_length=ROW)
  assert sum(map(len, DataLoader(packs, batch_size=None))) == len(EXAMPLES)
  workers = {"num_workers": 2, "multiprocessing_context": "spawn"}
  with pytest.raises(packing.InputError, match=r"Use packing\.datasets\.pack_iterable"):
    list(DataLoader(packs, batch_size=None, **workers))


def test_shards_and_nodes_have_every_example_once():
  shards = [make_stream().shard(3, i) for i in range(3)]
  assert make_stream().num_shards == 3
  every_token_once(itertools.chain(*shards))
  for world in (3, 2):  # of 3 shards; without a shard each, nodes take turns at rows
    from datasets.distributed import split_dataset_by_node

    nodes = [
      split_dataset_by_node(make_stream(), rank=i, world_size=world) for i in range(world)
    ]
    every_token_once(itertools.chain(*nodes))
    stream = DATASET.to_iterable_dataset(num_shards=3)
    nodes = [
      pack_iterable_dataset(
        split_dataset_by_node(stream, rank=i, world_size=world), **OPTIONS
      )
      for i in range(world)
    ]
    every_token_once(itertools.chain(*nodes))


def test_an_epoch_shuffles_a_shuffled_stream_again():
  stream = DATASET.to_iterable_dataset(num_shards=3).shuffle(seed=0, buffer_size=20)
  rows = pack_iterable_dataset(stream, **OPTIONS)
  epochs = []
  for epoch in (0, 1, 0):
    rows.set_epoch(epoch)
    epochs.append(list(rows))
    every_token_once(epochs[-1])
  assert_equal(epochs[0], epochs[2])
  assert neighbours(epochs[0]) != neighbours(epochs[1])


STREAMS = {
  "of arrow": lambda: make_stream(),
  "mapped": lambda: pack_iterable_dataset(
    DATASET.to_iterable_dataset(num_shards=3).map(lambda x: {"label": x["label"] + 1}),
    **OPTIONS,
  ),
  "tokenised in batches": lambda: pack_iterable_dataset(
    DATASET.to_iterable_dataset(num_shards=2).map(lambda x: x, batched=True, batch_size=7),
    **OPTIONS,
  ),
  "generated": lambda: pack_iterable_dataset(
    datasets.IterableDataset.from_generator(lambda: iter(EXAMPLES)), **OPTIONS
  ),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_it_resumes_after_any_row(stream):
  whole = list(STREAMS[stream]())
  for taken in range(1, len(whole) + 1):
    before = STREAMS[stream]()
    for _, _row in zip(range(taken), before, strict=False):
      state = json.loads(json.dumps(before.state_dict()))
    after = STREAMS[stream]()
    after.load_state_dict(state)
    assert_equal(after, whole[taken:])


def test_a_stream_is_not_read_again():
  read = []

  def generate(numbers):
    for number in numbers:
      read.append(number)
      yield EXAMPLES[number]

  def make():
    shards = {"numbers": list(range(61))}
    stream = datasets.IterableDataset.from_generator(generate, gen_kwargs=shards)
    return pack_iterable_dataset(stream, **OPTIONS)

  before = make()
  for _ in zip(range(9), before, strict=False):
    state = before.state_dict()
  count = len(read)
  after = make()
  after.load_state_dict(state)
  read.clear()
  list(after)
  assert len(read) == 61 - count + 1  # that at which it was


def test_a_state_of_another_epoch_is_refused():
  whole = make_stream()
  whole.set_epoch(1)
  expected = list(whole)
  before = make_stream()
  before.set_epoch(1)
  for _ in zip(range(9), before, strict=False):
    state = before.state_dict()
  after = make_stream()
  after.load_state_dict(state)
  for _ in range(2):  # a refused state is not forgotten
    with pytest.raises(packing.InputError, match=r"Call set_epoch\(1\) first"):
      next(iter(after))
  after.set_epoch(1)
  assert_equal(after, expected[9:])
  after.set_epoch(2)
  every_token_once(after)
  for wrong in (None, {}, {"epoch": 1}, DATASET.to_iterable_dataset().state_dict()):
    with pytest.raises(packing.InputError, match="found another"):
      make_stream().load_state_dict(wrong)


def test_wrong_streams_and_states_are_refused():
  with pytest.raises(packing.InputError, match="open_packs is 0"):
    make_stream(open_packs=0)
  with pytest.raises(packing.InputError, match="use pack_dataset"):
    pack_iterable_dataset(DATASET, row_length=ROW)
  with pytest.raises(packing.InputError, match="Pass max_sequences_per_pack"):
    list(make_stream(max_sequences_per_pack=None))
  before = make_stream()
  next(iter(before))
  after = make_stream(open_packs=5)
  after.load_state_dict(before.state_dict())
  with pytest.raises(packing.InputError, match="open_packs is 5; expected 4, as in"):
    list(after)


READER = """
import datasets
import numpy as np
from packing.datasets import pack_iterable_dataset

rng = np.random.default_rng(0)
tokens = [[n] * int(rng.integers(1, 18)) for n in range(1, 401)]
columns = {"input_ids": tokens, "score": [n / 8 for n in range(400)]}
stream = datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=5)
rows = pack_iterable_dataset(
  stream, row_length=17, max_sequences_per_pack=5, open_packs=8
)
state, restore = rows.state_dict, rows.load_state_dict
made = lambda row: {name: str(x.tobytes()) for name, x in row.items()}
"""


def test_a_reader_that_is_killed_resumes_with_the_next_row(tmp_path):
  assert len(resumed(READER, tmp_path)) > 100
