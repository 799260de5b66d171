"""WordPiece tokenizers: trained on a corpus, or made from a vocabulary file."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from packing import InputError

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
NEVER_MASKED = PAD, CLS, SEP, MASK  # unknown words are hidden and predicted like others


def train_vocabulary(texts: Iterable[str], *, vocab_size: int) -> list[str]:
  """Learns a WordPiece vocabulary.

  Args:
    texts: what to learn from.
    vocab_size: most entries, special tokens included.

  Returns:
    The tokens in the order of their ids: special tokens first (padding is 0), the rest
    by text, so that equal corpora give equal ids.
  """
  texts = list(texts)
  tokenizer = _tokenizer(models.WordPiece(unk_token=UNKNOWN))
  # The trainer numbers continuing characters in the order of a hash table and settles
  # ties by number. Given as special tokens, they have theirs beforehand.
  continuing = sorted(_continuing_characters(tokenizer, texts))
  trainer = trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in continuing)],
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  return [*SPECIAL_TOKENS, *sorted(set(tokenizer.get_vocab()) - set(SPECIAL_TOKENS))]


def _continuing_characters(
  tokenizer: tokenizers.Tokenizer, texts: Iterable[str]
) -> set[str]:
  characters: set[str] = set()
  for text in texts:
    normalized = tokenizer.normalizer.normalize_str(text)
    for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
      characters.update(word[1:])
  return characters


def read_vocabulary(path: str | pathlib.Path) -> list[str]:
  """Reads a BERT vocabulary file: one token a line, its id the number of the line.

  Raises:
    InputError: no such file, not text, a token twice, or a special token missing.
  """
  try:
    vocabulary = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(
      f"Expected a vocabulary file with one token a line at {path}: {error}."
    ) from error
  missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
  if missing or len(set(vocabulary)) != len(vocabulary):
    raise InputError(
      f"{path} is no BERT vocabulary: expected distinct tokens with "
      f"{', '.join(SPECIAL_TOKENS)}, found {len(vocabulary)} lines, "
      f"{len(set(vocabulary))} distinct, without {', '.join(missing) or 'none'}."
    )
  return vocabulary


def make_tokenizer(vocabulary: Sequence[str]) -> tokenizers.Tokenizer:
  """The uncased BERT tokenizer over a vocabulary; adds no special tokens.

  Example:
    >>> tokenizer = make_tokenizer([*SPECIAL_TOKENS, "pack", "##ing", "!"])
    >>> tokenizer.encode("Packing!").ids
    [5, 6, 7]
  """
  ids = {token: i for i, token in enumerate(vocabulary)}
  return _tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))


def _tokenizer(model: models.Model) -> tokenizers.Tokenizer:
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer
