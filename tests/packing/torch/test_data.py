"""Packs in a DataLoader: every example once, with epochs, ranks and workers."""

import copy
import gc
import math
import multiprocessing
import os
import pathlib
import pickle
import tempfile

import pytest

import packing
from packing.torch import PackedCollator, PackedDataset
from tests.packing.examples import (
  LENGTHS,
  PLAN,
  ROW,
  every_token_once,
  first_tokens,
  flat,
)
from tests.packing.examples import TOKENS as EXAMPLES

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

pytestmark = pytest.mark.extra("torch")


@pytest.mark.parametrize("workers", [0, 2])
def test_every_example_comes_once_in_rows_of_one_shape(workers):
  dataset = PackedDataset(EXAMPLES, PLAN)
  loader = DataLoader(
    dataset,
    batch_size=5,
    shuffle=True,
    num_workers=workers,
    multiprocessing_context="forkserver" if workers else None,
    collate_fn=PackedCollator.of(PLAN),
  )
  batches = list(loader)
  assert {tuple(batch["input_ids"].shape) for batch in batches[:-1]} == {(5, ROW)}
  every_token_once(batches)


def test_an_epoch_draws_other_packs_also_in_workers_that_stay():
  dataset = PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS)
  loader = DataLoader(
    dataset,
    batch_size=None,
    num_workers=2,
    persistent_workers=True,
    multiprocessing_context="forkserver",
  )
  epochs = []
  for epoch in (0, 1, 0):
    dataset.set_epoch(epoch)
    epochs.append(first_tokens(loader))
  assert epochs[0] == epochs[2] != epochs[1]
  assert epochs[1] == first_tokens(dataset_of_epoch(1))
  assert all(flat(packs) == flat(epochs[0]) for packs in epochs)
  other = PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS, seed=1)
  assert first_tokens(other) != epochs[0]


def dataset_of_epoch(epoch):
  dataset = PackedDataset(EXAMPLES, PLAN)
  dataset.set_epoch(epoch)
  return dataset


def test_ranks_share_the_packs():
  dataset = PackedDataset(EXAMPLES, PLAN)
  batches = []
  for rank in range(3):
    sampler: DistributedSampler = DistributedSampler(
      dataset, num_replicas=3, rank=rank, drop_last=False
    )
    sampler.set_epoch(4)
    loader = DataLoader(
      dataset, batch_size=2, sampler=sampler, collate_fn=PackedCollator.of(PLAN)
    )
    batches += list(loader)
  assert PLAN.num_packs % 3 == 0  # otherwise the sampler repeats some
  every_token_once(batches)


def test_a_dataset_that_reads_batches_is_asked_for_batches():
  class Batched(list):
    def __getitems__(self, numbers):
      return [self[i] for i in numbers]

  with_batches = PackedDataset(Batched(EXAMPLES), PLAN)
  assert with_batches.__getitems__([3, 1]) == PackedDataset(EXAMPLES, PLAN).__getitems__(
    [3, 1]
  )


# ---- the collator --------------------------------------------------------------------


def test_labels_of_sequences_stand_beside_their_starts():
  packs = [
    [{"input_ids": [5, 6], "label": 1, "score": 0.5}],
    [
      {"input_ids": [7], "label": 0, "score": 1.5},
      {"input_ids": [8, 9], "label": 2, "score": 2.5},
    ],
  ]
  batch = PackedCollator(row_length=4, max_sequences=3)(packs)
  assert batch["labels"].tolist() == [[1, -100, -100], [0, 2, -100]]
  assert batch["cls_positions"].tolist() == [[0, 0, 0], [0, 1, 0]]
  mask = batch["sequence_mask"]
  assert mask.tolist() == [[True, False, False], [True, True, False]]
  assert batch["score"][mask].tolist() == [0.5, 1.5, 2.5]
  assert batch["score"][~mask].isnan().all()
  assert batch["score"].dtype == torch.float32
  assert batch["labels"].dtype == batch["cls_positions"].dtype == torch.int64
  logits = torch.zeros(2, 3, 5)  # with labels of 32 bits PyTorch refuses this
  loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
  assert loss.item() == pytest.approx(math.log(5))
  rows = torch.arange(2)[:, None]
  assert batch["input_ids"][rows, batch["cls_positions"]][mask].tolist() == [5, 7, 8]


