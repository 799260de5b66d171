"""A small corpus prepared by the command, for the tests of preparation."""

import pathlib
import subprocess

import pytest

from pipeline.settings import DatasetSettings
from tests import forked

ROOT = pathlib.Path(__file__).parents[1]
SHARD_BYTES = 5_000
needs_beam = pytest.mark.extra("apache_beam")


def settings(corpus, **fields) -> DatasetSettings:
  chosen: dict = {
    "source": str(corpus),
    "max_sequence_length": 61,
    "vocab_file": str(corpus / "vocab"),
    "held_out_fraction": 0.2,
    "shard_bytes": SHARD_BYTES,
    "dupe_factor": 2,
  }
  return DatasetSettings(**chosen | fields)


def arguments(corpus, out, *more) -> list[str]:
  fields = settings(corpus)
  names = ("source", "max_sequence_length", "vocab_file", "held_out_fraction")
  names = (*names, "shard_bytes", "dupe_factor")  # type: ignore[assignment]
  options = [f"--{n.replace('_', '-')}={getattr(fields, n)}" for n in names]
  return ["prepare", "--out", str(out), *options, *map(str, more)]


def command(*args) -> subprocess.CompletedProcess:
  return forked.run(["-m", "pipeline", *args], cwd=ROOT)


def contents(folder) -> dict:
  return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
