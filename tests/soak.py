"""Kills runs at random moments, resumes them, and compares what they come to; `make soak`.

  python -m tests.soak --runs 20

Every run is killed with SIGKILL one to three times: at any moment between its start and
its end, or while it saves a checkpoint. It is then resumed to its end, and must have the
parameters of a run that nobody disturbed, to the last bit.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from tests import programs
from tests.stdlib_corpus import make_library

_CHECKPOINTS = range(programs.SAVED_EVERY, programs.STEPS + 1, programs.SAVED_EVERY)


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--runs", type=int, default=20)
  parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
  options = parser.parse_args()
  os.environ.update(programs.COMPILING)
  rng = random.Random(options.seed)
  same, kills = 0, []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    make_library(folder / "library")
    finish(folder, "first")  # compiles
    began = time.monotonic()
    expected = finish(folder, "undisturbed")
    seconds = time.monotonic() - began
    print(f"undisturbed: {seconds:.0f} s, parameters {expected[:12]}", flush=True)
    for number in range(1, options.runs + 1):
      told: list[str] = []
      for _ in range(rng.randint(1, 3)):
        while (text := kill_once(folder, f"run-{number}", rng, seconds)) is None:
          shutil.rmtree(
            folder / f"run-{number}"
          )  # it ended too early: from the start again
          told = []
        told.append(text)
      digest = finish(folder, f"run-{number}")
      same += digest == expected
      kills += told
      verdict = "the same" if digest == expected else f"ANOTHER: {digest[:12]}"
      print(f"run {number}: {', '.join(told)}; parameters {verdict}", flush=True)
  print(
    f"{same} of {options.runs} runs end with the same parameters; {len(kills)} kills, "
    f"{sum('saving' in text for text in kills)} of them while saving"
  )
  return 0 if same == options.runs else 1


def finish(folder: pathlib.Path, workdir: str) -> str:
  """Runs to the end; the digest of the parameters."""
  programs.succeed(folder, workdir)
  return programs.summary_of(folder / workdir)["parameters_digest"]


def kill_once(
  folder: pathlib.Path, workdir: str, rng: random.Random, seconds: float
) -> str | None:
  """Starts or resumes a run, and kills it; when. None if it ended before that."""
  checkpoints = folder / workdir / "checkpoints"

  def unfinished() -> set[str]:
    return {path.name for path in checkpoints.glob("*.orbax-checkpoint-tmp*")}

  def newest() -> int:
    names = (path.name for path in checkpoints.glob("*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)

  before, later = unfinished(), [step for step in _CHECKPOINTS if step > newest()]
  awaited = rng.choice(later) if later and rng.random() < 0.5 else None
  end = time.monotonic() + (600 if awaited else rng.uniform(0, seconds))
  process = programs.start(programs.command(folder, workdir), folder)
  while process.poll() is None and time.monotonic() < end:
    if awaited and any(name.startswith(f"{awaited}.") for name in unfinished() - before):
      break
    time.sleep(0.0005)
  process.kill()
  process.communicate()
  if process.returncode != -signal.SIGKILL:
    return None
  saving = unfinished() - before
  steps = ", ".join(name.partition(".")[0] for name in saving)
  return f"killed saving {steps}" if saving else f"killed after checkpoint {newest()}"


if __name__ == "__main__":
  sys.exit(main())
