"""Packs made while reading: every sequence once, the same bits after any restart."""

import itertools
import json

import numpy as np
import pytest

import packing
from packing.problem import Geometry
from pipeline.batches.online import OnlineBatches, ShuffledSequences
from pipeline.batches.plans import epoch_order, online_plan
from tests.pipeline.batches.test_batches import MASKING, assert_same, masked, masked_of

EPOCHS = 5  # more than are read
SPACED = {"row_length": 100, "length_multiple": 8, "separator_tokens": 3}
PLAIN = {"row_length": 61, "length_multiple": 1, "separator_tokens": 0}


def make_plan(store, rows, depth=3):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  geometry = Geometry.for_histogram(histogram, max_sequences_per_pack=depth, **rows)
  return online_plan(store.lengths, histogram, geometry, seed=3)


def make_batches(store, rows=PLAIN, *, masking=MASKING, seed=3, batch_size=4, **options):
  return OnlineBatches(
    ShuffledSequences(store, seed=seed),
    make_plan(store, rows),
    batch_size=batch_size,
    masking=masking,
    **options,
  )


def held(state):
  """Examples of open and ready packs, of all parts in a state."""
  found = []
  for part in state["of_parts"].values():
    found += [example for _, example in part["packs"]["held"]]
    found += [example for pack in part["packs"]["ready"] for example in pack]
  return found


def read(state):
  """How many sequences each part has read."""
  return [part["reader"]["next"] for part in state["of_parts"].values()]


def take(batches, number):
  return [next(batches) for _ in range(number)]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("rows", [PLAIN, SPACED])
def test_each_sequence_that_was_read_is_in_one_pack_or_waits(store, rows, parts):
  batches = make_batches(store, rows, parts=parts)
  used = np.concatenate([b["sequence_ids"] for b in take(batches, 80)])
  state = batches.get_state()
  found = [*used[used >= 0].tolist(), *(number for _, number in held(state))]
  orders = [epoch_order(len(store), 3, epoch) for epoch in range(8)]
  expected = [
    number
    for part, count in enumerate(read(state))
    for number in np.concatenate(orders)[part::parts][:count].tolist()
  ]
  assert len(expected) == sum(read(state)) > len(store) * 2
  assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("rows", [PLAIN, SPACED])
def test_rows_are_those_of_make_row_and_masks_those_of_their_epoch(store, rows):
  batches = make_batches(store, rows)
  assert batches.get_state()["step"] == 0
  unused = [set(range(EPOCHS)) for _ in range(len(store))]

  def mask_of(number, epoch):
    return masked_of(masked(store, [[number]], epoch=epoch), 0, 0)

  for batch in take(batches, 60):
    plain = batch | {"input_ids": batch["input_ids"].copy()}
    for row, ids in enumerate(batch["sequence_ids"]):
      real = np.nonzero(batch["mlm_segment_ids"][row])[0]
      places = batch["mlm_positions"][row][real]
      plain["input_ids"][row][places] = batch["mlm_labels"][row][real]
      sequences = [store.gather(np.array([i])) for i in ids[ids >= 0]]
      expected = packing.make_row(sequences, **rows)
      for name, field in expected.items():
        np.testing.assert_array_equal(plain[name][row], field)
      for slot, number in enumerate(ids[ids >= 0].tolist()):
        mask = masked_of(batch, row, slot)
        unused[number].remove(next(e for e in unused[number] if mask_of(number, e) == mask))
  assert min(map(len, unused)) < EPOCHS - 1  # another epoch has other masks


def test_the_plan_is_what_a_packer_makes_of_the_first_epoch(store):
  plan = make_plan(store, SPACED)
  assert plan.algorithm == "online"
  assert plan.packing_depth <= 3
  batches = make_batches(store, SPACED, batch_size=1, masking=None)
  ids = np.concatenate([b["sequence_ids"] for b in take(batches, 9)])
  lengths = np.where(ids >= 0, store.lengths[ids], 0)
  made = {tuple(sorted(row[row > 0].tolist())) for row in lengths}
  assert made <= set(plan.strategies)


class Ending(ShuffledSequences):
  """Gives all that is left of 300 sequences at once, and ends."""

  def read(self):
    groups = itertools.islice(super().read(), 300 - self.state()["next"])
    if examples := [example for group in groups for example in group]:
      yield examples


def test_it_resumes_after_any_batch_with_the_same_bits(store):
  """Also after the last one, when the last sequence was read."""

  def make():
    reader = Ending(store, seed=3)
    return OnlineBatches(reader, make_plan(store, PLAIN), batch_size=4, masking=MASKING)

  whole = make()
  states, expected = [json.dumps(whole.get_state())], []
  for batch in whole:
    expected.append(batch)
    states.append(json.dumps(whole.get_state()))
  assert len(expected) > 9
  for step in (0, 1, 7, len(expected)):
    resumed = make()
    resumed.set_state(json.loads(states[step]))
    for number, batch in enumerate(resumed, start=step):
      assert_same(batch, expected[number])
      assert json.dumps(resumed.get_state()) == states[number + 1]
    assert json.dumps(resumed.get_state()) == states[-1]


