"""The settings, tokenizer and tally with which a task makes sequences."""

from __future__ import annotations

import collections
import dataclasses

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.tokenizer import CLS, SEP, Tokenizer


@dataclasses.dataclass(frozen=True)
class Encoder:
  """A tokenizer with the settings of a dataset.

  Attributes:
    settings: how documents become sequences.
    tokenizer: for their texts.
    tally: counts what happens to documents, for the manifest.
  """

  settings: DatasetSettings
  tokenizer: Tokenizer
  tally: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

  @property
  def cls(self) -> int:
    return self.tokenizer.id_of(CLS)

  @property
  def sep(self) -> int:
    return self.tokenizer.id_of(SEP)

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
