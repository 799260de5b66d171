"""Checkpoints of a run: exact, kept by policy, and passed over where they are broken."""

import errno
import gc
import json
import resource
import shutil
import time

import jax
import numpy as np
import pytest

from model import weights
from tests import packs
from tests.training.test_step import make_batch, make_program
from training import checkpoint
from training.checkpoint import Checkpoints, fingerprint
from training.mesh import make_mesh, state_share
from training.optimizer import lamb
from training.process_parts import sha256
from training.step import TrainingProgram

METADATA = "_CHECKPOINT_METADATA"
RUN = {"input": {"step": 3, "batch_size": 4}, "config": {"seed": 0}}


@pytest.fixture(scope="module")
def program():
  return make_program()


@pytest.fixture(scope="module")
def original(tmp_path_factory, program):
  folder = tmp_path_factory.mktemp("saved")
  state, states = program.init(), {}
  batch = program.put_batch(make_batch(8))
  with Checkpoints(folder, keep=3) as checkpoints:
    for step in (10, 20, 30):
      state, _ = program.train_step(state, batch)
      states[step] = jax.device_get(state)
      checkpoints.save(step, state, RUN)
  return folder, states


@pytest.fixture
def saved(original, tmp_path):
  """Checkpoints of the steps 10, 20 and 30, and the states in them."""
  folder, states = original
  return shutil.copytree(folder, tmp_path, dirs_exist_ok=True), states


def restore(folder, program):
  with Checkpoints(folder, keep=3) as checkpoints:
    return checkpoints.restore_newest(program.abstract_state())


def assert_equal(tree, expected):
  jax.tree.map(np.testing.assert_array_equal, tree, expected)


def test_a_restored_state_goes_on_bit_for_bit(tmp_path):
  """Saved while training goes on into the same, donated buffers."""
  program = make_program(2, dropout_rate=0.1)
  batches = [program.put_batch(make_batch(4, seed)) for seed in range(6)]
  state = program.init()
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    for step, batch in enumerate(batches, 1):
      state, _ = program.train_step(state, batch)
      if step == 3:
        checkpoints.save(step, state, RUN)
  restored = restore(tmp_path, program)
  assert restored.step == 3
  assert restored.run == RUN
  resumed = restored.state
  for batch in batches[3:]:
    resumed, _ = program.train_step(resumed, batch)
  assert_equal(resumed, state)


def make_split(num_devices, fsdp):
  """A model whose sizes 4 devices divide."""
  config = packs.small_config(num_layers=1, hidden_size=16, intermediate_size=32)
  mesh = make_mesh(num_devices, fsdp=fsdp)
  return TrainingProgram(config, lamb(0.01), mesh=mesh, seed=0)


@pytest.mark.slow
def test_a_state_comes_back_on_another_mesh(tmp_path):
  split, whole = make_split(4, 4), make_split(2, 1)
  state = split.init()
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(1, state, RUN)
  assert_equal(jax.device_get(restore(tmp_path, whole).state), jax.device_get(state))
  assert state_share(restore(tmp_path, split).state) < 0.3


def test_checkpoints_are_kept_by_policy(tmp_path, program):
  """The newest two, and the best until another is better."""
  state = program.init()
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    assert checkpoints.restore_newest(program.abstract_state()) is None
    kept = []
    for step in range(10, 80, 10):
      best = 10 if step < 50 else 50
      checkpoints.save(step, state, RUN, best)
      checkpoints.wait()
      kept.append(checkpoints.steps)
  assert kept[3] == [10, 30, 40]
  assert kept[4] == [40, 50]
  assert kept[6] == [50, 60, 70]


def test_a_step_that_is_saved_again_keeps_its_state(saved, program):
  """What a resumed run adds, such as an evaluation, replaces what was saved beside it."""
  folder, states = saved
  with Checkpoints(folder, keep=3) as checkpoints:
    restored = checkpoints.restore_newest(program.abstract_state())
    checkpoints.save(30, restored.state, RUN | {"log": 5}, 30)
    assert checkpoints.steps == [10, 20, 30]
  assert weights.choose_step(folder).why.startswith("the best")
  again = restore(folder, program)
  assert (again.step, again.run) == (30, RUN | {"log": 5})
  assert_equal(jax.device_get(again.state), states[30])
  assert not (folder / "checkpoints" / "broken").exists()


def test_checkpoints_that_do_not_name_the_best_step_are_read(saved, program):
  folder, states = saved
  for path in folder.glob(f"**/{METADATA}"):
    content = json.loads(path.read_text())
    run = content["custom_metadata"]
    del run[weights.BEST], run["sha256"]
    run["sha256"] = sha256(run)
    path.write_text(json.dumps(content))
  restored = restore(folder, program)
  assert (restored.step, restored.run) == (30, RUN)
  assert_equal(jax.device_get(restored.state), states[30])
  assert weights.choose_step(folder).step == 30