@pytest.mark.parametrize(
  "options", [{}, {"causal": True}, {"causal": True, "attention": "flash"}]
)
def test_labels_of_sequences_stay_with_as_many_places_as_tokens(options):
  pack = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [7], "label": 2}]
  collator = PackedCollator(row_length=4, max_sequences=4, **options)
  batch = collator([pack, pack])
  assert batch["labels"].tolist() == [[1, 2, -100, -100]] * 2
  rows = collator.rows([pack])
  with pytest.raises(packing.InputError, match="max_sequences is 4; expected less"):
    collator.arguments(rows)
  with pytest.raises(packing.InputError, match="max_sequences is 4; expected less"):
    collator([{name: x[0] for name, x in rows.items()}])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_mask_of_any_type_forbids_by_the_lowest_number_of_it(dtype):
  batch = PackedCollator(row_length=2, dtype=dtype)([[{"input_ids": [5]}]])
  lowest = torch.finfo(dtype).min
  assert batch["attention_mask"].dtype == dtype
  assert batch["attention_mask"].tolist() == [[[[0, lowest], [lowest, 0]]]]
  with pytest.raises(packing.InputError, match="expected that of the model"):
    PackedCollator(row_length=2, dtype=torch.int64)


def test_what_is_no_batch_of_packs_is_refused():
  example = {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0]}
  collator = PackedCollator(row_length=8, causal=True)
  with pytest.raises(packing.InputError, match=r"A pack is .* a list of examples"):
    collator([example])
  with pytest.raises(packing.InputError, match=r"A pack is .* a list of examples"):
    collator(example)
  with pytest.raises(packing.InputError, match="Tokenize with padding=False"):
    collator([[example]])
  numbers = [[[{"input_ids": [5], "label": label}]] for label in (5, 3.5)]
  collator(numbers[0])
  with pytest.raises(packing.InputError, match="Use one type"):
    collator(numbers[1])


@pytest.mark.parametrize(
  ("name", "value"),
  [
    *(("pad_id", None), ("pad_id", -1), ("pad_id", 0.5), ("window", 0), ("window", -3)),
    *(("first_position", -1), ("max_sequences", 0), ("separator_tokens", None)),
  ],
)
def test_options_out_of_range_are_refused(name, value):
  with pytest.raises(packing.InputError, match=f"{name} is {value}; expected"):
    PackedCollator(row_length=8, **{name: value})


def test_token_labels_padding_and_positions():
  pack = [
    {"input_ids": [5, 6], "labels": [-100, 6], "token_type_ids": [0, 1]},
    {"input_ids": [7], "labels": [7], "token_type_ids": [1]},
  ]
  collator = PackedCollator(row_length=5, pad_id=9, first_position=2)
  batch = collator([pack])
  assert batch["input_ids"].tolist() == [[5, 6, 7, 9, 9]]
  assert batch["position_ids"].tolist() == [[2, 3, 2, 2, 2]]
  assert batch["labels"].tolist() == [[-100, 6, 7, -100, -100]]
  assert batch["token_type_ids"].tolist() == [[0, 1, 1, 0, 0]]
  causal = PackedCollator(row_length=5, causal=True)
  assert causal([[{"input_ids": x["input_ids"]} for x in pack]])["labels"].tolist() == [
    [-100, 6, -100, -100, -100]
  ]


def test_flash_boundaries_have_one_shape():
  collator = PackedCollator(
    row_length=6,
    attention="flash",
    implementation="flash_attention_2",
    max_sequences=3,
  )
  shapes = set()
  for lengths in ([[2, 3], [6]], [[1, 1, 1], [2]]):
    packs = [
      [{"input_ids": [1] * n, "attention_mask": [1] * n, "label": n} for n in pack]
      for pack in lengths
    ]
    batch = collator(packs)
    ends = batch["cu_seq_lens_q"]
    shapes.add(tuple(ends.shape))
    assert (ends.diff() >= 0).all()
    assert ends[0] == 0
    assert ends[-1] == 12
    sizes = [n for n in ends.diff().tolist() if n]
    expected = []
    for pack in lengths:
      expected += [*pack, *[6 - sum(pack)] * (sum(pack) < 6)]
    assert sizes == expected
    assert batch["input_ids"].shape == (1, 12)
    assert "attention_mask" not in batch  # transformers would prefer it to the boundaries
    used = batch["sequence_mask"]
    starts = batch["cls_positions"][used].tolist()
    assert {*starts} < {*ends.tolist()}
    assert starts[-1] >= 6  # in the second row
  assert len(shapes) == 1


def test_rows_of_another_length_than_the_collators_have_their_own_longest_sequence():
  row = PackedCollator(row_length=6).rows([[{"input_ids": [5] * 6}]])
  own = {name: x[0] for name, x in row.items()}
  batch = PackedCollator(row_length=4, causal=True, attention="flash")([own])
  assert batch["cu_seq_lens_q"].tolist() == [0, 6]
  assert batch["max_length_q"] == batch["max_length_k"] == 6


