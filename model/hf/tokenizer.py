"""Reads the vocabulary of a Hugging Face tokenizer, and writes a tokenizer.

A folder's own `tokenizer.json` says how text is split. If it is BERT's uncased WordPiece,
its tokens are enough; for any other, text is split by the file itself. Without one,
`vocab.txt` is split as BERT does, and settings that BERT's WordPiece lacks are refused.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.processors import TemplateProcessing

from model.weights import VOCABULARY, Vocabulary, WeightsError, read_tokens
from packing.files import parse_json, write_json, write_text

_SETTINGS, _FAST = "tokenizer_config.json", "tokenizer.json"
BYTE_LEVEL_FILES = (_FAST, "vocab.json")  # one of them; the latter with its merges
_TYPES = "token_type_ids"  # an input of a model
_ADDED, _MERGES = "added_tokens.json", "merges.txt"
SPLITTING = (*BYTE_LEVEL_FILES, _MERGES)  # how text is split, where BERT does not say it
FILES = (*SPLITTING, VOCABULARY, _SETTINGS, _ADDED, "special_tokens_map.json")
ORIGINALS = "tokenizer"  # in an imported folder, the folder with the files that came
SPECIAL_TOKENS = {
  "pad_token": "[PAD]",
  "unk_token": "[UNK]",
  "cls_token": "[CLS]",
  "sep_token": "[SEP]",
  "mask_token": "[MASK]",
}
_ROBERTAS_TOKENS = {
  "pad_token": "<pad>",
  "unk_token": "<unk>",
  "cls_token": "<s>",
  "sep_token": "</s>",
  "mask_token": "<mask>",
}
# Of a tokenizer_config.json without a tokenizer.json: values that BERT's WordPiece has.
_BERTS = {
  "tokenizer_class": (
    *(f"{name}Tokenizer" for name in ("Bert", "DistilBert", "Electra", "MobileBert")),
    *(f"{name}TokenizerFast" for name in ("Bert", "DistilBert", "Electra", "MobileBert")),
    "PreTrainedTokenizerFast",
  ),
  "do_basic_tokenize": (True,),
  "never_split": ([],),
  "tokenize_chinese_chars": (True,),
  "wordpieces_prefix": ("##",),
}


def read_vocabulary(directory: pathlib.Path) -> Vocabulary | None:
  """The vocabulary of a Hugging Face directory.

  Args:
    directory: a folder with `tokenizer.json`; or, from older versions of transformers, with
      `vocab.txt` (BERT's WordPiece) or `vocab.json` (a byte-level BPE).

  Returns:
    The vocabulary; None if the directory has none of these files.

  Raises:
    WeightsError: a file is damaged, the files contradict each other, or a `vocab.txt` is
      split differently from BERT's.
  """
  with _explained(f"The tokenizer in {directory}"):
    settings = _read_json(directory / _SETTINGS)
    if (directory / _FAST).exists():
      fast = _read_fast(directory / _FAST)
      tokens = _tokens(fast)
      _check_agreement(directory, settings, fast, tokens)
      is_berts = _is_berts(fast, tokens)
      return Vocabulary(tokens, lowercase=is_berts, by_json=not is_berts)
    if (directory / VOCABULARY).exists():
      tokens = read_tokens(directory / VOCABULARY)
      _check_added(directory, settings, tokens)
      return Vocabulary(tokens, lowercase=_check_word_pieces(settings, tokens))
    if (directory / BYTE_LEVEL_FILES[1]).exists():
      tokens = read_byte_level_tokens(directory / BYTE_LEVEL_FILES[1])
      return Vocabulary(tokens, lowercase=False, by_json=True)
  return None


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
  """Reports as WeightsError what a damaged file raises, and panics of the library."""
  try:
    yield
  except (WeightsError, KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # the library raises Exception itself, and Rust panics
    raise WeightsError(
      f"{what} cannot be used: {str(error).partition(chr(10))[0]}. Give a tokenizer.json, "
      "BERT's vocab.txt or GPT-2's vocab.json."
    ) from error


def _check_agreement(directory, settings: dict, fast: dict, tokens: tuple[str, ...]):
  """Refuses settings with which transformers would split text differently."""
  normalizer = fast["normalizer"] or {}
  if normalizer.get("type") == "BertNormalizer":
    lowercase = normalizer["lowercase"]
    strips = normalizer["strip_accents"]
    for name, value in (
      ("do_lower_case", lowercase),
      ("strip_accents", lowercase if strips is None else strips),
      ("tokenize_chinese_chars", normalizer["handle_chinese_chars"]),
    ):
      if settings.get(name) not in (None, value):
        raise ValueError(f"{name} is {settings[name]} in {_SETTINGS}, {value} in {_FAST}")
  _check_added(directory, settings, tokens)


def _check_added(directory, settings: dict, tokens: tuple[str, ...]):
  """Refuses added tokens that the vocabulary lacks."""
  added = dict(_read_json(directory / _ADDED))
  for number, token in settings.get("added_tokens_decoder", {}).items():
    added[token["content"]] = int(number)
  for token, number in added.items():
    if not 0 <= number < len(tokens) or tokens[number] != token:
      raise ValueError(
        f"the added token {token!r} has the id {number}, but not in {_FAST} or {VOCABULARY}"
      )


def _check_word_pieces(settings: dict, tokens: tuple[str, ...]) -> bool:
  """Whether BERT's WordPiece with these settings lowercases; refuses any other."""
  lowercase = settings.get("do_lower_case", True)
  allowed = _BERTS | {"do_lower_case": (True, False), "strip_accents": (lowercase,)}
  for name, values in allowed.items():
    value = settings.get(name)
    if value is not None and value not in values:
      raise ValueError(f"{name} is {value}, expected {values[0]}")
  for name, token in SPECIAL_TOKENS.items():
    if token not in tokens:
      raise ValueError(f"there is no {name} {token}")
  if len(set(tokens)) != len(tokens):
    raise ValueError("a token occurs twice")
  return lowercase


def _is_berts(fast: dict, tokens: tuple[str, ...]) -> bool:
  """Whether it splits text as BERT's uncased WordPiece does."""
  special = set(SPECIAL_TOKENS.values())
  if not special <= set(tokens):
    return False
  berts = json.loads(_word_pieces(tokens, lowercase=True).to_str())
  if (fast["normalizer"] or {}).get("strip_accents"):  # None means the same
    fast = fast | {"normalizer": fast["normalizer"] | {"strip_accents": None}}
  parts = "model", "normalizer", "pre_tokenizer"
  added = {token["content"] for token in fast["added_tokens"]}
  return all(fast[part] == berts[part] for part in parts) and added <= special


def read_byte_level_tokens(path: pathlib.Path) -> tuple[str, ...]:
  """The tokens of a `tokenizer.json`, or of a `vocab.json` like GPT-2's.

  Raises:
    WeightsError: the file is neither of the two, or its ids have gaps.
  """
  with _explained(str(path)):
    if path.name != BYTE_LEVEL_FILES[1]:
      return _tokens(_read_fast(path))
    return _in_order(_read_json(path), path.name)


def lowercases(directory: pathlib.Path, vocabulary: Vocabulary | None) -> bool:
  """Whether the tokenizer of a folder lowercases text.

  Args:
    directory: the folder of the model, in this project's format or in Hugging Face's.
    vocabulary: its vocabulary.

  Raises:
    WeightsError: the `tokenizer.json` is damaged.
  """
  path = directory / _FAST
  if not vocabulary or not vocabulary.by_json or not path.exists():
    return bool(vocabulary and vocabulary.lowercase)
  with _explained(str(path)):
    return _lowercases(_read_fast(path)["normalizer"] or {})


def gives_pair_types(directory: pathlib.Path) -> bool:
  """Whether transformers gives the second text of a pair type 1, as BERT's tokenizer does.

  XLM-R's, which some BERTs have, gives type 0 to both texts.

  Args:
    directory: with the files of the tokenizer; a vocab.txt alone is BERT's.

  Raises:
    WeightsError: a file of the tokenizer is damaged.
  """
  path = directory / _FAST
  with _explained(f"The tokenizer in {directory}"):
    inputs = _read_json(directory / _SETTINGS).get("model_input_names")
    if inputs is not None and _TYPES not in inputs:
      return False
    own = tokenizers.Tokenizer.from_file(str(path)) if path.exists() else None
    if not own or not own.post_processor:
      return True
    probe = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    probe.post_processor = own.post_processor
    pair = probe.encode("a", "a")
    return pair.type_ids[pair.sequence_ids.index(1)] > 0


def write_tokenizer(
  directory: pathlib.Path, vocabulary: Vocabulary, *, max_length: int, token_types: int = 2
):
  """Writes the tokenizer of a BERT for `AutoTokenizer.from_pretrained`.

  Args:
    directory: the folder of the model.
    vocabulary: the vocabulary of the tokenizer.
    max_length: the longest sequence that the model takes, in tokens.
    token_types: as for `describe_fast`.
  """
  write_text(directory / VOCABULARY, "\n".join(vocabulary.tokens) + "\n")
  settings = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": vocabulary.lowercase,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "model_max_length": max_length,
  }
  write_json(directory / _SETTINGS, settings | _inputs(token_types) | SPECIAL_TOKENS)


