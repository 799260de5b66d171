"""A small encoder with random weights, as a Hugging Face directory."""

import jax
import numpy as np

from model import hf, weights
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs


def write(folder, words, **fields):
  """Writes an encoder that knows `words` and the special tokens; returns all its tokens.

  `fields` are of its config.
  """
  tokens = (*SPECIAL_TOKENS, *words)
  config = packs.small_config(vocab_size=len(tokens), **fields)
  params = jax.tree.map(np.asarray, packs.random_params(config)[1])
  hf.export_model(config, params, folder, vocabulary=weights.Vocabulary(tokens))
  return tokens
