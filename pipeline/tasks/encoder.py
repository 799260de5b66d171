"""What each task makes sequences with: settings, a tokenizer and a tally."""

from __future__ import annotations

import collections
import dataclasses

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
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
    self,
    document: Document,
    what: str,
    length: int,
    most: int,
    *,
    choices: str = "truncate or split",
  ):
    """Counts what is over the limit.

    Args:
      document: that holds it.
      what: what is too long, for the message.
      length: in tokens.
      most: the limit, in tokens.
      choices: values of `too_long` that accept it.

    Raises:
      InputError: `too_long` is "error".
    """
    self.tally["too_long"] += 1
    if self.settings.too_long == "error":
      raise InputError(
        f"{document.where}: {what} has {length} tokens; expected at most {most}. Raise "
        f"--max-sequence-length, or choose --too-long {choices}."
      )
