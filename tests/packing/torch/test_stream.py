"""Streams in PyTorch: workers, ranks, Hugging Face's shards; see also test_adapters.py."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

import packing
from packing.torch import PackedCollator, PackedIterableDataset
from tests import markdown
from tests.packing.examples import ROW, every_token_once, first_tokens, flat
from tests.packing.examples import TOKENS as EXAMPLES
from tests.packing.killed import resumed

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

pytestmark = pytest.mark.extra("torch")

# How processes start: as by "spawn", from one that has imported their libraries already. It
# has none of JAX's threads, which do not survive a fork.
METHOD = "forkserver"
OPTIONS = {"row_length": ROW, "open_packs": 4, "look_ahead": 3}


def make_stream(**more):
  return PackedIterableDataset(EXAMPLES, **(OPTIONS | more))


def test_workers_and_ranks_share_a_stream():
  batches = []
  for rank in range(2):
    loader = DataLoader(
      make_stream(rank=rank, world_size=2),
      batch_size=4,
      num_workers=2,
      multiprocessing_context=METHOD,
      collate_fn=PackedCollator(row_length=ROW),
    )
    batches += list(loader)
  every_token_once(batches)


def start_processes(function, *arguments, number):
  """Runs function(0, *arguments), function(1, ...) and so on, each in a process."""
  torch.multiprocessing.start_processes(
    function, arguments, nprocs=number, start_method=METHOD
  )


def read_in_rank(rank, folder, method):
  """Reads a stream with two workers in one of two processes of `torch.distributed`."""
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
  )
  loader = DataLoader(
    make_stream(), batch_size=None, num_workers=2, multiprocessing_context=method
  )
  (folder / f"{rank}.json").write_text(json.dumps(first_tokens(loader)))
  torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_know_the_rank_of_their_process(method, tmp_path):
  start_processes(read_in_rank, tmp_path, method, number=2)
  packs = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
  assert all(packs)
  assert flat(packs[0] + packs[1]) == flat(first_tokens(make_stream()))


class Sharing(IterableDataset):
  """Shares out its examples among workers, as PyTorch's documentation does."""

  def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    return iter(EXAMPLES[worker.id :: worker.num_workers])


def test_a_stream_that_may_share_out_its_examples_is_refused_with_workers():
  rows = PackedIterableDataset(Sharing(), **OPTIONS)
  started = {"batch_size": None, "multiprocessing_context": METHOD}
  loader = DataLoader(rows, num_workers=2, **started)
  with pytest.raises(packing.InputError, match="is a Sharing, which may share out"):
    list(loader)
  loader = DataLoader(rows, num_workers=1, **started)
  assert flat(first_tokens(loader)) == flat(first_tokens(make_stream()))


def test_accelerate_shares_out_batches_itself(monkeypatch):
  accelerate = pytest.importorskip("accelerate")
  shared = {"num_processes": 2}
  monkeypatch.setattr(accelerate.PartialState, "_shared_state", shared)
  with pytest.raises(packing.InputError, match="Pass rank=0, world_size=1"):
    next(iter(make_stream()))
  whole = list(make_stream(rank=0, world_size=1))
  shared["num_processes"] = 1
  assert list(make_stream()) == whole


