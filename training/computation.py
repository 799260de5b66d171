"""The dtype and the attention that a run computes with, where its config says auto."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import ml_collections

import model
from model import attention
from training.config import row_length


class Computation(NamedTuple):
  """How a run computes.

  Attributes:
    config: the model's, with the names of a dtype and an implementation of attention.
    why: why these, in words.
  """

  config: model.ModelConfig
  why: str

  def __str__(self) -> str:
    return (
      f"computing in {self.config.dtype.name} with attention_impl="
      f"{self.config.attention_impl}: {self.why}"
    )


def choose(
  config: ml_collections.ConfigDict,
  model_config: model.ModelConfig,
  *,
  begun: model.ModelConfig | None,
) -> Computation:
  """Chooses what `auto` stands for: what the run began with, or the fastest on this device.

  A resumed run keeps its dtype. It keeps its implementation of attention if this device has
  it.

  Args:
    config: the run's config.
    model_config: the model that it describes.
    begun: the model as the run began it; None for a new run.

  Raises:
    AttentionError: an implementation that the config names cannot compute the model here.
  """
  lengths = {row_length(config), config.data.max_sequence_length}
  if begun and config.model.dtype == "auto":
    model_config = dataclasses.replace(model_config, dtype=begun.dtype)
  if begun and config.model.attention_impl == "auto":
    before = dataclasses.replace(model_config, attention_impl=begun.attention_impl)
    try:
      attention.choose(before, lengths)
    except model.AttentionError as error:
      choice = attention.choose(model_config, lengths)
      why = f"the run began with {begun.attention_impl}, but {error}"
      chosen = dataclasses.replace(model_config, attention_impl=choice.implementation)
      return Computation(chosen, why)
    return Computation(before, "as the run began")
  choice = attention.choose(model_config, lengths)
  chosen = dataclasses.replace(model_config, attention_impl=choice.implementation)
  return Computation(chosen, choice.why)
