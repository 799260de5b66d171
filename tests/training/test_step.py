import functools

import jax
import numpy as np
import pytest

from launch.record.compilations import CompilationCounter
from launch.record.metrics import means
from model.testing import relative_difference
from packing import InputError
from packing.testing import lay_out
from tests import packs
from training.errors import ConfigError
from training.mesh import make_mesh, state_share
from training.optimizer import lamb
from training.step import TrainingProgram


def new_program(
  num_devices=1, *, fsdp=1, learning_rate=0.01, head="pretraining", step=(), **fields
) -> TrainingProgram:
  """`step`: pairs of options of the program; `fields`: of the model's config."""
  make_config = packs.small_gpt2 if head == "causal" else packs.small_config
  config = make_config(**{"num_layers": 1} | fields)
  mesh = make_mesh(num_devices, fsdp=fsdp)
  return TrainingProgram(
    config, lamb(learning_rate), mesh=mesh, seed=0, head=head, **dict(step)
  )


make_program = functools.cache(new_program)  # what it compiled stays compiled


def test_a_machine_without_a_cpu_for_jax_is_refused_before_training(monkeypatch):
  real = jax.local_devices

  def local_devices(backend=None):
    if backend is None:
      return real()
    raise RuntimeError(f"Unknown backend {backend}")

  monkeypatch.setattr(jax, "local_devices", local_devices)
  with pytest.raises(ConfigError, match="JAX_PLATFORMS=cuda,cpu"):
    new_program()


@pytest.mark.parametrize(
  ("name", "wrong", "last"),
  [("input_ids", -1, 28), ("input_ids", 29, 28), ("token_type_ids", 2, 1)],
)
def test_a_token_without_an_embedding_is_refused(name, wrong, last):
  program, batch = make_program(), make_batch(4)
  assert program.config.vocab_size == 29
  program.put_batch(batch)
  batch[name][2, 5] = wrong
  expected = rf"{name} is {wrong} in row 2 of a batch, at token 5; .* for 0 to {last}\."
  with pytest.raises(InputError, match=expected):
    program.put_batch(batch)


def make_batch(num_rows, seed=0):
  lengths = [packs.PACKS[i % len(packs.PACKS)] for i in range(num_rows)]
  return packs.lay_out(packs.random_sequences(lengths, seed))


def run(program, batches):
  state, losses = program.init(), []
  for batch in batches:
    state, metrics = program.train_step(state, program.put_batch(batch))
    losses.append(means([jax.device_get(metrics)])["loss"])
  return jax.device_get(state["params"]), losses


def assert_same(found, expected):
  """Of two runs: their parameters and losses."""
  (params, losses), (other_params, other_losses) = found, expected
  np.testing.assert_allclose(losses, other_losses, rtol=1e-5)
  assert relative_difference(params, other_params) < 1e-5


def test_dropout_is_the_same_on_any_number_of_devices():
  batches = [make_batch(8, seed) for seed in range(2)]
  rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
  expected = run(make_program(**rates), batches)
  assert_same(run(make_program(4, **rates), batches), expected)
  without = run(make_program(), batches)
  assert relative_difference(without[0], expected[0]) > 1e-3


@pytest.mark.parametrize(
  ("num_devices", "accumulate", "unit", "head"),
  [
    (4, 1, "sequence", "pretraining"),
    (1, 4, "sequence", "pretraining"),
    (1, 4, "token", "causal"),
    pytest.param(2, 2, "token", "pretraining", marks=pytest.mark.slow),
    pytest.param(2, 4, "pack", "pretraining", marks=pytest.mark.slow),
  ],
)
def test_devices_and_micro_batches_compute_what_one_batch_does(
  num_devices, accumulate, unit, head
):
  """Rows of one, three and no sequences: an average of averages would be wrong."""
  batches = [make_batch(8, seed) for seed in range(3)]
  step: tuple = (("loss_unit", unit),)
  expected = run(make_program(head=head, step=step), batches)
  program = make_program(num_devices, head=head, step=(*step, ("accumulate", accumulate)))
  assert program.mesh.size == num_devices
  assert_same(run(program, batches), expected)
  if unit != "sequence":  # the unit matters
    other, _ = run(make_program(head=head), batches)
    assert relative_difference(other, expected[0]) > 1e-3


def test_the_batch_is_split_and_the_parameters_are_on_every_device():
  program = make_program(4)
  batch = program.put_batch(make_batch(8))
  assert len({s.device for s in batch["input_ids"].addressable_shards}) == 4
  assert batch["input_ids"].addressable_shards[0].data.shape == (2, packs.ROW_LENGTH)
  leaf = jax.tree.leaves(program.init()["params"])[0]
  assert leaf.is_fully_replicated


# Sizes that 2 and 4 devices divide, but for the two numbers of the NSP bias.
SPLIT = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 32}


@pytest.mark.parametrize(
  ("num_devices", "fsdp"), [pytest.param(4, 2, marks=pytest.mark.slow), (4, 4)]
)
def test_a_split_state_takes_its_share_and_computes_the_same(num_devices, fsdp):
  batches = [make_batch(8, seed) for seed in range(3)]
  expected = run(make_program(1, **SPLIT), batches)
  program = make_program(num_devices, fsdp=fsdp, **SPLIT)
  state = program.init()
  on_a_device = [
    sum(
      shard.data.nbytes
      for leaf in jax.tree.leaves(state)
      for shard in leaf.addressable_shards
      if shard.device == device
    )
    for device in program.mesh.devices.flat
  ]
  whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
  assert max(on_a_device) <= 1.05 / fsdp * whole
  assert state_share(program.abstract_state()) == max(on_a_device) / whole
  assert_same(run(program, batches), expected)


def test_micro_batches_stay_on_their_devices():
  """No rows are sent between devices to make them: sums of gradients alone are."""
  program = make_program(4, step=(("accumulate", 2),))
  batch = program.put_batch(make_batch(8))
  compiled = program.train_step.lower(program.abstract_state(), batch).compile()
  text = compiled.as_text()
  assert "all-reduce" in text
  for name in ("all-gather", "all-to-all", "collective-permute"):
    assert name not in text, name


def test_attention_that_xla_cannot_split_stays_on_the_devices():
  """`blocks` reads and writes at places that depend on the data.

  `tests/model/test_attention.py` compares what it gives with one device's.
  """
  lengths = [[100, 20], [128], [3, 60, 61], [5]]
  sequences = packs.random_sequences(lengths)
  batch = lay_out(sequences, row_length=128, max_sequences=3, max_masked=22)
  fields = {"max_position_embeddings": 128, "attention_dropout_rate": 0.0}
  program = make_program(4, attention_impl="blocks", **fields)
  on_devices = program.put_batch(batch)
  compiled = program.train_step.lower(program.abstract_state(), on_devices).compile()
  for name in ("all-gather", "all-to-all", "collective-permute"):
    assert name not in compiled.as_text(), name


def frozen(num_devices=1, *, accumulate=1):
  """With dropout, and parameters that stand still."""
  step = (("accumulate", accumulate),)
  return make_program(num_devices, learning_rate=0.0, dropout_rate=0.5, step=step)


@pytest.mark.slow
def test_dropout_differs_between_micro_batches():
  batch = make_batch(4)
  # Row r goes to micro-batch r mod 2: each of them is the batch.
  twice = {name: np.repeat(field, 2, axis=0) for name, field in batch.items()}
  (one,) = run(frozen(), [batch])[1]
  (two,) = run(frozen(accumulate=2), [twice])[1]
  assert one != two  # they would be equal if both halves drew the same numbers
  assert run(frozen(accumulate=2), [twice])[1] == [two]
  (of_devices,) = run(frozen(4, accumulate=2), [twice])[1]
  assert of_devices == pytest.approx(two, rel=1e-5)


def poison(state):
  """A parameter that makes each loss NaN."""
  bias = state["params"]["mlm_bias"]
  return state | {"params": state["params"] | {"mlm_bias": bias * np.nan}}


def test_a_bad_step_is_seen():
  program = make_program()
  batch = program.put_batch(make_batch(8))
  good, values = program.train_step(program.init(), batch)
  assert values["finite"]
  after, values = program.train_step(poison(good), batch)
  assert not values["finite"]
  assert int(after["step"]) == 2
  assert np.isnan(values["mlm_loss"].mean)


@pytest.mark.parametrize("fsdp", [1, 2])
def test_a_run_can_start_from_given_parameters_on_many_devices(fsdp):
  given = jax.device_get(make_program(1, **SPLIT).init()["params"])
  given = jax.tree.map(lambda x: jax.device_put(x + 1, jax.devices()[0]), given)
  state = make_program(4, fsdp=fsdp, **SPLIT).init(given)
  jax.tree.map(np.testing.assert_array_equal, state["params"], jax.device_get(given))


def test_a_split_that_leaves_too_much_on_a_device_is_refused():
  with pytest.raises(ConfigError, match=r"fsdp is 4, .* expected at most 26\.2%"):
    make_program(4, fsdp=4)  # before a checkpoint is read


def test_the_state_is_donated():
  program = make_program()
  before = program.init()
  program.train_step(before, program.put_batch(make_batch(8)))
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before["params"]))


@pytest.mark.parametrize("head", ["pretraining", "causal"])
def test_the_step_compiles_once_for_a_shape_and_the_loss_falls(head):
  program = new_program(head=head, learning_rate=0.1 if head == "causal" else 0.01)
  counter = CompilationCounter()
  batch = make_batch(8)
  _, losses = run(program, [batch] * 30)
  assert losses[-1] < losses[0] - 0.3
  assert counter.count(program.train_step_name) == 1
  state, metrics = program.train_step(program.init(), program.put_batch(batch))
  assert int(metrics["sequences"]) == batch["sequence_mask"].sum()
  assert int(metrics["real_tokens"]) == (batch["segment_ids"] > 0).sum()
  assert int(state["step"]) == 1
  run(program, [make_batch(5)])
  assert counter.count(program.train_step_name) == 2


def test_the_metrics_of_steps_add_up_to_those_of_one():
  """Unequal numbers of sequences, tokens and packs; the parameters stand still."""
  program = make_program(learning_rate=0.0, step=(("loss_unit", "token"),))
  lengths = [[13], [5, 4, 3], [2, 2, 2], [7, 6]], [[3], [1], [11], []]
  batches = [packs.lay_out(packs.random_sequences(part)) for part in lengths]
  whole = packs.lay_out(
    packs.random_sequences(lengths[0]) + packs.random_sequences(lengths[1])
  )

  def metrics_of(batches):
    state, found = program.init(), []
    for batch in batches:
      state, metrics = program.train_step(state, program.put_batch(batch))
      found.append(jax.device_get(metrics))
    return means(found)

  parts, expected = metrics_of(batches), metrics_of([whole])
  assert parts.keys() == expected.keys()
  for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"):
    assert parts[name] == pytest.approx(expected[name], rel=1e-5)
  assert parts["loss"] == parts["mlm_loss"] + parts["nsp_loss"]


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed():
  batches = [make_batch(4)] * 2
  params, losses = run(make_program(dropout_rate=0.5), batches)
  again, losses_again = run(new_program(dropout_rate=0.5), batches)
  assert losses == losses_again
  assert relative_difference(again, params) == 0
  _, losses = run(frozen(), batches)
  assert losses[0] != losses[1]
