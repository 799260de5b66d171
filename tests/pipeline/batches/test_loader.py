import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing
from pipeline.batches.loader import PackedLoader
from pipeline.batches.plans import plan_sha256
from pipeline.store import SequenceStore, write_sequences
from tests.pipeline.batches.test_batches import (
  MASKING,
  assert_same,
  joined,
)


def make_loader(
  store,
  kind=PackedLoader,
  *,
  depth=3,
  batch_size=7,
  masking=MASKING,
  seed=3,
  rows=None,
  process_index=0,
  process_count=1,
  **options,
):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(
    histogram, algorithm="spfhp", max_sequences_per_pack=depth, **rows or {}
  )
  loader = kind(store, plan, batch_size=batch_size, masking=masking, seed=seed, **options)
  return loader.for_process(process_index, process_count)


def assert_each_once(store, ids):
  np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(len(store)))


def epochs_of(loader, num_epochs):
  """The sequence numbers of each epoch, in order of use."""
  num_packs = loader.plan.num_packs
  num_batches = -(-num_epochs * num_packs // loader.batch_size)
  rows = np.concatenate([loader[t]["sequence_ids"] for t in range(num_batches)])
  return [rows[e * num_packs : (e + 1) * num_packs] for e in range(num_epochs)]


def test_each_sequence_comes_once_an_epoch_with_other_neighbours_in_another_order(store):
  """Packs of one strategy do not follow each other either."""
  loader = make_loader(store)
  plan = loader.plan
  assert plan.num_packs % loader.batch_size  # epochs meet inside a batch
  ids = epochs_of(loader, 3)
  for rows in ids:
    assert_each_once(store, rows)
    assert (rows >= 0).any(axis=1).all()  # no row is padding alone
  first, second = ({frozenset(row.tolist()) for row in rows} for rows in ids[:2])
  assert len(first & second) < len(first) / 2

  def patterns(rows):
    """The lengths of each pack, which identify its strategy."""
    return [tuple(sorted(store.lengths[row[row >= 0]].tolist())) for row in rows]

  counts = plan.repeat_counts.tolist()
  planned = [s for s, n in zip(plan.strategies, counts, strict=True) for _ in range(n)]
  epochs = [patterns(rows) for rows in ids]
  by_chance = sum((n / plan.num_packs) ** 2 for n in counts)
  assert by_chance < 0.1
  for i, epoch in enumerate(epochs):
    assert sorted(epoch) == sorted(planned)
    for other in [planned, *epochs[:i]]:
      equal = np.mean([a == b for a, b in zip(epoch, other, strict=True)])
      assert equal < by_chance + 0.15
  evaluated = joined(loader.evaluation_batches())["sequence_ids"]
  assert patterns(evaluated[: plan.num_packs]) == planned


def test_batches_repeat_with_the_seed_and_iteration_starts_anywhere(store):
  loader, again, other = make_loader(store), make_loader(store), make_loader(store, seed=4)
  for first in (0, 17, 1000):
    batches = again.iterate(first)
    for step in range(first, first + 5):
      assert_same(next(batches), loader[step])
    assert (loader[first]["input_ids"] != other[first]["input_ids"]).any()


@pytest.fixture(scope="module")
def single_rows(store):
  """Every row of two epochs by itself."""
  loader = make_loader(store, batch_size=1)
  return [loader[row] for row in range(2 * loader.plan.num_packs)]


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=40, deadline=None)
def test_a_global_batch_is_the_next_rows_for_any_process_count(store, single_rows, data):
  """Batch t is rows tB to (t + 1)B of epochs laid end to end; process p has its block."""
  count = data.draw(st.sampled_from([1, 2, 3, 4, 5]))
  batch_size = count * data.draw(st.integers(1, 40))  # also more than laid out at once
  step = data.draw(st.integers(0, len(single_rows) // batch_size - 1))
  expected = joined(single_rows[step * batch_size : (step + 1) * batch_size])
  options = {"batch_size": batch_size, "process_count": count}
  blocks = [make_loader(store, process_index=p, **options)[step] for p in range(count)]
  assert {b["input_ids"].shape[0] for b in blocks} == {batch_size // count}
  assert_same(joined(blocks), expected)


@pytest.mark.parametrize(
  ("count", "batch_size", "depth"),
  [(1, 7, 1), (1, 7, 3), (2, 12, 3), (4, 12, 3), (2, None, 3)],
)
def test_an_evaluation_uses_each_sequence_once(store, count, batch_size, depth):
  if batch_size is None:  # the second batch has no row for the second process
    batch_size = 2 * ((make_loader(store, depth=depth).plan.num_packs - 1) // 2)
  loader = make_loader(store, batch_size=batch_size, depth=depth)
  alone = list(loader.evaluation_batches())
  assert len(alone) == loader.num_evaluation_batches
  blocks = [loader.for_process(p, count).evaluation_batches() for p in range(count)]
  for batch, *parts in zip(alone, *blocks, strict=True):
    assert batch["input_ids"].shape == (batch_size, 43)
    assert_same(joined(parts), batch)
  assert_each_once(store, joined(alone)["sequence_ids"])
  assert not alone[-1]["sequence_mask"][-1].any()


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"process_count": 2}, "batch_size is 7; expected a multiple of the 2 processes"),
    ({"process_index": 7, "process_count": 7}, "process_index is 7; expected at most 6"),
  ],
)
def test_impossible_options_are_refused(store, options, message):
  with pytest.raises(packing.InputError, match=message):
    make_loader(store, **options)


def test_the_state_is_a_step_that_any_number_of_processes_can_resume_from(store):
  batches = make_loader(store, batch_size=12, process_count=2).iterate()
  for _ in range(17):
    next(batches)
  state = json.loads(json.dumps(batches.get_state()))
  rows = state.pop("rows")
  assert state == {
    "step": 17,
    "batch_size": 12,
    "plan": plan_sha256(make_loader(store).plan),
  }
  state["rows"] = rows
  expected = [make_loader(store, batch_size=12)[t] for t in (17, 18)]
  for count in (1, 3, 4):
    loader = make_loader(store, batch_size=12)
    resumed = [loader.for_process(p, count).iterate() for p in range(count)]
    next(resumed[-1])  # its own position is forgotten
    for batches in resumed:
      batches.set_state(state)
    for batch in expected:
      assert_same(joined(next(batches) for batches in resumed), batch)
    assert all(batches.get_state()["step"] == 19 for batches in resumed)


@pytest.mark.parametrize(
  ("state", "message"),
  [
    ({"batch_size": 14}, "batch_size=14; this is 7"),
    ({"step": -1}, "step is -1"),
    ({"plan": "0" * 64}, "plan='0000"),
    ({"seed": 1}, "has the fields .*seed; expected step, batch_size, rows, plan"),
    ({"rows": "0" * 64}, "The next rows are not those that the run would have read"),
  ],
)
def test_a_state_that_would_mean_other_batches_is_refused(store, state, message):
  batches = make_loader(store).iterate(2)
  before = batches.get_state()
  with pytest.raises(packing.InputError, match=message):
    batches.set_state(before | state)
  assert batches.get_state() == before


@pytest.mark.parametrize("change", ["order", "seed"])
def test_another_order_of_rows_is_not_resumed(store, change):
  """As with a version of isopack that shuffles differently, or another seed."""
  batches = make_loader(store).iterate()
  for _ in range(5):
    next(batches)
  state = batches.get_state()
  other = make_loader(store, seed=4 if change == "seed" else 3)
  if change == "order":
    other._shuffle_seed = 4
  with pytest.raises(packing.InputError, match="with the versions, and the seed,"):
    other.iterate().set_state(state)


def test_batches_that_are_read_ahead_are_the_same(store, tmp_path, monkeypatch):
  """Rows are asked for before the step that needs them, in any order of steps."""
  rows = [(list(s["input_ids"]), s["first_type_length"], 0) for s in store.records()]
  write_sequences(tmp_path / "s.arrow", rows, batch_size=50)
  soon = SequenceStore(tmp_path / "s.arrow", reads_ahead=True)
  monkeypatch.setattr("pipeline.batches.loader._ROWS_TOGETHER", 21)
  asked = []
  monkeypatch.setattr(soon, "read_ahead", lambda ids: asked.append(set(ids.tolist())))
  plain, ahead = make_loader(SequenceStore(tmp_path / "s.arrow")), make_loader(soon)
  for step in (0, 1, 2, 3, 40, 2):
    assert_same(ahead[step], plain[step])
    wanted = plain[step + 3]["sequence_ids"]
    assert any(set(wanted[wanted >= 0].tolist()) <= ids for ids in asked), step
  assert len(asked) == 2 + 1 + 2 + 2  # the first two groups, the next, two others, again
  for batch, same in zip(
    ahead.evaluation_batches(), plain.evaluation_batches(), strict=True
  ):
    assert_same(batch, same)
    assert asked[-1] == set(batch["sequence_ids"][batch["sequence_mask"]].tolist())
