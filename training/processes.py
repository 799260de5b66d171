"""Several processes in one run: how they connect, what only process 0 does, how they stop.

Every process runs the same program on its own devices. Process 0 prepares the dataset and
writes the run's files. Each process writes its part of a checkpoint, so all must be able
to read and write the run's folder.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import multihost

from training.errors import ConfigError, Stopped
from training.stopping import signals

_COORDINATOR = flags.DEFINE_string(
  "coordinator",
  "",
  "For several processes: HOST:PORT at which process 0 listens; auto if the cluster "
  "provides it (Slurm, Cloud TPU, GKE, MPI).",
)
_PROCESSES = flags.DEFINE_integer("processes", None, "The number of processes.", 1)
_PROCESS = flags.DEFINE_integer("process", None, "The number of this process, from 0.", 0)

_LONGEST_WAIT_MS = 7 * 24 * 3600 * 1000
_SHUTDOWN_TIMEOUT = 30  # seconds that a process which fails waits for the others
_KEYS = itertools.count()  # the same in all processes, since all make the same calls


def start():
  """Connects to the other processes, if the command line asks for several.

  Call it before any use of JAX.

  Raises:
    ConfigError: the flags contradict each other, or the processes cannot connect.
  """
  coordinator, number, count = _COORDINATOR.value, _PROCESS.value, _PROCESSES.value
  numbers = [x is not None for x in (number, count)]
  if coordinator in ("", "auto"):
    if any(numbers):
      raise ConfigError(
        f"--coordinator is {coordinator!r}, but --processes and --process are given. Give "
        "--coordinator=HOST:PORT, at which process 0 listens, or leave both out."
      )
    if not coordinator:
      return
    arguments: dict[str, Any] = {}
  else:
    if number is None or count is None or number >= count:
      raise ConfigError(
        f"--processes={count} --process={number}; expected both, and process < processes."
      )
    arguments = {
      "coordinator_address": coordinator,
      "num_processes": count,
      "process_id": number,
    }
  try:
    jax.distributed.initialize(**arguments, shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT)
  except (RuntimeError, ValueError) as error:
    raise ConfigError(
      f"The processes could not connect at --coordinator={coordinator}: {error}"
    ) from error


def connect(mesh: Mesh):
  """Makes the devices of all processes exchange a number, so that they connect now.

  Devices connect in their first exchange, and CPUs (with Gloo) give up after half a minute.
  Exchanges of the program itself come after compilations, whose times differ by process.
  """
  if jax.process_count() == 1:
    return
  on_first(lambda: None)
  for axes in (mesh.axis_names, *((name,) for name in mesh.axis_names)):
    exchange = jax.shard_map(
      functools.partial(jax.lax.psum, axis_name=axes),
      mesh=mesh,
      in_specs=PartitionSpec(mesh.axis_names),
      out_specs=PartitionSpec(tuple(set(mesh.axis_names) - set(axes)) or None),
    )
    ones = jax.make_array_from_callback(
      (mesh.size,),
      NamedSharding(mesh, PartitionSpec(mesh.axis_names)),
      lambda index: np.ones(mesh.size, np.float32)[index],
    )
    jax.block_until_ready(jax.jit(exchange)(ones))
  multihost_utils.sync_global_devices("connected")


def is_first() -> bool:
  """Whether this is process 0, the one that prints and writes the run's files."""
  return jax.process_index() == 0


def print_on_first(text: str):
  """Prints in process 0 only."""
  if is_first():
    print(text, flush=True)


def on_first(work: Callable[[], Any]) -> Any:
  """Runs a function in process 0, and returns its result in all processes.

  The others wait as long as needed: preparing a dataset may take hours, longer than a
  collective operation between devices would wait.

  Args:
    work: the function; its result must be JSON-serializable.

  Raises:
    Stopped: in the other processes, if `work` failed. Process 0 raises the exception of
      `work`.
  """
  if jax.process_count() == 1:
    return work()
  client, key = multihost.get_jax_distributed_client(), f"isopack/first/{next(_KEYS)}"
  if is_first():
    try:
      result = work()
    except Exception:
      client.key_value_set(key, json.dumps({"failed": True}))
      raise
    client.key_value_set(key, json.dumps({"failed": False, "result": result}))
    return result
  answer = json.loads(client.blocking_key_value_get(key, _LONGEST_WAIT_MS))
  if answer["failed"]:
    raise Stopped("Process 0 failed; its message says why.")
  return answer["result"]


def on_first_then_others(work: Callable[[], Any]) -> Any:
  """Runs a function in process 0, and then in each of the other processes.

  Raises:
    Stopped: in the other processes, if `work` failed in process 0, which raises the
      exception of `work`.
  """
  results = []
  on_first(lambda: results.append(work()))
  return results[0] if results else work()


def asked_to_stop(step: int) -> bool:
  """Whether to save now and exit; to be called once after each step.

  All processes stop after the same step, whichever of them got the signal.
  """
  if jax.process_count() == 1:
    return signals.heard is not None
  return multihost_utils.reached_preemption_sync_point(step)


class Agreement:
  """Tells a process, again and again, whether all processes are ready.

  All must create it at the same point of the program, and call it equally often; any thread
  may call it. It uses no devices, so nothing that they compute waits for it.
  """

  def __init__(self):
    self._key, self._asked = f"isopack/agreement/{next(_KEYS)}", 0

  def __call__(self, ready: bool | None) -> bool:
    """Waits until all processes have asked; returns whether each of them is ready.

    Args:
      ready: whether this process is ready; None if it has failed.

    Raises:
      Stopped: another process has failed.
    """
    if jax.process_count() == 1:
      return bool(ready)
    client, own = multihost.get_jax_distributed_client(), f"{self._key}/{self._asked}"
    # What a process says before they meet, all hear after it. They may hear, too, what is
    # said for the next meeting, under another key.
    if not ready:
      said = "failed" if ready is None else "not ready"
      client.key_value_set(f"{own}/{jax.process_index()}", said)
    client.wait_at_barrier(self._key, _LONGEST_WAIT_MS)
    heard = [said for _, said in client.key_value_dir_get(f"{own}/")]
    self._asked += 1
    if ready is not None and "failed" in heard:
      raise Stopped("Another process failed; its message says why.")
    return not heard
