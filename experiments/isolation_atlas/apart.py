"""Tries a type in a process of its own, which may fail, run out of memory or hang."""

from __future__ import annotations

import multiprocessing
import resource
import time
from typing import Any

SECONDS = 240  # for one type
MEMORY = 12 * 2**30  # bytes of addresses for one type
# What takes seconds to import; each process is a fork of one that has it.
PRELOADED = ["experiments.isolation_atlas.trial", "torch._dynamo", "torch._inductor"]


def _work(pipe: Any, model_type: str, kind: str):
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  from experiments.isolation_atlas import trial

  pipe.send(trial.try_type(model_type, kind))


def try_type(of: tuple[str, str]) -> dict[str, Any]:
  """The entry of a type and kind, from `trial.try_type`, with its seconds."""
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(PRELOADED)
  ours, theirs = context.Pipe(duplex=False)
  process = context.Process(target=_work, args=(theirs, *of), daemon=True)
  started = time.monotonic()
  process.start()
  theirs.close()
  entry: dict[str, Any] = {"type": of[0], "kind": of[1]}
  try:
    if ours.poll(SECONDS):
      entry = ours.recv()
    else:
      entry["cannot"] = f"it took more than {SECONDS} seconds"
  except EOFError:
    process.join(10)
    entry["cannot"] = f"its process ended with status {process.exitcode}"
  finally:
    process.kill()
    process.join()
  return entry | {"seconds": round(time.monotonic() - started, 1)}
