"""Byte-level BPE tokenizers, as GPT-2's: trained on a corpus, or made from its files."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"  # ends a document
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"  # as GPT-2's are published
SMALLEST = 257  # tokens: each byte and the end token


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> str:
  """Learns a byte-level BPE.

  Args:
    texts: what to learn from.
    vocab_size: most entries, the end token included; at least `SMALLEST`.

  Returns:
    A tokenizer.json. The end token has id 0, the bytes follow; equal corpora give equal
    ids.

  References:
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2.
  """
  tokenizer = _tokenizer(models.BPE())
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[END],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer.to_str()


def read_tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
  """GPT-2's tokenizer of a `vocab.json` with its `merges.txt` beside it.

  Raises:
    ValueError: one of them is not there, or is something else.
  """
  merges = path.with_name(MERGES_FILE)
  if not merges.is_file():
    raise ValueError(
      f"there is no {merges}. Put it there, or give a tokenizer.json, which has both"
    )
  if END not in json.loads(path.read_text(encoding="utf-8")):
    raise ValueError(f"it has no token {END}")
  tokenizer = _tokenizer(models.BPE.from_file(str(path), str(merges)))
  tokenizer.add_special_tokens([END])
  return tokenizer


def _tokenizer(model: models.Model) -> tokenizers.Tokenizer:
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer
