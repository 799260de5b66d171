"""The dtype and the attention that a run computes with, where its config says auto."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import model
from launch.settings import RunSettings
from model import attention
from training import processes
from training.errors import ConfigError, Stopped


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

  def check_all_processes(self):
    """Raises Stopped if process 0 computes in another way: devices would wait for ever."""
    ours = [self.config.dtype.name, self.config.attention_impl]
    first = processes.on_first(lambda: ours)
    if ours != first:
      raise Stopped(
        f"Process 0 computes in {' with '.join(first)}, this one in {' with '.join(ours)}. "
        "Set --config.model.dtype and --config.model.attention_impl for all."
      )


def of(model_config: model.ModelConfig, row_lengths: Iterable[int]) -> Computation:
  """How a model computes: in its own dtype, with its own attention or the fastest for auto.

  Args:
    model_config: the config of the model.
    row_lengths: the lengths of its rows, in tokens.

  Raises:
    AttentionError: its implementation of attention cannot compute it here.
  """
  choice = attention.choose(model_config, row_lengths)
  named = dataclasses.replace(model_config, attention_impl=choice.implementation)
  return Computation(named, choice.why)


def of_run(
  run: RunSettings,
  model_config: model.ModelConfig,
  row_lengths: Iterable[int],
  *,
  begun: model.ModelConfig | None,
) -> Computation:
  """The same for a run; one that resumes keeps its dtype, whatever the device.

  Args:
    run: its settings.
    model_config: its model.
    row_lengths: from `launch.plans.row_lengths`.
    begun: the model as the run began it; None for a new run.

  Raises:
    AttentionError: an implementation that the run names cannot compute the model here.
  """
  if begun and run.model.dtype == "auto":
    model_config = dataclasses.replace(model_config, dtype=begun.dtype)
  return of(model_config, row_lengths)


def check_attention(run: RunSettings, model_config: model.ModelConfig):
  """Checks that the attention that a run names can compute its model here.

  Raises:
    ConfigError: it cannot; the message says why.
  """
  try:
    for length in run.rows.lengths:
      attention.check_model(model_config, length)
  except model.AttentionError as error:
    raise ConfigError(f"config.model: {error}") from error
