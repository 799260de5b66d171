"""Reads the vocabulary of a Hugging Face tokenizer, and writes a tokenizer.

For a byte-level BPE, such as GPT-2's, only the tokens and their ids are read, which show
whether a dataset was made with it. Its files are copied unchanged.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from model.files import write_json, write_text
from model.weights import VOCABULARY, Vocabulary, WeightsError, read_tokens

_SETTINGS, _FAST = "tokenizer_config.json", "tokenizer.json"
BYTE_LEVEL_FILES = (_FAST, "vocab.json")  # one of them; the latter with its merges
_MERGES = "merges.txt"
SPECIAL_TOKENS = {
  "pad_token": "[PAD]",
  "unk_token": "[UNK]",
  "cls_token": "[CLS]",
  "sep_token": "[SEP]",
  "mask_token": "[MASK]",
}


def read_vocabulary(directory: pathlib.Path) -> Vocabulary | None:
  """The vocabulary of a Hugging Face directory.

  Args:
    directory: a folder with `tokenizer.json`; or, from older versions of transformers, with
      `vocab.txt` (BERT's WordPiece) or `vocab.json` (a byte-level BPE).

  Returns:
    The vocabulary; None if the directory has none of these files.

  Raises:
    WeightsError: the tokenizer is neither a WordPiece nor a byte-level BPE, or is a
      WordPiece that splits text differently from BERT's.
  """
  if path := _byte_level_file(directory):
    return Vocabulary(read_byte_level_tokens(path), lowercase=False, by_json=True)
  try:
    settings = _read_json(directory / _SETTINGS)
    fast = _read_json(directory / _FAST)
    normalizer = fast.get("normalizer") or {
      "lowercase": settings.get("do_lower_case", True),
      "strip_accents": settings.get("strip_accents"),
      "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
    }
    if (directory / VOCABULARY).exists():
      tokens = read_tokens(directory / VOCABULARY)
    elif fast:
      tokens = _tokens(fast, "WordPiece")
    else:
      return None
    lowercase = normalizer["lowercase"]
    for name, expected in (
      ("strip_accents", (None, lowercase)),
      ("handle_chinese_chars", (True,)),
    ):
      if normalizer[name] not in expected:
        raise ValueError(f"{name} is {normalizer[name]}, expected {expected[-1]}")
    for name, token in SPECIAL_TOKENS.items():
      if token not in tokens:
        raise ValueError(f"there is no {name} {token}")
    if len(set(tokens)) != len(tokens):
      raise ValueError("a token occurs twice")
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise WeightsError(
      f"The tokenizer in {directory} cannot be used: {error}. Expected BERT's WordPiece "
      "or a byte-level BPE, as BertTokenizer.save_pretrained or GPT2Tokenizer's writes it."
    ) from error
  return Vocabulary(tokens, lowercase=lowercase)


def _byte_level_file(directory: pathlib.Path) -> pathlib.Path | None:
  """The file with the tokens of a byte-level BPE, if a byte-level BPE splits text."""
  fast, older = (directory / name for name in BYTE_LEVEL_FILES)
  if not fast.exists():
    return older if older.exists() and not (directory / VOCABULARY).exists() else None
  try:
    return fast if _read_json(fast)["model"]["type"] == "BPE" else None
  except (OSError, ValueError, KeyError, TypeError):
    return None  # `read_vocabulary` then reports what is wrong


def read_byte_level_tokens(path: pathlib.Path) -> tuple[str, ...]:
  """The tokens of a BPE's `tokenizer.json`, or of a `vocab.json` like GPT-2's.

  Raises:
    WeightsError: the file is neither of the two, or its ids have gaps.
  """
  try:
    value = _read_json(path)
    if path.name == _FAST:
      return _tokens(value, "BPE")
    return _in_order(value, path.name)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise WeightsError(
      f"{path} cannot be used: {error}. Expected a byte-level BPE, as "
      "GPT2Tokenizer.save_pretrained writes it."
    ) from error


def write_tokenizer(directory: pathlib.Path, vocabulary: Vocabulary, *, max_length: int):
  """Writes the tokenizer of a BERT for `AutoTokenizer.from_pretrained`.

  Args:
    directory: the folder of the model.
    vocabulary: the vocabulary of the tokenizer.
    max_length: the longest sequence that the model takes, in tokens.
  """
  write_text(directory / VOCABULARY, "\n".join(vocabulary.tokens) + "\n")
  settings = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": vocabulary.lowercase,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "model_max_length": max_length,
  }
  write_json(directory / _SETTINGS, settings | SPECIAL_TOKENS)


def write_fast_tokenizer(
  directory: pathlib.Path, vocabulary: Vocabulary, *, max_length: int, is_encoder: bool
):
  """Like `write_tokenizer`, for models whose `AutoTokenizer` needs a `tokenizer.json`.

  Arguments as for `describe_fast`.
  """
  write_text(directory / VOCABULARY, "\n".join(vocabulary.tokens) + "\n")
  ids = {token: number for number, token in enumerate(vocabulary.tokens)}
  unknown = SPECIAL_TOKENS["unk_token"]
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocabulary.lowercase)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece()
  write_text(directory / _FAST, tokenizer.to_str())
  describe_fast(directory, max_length=max_length, is_encoder=is_encoder)


def copy_byte_level(source: pathlib.Path, directory: pathlib.Path):
  """Copies the existing files of a byte-level BPE."""
  for name in (*BYTE_LEVEL_FILES, _MERGES):
    if (source / name).exists():
      shutil.copyfile(source / name, directory / name)


def describe_fast(directory: pathlib.Path, *, max_length: int, is_encoder: bool = True):
  """Lets `AutoTokenizer` open a `tokenizer.json` whose special tokens are named as BERT's.

  Declares which tokens are special, and makes the tokenizer of an encoder add [CLS] and
  [SEP] to a text, as training does. A tokenizer that has settings, or that already adds
  tokens, is not changed.

  Args:
    directory: the folder of the model.
    max_length: as for `write_tokenizer`.
    is_encoder: False for a GPT-2, whose texts begin without a special token.

  Raises:
    WeightsError: the `tokenizer.json` is damaged.
  """
  path, settings = directory / _FAST, directory / _SETTINGS
  if not path.exists() or settings.exists():
    return
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the library raises no narrower class
    raise WeightsError(
      "Expected a tokenizer.json of Hugging Face's tokenizers, found one that cannot be "
      f"read: {error}. Restore the file that the model was trained with."
    ) from error
  ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS.values()}
  if None in ids.values() or tokenizer.post_processor:
    return
  if is_encoder:
    tokenizer.post_processor = TemplateProcessing(
      single="[CLS] $A [SEP]",
      pair="[CLS] $A [SEP] $B [SEP]",
      special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    write_text(path, tokenizer.to_str())
  kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
  write_json(settings, kind | SPECIAL_TOKENS)


def _read_json(path: pathlib.Path) -> dict:
  return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _tokens(fast: dict, kind: str) -> tuple[str, ...]:
  if fast["model"]["type"] != kind:
    raise ValueError(f"the model of {_FAST} is {fast['model']['type']}")
  ids = dict(fast["model"]["vocab"])
  ids |= {token["content"]: token["id"] for token in fast.get("added_tokens", [])}
  return _in_order(ids, _FAST)


def _in_order(ids: dict[str, int], name: str) -> tuple[str, ...]:
  if sorted(ids.values()) != list(range(len(ids))):
    raise ValueError(f"the ids of {name} are not 0 to {len(ids) - 1}")
  return tuple(sorted(ids, key=ids.__getitem__))