def largest_file(folder):
  return max(folder.glob("*/d/*"), key=lambda path: path.stat().st_size)


def cut_short(folder):
  path = largest_file(folder)
  path.write_bytes(path.read_bytes()[:-100])


def alter_a_byte(folder):
  path = largest_file(folder)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def write(file, text):
  return lambda folder: (folder / file).write_text(text)


def change_the_place(folder):
  content = json.loads((folder / METADATA).read_text())
  content["custom_metadata"]["input"]["step"] += 1
  (folder / METADATA).write_text(json.dumps(content))


DAMAGES = {
  "cut short": cut_short,
  "a file is lost": lambda folder: largest_file(folder).unlink(),
  "a byte is altered": alter_a_byte,
  "the metadata is lost": lambda folder: (folder / METADATA).unlink(),
  "the metadata is cut": write(METADATA, '{"item_handlers": {"par'),
  "the metadata is empty": write(METADATA, "{}"),
  "the metadata of a part is cut": write("params/_METADATA", '{"tree_meta'),
  "the metadata are nested": write(METADATA, "[" * 200_000),
  "the place in the data is changed": change_the_place,
  "the structure is empty": write("training/manifest.ocdbt", ""),
  "the structure is lost": lambda folder: (folder / "params/manifest.ocdbt").unlink(),
  "the rest is lost": lambda folder: shutil.rmtree(folder / "training"),
}


PARTS = {"0": {"open": [1, 2]}, "1": {"open": []}}


def alter_a_part(folder):
  path = folder / "parts" / "1.json"
  path.write_text(path.read_text().replace('"open": []', '"open": [3]'))


PART_DAMAGES = {
  "altered": alter_a_part,
  "cut": write("parts/1.json", '{"part": {"open'),
  "empty": write("parts/1.json", "{}"),
  "lost": lambda folder: (folder / "parts" / "1.json").unlink(),
  "of the checkpoint before": lambda folder: shutil.copy(
    folder.parent / "20" / "parts" / "1.json", folder / "parts" / "1.json"
  ),
}


@pytest.mark.parametrize("damage", PART_DAMAGES.values(), ids=PART_DAMAGES)
def test_what_each_process_has_is_saved_and_checked(tmp_path, program, capfd, damage):
  state = program.init()
  batch = program.put_batch(make_batch(8))
  with Checkpoints(tmp_path, keep=3) as checkpoints:
    for step in (20, 30):
      state, _ = program.train_step(state, batch)
      checkpoints.save(step, state, RUN, parts=PARTS)
  restored = restore(tmp_path, program)
  assert (restored.step, restored.run, dict(restored.parts)) == (30, RUN, PARTS)
  damage(tmp_path / "checkpoints" / "30")
  restored = restore(tmp_path, program)
  assert (restored.step, restored.run, dict(restored.parts)) == (20, RUN, PARTS)
  assert "WARNING: the checkpoint of step 30 is broken" in capfd.readouterr().err


@pytest.fixture
def orbax_leaves_nothing():
  """Coroutines that Orbax did not end are told of in the test that left them."""
  gc.freeze()
  yield
  gc.collect()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.usefixtures("orbax_leaves_nothing")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broken_checkpoint_is_passed_over_loudly(saved, program, capfd, damage):
  folder, states = saved
  damage(folder / "checkpoints" / "30")
  restored = restore(folder, program)
  assert restored.step == 20
  assert_equal(jax.device_get(restored.state), states[20])
  assert "WARNING: the checkpoint of step 30 is broken" in capfd.readouterr().err
  assert (folder / "checkpoints" / "broken" / "30.0").is_dir()
  with Checkpoints(folder, keep=3) as checkpoints:  # the step can be saved again
    checkpoints.save(30, restored.state, RUN)
    checkpoints.wait()
    assert checkpoints.steps == [10, 20, 30]
  damage(folder / "checkpoints" / "30")
  assert restore(folder, program).step == 20
  assert (folder / "checkpoints" / "broken" / "30.1").is_dir()


def test_numbers_that_decode_and_are_not_those_saved_are_noticed(saved, program, capfd):
  """Another checkpoint's parameters under this one's name."""
  folder, _ = saved
  newest = folder / "checkpoints" / "30"
  (newest / "params").rename(newest / "away")
  (folder / "checkpoints" / "20" / "params").rename(newest / "params")
  (newest / "away").rename(folder / "checkpoints" / "20" / "params")
  assert restore(folder, program).step == 10
  assert capfd.readouterr().err.count("differ from those that were saved") == 2


@pytest.mark.parametrize(
  ("renamed", "step"),
  [("30 40", 20), ("30 030", 20), ("30 away 20 30 away 20", 10)],
)
def test_a_checkpoint_of_another_step_is_passed_over(saved, program, capfd, renamed, step):
  folder, states = saved
  names = [folder / "checkpoints" / name for name in renamed.split()]
  for before, after in zip(names[::2], names[1::2], strict=True):
    before.rename(after)
  restored = restore(folder, program)
  assert restored.step == step
  assert_equal(jax.device_get(restored.state), states[step])
  assert "is broken: it was saved as step 30" in capfd.readouterr().err


def test_a_disk_that_fails_does_not_make_a_checkpoint_broken(saved, program, monkeypatch):
  def fail(*_):
    raise OSError(errno.EIO, "Input/output error")

  folder, _ = saved
  with monkeypatch.context() as patch:
    patch.setattr(weights, "read_through", fail)
    with pytest.raises(OSError, match="Input/output error"):
      restore(folder, program)
  assert restore(folder, program).step == 30


def test_when_all_are_broken_the_run_does_not_begin_anew_unasked(saved, program):
  folder, _ = saved
  for step in (10, 20, 30):
    cut_short(folder / "checkpoints" / str(step))
  for _ in range(2):  # a scheduler tries again
    with pytest.raises(weights.WeightsError, match=r"No checkpoint in .* can be read"):
      restore(folder, program)


def test_a_broken_checkpoint_that_was_moved_back_is_moved_away_again(saved, program):
  folder, _ = saved
  broken = folder / "checkpoints" / "broken"
  for number in (0, 1):
    shutil.copytree(folder / "checkpoints" / "30", broken / f"30.{number}")
  shutil.rmtree(folder / "checkpoints" / "30")
  cut_short(broken / "30.0")
  (broken / "30.0").rename(folder / "checkpoints" / "30")
  assert restore(folder, program).step == 20
  assert sorted(path.name for path in broken.iterdir()) == ["30.0", "30.1"]


def test_a_checkpoint_of_another_model_is_refused_and_stays(saved):
  folder, _ = saved
  with pytest.raises(weights.WeightsError, match="belongs to another model or optimizer"):
    restore(folder, make_program(num_layers=2))
  assert weights.steps(folder) == [10, 20, 30]


@pytest.mark.usefixtures("orbax_leaves_nothing")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_save_is_told_and_the_ones_before_are_kept(saved, program):
  """A limit on the size of a file stands for the full disk."""
  folder, _ = saved
  state = program.init()
  told = r"Step 40 could not .* Steps \[10, 20, 30\] are kept\. Make room, and run the same"
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
  try:
    with pytest.raises(OSError, match=told), Checkpoints(folder, keep=3) as checkpoints:
      checkpoints.save(40, state, RUN)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert restore(folder, program).step == 30


def test_no_room_is_asked_for_where_room_does_not_help(saved, program, monkeypatch):
  def fail(_):
    raise OSError(errno.EACCES, "Permission denied")

  monkeypatch.setattr(checkpoint, "fingerprint", fail)
  told = r"Permission denied\. Steps .* are kept\. Correct this, and run the same command"
  with pytest.raises(OSError, match=told), Checkpoints(saved[0], keep=3) as checkpoints:
    checkpoints.save(40, program.init(), RUN)


def test_a_reader_leaves_a_save_in_progress_alone(saved, program):
  folder, _ = saved
  saving = folder / "checkpoints" / "40.orbax-checkpoint-tmp"
  saving.mkdir()
  assert weights.steps(folder) == [10, 20, 30]
  assert saving.exists()
  with Checkpoints(folder, keep=2) as checkpoints:  # a new save sweeps
    checkpoints.save(50, program.init(), RUN)
    deadline = time.monotonic() + 60
    while saving.exists() and time.monotonic() < deadline:
      time.sleep(0.01)
  assert not saving.exists()


def test_the_fingerprint_sees_any_bit_and_place_and_not_the_mesh(program):
  state = jax.device_get(program.init())
  before = fingerprint(state)
  leaves, tree = jax.tree.flatten(state)
  for number, leaf in enumerate(leaves):
    content = bytearray(leaf.tobytes())
    content[-1] ^= 1
    altered = np.frombuffer(content, leaf.dtype).reshape(leaf.shape)
    others = [*leaves[:number], altered, *leaves[number + 1 :]]
    assert fingerprint(jax.tree.unflatten(tree, others)) != before
  x = np.arange(64, dtype=np.float32).reshape(8, 8)
  assert fingerprint({"x": x}) != fingerprint({"x": x.T})
  assert fingerprint(make_split(4, 4).init()) == fingerprint(make_split(1, 1).init())
