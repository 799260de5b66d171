"""The vocabulary of the tests of tasks, and the sequences of a store."""

import numpy as np

WORDS = [*"abcdefghij", *(f"##{c}" for c in "abcdefghij"), "yes", "no", "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
ID = {token: number for number, token in enumerate(VOCABULARY)}
CLS, SEP = ID["[CLS]"], ID["[SEP]"]


def sequences(store):
  return [store.gather(np.array([i])).tolist() for i in range(len(store))]


def tokens(store):
  """The tokens of each sequence, with spaces between them."""
  return [" ".join(VOCABULARY[t] for t in ids) for ids in sequences(store)]
