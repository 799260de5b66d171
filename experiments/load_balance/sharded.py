"""One training step over a mesh of devices, packed and un-padded, measured on this machine.

The step is compiled once for each method. Each device adds up the gradients of its own rows
in loops that run as often as it has rows, and then all devices add up theirs. Packed, each
has as many rows of the same length as the others. Un-padded, each has `BATCH` sequences of
the dataset, one a row, and a row is only as many blocks of `BLOCK` tokens as its sequence
needs; so devices compute different numbers of blocks and wait for the one with the most.

The optimizer's update is left out: it takes all devices equally long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import packing
from experiments.load_balance import measured
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Deal, Lengths, Steps, draw, simulate
from experiments.load_balance.ways import UNPADDING
from lab.machine import machine_and_device
from lab.statistics import quartiles
from lab.timing.models import make_program
from lab.timing.steps import random_batch
from lab.timing.turns import in_turns
from launch.record.compilations import CompilationCounter
from model import losses
from training.mesh import DATA, FSDP, make_mesh
from training.step import TrainingProgram

PACKING = "packing"
BATCH, BLOCK = 8, 128  # sequences of a device, about; tokens of a block

Pack = Sequence[int]  # lengths of the sequences of a row
Share = list[tuple[int, Pack]]  # the rows of a device: row length, and what is in it
Step = Callable[[Any, list[dict[str, jax.Array]]], Any]


def make_step(program: TrainingProgram) -> Step:
  """Compiles, for each list of row lengths, the gradients of a step over the mesh.

  Returns:
    A jitted function of the parameters and the batches of `place`. It returns the gradient
    of the mean loss of all sequences of the step, the same on every device.
  """
  everywhere = jax.sharding.PartitionSpec()
  split = jax.sharding.PartitionSpec((DATA, FSDP))

  def of_device(params, batches, counts):
    def gradient(row):
      def loss(params):
        return losses.loss(program.apply(params, row), row, counts=counts)[0]

      return jax.grad(loss)(params)

    total = jax.tree.map(jnp.zeros_like, params)
    for rows in batches:  # of one length each

      def add(number, total, rows=rows):
        row = {k: jax.lax.dynamic_slice_in_dim(x, number, 1) for k, x in rows.items()}
        return jax.tree.map(jnp.add, total, gradient(row))

      own = rows["sequence_mask"].any(axis=1).sum()  # which differs by device
      total = jax.lax.fori_loop(0, own, add, total)
    return jax.lax.psum(total, (DATA, FSDP))

  def sharded_step(params, batches):
    heads = losses.heads_of(jax.eval_shape(program.apply, params, batches[0]))
    each = [losses.count(heads, rows) for rows in batches]
    counts = jax.tree.map(lambda *of_lengths: sum(of_lengths), *each)
    # Were the parameters' replication checked, each gradient would be summed over all
    # devices at once, in loops of different length: they would wait for ever.
    return jax.shard_map(
      of_device,
      mesh=program.mesh,
      in_specs=(everywhere, split, everywhere),
      out_specs=everywhere,
      check_vma=False,
    )(params, batches, counts)

  one_thread = {"xla_cpu_multi_thread_eigen": False}  # so that no device helps another
  return jax.jit(sharded_step, compiler_options=one_thread)


def place(
  shares: Sequence[Share],
  program: TrainingProgram,
  *,
  row_lengths: Sequence[int],
  rows: int,
  max_sequences: int,
  rng: np.random.Generator,
) -> list[dict[str, jax.Array]]:
  """What each device computes in a step, as arrays of the same shapes for any shares.

  Args:
    shares: by device.
    program: of the step.
    row_lengths: in tokens; all that shares may have.
    rows: of a device, of each length, at most.
    max_sequences: of a row, at most.
    rng: draws the tokens.

  Returns:
    A PackedBatch for each row length, with `rows` rows for each device. Those that it has
    come first, and the others are empty.
  """
  batches = []
  for row_length in row_lengths:
    packs: list[Pack] = []
    for share in shares:
      own = [pack for length, pack in share if length == row_length]
      packs += own + [()] * (rows - len(own))
    shape = {"row_length": row_length, "max_sequences": max_sequences}
    batch = random_batch([pack or [1] for pack in packs], rng, **shape)
    empty = np.array([not pack for pack in packs])
    for field in batch.values():
      field[empty] = 0
    batches.append(program.put_batch(batch))
  return batches


def expect(
  costs: Coefficients, lengths: Lengths, *, devices: int, sequences: int
) -> dict[str, float]:
  """The share of time that devices wait with un-padding, simulated.

  Args:
    costs: of a device.
    lengths: of the dataset.
    devices: how many; each gets `BATCH` sequences in a step.
    sequences: how many to draw, about.

  Returns:
    By `blocks`, if each takes the same time; and by `cost`, as fitted.
  """
  rows = BLOCK * _blocks(np.arange(lengths.longest + 1))

  def way(weights: np.ndarray):
    def steps(rng: np.random.Generator, deal: Deal) -> Steps:
      return Steps(weights[deal.lengths].sum(2), np.zeros(len(deal.lengths)))

    return steps

  ways = {"blocks": way(rows), "cost": way(costs.row_seconds(rows))}
  found = simulate(ways, lengths, devices=devices, batch=BATCH, sequences=sequences)
  return {
    name: packing.waiting(steps.seconds, devices=devices) for name, steps in found.items()
  }


def deal(
  lengths: Lengths, plan: packing.Plan, *, devices: int, steps: int
) -> dict[str, list[list[Share]]]:
  """Draws the rows of each step and device, by method: sequences, and packs of the plan."""
  rng = np.random.default_rng(0)
  own = lengths.draw(rng, (steps, devices, BATCH)).tolist()
  rows = max(1, round(BATCH / plan.packing_factor))
  packs = draw(rng, plan.repeat_counts, (steps, devices, rows)).tolist()
  return {
    UNPADDING: [[[(BLOCK * _blocks(x), (x,)) for x in y] for y in step] for step in own],
    PACKING: [
      [[(plan.row_length, plan.strategies[x]) for x in y] for y in step] for step in packs
    ],
  }


def measure(
  costs: Coefficients, lengths: Lengths, plan: packing.Plan, *, devices: int, steps: int
) -> dict[str, Any]:
  """Times steps of both methods in turns, on the first devices.

  Each step is timed as it was dealt, and again with the rows of its slowest device on every
  device. Without waiting, the first would take as much processor time as the second. By
  the clock both should take equally long.

  Args:
    costs: of a device, for the prediction.
    lengths: of the dataset.
    plan: of the packs.
    devices: how many.
    steps: of each method.

  Returns:
    What was measured; and `methods`, by name, the results of `compare`.
  """
  program = make_program(measured.SIZE, longest=lengths.longest, mesh=make_mesh(devices))
  params, step = program.init()["params"], make_step(program)
  rng, compilations = np.random.default_rng(0), CompilationCounter()
  dealt = deal(lengths, plan, devices=devices, steps=steps + 1)  # the first is not counted
  runs: dict[tuple[str, str], Callable[[int], Any]] = {}
  for method, shares in dealt.items():
    every = [share for of_step in shares for share in of_step]
    shape: dict[str, Any] = {
      "row_lengths": sorted({row_length for share in every for row_length, _ in share}),
      "rows": max(map(len, every)),
      "max_sequences": max(len(pack) for share in every for _, pack in share),
    }
    alike = [[max(of_step, key=_tokens)] * devices for of_step in shares]
    for kind, some in (("dealt", shares), ("alike", alike)):
      placed = [place(of_step, program, rng=rng, **shape) for of_step in some]
      runs[method, kind] = functools.partial(_run, step, params, placed)
  seconds = in_turns(runs, rounds=steps, name="measuring steps", clock="both")
  return {
    "machine": machine_and_device(),
    "model": measured.SIZE,
    "devices": devices,
    "batch": BATCH,
    "steps": steps,
    "compilations": compilations.count("sharded_step"),
    "methods": {
      method: compare(
        shares[1:], seconds[method, "dealt"], seconds[method, "alike"], costs=costs
      )
      for method, shares in dealt.items()
    },
  }


def compare(
  shares: Sequence[Sequence[Share]],
  dealt: np.ndarray,
  alike: np.ndarray,
  *,
  costs: Coefficients,
) -> dict[str, Any]:
  """The share of time that devices wait, counted and measured, and how long steps take.

  Args:
    shares: by step and device.
    dealt: float[K, 2]; seconds of these steps, by the clock and of the processor.
    alike: the same, with the rows of the slowest device on every device.
    costs: of a device.

  Returns:
    `blocks`, of a device: their mean, and the mean of the step's most; `waiting`: means
    over steps by blocks, by the fitted cost, and `measured` in processor time with its
    quartiles; the quartiles of the `seconds` by the clock and of their ratio `to_alike`;
    and `real_tokens` a second.
  """
  blocks = np.array([[_tokens(share) / BLOCK for share in step] for step in shares])
  fitted = np.array(
    [[sum(costs.row_seconds(n) for n, _ in share) for share in step] for step in shares]
  )
  waited = 1 - dealt[:, 1] / alike[:, 1]
  tokens = sum(sum(pack) for step in shares for share in step for _, pack in share)
  return {
    "blocks": {"mean": blocks.mean(), "most": blocks.max(1).mean()},
    "waiting": {
      "blocks": packing.waiting(blocks, devices=blocks.shape[1]),
      "cost": packing.waiting(fitted, devices=fitted.shape[1]),
      "measured": quartiles(waited) | {"mean": waited.mean()},
    },
    "seconds": quartiles(dealt[:, 0]),
    "to_alike": quartiles(dealt[:, 0] / alike[:, 0]),
    "real_tokens": tokens / dealt[:, 0].sum(),
  }


def _run(step: Step, params, placed: Sequence[list[dict[str, jax.Array]]], number: int):
  return step(params, placed[number])


def _blocks(lengths):
  """The blocks that sequences of these lengths need; a number or an array."""
  return -(-lengths // BLOCK)


def _tokens(share: Share) -> int:
  """Of the rows of a device."""
  return sum(row_length for row_length, _ in share)