def test_floats_by_token_are_laid_out_with_zeros_in_padding():
  pack = [
    {"input_ids": [5, 6], "advantages": [0.5, -1.5], "old_log_probs": [-0.25, -2.0]},
    {"input_ids": [7], "advantages": [3.0], "old_log_probs": [-4.0]},
  ]
  batch = PackedCollator(row_length=5, causal=True)([pack])
  assert batch["advantages"].tolist() == [[0.5, -1.5, 3, 0, 0]]
  assert batch["old_log_probs"].tolist() == [[-0.25, -2, -4, 0, 0]]
  assert batch["advantages"].dtype == torch.float32
  pack[1]["advantages"] = [3]
  with pytest.raises(packing.InputError, match="expected integers, or floats in all"):
    PackedCollator(row_length=5)([pack])
  for name in ("input_ids", "labels"):
    wrong = {"input_ids": [5], name: [0.5]}
    with pytest.raises(packing.InputError, match="are float64; expected integers"):
      PackedCollator(row_length=5)([[wrong]])


def test_masks_that_are_too_large_are_refused_before_memory_is_taken():
  long = {"row_length": 32_768, "causal": True}
  remedy = "flash_attention_2"
  with pytest.raises(packing.InputError, match=rf"take 4\.0 GiB; .*{remedy}"):
    PackedCollator(**long)
  assert PackedCollator(**long, dtype=torch.bool).row_length == 32_768
  with pytest.raises(packing.InputError, match="5 boolean masks"):
    PackedCollator(**long, dtype=torch.bool)([[{"input_ids": [5]}]] * 5)
  rows = PackedCollator(**long, dtype=torch.bool).rows([[{"input_ids": [5]}]])
  with pytest.raises(packing.InputError, match=r"take 4\.0 GiB"):
    PackedCollator(row_length=8)([{name: x[0] for name, x in rows.items()}])


def read(dataset, number):
  """The process, what it maps of the order, and the first tokens of a pack."""
  tokens = first_tokens([dataset[number]])[0]
  maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
  own = {(x.split()[1], x.split()[-1]) for x in maps if x.endswith(".by_length")}
  return os.getpid(), own, tokens


def test_a_pickle_has_two_bytes_a_sequence_and_none_for_a_worker(monkeypatch):
  lengths = [300, 200] * 50_000
  plan = packing.pack(lengths, max_sequence_length=512)
  dataset = PackedDataset(range(len(lengths)), plan, lengths=lengths)
  assert len(pickle.dumps(dataset)) < 2.2 * len(lengths)
  # As while multiprocessing starts a process.
  monkeypatch.setattr(multiprocessing.context, "get_spawning_popen", lambda: True)
  assert len(pickle.dumps(dataset._packs)) < 10_000


def test_workers_share_a_file_which_goes_with_the_dataset(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  dataset = PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS)
  (file,) = tmp_path.iterdir()
  assert file.stat().st_size == 4 * len(LENGTHS)
  kept = dataset.assignment
  with multiprocessing.get_context("spawn").Pool(2) as pool:
    for epoch in (1, 2, 7, 1):
      dataset.set_epoch(epoch)
      found = pool.starmap(read, [(dataset, number) for number in range(len(dataset))])
      for process, maps, _ in found:
        assert process != os.getpid()
        assert maps == {("r--s", str(file))}
      assert [tokens for *_, tokens in found] == first_tokens(dataset)
      assert first_tokens(dataset) == first_tokens(dataset_of_epoch(epoch))
  dataset.set_epoch(0)
  assert kept.sequence_ids.tolist() == dataset.assignment.sequence_ids.tolist()
  written, packs = pickle.dumps(dataset), first_tokens(dataset)
  del dataset
  gc.collect()
  assert not file.exists()
  assert first_tokens(pickle.loads(written)) == packs


@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_outlives_what_it_was_copied_from(tmp_path, monkeypatch, make):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  dataset = PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS)
  packs, made = first_tokens(dataset), make(dataset)
  del dataset
  gc.collect()
  assert not list(tmp_path.iterdir())
  assert first_tokens(made) == packs
  assert first_tokens(make(made)) == packs


def test_a_damaged_file_is_made_again_or_told(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  dataset = PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS)
  written, packs = pickle.dumps(dataset), first_tokens(dataset)
  order = dataset._packs._order
  (file,) = tmp_path.iterdir()
  file.rename(tmp_path / "moved")
  file.write_bytes(b"")
  assert first_tokens(pickle.loads(written)) == packs
  message = "is gone or damaged: .* Make the dataset again"
  with pytest.raises(packing.InputError, match=message):
    object.__new__(type(order)).__setstate__((None, str(file), order._type))


def test_no_room_for_the_file_is_said(monkeypatch):
  def full(**_):
    return os.open("/dev/full", os.O_WRONLY), "/tmp/isopack-x.by_length"

  monkeypatch.setattr(tempfile, "mkstemp", full)
  with pytest.raises(packing.InputError, match=r"No space left .* Set TMPDIR to a folder"):
    PackedDataset(EXAMPLES, PLAN, lengths=LENGTHS)
