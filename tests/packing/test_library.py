"""The library as a whole: light to import, and fast where it matters."""

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import packing


def in_fresh_process(program, *, timeout=120):
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program)],
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.split()


def test_importing_needs_only_numpy_scipy_and_highspy():
  heavy = ("jax", "flax", "torch", "pyarrow", "matplotlib", "tqdm", "pandas", "grain")
  loaded = in_fresh_process(
    """
    import sys, packing, packing.__main__
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
    """
  )
  assert not set(heavy) & set(loaded)
  assert {"numpy", "highspy"} <= set(loaded)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_sixteen_million_lengths_are_assigned_in_one_gigabyte():
  peak, packs = in_fresh_process(
    """
    import pathlib
    import numpy as np
    import packing

    histogram = packing.load_histogram("wikipedia_512")
    plan = packing.pack(histogram, algorithm="lpfhp", max_sequences_per_pack=3)
    lengths = np.repeat(np.arange(1, 513, dtype=np.int32), histogram.counts)
    np.random.default_rng(0).shuffle(lengths)
    assignment = plan.assign(lengths, seed=1)
    # getrusage would include the memory of the parent process.
    status = pathlib.Path("/proc/self/status").read_text()
    peak = status.partition("VmHWM:")[2].split()[0]
    tokens = np.add.reduceat(lengths[assignment.sequence_ids], assignment.offsets[:-1])
    assert tokens.max() <= 512 and tokens.sum() == histogram.num_tokens
    assert (np.bincount(assignment.sequence_ids) == 1).all()
    print(peak, assignment.num_packs)
    """
  )
  assert int(packs) == 9_090_154
  assert int(peak) < 10**9 / 1024  # kB


def test_algorithms_share_one_signature():
  for name in packing.ALGORITHMS:
    assert isinstance(packing.algorithm_options(name), dict)
  with pytest.raises(packing.InputError, match="greedy has no option 'time_limit'"):
    packing.pack(packing.load_histogram("glue_cola_128"), algorithm="greedy", time_limit=1)


def test_pack_takes_lengths():
  lengths = [3, 5, 2, 5]
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=7)
  plan = packing.pack(histogram)
  for given in (lengths, tuple(lengths), np.array(lengths, np.int32)):
    other = packing.pack(given, max_sequence_length=7)
    assert other.strategies == plan.strategies
    assert other.histogram.sha256 == histogram.sha256
  mistakes: list[tuple[Any, int | None, str]] = [
    (lengths, None, "Expected max_sequence_length with lengths.*such as"),
    (lengths, 4, r"lengths\[1\] is 5; expected 1 to max_sequence_length=4"),
    ([2.5], 4, "vector of integers"),
    ([], 4, "non-empty vector of integers"),
    (histogram, 8, "max_sequence_length is 8; expected that of the histogram, 7"),
  ]
  for wrong, size, message in mistakes:
    with pytest.raises(packing.InputError, match=message):
      packing.pack(wrong, max_sequence_length=size)


def test_the_repr_of_a_plan_is_one_line():
  plan = packing.pack(packing.load_histogram("glue_cola_128"), max_sequences_per_pack=3)
  assert repr(plan) == (
    "<Plan: 8,551 sequences in 2,851 packs of 128 tokens by auto; proven minimal; "
    "efficiency 0.2654>"
  )


def test_the_package_has_a_version():
  assert packing.__version__.count(".") == 2
