"""What every adapter promises, of a plan and of a stream, whatever the framework.

A row is a dictionary of arrays, one row of `packing.make_rows`.
"""

import itertools
import json

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


def rows_of(packs, *, width=PLAN.packing_depth, row_length=ROW, **more):
  """The rows of packs of examples."""
  packs = list(packs)
  batch = packing.make_rows(packs, row_length, max_sequences=width, **more)
  return [{name: x[i] for name, x in batch.items()} for i in range(len(packs))]


# ---- a plan --------------------------------------------------------------------------


class TorchPlan:
  """`packing.torch.PackedDataset`, whose items are packs of examples."""

  needs = "torch"

  def rows(self, examples=EXAMPLES, plan=PLAN, epoch=0, **more):
    from packing.torch import PackedDataset

    dataset = PackedDataset(examples, plan, **more)
    dataset.set_epoch(epoch)
    packs = (dataset[i] for i in range(len(dataset)))
    return rows_of(
      packs, width=plan.packing_depth, row_length=plan.row_length, **plan.spacing
    )


class GrainPlan:
  """`packing.grain.PackedMapDataset`, whose epochs follow one another."""

  needs = "grain"

  def rows(self, examples=EXAMPLES, plan=PLAN, epoch=0, **more):
    from packing.grain import PackedMapDataset

    rows = PackedMapDataset(examples, plan, **more).repeat(epoch + 1)
    return [rows[i] for i in range(epoch * plan.num_packs, len(rows))]


class DatasetsPlan:
  """`packing.datasets.pack_dataset`, which makes a dataset for each epoch."""

  needs = "datasets"

  def rows(self, examples=EXAMPLES, plan=PLAN, epoch=0, **more):
    import datasets

    from packing.datasets import pack_dataset

    dataset = datasets.Dataset.from_list(examples)
    return list(pack_dataset(dataset, plan, epoch=epoch, **more))


@pytest.fixture
def adapter(request):
  pytest.importorskip(request.param.needs)
  return request.param()


def of(*adapters):
  """The parameters of a test of some adapters, each with the mark of its library."""
  cases = [
    pytest.param(x, marks=pytest.mark.extra(x.needs), id=x.__name__) for x in adapters
  ]
  return pytest.mark.parametrize("adapter", cases, indirect=True)


PLANS = of(TorchPlan, GrainPlan, DatasetsPlan)


@PLANS
@pytest.mark.parametrize("more", [{}, {"length_multiple": 4, "separator_tokens": 1}])
def test_rows_are_those_of_make_rows(adapter, more):
  """So with one seed, all frameworks train on the same packs in each epoch."""
  plan = packing.pack(LENGTHS, max_sequence_length=20, max_sequences_per_pack=3, **more)
  (seed,) = np.random.SeedSequence([5, 2]).generate_state(1)
  packs = [[EXAMPLES[i] for i in pack] for pack in plan.assign(LENGTHS, seed=int(seed))]
  expected = rows_of(packs, width=plan.packing_depth, row_length=20, **more)
  assert {"labels", "score", "cls_positions", "token_type_ids"} < expected[0].keys()
  assert_equal(adapter.rows(plan=plan, seed=5, epoch=2), expected)


@PLANS
def test_each_epoch_has_every_example_once_with_other_neighbours(adapter):
  epochs = [adapter.rows(epoch=epoch) for epoch in (0, 1, 0)]
  for rows in epochs:
    every_token_once(rows)
  assert_equal(epochs[0], epochs[2])
  assert neighbours(epochs[0]) != neighbours(epochs[1])
  assert neighbours(epochs[0]) != neighbours(adapter.rows(seed=1))


@PLANS
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"examples": EXAMPLES[1:]}, "lengths"),
    ({"lengths": LENGTHS[::-1] // 2 + 1}, "lengths"),
    (
      {"examples": [*EXAMPLES, EXAMPLES[0]], "lengths": LENGTHS},
      "There are 62 examples and 61 lengths",
    ),
    ({"seed": -1}, "seed"),
    ({"examples": [{"tokens": [1]}] * 61}, "no input_ids"),
    (
      {"examples": [{"input_ids": [5, 0], "attention_mask": [1, 0]}] * 61},
      "Tokenize with padding=False",
    ),
  ],
)
def test_what_cannot_be_packed_is_refused(adapter, changes, message):
  with pytest.raises(packing.InputError, match=message):
    adapter.rows(**changes)


