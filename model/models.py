"""The models, by the name of their head."""

from __future__ import annotations

from typing import cast

import flax.nnx as nnx
import jax

from model.bert import (
  BertForPreTraining,
  BertForQuestionAnswering,
  BertForSequenceClassification,
  BertForTokenClassification,
  BertModel,
)
from model.blocks import Transformer
from model.config import VARIANTS, ModelConfig
from model.gpt2 import Gpt2
from model.modern_bert import (
  ModernBertForMaskedLM,
  ModernBertForSequenceClassification,
  ModernBertForTokenClassification,
  ModernBertModel,
)

# By the names of family and head that configs and commands use.
MODELS: dict[str, dict[str, type[Transformer]]] = {
  "bert": {
    "pretraining": BertForPreTraining,
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
    "question_answering": BertForQuestionAnswering,
    "encoder": BertModel,
  },
  "modern_bert": {
    "pretraining": ModernBertForMaskedLM,
    "sequence_classification": ModernBertForSequenceClassification,
    "token_classification": ModernBertForTokenClassification,
    "encoder": ModernBertModel,
  },
  "gpt2": {"causal": Gpt2},
}
CONFIGS: dict[str, type[ModelConfig]] = {
  family: next(iter(models.values())).config_type for family, models in MODELS.items()
}
# Heads with logits over the vocabulary, which are too many to return from a step.
LANGUAGE_MODELS = ("pretraining", "causal")


def model_of(config: ModelConfig, head: str) -> type[Transformer]:
  """The class of a model.

  Raises:
    ValueError: this family has no such head.

  Example:
    >>> from model import BertConfig
    >>> config = BertConfig.from_size("tiny", vocab_size=11, max_position_embeddings=7)
    >>> model_of(config, "encoder").__name__
    'BertModel'
  """
  models = MODELS[config.FAMILY]
  if head not in models:
    raise ValueError(f"{config.FAMILY} has no head {head!r}; expected {', '.join(models)}.")
  return models[head]


def name_of(config: ModelConfig, head: str) -> str:
  """The name of a model, which tells its variant.

  Example:
    >>> from model import BertConfig
    >>> absent = {"next_sentence": False, "pooler": False, "variant": "electra"}
    >>> config = BertConfig.from_size(
    ...   "tiny", vocab_size=11, max_position_embeddings=7, **absent
    ... )
    >>> name_of(config, "question_answering")
    'ElectraForQuestionAnswering'
  """
  name, variant = model_of(config, head).__name__, getattr(config, "variant", "bert")
  if variant == "bert":
    return name
  name = name.replace("Bert", VARIANTS[variant].name, 1)
  return name.replace("ForPreTraining", "ForMaskedLM")  # none predicts next sentences


def metric_of(head: str) -> str:
  """The held-out metric that ranks models; higher is better.

  Args:
    head: the models' head; a key of `model.MODELS`.
  """
  language = {"pretraining": "mlm_accuracy", "causal": "causal_accuracy"}
  return language.get(head, "score")


class _ParameterKeys:
  """Returns the keys that `nnx.Rngs(seed).params()` returns, but has no nnx variables.

  Under `jit`, nnx reads the sharding of the counter in `nnx.Rngs` for each key. A traced
  value has no sharding, and JAX takes long to format that error each time.
  """

  def __init__(self, seed: int):
    self._key, self._count = jax.random.key(seed), 0

  def params(self) -> jax.Array:
    key = jax.random.fold_in(self._key, self._count)
    self._count += 1
    return key


def make_model(config: ModelConfig, head: str, *, seed: int) -> Transformer:
  """A model with random parameters, equal to those with `rngs=nnx.Rngs(seed)`.

  Example:
    >>> from model import Gpt2Config
    >>> config = Gpt2Config.from_size("tiny", vocab_size=11)
    >>> ours = nnx.state(make_model(config, "causal", seed=3), nnx.Param)
    >>> theirs = nnx.state(Gpt2(config, rngs=nnx.Rngs(3)), nnx.Param)
    >>> all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), ours, theirs)))
    True
  """
  return model_of(config, head)(config, rngs=cast(nnx.Rngs, _ParameterKeys(seed)))


def draw_params(config: ModelConfig, head: str, *, seed: int) -> dict:
  """The random parameters of `make_model`: a nested dictionary of NumPy arrays.

  They are drawn on `drawing_device`, without `jit`, which would compile for each seed.
  """
  with jax.default_device(drawing_device()):
    model = make_model(config, head, seed=seed)
    return jax.device_get(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def drawing_device() -> jax.Device:
  """The CPU: for a GPU, XLA would compile the drawing of parameters for minutes.

  Raises:
    LookupError: JAX_PLATFORMS excludes the CPU.
  """
  try:
    return jax.local_devices(backend="cpu")[0]
  except RuntimeError as error:
    raise LookupError(f"JAX has no CPU ({error}). Set JAX_PLATFORMS=cuda,cpu.") from error


def abstract_model(config: ModelConfig, head: str) -> tuple[nnx.GraphDef, nnx.State]:
  """A model's structure, and the shapes and types of its parameters."""
  model = nnx.eval_shape(lambda: make_model(config, head, seed=0))
  return nnx.split(model, nnx.Param)