def write_fast_tokenizer(
  directory: pathlib.Path, vocabulary: Vocabulary, *, max_length: int, is_encoder: bool
):
  """Like `write_tokenizer`, for models whose `AutoTokenizer` needs a `tokenizer.json`.

  Arguments as for `describe_fast`.
  """
  write_text(directory / VOCABULARY, "\n".join(vocabulary.tokens) + "\n")
  tokenizer = _word_pieces(vocabulary.tokens, vocabulary.lowercase)
  tokenizer.decoder = decoders.WordPiece()
  write_text(directory / _FAST, tokenizer.to_str())
  describe_fast(directory, max_length=max_length, is_encoder=is_encoder)


def copy_files(source: pathlib.Path, directory: pathlib.Path, names: Iterable[str] = FILES):
  """Copies those files of a tokenizer that are there, as they are."""
  for name in names:
    if (source / name).exists():
      directory.mkdir(exist_ok=True)
      shutil.copyfile(source / name, directory / name)


def describe_fast(
  directory: pathlib.Path,
  *,
  max_length: int,
  is_encoder: bool = True,
  token_types: int = 0,
):
  """Lets `AutoTokenizer` open a `tokenizer.json` as it is.

  Without settings beside it, transformers builds a new tokenizer of the model's type. That
  one may lowercase, and it does not know the longest sequence. If there are settings, this
  function changes nothing. It makes an encoder's tokenizer that adds no tokens to a text
  add [CLS] and [SEP], as training does.

  Args:
    directory: the folder of the model.
    max_length: as for `write_tokenizer`.
    is_encoder: False for a GPT-2, whose texts begin without a special token.
    token_types: of the model; with less than 2, the tokenizer gives none.

  Raises:
    WeightsError: the `tokenizer.json` is damaged.
  """
  path, settings = directory / _FAST, directory / _SETTINGS
  if not path.exists() or settings.exists():
    return
  with _explained(str(path)):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    around = tokenizer.encode("").tokens if tokenizer.post_processor else []
  special = {
    role: token
    for names in (_ROBERTAS_TOKENS, SPECIAL_TOKENS)  # the later ones win
    for role, token in names.items()
    if tokenizer.token_to_id(token) is not None
  }
  if len(around) == 2:
    special["cls_token"], special["sep_token"] = around
  if "cls_token" not in special or "sep_token" not in special:
    return
  if is_encoder and not around:
    cls, sep = special["cls_token"], special["sep_token"]
    kind = int(token_types > 1)
    template = TemplateProcessing(
      single=f"{cls} $A {sep}",
      pair=f"{cls} $A {sep} $B:{kind} {sep}:{kind}",
      special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    own = tokenizer.post_processor  # such as ByteLevel, which adds none
    tokenizer.post_processor = processors.Sequence([own, template]) if own else template
    write_text(path, tokenizer.to_str())
  about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
  write_json(settings, about | _inputs(token_types) | special)


def _inputs(token_types: int) -> dict[str, list[str]]:
  """The setting of a tokenizer that says what a model takes."""
  types = [_TYPES] if token_types > 1 else []
  return {"model_input_names": ["input_ids", *types, "attention_mask"]}


def _read_json(path: pathlib.Path) -> dict:
  return parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}