@of(TorchPlan, DatasetsPlan)  # Grain's epochs follow one another
def test_an_epoch_before_the_first_is_refused(adapter):
  with pytest.raises(packing.InputError, match="epoch"):
    adapter.rows(epoch=-1)


# ---- a stream ------------------------------------------------------------------------


class TorchStream:
  """`packing.torch.PackedIterableDataset`, which yields packs of examples."""

  needs = "torch"
  program = """
from packing.torch import PackedIterableDataset

class Stream:
  def __iter__(self):
    return iter(examples)

rows = PackedIterableDataset(Stream(), **options)
state, restore = rows.state_dict, rows.load_state_dict
made = lambda pack: [x["input_ids"][0] for x in pack]
"""

  def stream(self, examples=EXAMPLES, **more):
    from packing.torch import PackedIterableDataset

    return PackedIterableDataset(examples, **(OPTIONS | more))

  def read(self, stream, state=None):
    """Yields each row with the state after it."""
    if state is not None:
      stream.load_state_dict(state)
    for pack in stream:
      (row,) = rows_of([pack], width=OPTIONS["max_sequences_per_pack"])
      yield row, stream.state_dict()

  def first_state(self, stream):
    return stream.state_dict()


class GrainStream:
  """`packing.grain.PackedIterDataset`, which yields rows."""

  needs = "grain"
  program = """
import grain
from packing.grain import PackedIterDataset

stream = grain.MapDataset.source(examples).to_iter_dataset()
rows = iter(PackedIterDataset(stream, **options))
state, restore = rows.get_state, rows.set_state
made = lambda row: sorted(set(row["input_ids"].tolist()) - {0})
"""

  def stream(self, examples=EXAMPLES, **more):
    import grain

    from packing.grain import PackedIterDataset

    stream = grain.MapDataset.source(examples).to_iter_dataset()
    return PackedIterDataset(stream, **(OPTIONS | more))

  def read(self, stream, state=None):
    """Yields each row with the state after it."""
    rows = iter(stream)
    if state is not None:
      rows.set_state(state)
    for row in rows:
      yield row, rows.get_state()

  def first_state(self, stream):
    return iter(stream).get_state()


STREAMS = of(TorchStream, GrainStream)


@STREAMS
def test_a_stream_comes_whole_in_the_rows_of_its_packer(adapter):
  rows = [row for row, _ in adapter.read(adapter.stream())]
  every_token_once(rows)
  packer = packing.StreamPacker(**OPTIONS)
  for example in EXAMPLES:
    packer.add(example)
  packer.flush()
  assert_equal(rows, rows_of(packer.take()))


@STREAMS
def test_it_resumes_after_any_row(adapter):
  whole = list(adapter.read(adapter.stream()))
  rows = [row for row, _ in whole]
  states = [adapter.first_state(adapter.stream()), *(state for _, state in whole)]
  for taken, state in enumerate(states[:-1]):
    stored = json.loads(json.dumps(state))
    rest = adapter.read(adapter.stream(), stored)
    assert_equal((row for row, _ in rest), rows[taken:])


@STREAMS
def test_a_state_of_another_stream_is_refused(adapter):
  state = adapter.first_state(adapter.stream())
  with pytest.raises(packing.InputError, match="open_packs is 5; expected 4, as in"):
    next(adapter.read(adapter.stream(open_packs=5), state))
  with pytest.raises(packing.InputError, match="found another"):
    next(adapter.read(adapter.stream(), {"next_index": 3}))


@STREAMS
def test_padding_is_not_packed_as_text(adapter):
  padded = [{"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}]
  with pytest.raises(packing.InputError, match="Tokenize with padding=False"):
    list(adapter.read(adapter.stream(padded)))


READER = """
import numpy as np

rng = np.random.default_rng(0)
examples = [{"input_ids": [n] * int(rng.integers(1, 18))} for n in range(1, 401)]
options = {"row_length": 17, "max_sequences_per_pack": 5, "open_packs": 8}
"""


@STREAMS
def test_a_reader_that_is_killed_resumes_with_the_next_row(adapter, tmp_path):
  packs = resumed(READER + adapter.program, tmp_path)
  assert sorted(itertools.chain(*packs)) == list(range(1, 401))
