"""A small corpus prepared by the command, for the tests of preparation."""

import pathlib
import subprocess

import pytest

from pipeline.settings import DatasetSettings
from tests import forked

ROOT = pathlib.Path(__file__).parents[1]
needs_beam = pytest.mark.extra("apache_beam")


def fields(corpus) -> dict:
  return {
    "source": str(corpus),
    "max_sequence_length": 61,
    "vocab_file": str(corpus / "vocab"),
    "held_out_fraction": 0.2,
    "shard_bytes": 5_000,
    "dupe_factor": 2,
    "min_sentences": 1,
  }


def settings(corpus, **others) -> DatasetSettings:
  return DatasetSettings(**fields(corpus) | others)


def arguments(corpus, out, *more) -> list[str]:
  """The words of the command for the corpus, or for the sources among `more`."""
  given = fields(corpus)
  if any(str(option).startswith("--source=") for option in more):
    del given["source"]  # else both would be read
  options = [f"--{name.replace('_', '-')}={x}" for name, x in given.items()]
  return ["prepare", "--out", str(out), "--workers=1", *options, *map(str, more)]


def command(*args) -> subprocess.CompletedProcess:
  return forked.run(["-m", "pipeline", *args], cwd=ROOT)


def contents(folder) -> dict:
  return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