def test_two_iterators_do_not_disturb_each_other():
  rows = make_stream()
  whole = list(rows)
  packs = iter(rows)
  found = [next(packs) for _ in range(len(whole) // 2)]
  assert [next(iter(rows)) for _ in range(2)] == whole[:1] * 2
  assert found + list(packs) == whole


def test_an_iterator_is_read_once():
  rows = PackedIterableDataset(iter(EXAMPLES), **OPTIONS)
  assert list(rows)
  with pytest.raises(packing.InputError, match="an iterator, which was read"):
    next(iter(rows))


class WithStates(IterableDataset):
  """Yields each pack with the state after it, and last the state of the end."""

  def __init__(self, rows, states):
    self.rows, self.states = rows, states

  def __iter__(self):
    worker = torch.utils.data.get_worker_info().id
    if self.states:
      self.rows.load_state_dict(self.states[worker])
    for _ in range(2 if self.states else 1):  # the rest of an epoch, then a whole one
      packs = iter(self.rows)
      yield worker, None, self.rows.state_dict()
      for pack in packs:
        yield worker, pack, self.rows.state_dict()
      yield worker, None, self.rows.state_dict()


def test_a_worker_that_has_ended_its_shard_does_not_read_it_again():
  def read(states=None):
    rows = WithStates(make_stream(), states)
    started = {"batch_size": None, "multiprocessing_context": METHOD}
    by_worker: tuple[list, list] = ([], [])
    for worker, pack, state in DataLoader(rows, num_workers=2, **started):
      by_worker[worker].append((pack, state))
    return by_worker

  first, second = read()
  whole = [[pack for pack, _ in worker if pack] for worker in (first, second)]
  middle = len(second) // 2
  states = [json.loads(json.dumps(x)) for x in (first[-1][1], second[middle][1])]
  resumed_first, resumed_second = read(states)
  assert [pack for pack, _ in resumed_first if pack] == whole[0]  # of the next epoch
  assert resumed_first[0][1] == states[0]
  assert resumed_first[2][1]["seen"] == 0  # the next epoch begins
  rest = [pack for pack, _ in resumed_second if pack]
  assert rest == whole[1][middle:] + whole[1]


def load_before_a_worker_starts(_, method):
  """Each epoch has new workers, which would all resume from the state."""
  before = make_stream()
  packs = iter(before)
  next(packs)
  after = make_stream()
  after.load_state_dict(before.state_dict())
  loader = DataLoader(after, batch_size=None, num_workers=1, multiprocessing_context=method)
  with pytest.raises(packing.InputError, match=r"loaded before the worker started"):
    next(iter(loader))
  assert list(DataLoader(after, batch_size=None)) == list(packs)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_state_loaded_before_the_workers_start_is_refused(method):
  start_processes(load_before_a_worker_starts, method, number=1)


class Stateful:
  """A stream that knows where it is, and fails if it is read from the start again."""

  def __init__(self, at=0):
    self.at = at

  def __iter__(self):
    while self.at < len(EXAMPLES):
      self.at += 1
      yield EXAMPLES[self.at - 1]

  def state_dict(self):
    return {"at": self.at}

  def load_state_dict(self, state):
    self.at = state["at"]


@pytest.mark.parametrize("stateful", [False, True])
def test_a_stream_resumes_after_any_pack(stateful):
  source = Stateful if stateful else (lambda: EXAMPLES)
  whole = list(PackedIterableDataset(source(), **OPTIONS))
  for taken in range(len(whole) + 1):
    before = PackedIterableDataset(source(), **OPTIONS)
    packs = iter(before)
    assert [next(packs) for _ in range(taken)] == whole[:taken]
    state = json.loads(json.dumps(before.state_dict()))
    after = PackedIterableDataset(source(), **OPTIONS)
    after.load_state_dict(state)
    assert after.state_dict() == state  # also before the first pack
    assert list(after) == whole[taken:]
    if stateful and not taken:
      continue  # this stream does not start again by itself
    assert list(after) == whole  # the next epoch
    at_the_end = PackedIterableDataset(source(), **OPTIONS)
    at_the_end.load_state_dict(after.state_dict())
    assert list(at_the_end) == whole  # so is the one after a state of the end


def test_a_state_of_another_shard_or_that_is_damaged_is_refused():
  state = make_stream(rank=0, world_size=2).state_dict()
  other = make_stream(rank=1, world_size=2)
  other.load_state_dict(state)
  for _ in range(2):  # a refused state is not forgotten
    with pytest.raises(packing.InputError, match=r"has shard \[0, 2\], not \[1, 2\]"):
      next(iter(other))
  changes: list[dict] = [{"seen": -1}, {"seen": "2"}, {"ended": 1}, {"packs": {}}]
  for change in changes:
    other = make_stream()
    other.load_state_dict(make_stream().state_dict() | change)
    with pytest.raises(packing.InputError, match=r"in the state|found another"):
      next(iter(other))


# ---- streams of Hugging Face ---------------------------------------------------------


def hugging_face_stream(shards=3):
  datasets = pytest.importorskip("datasets")
  return datasets.Dataset.from_list(EXAMPLES).to_iterable_dataset(num_shards=shards)


def mapped(shards=3):
  return hugging_face_stream(shards).map(lambda x: x, batched=True, batch_size=7)


def generated(shards=3):
  datasets = pytest.importorskip("datasets")
  numbers = {"numbers": [*range(len(EXAMPLES))]}

  def generate(numbers):
    for number in numbers:
      yield EXAMPLES[number]

  return datasets.IterableDataset.from_generator(generate, gen_kwargs=numbers)


@pytest.mark.parametrize("stream", [hugging_face_stream, mapped, generated])
def test_a_hugging_face_stream_resumes_after_any_pack(stream):
  whole = list(PackedIterableDataset(stream(), **OPTIONS))
  every = flat(first_tokens([EXAMPLES]))
  assert flat(first_tokens(whole)) == every
  for taken in range(1, len(whole) + 1, 2):
    before = PackedIterableDataset(stream(), **OPTIONS)
    for _ in zip(range(taken), before, strict=False):
      state = json.loads(json.dumps(before.state_dict()))
    after = PackedIterableDataset(stream(), **OPTIONS)
    after.load_state_dict(state)
    assert list(after) == whole[taken:]
    assert list(after) == whole  # the next epoch


@pytest.mark.parametrize("ranks", [1, 2, 3])  # of 3 shards; 2 ranks take turns at examples
def test_ranks_and_workers_read_the_shards_of_a_hugging_face_stream(ranks):
  packs = []
  for rank in range(ranks):
    rows = PackedIterableDataset(
      hugging_face_stream(), rank=rank, world_size=ranks, **OPTIONS
    )
    loader = DataLoader(
      rows, batch_size=None, num_workers=2, multiprocessing_context=METHOD
    )
    packs += first_tokens(loader)
  assert flat(packs) == flat(first_tokens([EXAMPLES]))


def test_a_rank_reads_only_its_shards():
  datasets = pytest.importorskip("datasets")
  read = []

  def generate(numbers):
    for number in numbers:
      read.append(number)
      yield EXAMPLES[number]

  numbers = {"numbers": [*range(60)]}
  stream = datasets.IterableDataset.from_generator(generate, gen_kwargs=numbers)
  for rank in range(4):
    list(PackedIterableDataset(stream, rank=rank, world_size=4, **OPTIONS))
  assert sorted(read) == [*range(60)]

  # Nor does a stream that resumes read what it has read before.
  before = PackedIterableDataset(stream, **OPTIONS)
  for _ in zip(range(9), before, strict=False):
    state = before.state_dict()
  after = PackedIterableDataset(stream, **OPTIONS)
  after.load_state_dict(state)
  read.clear()
  list(after)
  assert len(read) == 60 - state["seen"] + 1  # the shard at which it was


def read_by_a_stateful_loader(_, folder):
  """Stops two workers in the middle of an epoch, and goes on in two new ones."""
  from torchdata.stateful_dataloader import StatefulDataLoader

  def make():
    rows = PackedIterableDataset(hugging_face_stream(4), **OPTIONS)
    return StatefulDataLoader(rows, batch_size=None, num_workers=2)

  whole = first_tokens(make())
  loader = make()
  packs = iter(loader)
  begun = first_tokens(itertools.islice(packs, len(whole) // 2))
  state = loader.state_dict()
  other = make()
  other.load_state_dict(state)
  rest, next_epoch = first_tokens(other), first_tokens(other)
  (folder / "read.json").write_text(json.dumps([whole, begun, rest, next_epoch]))


def test_workers_of_a_stateful_loader_resume(tmp_path):
  pytest.importorskip("torchdata")
  start_processes(read_by_a_stateful_loader, tmp_path, number=1)
  whole, begun, rest, next_epoch = json.loads((tmp_path / "read.json").read_text())
  assert begun + rest == whole == next_epoch
  assert flat(whole) == flat(first_tokens([EXAMPLES]))


def test_an_epoch_shuffles_a_shuffled_stream_again():
  stream = hugging_face_stream().shuffle(seed=0, buffer_size=20)
  rows = PackedIterableDataset(stream, **OPTIONS)
  epochs = []
  for epoch in (0, 1, 0):
    rows.set_epoch(epoch)
    epochs.append(first_tokens(rows))
  assert epochs[0] == epochs[2] != epochs[1]
  assert flat(epochs[0]) == flat(epochs[1])


class Shuffled:
  """A stream of its own kind, in another order in each epoch."""

  epoch = 0

  def set_epoch(self, epoch):
    self.epoch = epoch

  def __iter__(self):
    order = np.random.default_rng(self.epoch).permutation(len(EXAMPLES))
    return (EXAMPLES[i] for i in order)


def test_an_epoch_reaches_a_stream_in_workers_that_stay():
  rows = PackedIterableDataset(Shuffled(), **OPTIONS)
  loader = DataLoader(
    rows,
    batch_size=None,
    num_workers=1,
    persistent_workers=True,
    multiprocessing_context="forkserver",
  )
  epochs = []
  for epoch in (0, 1, 0):
    rows.set_epoch(epoch)
    epochs.append(first_tokens(loader))
    assert epochs[-1] == first_tokens(rows)
  assert epochs[0] == epochs[2] != epochs[1]


def say_who_splits(rank, folder):
  """A rank of two, whose stream may be split by node already."""
  from datasets.distributed import split_dataset_by_node

  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
  )
  with pytest.raises(packing.InputError, match="pass rank and world_size to split"):
    next(iter(PackedIterableDataset(hugging_face_stream(), **OPTIONS)))
  split = split_dataset_by_node(hugging_face_stream(4), rank=rank, world_size=2)
  given: dict[str, Any] = {"rank": 0, "world_size": 1}
  packs = first_tokens(PackedIterableDataset(split, **given, **OPTIONS))
  (folder / f"{rank}.json").write_text(json.dumps(packs))
  torch.distributed.destroy_process_group()


def test_several_ranks_say_who_splits_a_hugging_face_stream(tmp_path):
  pytest.importorskip("datasets")
  start_processes(say_who_splits, tmp_path, number=2)
  packs = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
  assert flat(packs[0] + packs[1]) == flat(first_tokens([EXAMPLES]))


def test_epochs_after_a_resumed_one_are_whole():
  rows = PackedIterableDataset(hugging_face_stream(), **OPTIONS)
  whole, packs = list(rows), iter(rows)
  for _ in range(len(whole) // 2):
    next(packs)
  resumed_rows = PackedIterableDataset(hugging_face_stream(), **OPTIONS)
  resumed_rows.load_state_dict(rows.state_dict())
  assert list(resumed_rows) == whole[len(whole) // 2 :]
  assert [list(resumed_rows) for _ in range(2)] == [whole] * 2


def test_a_state_of_another_epoch_of_the_stream_is_refused():
  rows = PackedIterableDataset(hugging_face_stream(), **OPTIONS)
  rows.set_epoch(1)
  next(iter(rows))
  other = PackedIterableDataset(hugging_face_stream(), **OPTIONS)
  other.load_state_dict(rows.state_dict())
  with pytest.raises(packing.InputError, match=r"Call set_epoch\(1\) first"):
    next(iter(other))
  other.set_epoch(1)
  assert next(iter(other))


HUGGING_FACE_READER = """
import datasets
import numpy as np
from packing.torch import PackedIterableDataset

rng = np.random.default_rng(0)
tokens = [[n] * int(rng.integers(1, 18)) for n in range(400)]
stream = datasets.Dataset.from_dict({"input_ids": tokens}).to_iterable_dataset(num_shards=5)
rows = PackedIterableDataset(stream, row_length=17, open_packs=8)
state, restore = rows.state_dict, rows.load_state_dict
made = lambda pack: [x["input_ids"][0] for x in pack]
"""


def test_a_reader_of_shards_that_is_killed_resumes_with_the_next_pack(tmp_path):
  pytest.importorskip("datasets")
  assert flat(resumed(HUGGING_FACE_READER, tmp_path)) == list(range(400))


def test_what_the_page_shows_runs():
  pytest.importorskip("datasets")
  page = (markdown.ROOT / "docs/how_to_pack.md").read_text()
  blocks = markdown.blocks(page, "python")
  (shown,) = (block for block in blocks if "PackedIterableDataset(stream" in block)
  sequences = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1, 2], [6, 5]]
  names: dict[str, Any] = {"sequences": sequences}
  exec(shown, names)
  assert names["state"]["ended"]
  names["packs"].load_state_dict(names["state"])
  assert list(names["packs"]) == []