def test_processes_read_their_parts_and_make_their_rows(store):
  whole = make_batches(store, parts=4)
  blocks = [
    make_batches(store, process_index=i, process_count=2, parts=4) for i in range(2)
  ]
  for _ in range(5):
    batch = next(whole)
    made = [next(block) for block in blocks]
    joined = {name: np.concatenate([block[name] for block in made]) for name in batch}
    assert_same(joined, batch)
  assert [read(block.get_state()) for block in blocks] == [
    read(whole.get_state())[:2],
    read(whole.get_state())[2:],
  ]


def test_it_resumes_on_any_number_of_processes_that_divides_the_parts(store):
  four = [make_batches(store, process_index=i, process_count=4) for i in range(4)]
  for batches in four:
    take(batches, 3)
  states = [json.loads(json.dumps(batches.get_state())) for batches in four]
  of_parts = {n: x for state in states for n, x in state["of_parts"].items()}
  assert list(of_parts) == ["0", "1", "2", "3"]
  state = states[0] | {"of_parts": of_parts}
  expected = [next(batches) for batches in four]
  for count in (1, 2, 4):
    made = []
    for index in range(count):
      resumed = make_batches(store, process_index=index, process_count=count)
      resumed.set_state(state)
      made.append(next(resumed))
    for name in expected[0]:
      np.testing.assert_array_equal(
        np.concatenate([batch[name] for batch in made]),
        np.concatenate([batch[name] for batch in expected]),
      )
  other = make_batches(store, batch_size=12, process_count=3)
  with pytest.raises(packing.InputError, match=r"read in 4 parts.*found 3 processes"):
    other.set_state(state | {"batch_size": 12})
  again = make_batches(store, process_index=3, process_count=4)
  with pytest.raises(packing.InputError, match="expected a part 3"):
    again.set_state(states[0])


def test_it_ends_with_the_part_that_ends_first_and_where_processes_agree(store):
  def make(**options):
    reader = Ending(store, seed=3)
    return OnlineBatches(
      reader, make_plan(store, PLAIN), batch_size=4, masking=None, parts=2, **options
    )

  number = sum(1 for _ in make())
  assert number > 9
  asked: list[bool | None] = []

  def agree(ready):
    asked.append(ready)
    return ready and len(asked) < 6

  stopped = make(agree=agree)
  assert sum(1 for _ in stopped) == 5  # another process had no sixth batch
  assert asked == [True] * 6
  resumed = make()
  resumed.set_state(stopped.get_state())
  assert sum(1 for _ in resumed) == number - 5


def test_a_state_of_other_rows_or_options_is_refused(store):
  state, begun = make_batches(store).get_state(), make_batches(store)
  next(begun)
  part = state["of_parts"]["0"]

  def of_part(value):
    return state | {"of_parts": {"0": value}}

  for batches, given, message in (
    (make_batches(store, batch_size=5), state, "batch_size=4; this is 5"),
    (make_batches(store, SPACED), state, "with plan="),
    (make_batches(store), {"step": 3}, "has the fields step; expected"),
    (
      make_batches(store),
      of_part(7),
      "A part in the state is 7; expected the fields packs",
    ),
    (make_batches(store), of_part(part | {"reader": 7}), "reader in the state is 7; exp"),
    (make_batches(store), state | {"parts": 0}, "parts is 0; expected"),
    (make_batches(store), state | {"parts": 3}, "expected a multiple of the 3 processes"),
    (make_batches(store, seed=4), state, "The next rows are not those"),
    (begun, state, "before the first batch"),
  ):
    with pytest.raises(packing.InputError, match=message):
      batches.set_state(given)


def test_closed_batches_say_so_and_keep_their_state(store):
  batches = make_batches(store)
  take(batches, 3)
  state = batches.get_state()
  batches.close()
  with pytest.raises(packing.InputError, match=r"are closed. Make new ones, and restore"):
    next(batches)
  assert batches.get_state() == state


class Failing(ShuffledSequences):
  """Gives 200 sequences, then fails."""

  def read(self):
    yield from itertools.islice(super().read(), 200)
    raise OSError("the disk is gone")


def test_iteration_fails_with_the_reader_and_keeps_what_waits(store):
  plan, reader = make_plan(store, PLAIN), Failing(store, seed=0)
  asked: list[bool | None] = []

  def agree(ready):
    asked.append(ready)
    return bool(ready)

  batches = OnlineBatches(reader, plan, batch_size=4, masking=None, agree=agree)
  made: list[dict] = []
  with pytest.raises(OSError, match="the disk is gone"):
    made.extend(batches)
  assert asked == [True] * len(made) + [None]
  used = sum(int((b["sequence_ids"] >= 0).sum()) for b in made)
  state = batches.get_state()
  (number,) = read(state)
  assert 0 < used + len(held(state)) == number <= 200
