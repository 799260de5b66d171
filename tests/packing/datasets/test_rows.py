"""Datasets of Hugging Face: formats, views, workers; see also test_adapters.py."""

from typing import Any

import numpy as np
import pytest

import packing
from tests.packing.examples import (
  EXAMPLES,
  LENGTHS,
  PLAN,
  ROW,
  assert_equal,
  every_token_once,
)

datasets = pytest.importorskip("datasets")
from packing.datasets import pack_dataset  # noqa: E402
from tests import markdown  # noqa: E402

pytestmark = pytest.mark.extra("datasets")

DATASET = datasets.Dataset.from_list(EXAMPLES)


def rows_of(packs, width):
  batch = packing.make_rows(packs, ROW, max_sequences=width)
  assert {"labels", "score", "sequence_mask", "token_type_ids"} < batch.keys()
  return [{name: x[i] for name, x in batch.items()} for i in range(len(packs))]


# ---- a plan --------------------------------------------------------------------------


def test_a_stored_dataset_gives_the_rows_of_one_in_memory(tmp_path):
  DATASET.save_to_disk(tmp_path)
  stored = datasets.load_from_disk(tmp_path)
  assert_equal(pack_dataset(stored, PLAN), pack_dataset(DATASET, PLAN))


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


@pytest.mark.extra("torch")
def test_workers_of_a_loader_read_rows():
  pytest.importorskip("torch")
  from torch.utils.data import DataLoader

  from packing.torch import PackedCollator

  rows = pack_dataset(DATASET, PLAN)
  loader = DataLoader(
    rows,
    batch_size=4,
    num_workers=2,
    multiprocessing_context="forkserver",
    collate_fn=PackedCollator(row_length=ROW),
  )
  batches = list(loader)
  every_token_once([{"input_ids": batch["input_ids"].numpy()} for batch in batches])
  assert tuple(batches[0]["attention_mask"].shape) == (4, 1, ROW, ROW)
  assert tuple(batches[0]["labels"].shape) == (4, PLAN.packing_depth)


def test_what_cannot_be_packed_is_refused():
  with pytest.raises(packing.InputError, match=r"use packing\.torch\.PackedIterable"):
    pack_dataset(DATASET.to_iterable_dataset(), PLAN)
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
  ],
)
def test_columns_that_are_not_lists_of_tokens_are_refused(columns, message):
  dataset = datasets.Dataset.from_dict(columns)
  with pytest.raises(packing.InputError, match=message):
    pack_dataset(dataset, packing.pack([3], max_sequence_length=4))


def test_what_the_page_shows_runs():
  page = markdown.ROOT / "docs/how_to_pack.md"
  blocks = markdown.blocks(page.read_text(), "python")
  (shown,) = (block for block in blocks if "pack_dataset" in block)
  sequences = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1, 2], [6, 5]]
  plan = packing.pack([*map(len, sequences)], max_sequence_length=8)
  names: dict[str, Any] = {"sequences": sequences, "plan": plan}
  exec(shown, names)
  assert len(names["rows"]) == plan.num_packs
