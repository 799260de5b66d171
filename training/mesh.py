"""The mesh of devices, and how arrays are placed on it.

Rows of a batch are split over all devices. The state is on every device. If the mesh has
more than one device along `fsdp`, parameters and optimizer state are split along that axis
between steps instead (ZeRO, https://arxiv.org/abs/1910.02054).
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
    num_devices: how many devices; by default all devices of all processes.
    fsdp: devices that share one copy of the state; must divide the number of devices.
  """
  # Sorted by process, so that a batch has the rows of process 0 first, then those of 1, ...
  devices = sorted(jax.devices(), key=lambda x: (x.process_index, x.id))[:num_devices]
  return Mesh(np.reshape(devices, (-1, fsdp)), (DATA, FSDP), (AxisType.Auto,) * 2)


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding that puts the whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh) -> NamedSharding:
  """The sharding that splits the first dimension over all devices."""
  return NamedSharding(mesh, PartitionSpec((DATA, FSDP)))


def split_state(mesh: Mesh, abstract: Any) -> Any:
  """The shardings of a state, in a tree of the same structure.

  Each array is split along its longest dimension that the size of the `fsdp` axis divides.
  An array without such a dimension, such as a bias of two numbers, is on every device.
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

  With several processes, each passes its own block of rows, from
  `loader.for_process(jax.process_index(), jax.process_count())`.
  """
  sharding = split_rows(mesh)
  return {
    name: jax.make_array_from_process_local_data(sharding, field)
    for name, field in batch.items()
    if name != "sequence_ids"
  }


def gather(tree: Any, mesh: Mesh) -> Any:
  """Copies the whole of each array to every device, so that each process can read it."""
  return jax.jit(lambda x: x, out_shardings=replicated(mesh))(tree)
