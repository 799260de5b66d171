import numpy as np
import pytest

from tests.pipeline.batches.test_batches import random_store


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
  """211 random sequences of 3 to 40 tokens, on disk and as they were written."""
  lengths = np.random.default_rng(1).integers(3, 41, 211)
  return random_store(tmp_path_factory.mktemp("store") / "s.arrow", lengths)


@pytest.fixture(scope="session")
def store(stored):
  return stored[0]
