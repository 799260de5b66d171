import json
import pathlib
import pickle
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing
from pipeline.batches.loader import PackedLoader
from pipeline.batches.packed import pack_rows
from pipeline.batches.plans import plan_sha256
from tests.pipeline.batches.test_batches import MASKING, random_store

ROOT = pathlib.Path(__file__).parents[3]


def make_loader(store, seed=3, depth=3, batch_size=7, masking=MASKING, **options):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=depth)
  return PackedLoader(
    store, plan, batch_size=batch_size, masking=masking, seed=seed, **options
  )


def assert_same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], name)


def joined(blocks):
  """The global batch of the blocks of all processes."""
  blocks = list(blocks)
  return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def epochs_of(loader, num_epochs):
  """The sequence numbers of each epoch, in order of use."""
  num_packs = loader.plan.num_packs
  num_batches = -(-num_epochs * num_packs // loader.batch_size)
  rows = np.concatenate([loader[t]["sequence_ids"] for t in range(num_batches)])
  return [rows[e * num_packs : (e + 1) * num_packs] for e in range(num_epochs)]


def test_each_sequence_is_used_once_an_epoch_with_other_neighbours_and_order(store):
  loader = make_loader(store)
  assert loader.plan.num_packs % loader.batch_size  # epochs meet inside a batch
  epochs = epochs_of(loader, 3)
  for rows in epochs:
    np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(len(store)))
  neighbours = [{frozenset(row.tolist()) for row in rows} for rows in epochs]
  assert len(neighbours[0] & neighbours[1]) < len(neighbours[0]) / 2
  assert (epochs[0] != epochs[1]).any()


def patterns(store, rows):
  """The lengths of each pack, which identify its strategy."""
  return [tuple(sorted(store.lengths[row[row >= 0]].tolist())) for row in rows]


def share_equal(a, b) -> float:
  return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def test_packs_of_one_strategy_do_not_follow_each_other_and_epochs_differ_in_order(store):
  loader = make_loader(store)
  plan = loader.plan
  planned = [
    tuple(sorted(strategy))
    for strategy, count in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(count)
  ]
  epochs = [patterns(store, rows) for rows in epochs_of(loader, 3)]
  by_chance = sum((planned.count(p) / len(planned)) ** 2 for p in set(planned))
  assert by_chance < 0.1
  for i, epoch in enumerate(epochs):
    assert sorted(epoch) == sorted(planned)
    for other in [planned, *epochs[:i]]:
      assert share_equal(epoch, other) < by_chance + 0.15
  evaluated = np.concatenate([b["sequence_ids"] for b in loader.evaluation_batches()])
  assert patterns(store, evaluated[: plan.num_packs]) == planned


def test_batches_have_one_shape_and_repeat_with_the_seed(store):
  loader, again, other = make_loader(store), make_loader(store), make_loader(store, seed=4)
  shapes = {name: field.shape for name, field in loader[0].items()}
  assert shapes["input_ids"] == (7, 43)
  for step in (1, 29, 1000):
    batch = loader[step]
    assert {name: field.shape for name, field in batch.items()} == shapes
    assert_same(batch, again[step])
    assert (batch["input_ids"] != other[step]["input_ids"]).any()


@pytest.mark.parametrize("first_step", [0, 1, 17])
def test_iteration_starts_anywhere(store, first_step):
  loader = make_loader(store)
  batches = loader.iterate(first_step)
  for step in range(first_step, first_step + 5):
    assert_same(next(batches), loader[step])


@pytest.mark.parametrize("depth", [1, 3])
def test_evaluation_uses_each_sequence_once_and_pads_the_last_rows(store, depth):
  loader = make_loader(store, depth=depth)
  batches = list(loader.evaluation_batches())
  assert len(batches) == loader.num_evaluation_batches
  assert {b["input_ids"].shape for b in batches} == {(7, 43)}
  ids = np.concatenate([b["sequence_ids"] for b in batches])
  np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(len(store)))
  assert not batches[-1]["sequence_mask"][-1].any()


