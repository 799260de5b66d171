"""The settings, tokenizer and tally with which a task makes sequences."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.tokenizer import SEP, Tokenizer

SPECIAL_IN_TEXT = "texts_with_special_tokens"  # in a tally


def about_special_tokens(count: int) -> str:
  """A line for the user of texts in which special tokens are typed."""
  return (
    f"Texts with special tokens such as {SEP}: {count:,}. isopack splits these like other "
    "text. transformers reads them as the special tokens, so a model that was trained with "
    "it may answer differently."
  )


@dataclasses.dataclass(frozen=True)
class Encoder:
  """A tokenizer with the settings of a dataset.

  Attributes:
    settings: how documents become sequences.
    tokenizer: for their texts.
    tally: counts what happens to documents, for the manifest.
    special_in_text: how many special tokens a sequence of one text has.
  """

  special_in_text: ClassVar[int] = 2  # [CLS] text [SEP]

  settings: DatasetSettings
  tokenizer: Tokenizer
  tally: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

  @property
  def cls(self) -> int:
    """The token that begins a text."""
    return self.tokenizer.cls_id

  @property
  def sep(self) -> int:
    """The token that ends a text."""
    return self.tokenizer.sep_id

  @property
  def separators(self) -> tuple[int, ...]:
    """The tokens between two texts in a sequence."""
    return self.tokenizer.separators

  @property
  def special_in_pair(self) -> int:
    """How many special tokens a sequence of two texts has: 3 in BERT, 4 in RoBERTa."""
    return 2 + len(self.separators)

  def enclosed(self, ids: Sequence[int]) -> list[int]:
    """The tokens of a text between its special tokens: [CLS] text [SEP]."""
    return [self.cls, *ids, self.sep]

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text; raises as `Tokenizer.encode`."""
    self._count_special(texts)
    return self.tokenizer.encode(texts)

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a text and their places; raises as `Tokenizer.encode_with_offsets`."""
    self._count_special([text])
    return self.tokenizer.encode_with_offsets(text)

  def _count_special(self, texts: Sequence[str]):
    found = sum(1 for text in texts if self.tokenizer.has_special_token(text))
    if found:  # so that a tally without any has no such count
      self.tally[SPECIAL_IN_TEXT] += found

  def count_too_long(
    self, what: str, length: int, most: int, *, choices: str = "truncate or split"
  ):
    """Counts a text of more than `most` tokens.

    Raises:
      InputError: the settings forbid it. The message recommends `choices`.
    """
    self.tally["too_long"] += 1
    if self.settings.too_long == "error":
      raise InputError(
        f"{what} has {length} tokens; expected at most {most}. Set too_long to {choices}."
      )
