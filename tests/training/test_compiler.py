import os
import pathlib
import subprocess
import sys

import pytest

from training import compiler, memory

PROGRAM = """
import collections
from training import compiler
import jax
compiler.keep_programs()
heard = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: heard.update([event]))
jax.jit(lambda x: 3 * x + 1)(2.0).block_until_ready()
print(heard["/jax/compilation_cache/cache_hits"] > 0)
print(heard["/jax/compilation_cache/cache_misses"])
"""


def run(home, **variables) -> list[str]:
  """Runs a program with this folder as the user's cache."""
  kept = {k: v for k, v in os.environ.items() if "CACHE" not in k}
  result = subprocess.run(
    [sys.executable, "-c", PROGRAM],
    cwd=pathlib.Path(__file__).parents[2],
    env=kept | {"XDG_CACHE_HOME": str(home), **variables},
    capture_output=True,
    text=True,
    check=True,
  )
  return [*result.stdout.split(), *result.stderr.splitlines()]


def test_a_second_start_compiles_nothing(tmp_path):
  folder = tmp_path / "isopack" / "compiled"
  assert run(tmp_path)[0] == "False"
  assert run(tmp_path) == ["True", "0"]
  assert folder.stat().st_mode & 0o077 == 0
  (entry, *_) = folder.glob("*-cache")
  entry.write_bytes(entry.read_bytes()[:9])  # as a killed process leaves it
  entry.with_name(entry.name.removesuffix("cache") + "atime").unlink()
  again = run(tmp_path)
  assert not any("WARNING" in line for line in again)
  assert int(again[1]) > 0  # compiled again
  assert run(tmp_path) == ["True", "0"]


def test_a_folder_of_the_user_is_taken_and_one_that_cannot_be_is_named(tmp_path):
  own = tmp_path / "own"
  run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(own))
  assert list(own.iterdir())
  assert not (tmp_path / "isopack").exists()
  (tmp_path / "file").write_text("")
  *_, told = run(tmp_path / "file")
  assert told.startswith("WARNING: compiled programs are not kept: ")


@pytest.mark.parametrize(
  ("given", "only_cpus", "added"),
  [
    ("", True, ""),
    ("", False, "--xla_allow_excess_precision=false"),
    ("--xla_dump_to=x", False, "--xla_allow_excess_precision=false"),
    ("--xla_allow_excess_precision=true", False, ""),
    ("file/of/flags", False, ""),
  ],
)
def test_flags_for_gpus_are_added_to_those_of_the_user(
  monkeypatch, given, only_cpus, added
):
  monkeypatch.setenv("XLA_FLAGS", given)
  monkeypatch.setattr(memory, "only_cpus", lambda _: only_cpus)
  assert compiler.set_flags() == added
  assert os.environ["XLA_FLAGS"] == " ".join(filter(None, (given, added)))