def test_evaluation_masks_the_same_tokens_however_sequences_are_packed(store):
  def masked(depth):
    found = {}
    for batch in make_loader(store, depth=depth).evaluation_batches():
      for row, slot in np.argwhere(batch["sequence_mask"]):
        mine = batch["mlm_segment_ids"][row] == slot + 1
        positions = batch["mlm_positions"][row][mine] - batch["cls_positions"][row, slot]
        found[int(batch["sequence_ids"][row, slot])] = positions.tolist()
    return found

  assert masked(1) == masked(3)


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
  blocks = [
    make_loader(store, batch_size=batch_size, process_index=p, process_count=count)[step]
    for p in range(count)
  ]
  assert {b["input_ids"].shape[0] for b in blocks} == {batch_size // count}
  assert_same(joined(blocks), expected)


def test_no_row_of_an_epoch_is_dropped_or_empty_in_any_process(store, single_rows):
  ids = np.concatenate([row["sequence_ids"] for row in single_rows])
  assert (ids >= 0).any(axis=1).all()
  for epoch in np.split(ids, 2):
    np.testing.assert_array_equal(np.sort(epoch[epoch >= 0]), np.arange(len(store)))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_evaluate_each_sequence_once_in_blocks_of_the_same_batches(store, count):
  alone = list(make_loader(store, batch_size=12).evaluation_batches())
  loader = make_loader(store, batch_size=12, process_count=count)
  blocks = [loader.for_process(p, count).evaluation_batches() for p in range(count)]
  together = [joined(parts) for parts in zip(*blocks, strict=True)]
  assert len(together) == loader.num_evaluation_batches == len(alone)
  for a, b in zip(together, alone, strict=True):
    assert_same(a, b)


def test_a_process_may_have_only_empty_rows_at_the_end_of_an_evaluation(store):
  size = make_loader(store).plan.num_packs - 1  # of the second batch one row is left
  size += size % 2
  blocks = [
    list(
      make_loader(
        store, batch_size=size, process_index=h, process_count=2
      ).evaluation_batches()
    )
    for h in range(2)
  ]
  assert len(blocks[0]) == len(blocks[1])
  assert not blocks[1][-1]["sequence_mask"].any()
  ids = np.concatenate([b["sequence_ids"] for block in blocks for b in block])
  np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(len(store)))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"process_count": 2}, "batch_size is 7; expected a multiple of the 2 processes"),
    ({"process_index": 7, "process_count": 7}, "process_index is 7; expected at most 6"),
    ({"process_index": -1}, "process_index is -1"),
    ({"process_count": 0}, "process_count is 0; expected at least 1"),
    ({"workers": -1}, "workers is -1"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"assignment": "new"}, "assignment is 'new'; expected 'fresh'"),
  ],
)
def test_impossible_options_are_refused(store, options, message):
  with pytest.raises(packing.InputError, match=message):
    make_loader(store, **options)


def test_a_fixed_assignment_keeps_neighbours_and_changes_order_and_masks(store):
  loader = make_loader(store, assignment="fixed")
  one, other = ({tuple(row) for row in rows.tolist()} for rows in epochs_of(loader, 2))
  assert one == other == {tuple(r) for r in epochs_of(make_loader(store), 1)[0].tolist()}
  assert (epochs_of(loader, 2)[0] != epochs_of(loader, 2)[1]).any()
  num_packs, row = (
    loader.plan.num_packs,
    make_loader(store, batch_size=1, assignment="fixed"),
  )
  first = row[0]
  again = next(
    batch
    for batch in (row[num_packs + i] for i in range(num_packs))
    if (batch["sequence_ids"] == first["sequence_ids"]).all()
  )
  assert (again["mlm_positions"] != first["mlm_positions"]).any()


def test_without_masking_rows_are_as_they_were_laid_out(store):
  loader, masked = make_loader(store, masking=None), make_loader(store)
  batch = loader[3]
  assert_same(batch, pack_rows(store, batch["sequence_ids"], row_length=43))
  assert masked[3].keys() - batch.keys() == {
    "mlm_positions",
    "mlm_labels",
    "mlm_segment_ids",
  }
  np.testing.assert_array_equal(batch["sequence_ids"], masked[3]["sequence_ids"])


def test_a_pickle_leaves_assignments_out_and_makes_the_same_ones(store):
  epochs = make_loader(store).epochs
  empty = len(pickle.dumps(epochs))
  expected = epochs.assignment(5)
  assert len(pickle.dumps(epochs)) == empty
  found = pickle.loads(pickle.dumps(epochs)).assignment(5)
  np.testing.assert_array_equal(found.sequence_ids, expected.sequence_ids)
  np.testing.assert_array_equal(found.offsets, expected.offsets)


def test_the_state_is_a_step_that_any_number_of_processes_can_resume_from(store):
  batches = make_loader(store, batch_size=12, process_count=2).iterate()
  for _ in range(17):
    next(batches)
  state = json.loads(json.dumps(batches.get_state()))
  plan = plan_sha256(make_loader(store).plan)
  assert state == {"step": 17, "batch_size": 12, "plan": plan}
  expected = [make_loader(store, batch_size=12)[t] for t in (17, 18)]
  for count in (1, 3, 4):
    resumed = [
      make_loader(store, batch_size=12, process_index=p, process_count=count).iterate()
      for p in range(count)
    ]
    next(resumed[-1])  # its own position is forgotten
    for batches in resumed:
      batches.set_state(state)
    for batch in expected:
      assert_same(joined(next(batches) for batches in resumed), batch)
    assert all(batches.get_state()["step"] == 19 for batches in resumed)


@pytest.mark.parametrize(
  ("state", "message"),
  [
    ({"step": 3, "batch_size": 14}, "batches of 14 packs; expected 7"),
    ({"step": 3}, "Expected a state with step and batch_size"),
    ({"step": -1, "batch_size": 7}, "step is -1"),
    ({"step": 3, "batch_size": 7, "plan": "0" * 64}, "of the plan 000000000000...; this"),
    ({"step": 3, "batch_size": 7, "seed": 1}, "Expected a state with step and batch_size"),
  ],
)
def test_a_state_that_would_mean_other_batches_is_refused(store, state, message):
  batches = make_loader(store).iterate(2)
  with pytest.raises(packing.InputError, match=message):
    batches.set_state(state)
  before = make_loader(store).iterate(2).get_state()
  assert batches.get_state() == before

  batches.set_state({"step": 5, "batch_size": 7})  # of an earlier version
  assert batches.get_state() == before | {"step": 5}
  other = make_loader(store, depth=2).iterate()
  with pytest.raises(packing.InputError, match="Resume with the plan it was saved with"):
    other.set_state(before)


PROGRAM = """
import json, multiprocessing, sys, time
import numpy as np
import packing
from pipeline.batches.loader import PackedLoader
from pipeline.store import SequenceStore
from tests.pipeline.batches.test_batches import MASKING

def main(path, out, index, count, workers, state, *hangs):
  store = SequenceStore(path)
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=3)
  loader = PackedLoader(
    store, plan, batch_size=12, masking=MASKING, seed=3,
    process_index=int(index), process_count=int(count), workers=int(workers),
  )
  batches = loader.iterate()
  batches.set_state(json.loads(state))
  found = [next(batches) for _ in range(7)]
  fields = {f"{name} {i}": f for i, b in enumerate(found) for name, f in b.items()}
  np.savez(out, **fields)
  if hangs:
    print(*(p.pid for p in multiprocessing.active_children()), flush=True)
    time.sleep(300)
  batches.close()

if __name__ == "__main__":
  main(*sys.argv[1:])
"""


def alive(pid: int) -> bool:
  try:
    status = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except OSError:
    return False
  return (
    status.rpartition(")")[2].split()[0] != "Z"
  )  # ended, but its parent has not noticed


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.slow
def test_no_worker_outlives_a_program_that_is_killed(tmp_path):
  random_store(tmp_path / "s.arrow", np.random.default_rng(1).integers(3, 41, 211))
  (tmp_path / "program.py").write_text(PROGRAM)
  state = json.dumps({"step": 0, "batch_size": 12})
  numbers = [tmp_path / "s.arrow", tmp_path / "out.npz", "0", "1", "2", state, "hang"]
  process = subprocess.Popen(
    [sys.executable, tmp_path / "program.py", *numbers],
    env={"PYTHONPATH": str(ROOT)},
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    assert all(map(alive, workers))
    process.kill()
  deadline = time.monotonic() + 60
  while any(map(alive, workers)):
    assert time.monotonic() < deadline
    time.sleep(0.02)


@pytest.mark.slow
def test_processes_of_their_own_make_the_same_bytes_with_and_without_workers(
  store, tmp_path, request
):
  """Two processes, one of them with workers, resume from the state of one."""
  path = tmp_path / "s.arrow"
  lengths = np.random.default_rng(1).integers(3, 41, 211)
  random_store(path, lengths)
  (tmp_path / "program.py").write_text(PROGRAM)
  loader = make_loader(store, batch_size=12)
  first = int(loader.batches_per_epoch) - 3  # over the end of an epoch
  state = json.dumps({"step": first, "batch_size": 12})
  cases = {"of two": (0, 2, 0), "of two, workers": (1, 2, 2)}
  processes = [
    subprocess.Popen(
      [
        sys.executable,
        *(tmp_path / "program.py", path, tmp_path / f"{name}.npz"),
        *map(str, numbers),
        state,
      ],
      env={"PYTHONPATH": str(ROOT)},
      stderr=subprocess.PIPE,
      text=True,
    )
    for name, numbers in cases.items()
  ]
  for process in processes:
    request.addfinalizer(process.kill)
  for process in processes:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "leaked" not in errors
  found = [dict(np.load(tmp_path / f"{name}.npz")) for name in cases]
  for i in range(7):
    blocks = [{n: b[f"{n} {i}"] for n in loader[0]} for b in found]
    assert_same(joined(blocks), loader[first + i])
