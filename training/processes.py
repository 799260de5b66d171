"""One process or many: how they meet, what only process 0 does, and how they stop.

Every process runs the same program on its own devices. The first alone prepares the
dataset and writes the run's folder, which all of them can read.
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

from training.command import Stopped
from training.errors import ConfigError
from training.stopping import signals

_COORDINATOR = flags.DEFINE_string(
  "coordinator",
  "",
  "HOST:PORT at which process 0 listens, to run as several processes; auto where the "
  "cluster provides it (Slurm, Cloud TPU, GKE, MPI).",
)
_PROCESSES = flags.DEFINE_integer("processes", None, "How many there are.", 1)
_PROCESS = flags.DEFINE_integer("process", None, "This one's number, from 0.", 0)

_LONGEST_WAIT_MS = 7 * 24 * 3600 * 1000
_LONGEST_FAREWELL = 30  # seconds that one which fails waits for the others at the end
_KEYS = itertools.count()  # the same in all processes, since all make the same calls


def start():
  """Joins the other processes, if the command line names any; before any use of JAX.

  Raises:
    ConfigError: the flags do not go together, or the processes did not meet.
  """
  coordinator, number, count = _COORDINATOR.value, _PROCESS.value, _PROCESSES.value
  numbers = [x is not None for x in (number, count)]
  if coordinator in ("", "auto"):
    if any(numbers):
      raise ConfigError(
        f"--processes and --process are given with --coordinator={coordinator!r}; expected "
        "--coordinator=HOST:PORT of process 0."
      )
    if not coordinator:
      return
    found: dict[str, Any] = {}
  else:
    if number is None or count is None or number >= count:
      raise ConfigError(
        f"--processes={count} --process={number} with --coordinator={coordinator}; "
        "expected both, and a process from 0 to processes - 1."
      )
    found = {
      "coordinator_address": coordinator,
      "num_processes": count,
      "process_id": number,
    }
  try:
    jax.distributed.initialize(**found, shutdown_timeout_seconds=_LONGEST_FAREWELL)
  except (RuntimeError, ValueError) as error:
    raise ConfigError(
      f"The processes did not meet at --coordinator={coordinator}: {error}"
    ) from error


def connect(mesh: Mesh):
  """Has the devices of all processes exchange a number, at the same time.

  In their first exchange they find each other, and between CPUs (Gloo) they wait half a
  minute for that. Later exchanges come after compilations, which take one process longer
  than another.
  """
  if jax.process_count() == 1:
    return
  first(lambda: None)
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
  """Whether this process is the one that writes and prints."""
  return jax.process_index() == 0


def tell(text: str):
  """Prints in process 0 only."""
  if is_first():
    print(text, flush=True)


def first(work: Callable[[], Any]) -> Any:
  """Runs something in process 0, and returns its result in all processes.

  The others wait as long as it takes: preparing a dataset may take hours, longer than a
  collective operation between devices would wait.

  Args:
    work: its result can be written as JSON.

  Raises:
    Stopped: in the others, if it failed in the first, which raises what `work` raised.
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
    raise Stopped("Process 0 stopped; its message says why.")
  return answer["result"]


def first_then_all(work: Callable[[], Any]) -> Any:
  """Runs something in process 0, and then in each of the others.

  Raises:
    Stopped: in the others, if it failed in the first, which raises what `work` raised.
  """
  results = []
  first(lambda: results.append(work()))
  return results[0] if results else work()


def asked_to_stop(step: int) -> bool:
  """Whether to save now and exit; called once after each step.

  Several processes agree on the step after which all stop, whichever got the signal.
  """
  if jax.process_count() == 1:
    return signals.heard is not None
  return multihost_utils.reached_preemption_sync_point(step)
