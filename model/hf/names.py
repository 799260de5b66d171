"""Where a Hugging Face file holds each parameter: names, transposes, joined tensors.

Example:
  >>> tensor_of(("encoder", "layers", 3, "query", "kernel")).name
  'bert.encoder.layer.3.attention.self.query.weight'
  >>> tensor_of(("decoder", "layers", 3, "key", "bias"), head="causal")
  Tensor(name='transformer.h.3.attn.c_attn.bias', part=1, parts=3, transposed=False)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from model.weights import Params

_BERT = {
  "embeddings.token": "bert.embeddings.word_embeddings",
  "embeddings.position": "bert.embeddings.position_embeddings",
  "embeddings.token_type": "bert.embeddings.token_type_embeddings",
  "embeddings.layer_norm": "bert.embeddings.LayerNorm",
  "pooler": "bert.pooler.dense",
  "mlm_transform": "cls.predictions.transform.dense",
  "mlm_layer_norm": "cls.predictions.transform.LayerNorm",
  "nsp": "cls.seq_relationship",
  "classifier": "classifier",
  "answer": "qa_outputs",
}
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
_GPT2 = {
  "embeddings.token": "transformer.wte",
  "embeddings.position": "transformer.wpe",
  "final_layer_norm": "transformer.ln_f",
}
_GPT2_LAYER = {
  "attention_layer_norm": "ln_1",
  "attention_output": "attn.c_proj",
  "output_layer_norm": "ln_2",
  "intermediate": "mlp.c_fc",
  "output": "mlp.c_proj",
}
_JOINED = ("query", "key", "value")  # one tensor of GPT-2, side by side

_PREFIX = "bert."  # of the encoder, where a file holds a head, too
_BERT_BUFFERS = r"(bert\.)?embeddings\.(position|token_type)_ids"
_POOLER = r"bert\.pooler\.dense\.(weight|bias)"  # in old files whose head has no pooler
_GPT2_BUFFERS = r"transformer\.h\.\d+\.attn\.(masked_)?bias"
# The decoder is tied; old files hold a copy.
_TIED = {
  "pretraining": {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  },
  "causal": {"lm_head.weight": "transformer.wte.weight"},
}


class Tensor(NamedTuple):
  """A tensor that is a parameter, or holds it as one of `parts` along its last axis."""

  name: str
  part: int = 0
  parts: int = 1
  transposed: bool = False

  def shape_of(self, leaf) -> tuple[int, ...]:
    """The shape of the whole tensor, given the parameter."""
    shape = leaf.shape[::-1] if self.transposed else leaf.shape
    return (*shape[:-1], self.parts * shape[-1])

  def take(self, tensor: np.ndarray) -> np.ndarray:
    """The parameter, from the whole tensor."""
    part = np.split(tensor, self.parts, axis=-1)[self.part]
    return part.T if self.transposed else part


def tensor_of(path: tuple, *, head: str = "pretraining") -> Tensor:
  """The tensor of a parameter.

  Args:
    path: the keys of the parameter.
    head: of the model; a key of `model.MODELS`.
  """
  *modules, leaf = path
  suffix = "bias" if leaf == "bias" else "weight"
  if head == "causal":
    return _gpt2_tensor(modules, suffix)
  transposed = leaf == "kernel"
  if leaf == "mlm_bias":
    name = "cls.predictions.bias"
  elif modules[:2] == ["encoder", "layers"]:
    _, _, number, module = modules
    name = f"bert.encoder.layer.{number}.{_BERT_LAYER[module]}.{suffix}"
  else:
    name = f"{_BERT['.'.join(modules)]}.{suffix}"
  return Tensor(_in_file(name, head), transposed=transposed)


def _in_file(name: str, head: str) -> str:
  return name.removeprefix(_PREFIX) if head == "encoder" else name


def _gpt2_tensor(modules: list, suffix: str) -> Tensor:
  """GPT-2 stores kernels as [in, out], like this project."""
  if modules[0] != "decoder":
    return Tensor(f"{_GPT2['.'.join(modules)]}.{suffix}")
  _, _, number, module = modules
  layer = f"transformer.h.{number}"
  if module in _JOINED:
    part, parts = _JOINED.index(module), len(_JOINED)
    return Tensor(f"{layer}.attn.c_attn.{suffix}", part, parts)
  return Tensor(f"{layer}.{_GPT2_LAYER[module]}.{suffix}")


def current_name(name: str, *, head: str) -> str:
  """The name that transformers gives now to a tensor of an older file."""
  if head != "causal":
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return _in_file(name.replace("LayerNorm.beta", "LayerNorm.bias"), head)
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def is_ignored(name: str, *, head: str) -> bool:
  """Whether the model does not need a tensor."""
  known = _GPT2_BUFFERS if head == "causal" else f"{_BERT_BUFFERS}|{_POOLER}"
  return re.fullmatch(known, name) is not None


def tied(head: str) -> dict[str, str]:
  """Tensors that a file may hold besides, and the tensors that they copy."""
  return _TIED.get(head, {})


def shapes_there(params: Params, *, head: str) -> dict[str, tuple[int, ...]]:
  """The tensors of a file for these parameters, with their shapes."""
  return {place.name: place.shape_of(leaf) for place, leaf in _places(params, head)}


def to_tensors(params: Params, *, head: str) -> dict[str, np.ndarray]:
  """The tensors of a file from the parameters."""
  parts: dict[str, dict[int, np.ndarray]] = {}
  for place, leaf in _places(params, head):
    array = np.asarray(leaf)
    parts.setdefault(place.name, {})[place.part] = array.T if place.transposed else array
  return {
    name: np.ascontiguousarray(np.concatenate([arrays[n] for n in sorted(arrays)], axis=-1))
    for name, arrays in parts.items()
  }


def from_tensors(
  read: Callable[[str], np.ndarray], expected: Params, *, head: str
) -> Params:
  """The parameters from the tensors of a file; the inverse of `to_tensors`.

  Args:
    read: from a name to the tensor.
    expected: a tree with the parameters' paths.
    head: of the model.
  """

  def parameter(keys, _) -> np.ndarray:
    tensor = tensor_of(_path(keys), head=head)
    return tensor.take(read(tensor.name))

  return jax.tree_util.tree_map_with_path(parameter, expected)


def _places(params: Params, head: str) -> list[tuple[Tensor, Any]]:
  leaves = jax.tree_util.tree_flatten_with_path(params)[0]
  return [(tensor_of(_path(keys), head=head), leaf) for keys, leaf in leaves]


def _path(keys) -> tuple:
  return tuple(key.key for key in keys)
