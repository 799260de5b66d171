"""Maps each parameter to its place in a Hugging Face file: name, transpose, joined tensor.

Example:
  >>> from model import BertForPreTraining, Gpt2
  >>> path = "encoder", "layers", 3, "query", "kernel"
  >>> tensor_of(path, Kind(BertForPreTraining, "bert")).name
  'bert.encoder.layer.3.attention.self.query.weight'
  >>> tensor_of(path, Kind(BertForPreTraining, "distilbert")).name
  'distilbert.transformer.layer.3.attention.q_lin.weight'
  >>> tensor_of(("decoder", "layers", 3, "key", "bias"), Kind(Gpt2, "gpt2"))
  Tensor(name='transformer.h.3.attn.c_attn.bias', part=1, parts=3, transposed=False)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from model.bert import BertModel
from model.blocks import Transformer
from model.config import ModelConfig
from model.models import model_of
from model.modern_bert import ModernBertModel
from model.weights import Params


class Kind(NamedTuple):
  """Which tensors a file holds.

  Attributes:
    model: the class of our model, which has a head.
    family: a key of the families of names.
  """

  model: type[Transformer]
  family: str


class _Family(NamedTuple):
  """The names of a kind of model.

  Attributes:
    prefix: the prefix of all tensors outside of heads, if the file holds a head.
    modules: maps our names of modules outside of layers to theirs.
    layer: the prefix of the tensors of layers.
    layer_modules: maps our names of modules in a layer to theirs.
    joined: the name of the joint tensor of query, key and value; "" if each has its own.
    transposed: whether kernels are stored as [out, in]; ours are [in, out].
    by_model: by model, names of modules that differ there.
    tied: by model, the copies that a file may hold, and the tensors that they copy.
    ignored: a regular expression for tensors that no model needs.
    older: maps parts of names in older files to today's.
  """

  prefix: str
  modules: dict[str, str]
  layer: str
  layer_modules: dict[str, str]
  joined: str
  transposed: bool
  by_model: dict[str, dict[str, str]]
  tied: dict[str, dict[str, str]]
  ignored: str
  older: dict[str, str]


_JOINED = ("query", "key", "value")


def _embeddings(prefix: str) -> dict[str, str]:
  """The modules of embeddings in BERT and those that keep its names."""
  names = {
    "token": "word_embeddings",
    "position": "position_embeddings",
    "token_type": "token_type_embeddings",
    "layer_norm": "LayerNorm",
  }
  return {f"embeddings.{ours}": f"{prefix}.embeddings.{x}" for ours, x in names.items()}


_BERT_LAYER = {
  "query": "attention.self.query",
  "key": "attention.self.key",
  "value": "attention.self.value",
  "attention_output": "attention.output.dense",
  "attention_layer_norm": "attention.output.LayerNorm",
  "intermediate": "intermediate.dense",
  "output": "output.dense",
  "output_layer_norm": "output.LayerNorm",
}
# A classifier of sequences whose two layers are in one module.
_TWO_LAYERS = {
  "BertForSequenceClassification": {
    "classifier_transform": "classifier.dense",
    "classifier": "classifier.out_proj",
  }
}


def _of_berts_kind(
  prefix: str,
  modules: dict[str, str],
  *,
  tied: dict[str, str],
  ignored: str = r"(?!)",
  by_model: dict[str, dict[str, str]] | None = None,
  layer: str = "encoder.layer",
  layer_modules: dict[str, str] | None = None,
) -> _Family:
  """The names of BERT, or of an encoder of its kind.

  Args:
    prefix: as in `_Family`, without the dot.
    modules: those of heads.
    tied: by copy, the tensors of a masked language model that may be stored twice.
    ignored: a regular expression for tensors besides buffers.
    by_model: as in `_Family`.
    layer: the prefix of layers, within that of the encoder.
    layer_modules: those of layers; None for BERT's.
  """
  return _Family(
    prefix=f"{prefix}.",
    modules=_embeddings(prefix)
    | {"classifier": "classifier", "answer": "qa_outputs"}
    | modules,
    layer=f"{prefix}.{layer}",
    layer_modules=layer_modules or _BERT_LAYER,
    joined="",
    transposed=True,
    by_model=by_model or {},
    tied={"BertForPreTraining": tied},
    ignored=rf"({prefix}\.)?embeddings\.(position|token_type)_ids|{ignored}",
    older={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
  )


_ROBERTA = _of_berts_kind(
  "roberta",
  {
    "pooler": "roberta.pooler.dense",
    "mlm_transform": "lm_head.dense",
    "mlm_layer_norm": "lm_head.layer_norm",
    "mlm_bias": "lm_head",
  },
  tied={
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
  },
  # The pooler in old files whose head does not use it.
  ignored=r"roberta\.pooler\.dense\.(weight|bias)",
  by_model=_TWO_LAYERS,
)
_FAMILIES = {
  "bert": _of_berts_kind(
    "bert",
    {
      "pooler": "bert.pooler.dense",
      "mlm_transform": "cls.predictions.transform.dense",
      "mlm_layer_norm": "cls.predictions.transform.LayerNorm",
      "mlm_bias": "cls.predictions",
      "nsp": "cls.seq_relationship",
    },
    tied={
      "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
      "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    # The pooler in old files whose head does not use it.
    ignored=r"bert\.pooler\.dense\.(weight|bias)",
  ),
  "roberta": _ROBERTA,
  "xlm-roberta": _ROBERTA,
  "camembert": _ROBERTA,
  "distilbert": _of_berts_kind(
    "distilbert",
    {
      "mlm_transform": "vocab_transform",
      "mlm_layer_norm": "vocab_layer_norm",
      "mlm_bias": "vocab_projector",
      "classifier_transform": "pre_classifier",
    },
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    layer="transformer.layer",
    layer_modules={
      "query": "attention.q_lin",
      "key": "attention.k_lin",
      "value": "attention.v_lin",
      "attention_output": "attention.out_lin",
      "attention_layer_norm": "sa_layer_norm",
      "intermediate": "ffn.lin1",
      "output": "ffn.lin2",
      "output_layer_norm": "output_layer_norm",
    },
  ),
  "electra": _of_berts_kind(
    "electra",
    {
      "embeddings.projection": "electra.embeddings_project",
      "mlm_transform": "generator_predictions.dense",
      "mlm_layer_norm": "generator_predictions.LayerNorm",
      "mlm_bias": "generator_lm_head",
    },
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    # The head that finds replaced tokens, which this model lacks.
    ignored=r"discriminator_predictions\..*",
    by_model=_TWO_LAYERS,
  ),
  "modern_bert": _Family(
    prefix="model.",
    modules={
      "embeddings.token": "model.embeddings.tok_embeddings",
      "embeddings.layer_norm": "model.embeddings.norm",
      "final_layer_norm": "model.final_norm",
      "head.dense": "head.dense",
      "head.layer_norm": "head.norm",
      "mlm_bias": "decoder",
      "classifier": "classifier",
      "token_classifier": "classifier",
    },
    layer="model.layers",
    layer_modules={
      "attention_output": "attn.Wo",
      "attention_layer_norm": "attn_norm",
      "intermediate": "mlp.Wi",
      "output": "mlp.Wo",
      "output_layer_norm": "mlp_norm",
    },
    joined="attn.Wqkv",
    transposed=True,
    by_model={},
    tied={
      "ModernBertForMaskedLM": {
        "decoder.weight": "model.embeddings.tok_embeddings.weight",
      }
    },
    ignored=r"(?!)",
    older={},
  ),
  "gpt2": _Family(
    prefix="transformer.",
    modules={
      "embeddings.token": "transformer.wte",
      "embeddings.position": "transformer.wpe",
      "final_layer_norm": "transformer.ln_f",
    },
    layer="transformer.h",
    layer_modules={
      "attention_layer_norm": "ln_1",
      "attention_output": "attn.c_proj",
      "output_layer_norm": "ln_2",
      "intermediate": "mlp.c_fc",
      "output": "mlp.c_proj",
    },
    joined="attn.c_attn",
    transposed=False,
    by_model={},
    tied={"Gpt2": {"lm_head.weight": "transformer.wte.weight"}},
    ignored=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
    older={},
  ),
}


class Tensor(NamedTuple):
  """A tensor that is a parameter, or holds it as one of `parts` along the last axis."""

  name: str
  part: int = 0
  parts: int = 1
  transposed: bool = False

  def shape_of(self, leaf) -> tuple[int, ...]:
    """The shape of the whole tensor, given the parameter."""
    shape = (*leaf.shape[:-1], self.parts * leaf.shape[-1])
    return shape[::-1] if self.transposed else shape

  def take(self, tensor: np.ndarray) -> np.ndarray:
    """The parameter, from the whole tensor."""
    whole = tensor.T if self.transposed else tensor
    return np.split(whole, self.parts, axis=-1)[self.part]


def tensor_of(path: tuple, kind: Kind) -> Tensor:
  """The tensor of a parameter.

  Args:
    path: the keys of the parameter.
    kind: the model.
  """
  family = _family(kind)
  *modules, leaf = path
  if leaf == "mlm_bias":
    modules = [leaf]
  suffix = "bias" if leaf in ("bias", "mlm_bias") else "weight"
  transposed = family.transposed and leaf == "kernel"
  if modules[0] != kind.model.stack_name:
    module = ".".join(modules)
    others = family.by_model.get(kind.model.__name__, {})
    name = others.get(module) or family.modules[module]
    return Tensor(_in_file(f"{name}.{suffix}", kind), transposed=transposed)
  _, _, number, module = modules
  part, parts = 0, 1
  if family.joined and module in _JOINED:
    part, parts = _JOINED.index(module), len(_JOINED)
  theirs = family.joined if parts > 1 else family.layer_modules[module]
  name = _in_file(f"{family.layer}.{number}.{theirs}.{suffix}", kind)
  return Tensor(name, part, parts, transposed)


def kind_of(config: ModelConfig, head: str) -> Kind:
  """The kind of a model with a head."""
  return Kind(model_of(config, head), getattr(config, "variant", config.FAMILY))


def _family(kind: Kind) -> _Family:
  return _FAMILIES[kind.family]


def _in_file(name: str, kind: Kind) -> str:
  alone = kind.model in (BertModel, ModernBertModel)
  return name.removeprefix(_family(kind).prefix) if alone else name


def current_name(name: str, kind: Kind) -> str:
  """The current name in transformers of a tensor in a file that may be older."""
  family = _family(kind)
  for older, now in family.older.items():
    name = name.replace(older, now)
  if family is _FAMILIES["gpt2"] and not name.startswith((family.prefix, "lm_head.")):
    return family.prefix + name
  return _in_file(name, kind)


def is_ignored(name: str, kind: Kind) -> bool:
  """Whether a tensor is not needed by the model."""
  return re.fullmatch(_family(kind).ignored, name) is not None


def tied(kind: Kind) -> dict[str, str]:
  """The tensors that a file may also hold, and the tensors that they copy."""
  return _family(kind).tied.get(kind.model.__name__, {})


def shapes_there(params: Params, kind: Kind) -> dict[str, tuple[int, ...]]:
  """The shapes, by name, of the tensors that a file has for these parameters."""
  return {place.name: place.shape_of(leaf) for place, leaf in _places(params, kind)}


def to_tensors(params: Params, kind: Kind) -> dict[str, np.ndarray]:
  """Turns parameters into the tensors of a file."""
  parts: dict[Tensor, dict[int, np.ndarray]] = {}
  for place, leaf in _places(params, kind):
    whole = place._replace(part=0)
    parts.setdefault(whole, {})[place.part] = np.asarray(leaf)
  joined = {
    whole: np.concatenate([arrays[n] for n in sorted(arrays)], axis=-1)
    for whole, arrays in parts.items()
  }
  return {
    whole.name: np.ascontiguousarray(array.T if whole.transposed else array)
    for whole, array in joined.items()
  }


def from_tensors(read: Callable[[str], np.ndarray], expected: Params, kind: Kind) -> Params:
  """Turns the tensors of a file into parameters; the inverse of `to_tensors`.

  Args:
    read: a function from the name of a tensor to its value.
    expected: a tree with the paths of the parameters.
    kind: the model.
  """

  def parameter(keys, _) -> np.ndarray:
    tensor = tensor_of(_path(keys), kind)
    return tensor.take(read(tensor.name))

  return jax.tree_util.tree_map_with_path(parameter, expected)


def _places(params: Params, kind: Kind) -> list[tuple[Tensor, Any]]:
  leaves = jax.tree_util.tree_flatten_with_path(params)[0]
  return [(tensor_of(_path(keys), kind), leaf) for keys, leaf in leaves]


def _path(keys) -> tuple:
  return tuple(key.key for key in keys)
