"""The mesh of devices, and what lies where on it.

Rows of a batch are split over all devices. The state is on every device, or, on a mesh
with more than one device along `fsdp`, split along that axis between steps: parameters
and optimizer alike (ZeRO, https://arxiv.org/abs/1910.02054).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA, FSDP = "data", "fsdp"


def make_mesh(num_devices: int | None = None, *, fsdp: int = 1) -> Mesh:
  """A mesh with the axes `data` and `fsdp` over all devices, or the first few.

  Args:
    num_devices: all, of all processes, if not given.
    fsdp: devices that share one copy of the state; divides the number of devices.
  """
  # By process: rows of a batch are then in the order in which the processes give them.
  devices = sorted(jax.devices(), key=lambda x: (x.process_index, x.id))[:num_devices]
  return Mesh(np.reshape(devices, (-1, fsdp)), (DATA, FSDP), (AxisType.Auto,) * 2)


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh) -> NamedSharding:
  """The first dimension split over all devices."""
  return NamedSharding(mesh, PartitionSpec((DATA, FSDP)))


def split_state(mesh: Mesh, abstract: Any) -> Any:
  """The sharding of each array of a state, a tree like it.

  The longest dimension that the `fsdp` axis divides is split; an array without one, such
  as a bias of two numbers, is on every device.
  """
  size = mesh.shape[FSDP]

  def of(x) -> NamedSharding:
    fitting = [(n, -axis) for axis, n in enumerate(x.shape) if n and n % size == 0]
    if size == 1 or not fitting:
      return replicated(mesh)
    axis = -max(fitting)[1]
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, FSDP))

  return jax.tree.map(of, abstract)


def state_share(abstract: Any) -> float:
  """The fraction of a state's bytes that one device holds.

  Args:
    abstract: a tree of `jax.ShapeDtypeStruct` with shardings, or of arrays.
  """
  leaves = jax.tree.leaves(abstract)
  whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)
  mine = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)
  return mine / whole


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Splits the rows of a PackedBatch over the devices; `sequence_ids` stay on the host.

  Of several processes each gives its own block of rows, as a loader made with
  `process_index=jax.process_index(), process_count=jax.process_count()` makes it.
  """
  sharding = split_rows(mesh)
  return {
    name: jax.make_array_from_process_local_data(sharding, field)
    for name, field in batch.items()
    if name != "sequence_ids"
  }


def gather(tree: Any, mesh: Mesh) -> Any:
  """The whole of each array on every device, so that each process can read it."""
  return jax.jit(lambda x: x, out_shardings=replicated(mesh))(tree)
