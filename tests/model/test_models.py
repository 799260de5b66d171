"""Models are drawn as nnx draws them."""

import flax.nnx as nnx
import jax
import numpy as np
import pytest

from model import MODELS
from model.models import make_model
from tests import packs


@pytest.mark.parametrize("head", MODELS)
def test_parameters_are_those_of_nnx(head):
  config = packs.small_gpt2() if head == "causal" else packs.small_config()

  @jax.jit
  def both():
    models = make_model(config, head, seed=5), MODELS[head](config, rngs=nnx.Rngs(5))
    return [nnx.to_pure_dict(nnx.state(model, nnx.Param)) for model in models]

  jax.tree.map(np.testing.assert_array_equal, *both())