def _read_fast(path: pathlib.Path) -> dict[str, Any]:
  """A tokenizer.json as this version of tokenizers writes it."""
  return json.loads(tokenizers.Tokenizer.from_file(str(path)).to_str())


def _lowercases(normalizer: dict[str, Any]) -> bool:
  """Whether a normalizer of a tokenizer.json lowercases, itself or in one of its parts."""
  itself = normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True
  return itself or any(map(_lowercases, normalizer.get("normalizers", ())))


def _word_pieces(tokens: tuple[str, ...], lowercase: bool) -> tokenizers.Tokenizer:
  """BERT's WordPiece."""
  ids = {token: number for number, token in enumerate(tokens)}
  unknown = SPECIAL_TOKENS["unk_token"]
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer


def _tokens(fast: dict) -> tuple[str, ...]:
  vocab = fast["model"]["vocab"]
  if isinstance(vocab, list):  # of a Unigram: pairs of a token and its score
    vocab = {token: number for number, (token, _) in enumerate(vocab)}
  added = {token["content"]: token["id"] for token in fast["added_tokens"]}
  return _in_order(vocab | added, _FAST)


def _in_order(ids: dict[str, int], name: str) -> tuple[str, ...]:
  if sorted(ids.values()) != list(range(len(ids))):
    raise ValueError(f"the ids of {name} are not 0 to {len(ids) - 1}")
  return tuple(sorted(ids, key=ids.__getitem__))
