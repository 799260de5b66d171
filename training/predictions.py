"""What a fine-tuned model says of each sequence, packed or not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from model import weights
from model.layout import take_apart
from training.mesh import put_batch
from training.step import TrainingProgram

_Step = TypeVar("_Step")
_READ = ("sequence_mask", "segment_ids", "cls_positions", "sequence_ids")


class Predictions(NamedTuple):
  """What a head gives for some sequences.

  Attributes:
    logits: of each sequence, in the order of their numbers: float[num_labels], or float
      [length, 2] for the start and the end of an answer.
    loss: mean over the sequences, in nats; the squared error of a regression.
  """

  logits: list[np.ndarray]
  loss: float


def make_program(
  stored: weights.StoredModel,
  *,
  mesh: Mesh,
  dtype: str | None = None,
  attention_impl: str = "xla",
) -> TrainingProgram:
  """The program of a stored model, to predict with.

  Args:
    stored: the model.
    mesh: splits the rows of a batch over its devices.
    dtype: of the computation; None for the model's own.
    attention_impl: a key of `model.IMPLEMENTATIONS`.
  """
  config = dataclasses.replace(
    stored.config,
    attention_impl=attention_impl,
    remat="none",
    dtype=jnp.dtype(dtype) if dtype else stored.config.dtype,
  )
  unused = optax.identity()
  return TrainingProgram(config, unused, mesh=mesh, seed=0, head=stored.head)


def predict(
  program: TrainingProgram, params, batches: Iterable[Mapping[str, np.ndarray]]
) -> Predictions:
  """Runs a model on batches, and takes the packs apart.

  Args:
    program: its `eval_step` is run; of a head that reads sequences, not masked tokens.
    params: the model's parameters.
    batches: PackedBatches that hold each sequence once; of several processes, each gives
      its own rows of them.
  """
  found: dict[int, np.ndarray] = {}
  losses = []
  steps = ((b, program.eval_step(params, put_batch(b, program.mesh))) for b in batches)
  for block, results in _one_ahead(steps):
    values, outputs = jax.device_get(results)
    batch = multihost_utils.process_allgather({n: block[n] for n in _READ}, tiled=True)
    used = batch["sequence_mask"]
    ((name, logits),) = outputs.items()
    parts = take_apart(name, logits, batch)
    found |= dict(zip(batch["sequence_ids"][used].tolist(), parts, strict=True))
    losses.append(values[name.replace("_logits", "_loss")][0][used])
  return Predictions(
    [found[number] for number in sorted(found)], float(np.concatenate(losses).mean())
  )


def _one_ahead(steps: Iterator[_Step]) -> Iterator[_Step]:
  """The same; the devices compute one while the host reads the one before."""
  for before, _ in itertools.pairwise(itertools.chain(steps, [None])):
    yield before  # type: ignore[misc]
