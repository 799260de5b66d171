"""Kills runs at random moments, resumes them, and compares what they come to; `make soak`.

  python -m tests.soak --runs 20

Every run is killed with SIGKILL one to three times: at any moment between its start and
its end, or while it saves a checkpoint. It is then resumed to its end, and must have the
parameters of a run that nobody disturbed, to the last bit.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from model import weights
from tests import programs
from tests.programs import UNFINISHED
from tests.stdlib_corpus import make_library


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--runs", type=int, default=20)
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  options = parser.parse_args()
  os.environ.update(programs.COMPILING)
  rng = random.Random(options.seed)
  same, saving, kills = 0, 0, 0
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    make_library(folder / "library")
    finish(folder, "first")  # compiles
    began = time.monotonic()
    expected = finish(folder, "undisturbed")
    seconds = time.monotonic() - began
    for workdir in (f"run-{number}" for number in range(1, options.runs + 1)):
      told, wanted = list[str](), rng.randint(1, 3)
      while len(told) < wanted:
        told.append(kill_once(folder, workdir, rng, seconds))
        if not told[-1]:  # it ended too early: from the start again
          shutil.rmtree(folder / workdir)
          told = []
      is_same = finish(folder, workdir) == expected
      same, saving, kills = same + is_same, saving + told.count("saving"), kills + wanted
      print(f"{workdir}: killed {', '.join(told)}: {'same' if is_same else 'OTHER'}")
  print(f"{same} of {options.runs} runs end with the same parameters")
  print(f"{kills} kills, {saving} of them while saving")
  return 0 if same == options.runs else 1


def finish(folder: pathlib.Path, workdir: str) -> str:
  """Runs to the end; the digest of the parameters."""
  programs.succeed(folder, workdir)
  return programs.summary_of(folder / workdir)["parameters_digest"]


def kill_once(folder: pathlib.Path, workdir: str, rng, seconds: float) -> str:
  """Starts or resumes a run, and kills it; at what. "" if it ended before that."""
  checkpoints = folder / workdir / "checkpoints"
  saved = max(weights.steps(folder / workdir), default=0)
  later = range(saved + programs.SAVED_EVERY, programs.STEPS + 1, programs.SAVED_EVERY)
  awaited = rng.choice(later) if later and rng.random() < 0.5 else None
  end = time.monotonic() + (600 if awaited else rng.uniform(0, seconds))
  before = set(checkpoints.glob(UNFINISHED))
  process = programs.begin(folder, workdir, **programs.READ_ONLY_CACHE)
  while process.poll() is None and time.monotonic() < end:
    if awaited and set(checkpoints.glob(f"{awaited}{UNFINISHED}")) - before:
      break
    time.sleep(0.0005)
  process.kill()
  process.communicate()
  if process.returncode != -signal.SIGKILL:
    return ""
  return "saving" if set(checkpoints.glob(UNFINISHED)) - before else "training"


if __name__ == "__main__":
  sys.exit(main())
