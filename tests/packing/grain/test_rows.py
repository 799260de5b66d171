"""Rows in Grain: epochs, shards, workers and checkpoints; see also test_adapters.py."""

import itertools
import json
import pickle

import pytest

import packing
from tests.packing.examples import (
  EXAMPLES,
  LENGTHS,
  OPTIONS,
  PLAN,
  assert_equal,
  every_token_once,
  neighbours,
)

grain = pytest.importorskip("grain")
from absl import flags  # noqa: E402

from packing.grain import PackedIterDataset, PackedMapDataset  # noqa: E402

pytestmark = pytest.mark.extra("grain")


def make_rows(**options):
  return PackedMapDataset(EXAMPLES, PLAN, **options)


def make_stream(examples=EXAMPLES, **more):
  stream = grain.MapDataset.source(examples).to_iter_dataset()
  return PackedIterDataset(stream, **(OPTIONS | more))


# ---- a plan --------------------------------------------------------------------------


def test_each_epoch_has_every_example_once_with_other_neighbours():
  rows = list(make_rows().shuffle(seed=3).repeat(2).to_iter_dataset())
  first, second = rows[: PLAN.num_packs], rows[PLAN.num_packs :]
  every_token_once(first)
  every_token_once(second)
  assert neighbours(first) != neighbours(second)
  assert neighbours(first) == neighbours(make_rows())
  assert neighbours(first) != neighbours(make_rows(seed=1))
  starts = [[row["input_ids"][0] for row in part] for part in (first, make_rows())]
  assert starts[0] != starts[1]  # another order


def test_shards_have_every_example_once_in_each_epoch():
  shards = [list(make_rows().shuffle(seed=0)[i::3].repeat(2)) for i in range(3)]
  for epoch in range(2):
    sizes = [len(shard) // 2 for shard in shards]
    parts = [s[epoch * n : (epoch + 1) * n] for s, n in zip(shards, sizes, strict=True)]
    every_token_once(itertools.chain(*parts))


def test_threads_and_a_pickle_give_the_same_rows():
  rows = make_rows().shuffle(seed=0).repeat(3)
  expected = [rows[i] for i in range(len(rows))]
  options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=100)
  assert_equal(rows.to_iter_dataset(options), expected)
  assert_equal(pickle.loads(pickle.dumps(make_rows())), make_rows())


def test_sources_of_other_kinds_give_the_same_rows():
  class Batched(list):
    def __getitems__(self, numbers):
      return [self[i] for i in numbers]

  for source in (grain.MapDataset.source(EXAMPLES), Batched(EXAMPLES)):
    assert_equal(PackedMapDataset(source, PLAN, lengths=LENGTHS), make_rows())


def test_an_index_from_the_end_is_refused_since_rows_repeat():
  for rows in (make_rows(), make_rows().repeat(2)):
    with pytest.raises(packing.InputError, match="index of a row is -1; expected at least"):
      rows[-1]


# ---- a stream ------------------------------------------------------------------------


def test_shards_of_a_stream_have_every_example_once():
  shards = [make_stream(grain.MapDataset.source(EXAMPLES)[i::3]) for i in range(3)]
  every_token_once(itertools.chain(*shards))


def test_single_values_need_a_fixed_number_of_places():
  with pytest.raises(packing.InputError, match="Pass max_sequences_per_pack"):
    list(make_stream(max_sequences_per_pack=None))
  tokens = [{"input_ids": example["input_ids"]} for example in EXAMPLES]
  every_token_once(make_stream(tokens, max_sequences_per_pack=None))


# ---- both ----------------------------------------------------------------------------

PIPELINES = {
  "plan": lambda: make_rows().shuffle(seed=1).repeat(2).to_iter_dataset(),
  "plan in batches": lambda: make_rows().repeat(2).batch(4).to_iter_dataset(),
  "stream": make_stream,
  "stream in batches": lambda: make_stream(look_ahead=9).batch(4),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_it_resumes_after_any_element(pipeline):
  make = PIPELINES[pipeline]
  whole = list(make())
  rows, states = iter(make()), []
  for _ in range(len(whole)):
    states.append(json.loads(json.dumps(rows.get_state())))
    next(rows)
  with pytest.raises(StopIteration):
    next(rows)
  states.append(json.loads(json.dumps(rows.get_state())))
  for taken, state in reversed(list(enumerate(states))):
    rows.set_state(state)  # also from the end
    assert_equal(rows, whole[taken:])


def test_a_stream_is_not_read_again():
  read = []

  class Source:
    def __len__(self):
      return len(EXAMPLES)

    def __getitem__(self, index):
      read.append(index)
      return EXAMPLES[index]

  options = grain.ReadOptions(num_threads=0)
  stream = grain.MapDataset.source(Source()).to_iter_dataset(options)
  before = iter(PackedIterDataset(stream, **OPTIONS))
  for _ in range(9):
    next(before)
  after = iter(PackedIterDataset(stream, **OPTIONS))
  after.set_state(before.get_state())
  list(after)
  assert read == list(range(len(EXAMPLES)))


@pytest.mark.parametrize("pipeline", ["plan in batches", "stream in batches"])
def test_a_checkpoint_of_orbax_resumes(pipeline, tmp_path):
  ocp = pytest.importorskip("orbax.checkpoint")  # which brings JAX
  make = PIPELINES[pipeline]
  whole = list(make())
  rows = iter(make())
  head = [next(rows) for _ in range(3)]
  with ocp.CheckpointManager(tmp_path) as manager:
    manager.save(3, args=ocp.args.Composite(rows=grain.checkpoint.CheckpointSave(rows)))
    manager.wait_until_finished()
    after = iter(make())
    restore = grain.checkpoint.CheckpointRestore(after)
    manager.restore(3, args=ocp.args.Composite(rows=restore))
  assert_equal(head + list(after), whole)


@pytest.mark.parametrize(
  "pipeline",
  [pytest.param("plan in batches", marks=pytest.mark.slow), "stream in batches"],
)
def test_workers_give_every_example_once_and_resume(pipeline):
  flags.FLAGS.mark_as_parsed()

  def make():
    workers = grain.MultiprocessingOptions(num_workers=2)
    return PIPELINES[pipeline]().mp_prefetch(workers)

  rows = iter(make())
  head = [next(rows) for _ in range(3)]
  state = json.loads(json.dumps(rows.get_state()))
  tail = list(rows)
  rows.close()
  every_token_once(head + tail, times=2 if pipeline == "plan in batches" else 1)
  if pipeline == "plan in batches":
    assert_equal(head + tail, PIPELINES[pipeline]())
  after = iter(make())
  after.set_state(state)
  assert_equal(after, tail)
  after.close()
