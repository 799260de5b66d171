"""Tokenizers: BERT's word pieces, bytes as GPT-2's, or any tokenizer.json."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from packing import InputError
from packing.errors import short_repr
from packing.files import parse_json

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
# The roles of special tokens, each called by BERT's name, with the names that are looked
# for in a vocabulary, in this order.
NAMES = {
  PAD: (PAD, "<pad>", "<|pad|>"),
  UNKNOWN: (UNKNOWN, "<unk>"),
  CLS: (CLS, "<s>"),  # begins a text
  SEP: (SEP, "</s>"),  # ends a text, and separates two
  MASK: (MASK, "<mask>"),
}
NEVER_MASKED = PAD, CLS, SEP, MASK  # unknown words are masked and predicted like others
END = "<|endoftext|>"  # ends a document in GPT-2's vocabulary
NUM_BYTES = 256  # tokens that each byte-level BPE has, besides special ones
VOCABULARY_FILE, TOKENIZER_FILE = "vocab.txt", "tokenizer.json"
_END_TOKENS = END, *NAMES[SEP][1:], "<eos>", SEP
# Never in a text: there, "[SEP]" is text. Other added tokens are tokens.
_CONTROL = {*itertools.chain(*NAMES.values()), *_END_TOKENS}
_NOT_A_CHARACTER = "\ufdd0"  # which Unicode promises never to use
_BATCH = 1000  # texts encoded at a time, since their encodings are large


class Tokenizer:
  """Turns text into token ids; adds no special tokens.

  Args:
    path: a BERT vocabulary, one token a line; or a tokenizer.json.

  Attributes:
    vocabulary: tokens in the order of their ids.
    path: the file it was made from.
    by_json: whether a .json file says how to split text; if not, it is split as by BERT.

  Raises:
    InputError: the file is missing, or in another format; or a tokenizer.json beside a
      vocabulary splits text differently.
  """

  def __init__(self, path: str | pathlib.Path):
    self.path = pathlib.Path(path)
    self.by_json = self.path.suffix == ".json"
    if self.by_json:
      self._tokenizer, self.vocabulary = _read_json(self.path)
    else:
      self.vocabulary = read_vocabulary(self.path)
      self._tokenizer = word_piece_tokenizer(self.vocabulary)
      _check_beside(self.path, self._tokenizer)
    self._splitter = _without_control(self._tokenizer)
    self._ids = {token: number for number, token in enumerate(self.vocabulary)}
    self._special = _CONTROL & self._ids.keys()

  def ids_of(self, roles: Iterable[str]) -> list[int]:
    """The id of the token of each role, which are keys of `NAMES`.

    Tokens that begin and end a text are those that a tokenizer.json itself puts there; if
    it puts none, and for other roles, those of these names.

    Raises:
      InputError: the vocabulary lacks a role's token; or a tokenizer.json puts several
        before a text or after it.
    """
    roles = list(roles)
    found = ids_by_role(self.vocabulary, roles)
    for role, own, where in (
      (CLS, self._around.before, "before"),
      (SEP, self._around.after, "after"),
    ):
      if len(own) > 1 and role in roles:
        tokens = " ".join(self.vocabulary[token] for token in own)
        raise InputError(
          f"{self.path} puts {tokens} {where} a text; expected one token. Give another "
          "tokenizer."
        )
      if own and role in roles:
        found[role] = own
    require_roles(found, where=str(self.path))
    return [found[role][0] for role in roles]

  @functools.cached_property
  def cls_id(self) -> int:
    """The id of the token that begins a text for an encoder; raises as `ids_of`."""
    return self.ids_of([CLS])[0]

  @functools.cached_property
  def sep_id(self) -> int:
    """The id of the token that ends a text for an encoder; raises as `ids_of`."""
    return self.ids_of([SEP])[0]

  @functools.cached_property
  def mask_id(self) -> int:
    """The id of the token that hides a masked one; raises as `ids_of`."""
    return self.ids_of([MASK])[0]

  @functools.cached_property
  def separators(self) -> tuple[int, ...]:
    """The ids of the tokens between the two texts of a pair; raises as `ids_of`.

    As a tokenizer.json itself has them: two for RoBERTa. One if it puts none.
    """
    return self._around.between or (self.sep_id,)

  @functools.cached_property
  def _around(self) -> _Around:
    around = _read_around(self._tokenizer)
    size = len(self.vocabulary)
    ids = [*itertools.chain(*around)]
    if max(ids, default=0) >= size:
      raise InputError(
        f"{self.path} puts the ids {', '.join(map(str, ids))} around texts; its vocabulary "
        f"has 0 to {size - 1}. Mend its post_processor."
      )
    return around

  def splits_as(self, vocabulary: list[str]) -> bool:
    """Whether it splits text as BERT does with these tokens, in the order of their ids."""
    return _rules(self._tokenizer) == _rules(word_piece_tokenizer(vocabulary))

  @property
  def warning(self) -> str:
    """A warning about casing, to show before text is split; "" for none."""
    words = set(self.vocabulary) - _CONTROL
    if self.by_json or not any(word != word.lower() for word in words):
      return ""
    return (
      f"{self.path} has capitals, but text is lower-cased. Give the model's tokenizer.json."
    )

  def has_special_token(self, text: str) -> bool:
    """Whether a special token is typed in a text, where it is split like other text."""
    return any(token in text for token in self._special)

  @functools.cached_property
  def padding_id(self) -> int | None:
    """The id of the padding token; None if the vocabulary has none."""
    return next(iter(ids_by_role(self.vocabulary, [PAD])[PAD]), None)

  @property
  def end_id(self) -> int:
    """The id of the token that ends a text.

    Raises:
      InputError: the vocabulary has no such token.
    """
    for token in _END_TOKENS:
      if token in self._ids:
        return self._ids[token]
    raise InputError(f"{self.path} has no end token: none of {', '.join(_END_TOKENS)}.")

  @property
  def definition(self) -> str:
    """The whole tokenizer, as the text of a tokenizer.json."""
    return self._tokenizer.to_str()

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text.

    Raises:
      InputError: the tokenizer cannot split a text.
    """
    ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
      part = list(texts[start : start + _BATCH])
      with _explained(f"{self.path} cannot split a text"):
        encodings = self._splitter.encode_batch_fast(part, add_special_tokens=False)
      ids += [encoding.ids for encoding in encodings]
    return ids

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a text, and the start and end of each token in characters.

    Raises:
      InputError: the tokenizer cannot split the text.
    """
    with _explained(f"{self.path} cannot split a text"):
      encoding = self._splitter.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def ids_by_role(
  vocabulary: Iterable[str], roles: Iterable[str]
) -> dict[str, tuple[int, ...]]:
  """For each role, a key of `NAMES`, the ids of its tokens; the first is the one to use.

  Example:
    >>> ids_by_role(["<s>", "a", "[CLS]"], [CLS, MASK])
    {'[CLS]': (2, 0), '[MASK]': ()}
  """
  ids = {token: number for number, token in enumerate(vocabulary)}
  return {role: tuple(ids[x] for x in NAMES[role] if x in ids) for role in roles}


def require_roles(found: Mapping[str, Sequence[int]], *, where: str = "The vocabulary"):
  """Checks that a vocabulary has a token for each role.

  Args:
    found: as from `ids_by_role`.
    where: what has the vocabulary, for the message.

  Raises:
    InputError: names the tokens that were looked for.
  """
  missing = [" or ".join(NAMES[role]) for role, ids in found.items() if not ids]
  if missing:
    raise InputError(
      f"{where} has no token {', no '.join(missing)}. Give another vocabulary."
    )


@functools.lru_cache(maxsize=2)
def load_tokenizer(path: str) -> Tokenizer:
  """The tokenizer in a file; cached, since every shard needs it."""
  return Tokenizer(path)


def _read_json(path: pathlib.Path) -> tuple[tokenizers.Tokenizer, list[str]]:
  with _explained(f"Expected a tokenizer.json of Hugging Face's tokenizers at {path}"):
    definition = parse_json(path.read_text(encoding="utf-8"))
    for token in definition.get("added_tokens") or []:
      token["special"] = token["content"] in _CONTROL
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
  tokenizer.no_padding()
  tokenizer.no_truncation()
  tokenizer.encode_special_tokens = True  # "<|endoftext|>" inside a text is text
  ids = tokenizer.get_vocab(with_added_tokens=True)
  size = max(ids.values(), default=-1) + 1
  if size > (most := path.stat().st_size):  # each token takes several bytes of the file
    raise InputError(
      f"{path} has a token with the id {size - 1:,}; a file of {most:,} bytes cannot have "
      "that many tokens. Correct its ids, or give another file."
    )
  vocabulary = [f"[unused {number}]" for number in range(size)]
  for token, number in ids.items():
    vocabulary[number] = token
  if not vocabulary:
    raise InputError(f"{path} has no vocabulary; expected at least one token.")
  return tokenizer, vocabulary


class _Around(NamedTuple):
  """The ids of the tokens that a tokenizer puts before a text, between two, and after."""

  before: tuple[int, ...]
  between: tuple[int, ...]
  after: tuple[int, ...]


def _read_around(tokenizer: tokenizers.Tokenizer) -> _Around:
  """What a tokenizer's post-processor puts around texts; nothing if it has none."""
  if not tokenizer.post_processor:
    return _Around((), (), ())
  probe = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
  probe.post_processor = tokenizer.post_processor  # which has the ids of its tokens
  one, two = probe.encode("a"), probe.encode("a", "a")
  place = one.sequence_ids.index(0)
  first, second = two.sequence_ids.index(0), two.sequence_ids.index(1)
  return _Around(
    tuple(one.ids[:place]), tuple(two.ids[first + 1 : second]), tuple(one.ids[place + 1 :])
  )


def _without_control(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """The tokenizer for texts, in which no text becomes a control token.

  In a vocabulary these are pieces like others: in a Unigram, as XLM-R's, they cost nothing,
  and in other models a word or merges may give them. So a text in which "<pad>" is typed
  would have the token of padding. They get names that no text has.
  """
  definition = json.loads(tokenizer.to_str())
  model = definition["model"]
  pieces = model["vocab"]  # a list of pairs in a Unigram
  entries = pieces if isinstance(pieces, list) else pieces.items()
  names = {piece: f"{_NOT_A_CHARACTER}{piece}" for piece, _ in entries if piece in _CONTROL}
  if not names:
    return tokenizer
  model["vocab"] = type(pieces)(
    (names.get(piece, piece), value) for piece, value in entries
  )
  if (unknown := model.get("unk_token")) in names:
    model["unk_token"] = names[unknown]
  if merges := model.get("merges"):
    prefix = model.get("continuing_subword_prefix") or ""
    model["merges"] = [
      (left, right)
      for left, right in merges
      if not names.keys() & {left, right, left + right.removeprefix(prefix)}
    ]
  definition["added_tokens"] = [
    token for token in definition["added_tokens"] if token["content"] not in names
  ]
  splitter = tokenizers.Tokenizer.from_str(json.dumps(definition))
  splitter.encode_special_tokens = True
  return splitter


def _check_beside(path: pathlib.Path, ours: tokenizers.Tokenizer):
  """Refuses a vocabulary whose own tokenizer.json splits text differently."""
  beside = path.with_name(TOKENIZER_FILE)
  if not beside.exists():
    return
  theirs, _ = _read_json(beside)
  if _rules(theirs) != _rules(ours):
    raise InputError(f"{beside} splits text differently than {path.name}. Give it instead.")


def _rules(tokenizer: tokenizers.Tokenizer) -> list:
  """What decides how text is split."""
  rules = json.loads(tokenizer.to_str())
  normalizer = rules["normalizer"] or {}
  if normalizer.get("strip_accents") and normalizer.get("lowercase"):
    normalizer["strip_accents"] = None  # which means the same
  added = [token["content"] for token in rules["added_tokens"] if not token["special"]]
  return [rules["model"], normalizer, rules["pre_tokenizer"], added]


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
  """Reports as InputError what `tokenizers` raises: Exception itself, and Rust's panics."""
  try:
    yield
  except BaseException as error:
    if isinstance(error, KeyboardInterrupt | SystemExit):
      raise
    raise InputError(f"{what}: {str(error).partition(chr(10))[0]}.") from error


# ---- word pieces -----------------------------------------------------------------------


def train_word_pieces(texts: Iterable[str], *, vocab_size: int) -> list[str]:
  """Learns a WordPiece vocabulary.

  Args:
    texts: the texts to learn from.
    vocab_size: the most tokens it may have, special tokens included. Every character of
      the texts is a token, so if these alone are more, the vocabulary is larger.

  Returns:
    The tokens in the order of their ids: special tokens first (padding is 0), then the
    others sorted by text, so that equal corpora give equal ids.
  """
  texts = list(texts)
  tokenizer = _word_pieces(models.WordPiece(unk_token=UNKNOWN))
  # The trainer numbers continuing characters in the order of a hash table, and breaks
  # ties by number. As special tokens they get fixed numbers.
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
  """Reads a BERT vocabulary: one token a line; the line number is the id, from 0.

  Raises:
    InputError: the file is missing or is not text, has a token twice, or lacks a special
      token.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
  except OSError as error:
    raise InputError(
      f"Cannot read the vocabulary {path}: {error.strerror}. Name BERT's vocab.txt or a "
      "tokenizer.json, or leave it out to learn a vocabulary."
    ) from error
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is not a vocabulary of one token a line: {error}.") from error
  vocabulary = text.removesuffix("\n").split("\n")  # a token may have other line ends
  remedy = "Give BERT's vocab.txt or a tokenizer.json."
  lines = collections.Counter(vocabulary)
  if missing := [token for token in SPECIAL_TOKENS if token not in lines]:
    raise InputError(f"{path} lacks {', '.join(missing)}. {remedy}")
  if len(lines) < len(vocabulary):
    ((token, number),) = lines.most_common(1)
    raise InputError(
      f"{path} has {short_repr(token)} on {number} lines; expected each token once. "
      f"{remedy}"
    )
  return vocabulary


def word_piece_tokenizer(vocabulary: Sequence[str]) -> tokenizers.Tokenizer:
  """BERT's uncased tokenizer for a vocabulary; adds no special tokens.

  Example:
    >>> tokenizer = word_piece_tokenizer([*SPECIAL_TOKENS, "pack", "##ing", "!"])
    >>> tokenizer.encode("Packing!").ids
    [5, 6, 7]
  """
  ids = {token: i for i, token in enumerate(vocabulary)}
  return _word_pieces(models.WordPiece(ids, unk_token=UNKNOWN))


def _word_pieces(model: models.Model) -> tokenizers.Tokenizer:
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer


# ---- bytes -----------------------------------------------------------------------------


def train_bpe(
  texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str] = (END,)
) -> str:
  """Learns a byte-level BPE.

  Args:
    texts: the texts to learn from.
    vocab_size: the most tokens it may have, special tokens included; at least
      `NUM_BYTES` more than these.
    special_tokens: tokens that text is never encoded as.

  Returns:
    A tokenizer.json. Special tokens have the ids from 0 and the bytes follow; equal
    corpora give equal ids.

  References:
    Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2.
  """
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=list(special_tokens),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer.to_str()
