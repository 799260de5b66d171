import numpy as np
import pytest

from pipeline.preparation.prepare import prepare
from pipeline.tokenizer import SPECIAL_TOKENS
from tests.prepared import settings
from tests.tfds_data import sentence


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
  """Three text files of 130 documents in all, and a vocabulary."""
  folder = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(0)
  for number in range(3):
    documents = [
      "\n".join(sentence(rng) for _ in range(rng.integers(1, 31))) for _ in range(43)
    ]
    documents += ["?"] if number else ["", "..."]
    (folder / f"{number}.txt").write_text("\n\n".join(documents))
  letters = "abcdefghijklmnopqrstuvwxyz"
  words = [*letters, *(f"##{letter}" for letter in letters), "the", "cat", "."]
  (folder / "vocab").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
  return folder


@pytest.fixture(scope="session")
def reference(corpus, tmp_path_factory):
  """Prepared by this process alone."""
  return prepare(tmp_path_factory.mktemp("one") / "d", settings(corpus), num_workers=1)
