"""The library at full size; `tests/test_structure.py` has what it imports."""

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_sixteen_million_lengths_are_assigned_in_one_gigabyte():
  program = textwrap.dedent(
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
  command = [sys.executable, "-c", program]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
  assert done.returncode == 0, done.stderr
  peak, packs = done.stdout.split()
  assert int(packs) == 9_090_154
  assert int(peak) < 10**9 / 1024  # kB
