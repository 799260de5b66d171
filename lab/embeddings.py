"""Embeddings of packed texts by a stored model."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from model import EncoderConfig, hf, weights
from pipeline.prediction.chunks import BatchShape
from pipeline.prediction.embeddings import embed_examples
from pipeline.prediction.examples import examples_of
from pipeline.prediction.of_model import open_tokenizer, settings_to_read
from training.evaluation import embed, prediction_config
from training.mesh import make_mesh
from training.step import ModelProgram

Embed = Callable[[list[str]], np.ndarray]  # texts to float32[N, D]


def embedder(folder: str | pathlib.Path, *, source: str, longest: int, rows: int) -> Embed:
  """Embeds packed texts, as `predict.py --embed` does.

  Args:
    folder: of the model, a Hugging Face directory.
    source: of the texts, for messages.
    longest: most tokens of a text and of a row.
    rows: in a batch.

  Raises:
    InputError: the model cannot read texts of this length.
    WeightsError: the folder has no such model.
  """
  opened = hf.open_model(folder)
  there = opened.config_as(EncoderConfig)
  settings = settings_to_read(
    source,
    "",
    trained_on=None,
    task=None,
    changes={"max_sequence_length": longest},
    positions=there.max_position_embeddings,
    num_labels=there.num_labels,
  )
  tokenizer = open_tokenizer(opened.directory, opened.vocabulary)
  stored = weights.encoder_of(opened)
  config = prediction_config(stored.config)
  program = ModelProgram(config, mesh=make_mesh(1), head=stored.head)
  params = jax.device_put(stored.load())
  shape = BatchShape(longest, batch_size=rows)
  compute = functools.partial(embed, program, params)

  def run(texts: list[str]) -> np.ndarray:
    examples = examples_of(texts, settings, tokenizer)
    return np.array([one.vector for one in embed_examples(compute, examples, shape=shape)])

  return run
