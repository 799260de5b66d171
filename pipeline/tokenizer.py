"""A tokenizer and its vocabulary: of a BERT vocabulary, a tokenizer.json, GPT-2's files."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

import tokenizers

from packing import InputError
from pipeline import bpe, wordpiece

VOCABULARY_FILE, TOKENIZER_FILE = "vocab.txt", "tokenizer.json"
_PADDING = wordpiece.PAD, "<pad>", "<|pad|>"
_ENDS = bpe.END, "</s>", "<eos>", wordpiece.SEP
_BATCH = 1000  # texts encoded at a time, since their encodings are large


class Tokenizer:
  """Turns text into token ids; adds no special tokens.

  Attributes:
    vocabulary: tokens in the order of their ids.
    path: the file it was made from.
  """

  def __init__(self, path: pathlib.Path):
    self.path = path
    if path.suffix == ".json":
      self._tokenizer, self.vocabulary = _read_json(path)
    else:
      self.vocabulary = wordpiece.read_vocabulary(path)
      self._tokenizer = wordpiece.make_tokenizer(self.vocabulary)
    self._ids = {token: number for number, token in enumerate(self.vocabulary)}

  def id_of(self, token: str) -> int:
    """The id of a special token.

    Raises:
      InputError: the vocabulary lacks it.
    """
    if token not in self._ids:
      raise InputError(
        f"{self.path} has no token {token}, which this task needs. Give another "
        "vocabulary, such as BERT's."
      )
    return self._ids[token]

  @property
  def padding_id(self) -> int | None:
    """The id that pads, or None where the vocabulary has no such token."""
    return next((self._ids[token] for token in _PADDING if token in self._ids), None)

  @property
  def end_id(self) -> int:
    """The id that ends a text.

    Raises:
      InputError: the vocabulary has no token that is known to.
    """
    for token in _ENDS:
      if token in self._ids:
        return self._ids[token]
    raise InputError(
      f"{self.path} has no token that ends a text; expected one of {', '.join(_ENDS)}. "
      "Give a vocabulary with one."
    )

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text."""
    found: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
      part = list(texts[start : start + _BATCH])
      encoded = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
      found += [encoding.ids for encoding in encoded]
    return found

  @property
  def definition(self) -> str:
    """All that it is: a tokenizer.json."""
    return self._tokenizer.to_str()

  def save(self, path: pathlib.Path):
    """Writes a tokenizer.json."""
    self._tokenizer.save(str(path))

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a text, and where each token starts and ends, in characters."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def _read_json(path: pathlib.Path) -> tuple[tokenizers.Tokenizer, list[str]]:
  try:
    if path.name == bpe.VOCABULARY_FILE:
      tokenizer = bpe.read_tokenizer(path)
    else:
      tokenizer = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the library raises nothing narrower
    raise InputError(
      f"Expected a tokenizer.json of Hugging Face's tokenizers, or GPT-2's "
      f"{bpe.VOCABULARY_FILE} by that name, at {path}: {str(error).splitlines()[0]}."
    ) from error
  tokenizer.no_padding()
  tokenizer.no_truncation()
  tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a text ends no document
  ids = tokenizer.get_vocab(with_added_tokens=True)
  vocabulary = [f"[unused {number}]" for number in range(max(ids.values(), default=-1) + 1)]
  for token, number in ids.items():
    vocabulary[number] = token
  if not vocabulary:
    raise InputError(f"{path} has no vocabulary; expected at least one token.")
  return tokenizer, vocabulary


@functools.lru_cache(maxsize=2)
def load_tokenizer(path: str) -> Tokenizer:
  """The tokenizer of a file; kept, since every shard asks for it."""
  return Tokenizer(pathlib.Path(path))
