"""Rows in Grain: every example once, with epochs, shards, workers and checkpoints."""

import itertools
import json
import pickle

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


@pytest.mark.parametrize("more", [{}, {"length_multiple": 4, "separator_tokens": 1}])
def test_a_row_is_that_of_make_rows(more):
  plan = packing.pack(LENGTHS, max_sequence_length=20, max_sequences_per_pack=3, **more)
  (seed,) = np.random.SeedSequence([5, 2]).generate_state(1)
  packs = [[EXAMPLES[i] for i in pack] for pack in plan.assign(LENGTHS, seed=int(seed))]
  batch = packing.make_rows(packs, 20, max_sequences=plan.packing_depth, **more)
  rows = PackedMapDataset(EXAMPLES, plan, seed=5).repeat(3)
  for number in range(len(plan.assign(LENGTHS, seed=0))):
    assert_equal(
      [rows[2 * plan.num_packs + number]], [{k: x[number] for k, x in batch.items()}]
    )
  assert batch["score"].dtype == np.float32
  assert {"labels", "cls_positions", "sequence_mask", "token_type_ids"} < batch.keys()


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


def test_padding_is_not_packed_as_text():
  padded = [{"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}]
  with pytest.raises(packing.InputError, match="Tokenize with padding=False"):
    PackedMapDataset(padded, packing.pack([3], max_sequence_length=4))
  with pytest.raises(packing.InputError, match="Tokenize with padding=False"):
    list(make_stream(padded))


def test_a_wrong_plan_is_refused():
  with pytest.raises(packing.InputError, match="lengths"):
    PackedMapDataset(EXAMPLES[1:], PLAN)
  with pytest.raises(packing.InputError, match="Example 0 has no input_ids; found"):
    PackedMapDataset([{"tokens": [1]}], packing.pack([1], max_sequence_length=1))
  with pytest.raises(packing.InputError, match="lengths"):
    make_rows(lengths=LENGTHS[::-1] // 2 + 1)
  with pytest.raises(packing.InputError, match="seed"):
    make_rows(seed=-1)


# ---- a stream ------------------------------------------------------------------------


def test_a_stream_comes_whole_in_the_rows_of_make_rows():
  rows = list(make_stream())
  every_token_once(rows)
  packer = packing.StreamPacker(**OPTIONS)
  for example in EXAMPLES:
    packer.add(example)
  packer.flush()
  batch = packing.make_rows(list(packer.take()), ROW, max_sequences=3)
  assert_equal(rows, [{k: x[i] for k, x in batch.items()} for i in range(len(rows))])


def test_shards_of_a_stream_have_every_example_once():
  shards = [make_stream(grain.MapDataset.source(EXAMPLES)[i::3]) for i in range(3)]
  every_token_once(itertools.chain(*shards))


def test_single_values_need_a_fixed_number_of_places():
  with pytest.raises(packing.InputError, match="Pass max_sequences_per_pack"):
    list(make_stream(max_sequences_per_pack=None))
  tokens = [{"input_ids": example["input_ids"]} for example in EXAMPLES]
  every_token_once(make_stream(tokens, max_sequences_per_pack=None))


def test_a_state_of_another_stream_is_refused():
  state = iter(make_stream()).get_state()
  with pytest.raises(packing.InputError, match="open_packs is 5; expected 4, as in"):
    iter(make_stream(open_packs=5)).set_state(state)
  with pytest.raises(packing.InputError, match="found another"):
    iter(make_stream()).set_state({"next_index": 3})


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


@pytest.mark.parametrize("pipeline", ["plan in batches", "stream in batches"])
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


READER = """
import grain
import numpy as np
from packing.grain import PackedIterDataset

rng = np.random.default_rng(0)
examples = [
  {"input_ids": [n] * int(rng.integers(1, 18)), "score": n / 8} for n in range(1, 401)
]
stream = grain.MapDataset.source(examples).shuffle(seed=0).to_iter_dataset()
rows = iter(
  PackedIterDataset(stream, row_length=17, max_sequences_per_pack=5, open_packs=8)
)
state, restore = rows.get_state, rows.set_state
made = lambda row: {name: str(x.tobytes()) for name, x in row.items()}
"""


def test_a_reader_that_is_killed_resumes_with_the_next_row(tmp_path):
  assert len(resumed(READER, tmp_path)) > 100
