"""The mesh of devices, and how arrays are placed on it.

Rows of a batch are split over all devices. The state is on every device.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA = "data"


def make_mesh(num_devices: int | None = None) -> Mesh:
  """A mesh with the axis `data` over all devices, or the first few.

  Args:
    num_devices: how many devices; by default all devices of all processes.
  """
  # Sorted by process, so that a batch has the rows of process 0 first, then those of 1, ...
  devices = sorted(jax.devices(), key=lambda x: (x.process_index, x.id))[:num_devices]
  return Mesh(np.array(devices), (DATA,), (AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding that puts the whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh) -> NamedSharding:
  """The sharding that splits the first dimension over all devices."""
  return NamedSharding(mesh, PartitionSpec(DATA))


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
