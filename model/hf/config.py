"""Reads and writes the `config.json` of a Hugging Face directory."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

import packing
from model.config import VARIANTS, BertConfig, EncoderConfig, ModelConfig
from model.gpt2 import Gpt2Config
from model.hf.tokenizer import SPECIAL_TOKENS
from model.models import MODELS, model_of
from model.modern_bert import ModernBertConfig
from model.weights import Vocabulary, WeightsError
from packing.files import parse_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class _Family(NamedTuple):
  """How `config.json` describes a kind of model.

  Attributes:
    config_type: the class of our config.
    heads: maps the name of an architecture to the head.
    fields: maps our names of fields to theirs. Fields may be missing: both sides have the
      same defaults.
    supported: for fields without a counterpart, the values that our model supports; the
      first is the default.
    dropouts: for fields that must equal `dropout_rate`, the other values that are allowed.
  """

  config_type: type[ModelConfig]
  heads: dict[str, str]
  fields: dict[str, str]
  supported: dict[str, tuple]
  dropouts: dict[str, tuple]


_MULTI_LABEL = "multi_label_classification"  # a value of problem_type
_PROBLEMS = None, "single_label_classification", _MULTI_LABEL, "regression"
_SHARED = {"add_cross_attention": (False,), "quantization_config": (None,)}
# Fields of all encoders.
_SIZES = {
  "vocab_size": "vocab_size",
  "hidden_size": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "intermediate_size": "intermediate_size",
  "max_position_embeddings": "max_position_embeddings",
}
_BERT_FIELDS = {
  **_SIZES,
  "type_vocab_size": "type_vocab_size",
  "dropout_rate": "hidden_dropout_prob",
  "attention_dropout_rate": "attention_probs_dropout_prob",
  "layer_norm_epsilon": "layer_norm_eps",
  "initializer_range": "initializer_range",
}
_HEADS = {
  "Model": "encoder",
  "ForMaskedLM": "pretraining",
  "ForSequenceClassification": "sequence_classification",
  "ForTokenClassification": "token_classification",
  "ForQuestionAnswering": "question_answering",
}


def _architectures(variant: str, heads: Mapping[str, str]) -> dict[str, str]:
  return {f"{VARIANTS[variant].name}{end}": head for end, head in heads.items()}


def _of_berts_kind(variant: str, more_heads: Mapping[str, str], **fields: str) -> _Family:
  """An encoder that `config.json` describes as it does a BERT.

  Args:
    variant: a key of `VARIANTS`.
    more_heads: heads of other architectures, by the ends of their names.
    fields: more of `_Family.fields`.
  """
  return _Family(
    BertConfig,
    _architectures(variant, {**_HEADS, **more_heads}),
    _BERT_FIELDS | fields,
    {
      "hidden_act": ("gelu",),
      "position_embedding_type": ("absolute",),
      "is_decoder": (False,),
      "is_encoder_decoder": (False,),
      "pruned_heads": (None, {}),
      "problem_type": _PROBLEMS,
    }
    | _SHARED,
    {"classifier_dropout": (None,)},
  )


_BERT = _of_berts_kind("bert", {"ForPreTraining": "pretraining"})
_DISTILBERT = _Family(
  BertConfig,
  _architectures("distilbert", _HEADS),
  {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "max_position_embeddings": "max_position_embeddings",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
    "initializer_range": "initializer_range",
  },
  {"activation": ("gelu",), "pruned_heads": (None, {}), "problem_type": _PROBLEMS}
  | _SHARED,
  {},  # a run has its own rates, and answers need none
)
_GPT2 = _Family(
  Gpt2Config,
  {"GPT2LMHeadModel": "causal"},
  {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "dropout_rate": "resid_pdrop",
    "attention_dropout_rate": "attn_pdrop",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
  },
  {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
  }
  | _SHARED,
  {"embd_pdrop": ()},
)
_MODERN_BERT = _Family(
  ModernBertConfig,
  {model.__name__: head for head, model in MODELS["modern_bert"].items()},
  {
    **_SIZES,
    "dropout_rate": "classifier_dropout",
    "attention_dropout_rate": "attention_dropout",
    "layer_norm_epsilon": "norm_eps",
    "initializer_range": "initializer_range",
    "global_every": "global_attn_every_n_layers",
    "local_window": "local_attention",
    "pooling": "classifier_pooling",
  },
  {
    "hidden_activation": ("gelu",),
    "classifier_activation": ("gelu",),
    "norm_bias": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
    "tie_word_embeddings": (True,),
    "embedding_dropout": (0.0,),
    "mlp_dropout": (0.0,),
    "problem_type": _PROBLEMS,
  }
  | _SHARED,
  {},
)
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"  # values of layer_types
_END_ID = 50256  # of <|endoftext|> in GPT-2's own vocabulary
_ENDS = "<|endoftext|>", "</s>", "<eos>", "[SEP]"  # the first one ends a text in training
_FAMILIES = {  # by model_type
  "bert": _BERT,
  "roberta": _of_berts_kind("roberta", {}),
  "xlm-roberta": _of_berts_kind("xlm-roberta", {}),
  "camembert": _of_berts_kind("camembert", {}),
  "distilbert": _DISTILBERT,
  "electra": _of_berts_kind(
    "electra", {"ForPreTraining": "encoder"}, embedding_size="embedding_size"
  ),
  "modernbert": _MODERN_BERT,
  "gpt2": _GPT2,
}
_PADDING_ID = 1  # of RoBERTa and those like it, whose positions begin after it


def read_config(directory: pathlib.Path) -> tuple[str, ModelConfig, tuple[str, ...]]:
  """Reads the head, the config, and the names of the classes.

  The names that transformers makes up, LABEL_0 and so on, are left out. Only a model that
  classifies sequences or tokens has names.

  Raises:
    WeightsError: names the value that this model does not support.
  """
  path = directory / CONFIG
  try:
    value = parse_json(path.read_text(encoding="utf-8"))
    kind = value.get("model_type", "bert")
  except OSError as error:
    raise WeightsError(f"{path}: {error.strerror}; expected a model's folder.") from error
  except (ValueError, AttributeError) as error:
    raise WeightsError(f"{path} is not the config of a model: {error}.") from error
  if not isinstance(kind, str) or kind not in _FAMILIES:
    raise WeightsError(f"{path} is of model_type {_another(kind)}")
  family = _FAMILIES[kind]
  fields = {o: value[theirs] for o, theirs in family.fields.items() if theirs in value}
  architectures = value.get("architectures")
  for name, supported in family.supported.items():
    _refuse_unless(path, name, value.get(name, supported[0]), supported)
  known = [[name] for name in family.heads]
  _refuse_unless(path, "architectures", architectures, known)
  if family.heads[architectures[0]] == "pretraining":
    tied = value.get("tie_word_embeddings", True)
    _refuse_unless(path, "tie_word_embeddings", tied, (True,))
  usual = family.config_type.dropout_rate
  dropout = value.get(family.fields["dropout_rate"], usual)
  for name, others in family.dropouts.items():
    default = others[0] if others else usual
    _refuse_unless(path, name, value.get(name, default), (*others, dropout))
  names: tuple[str, ...] = ()
  try:
    if family is not _GPT2:
      names = _read_classes(path, value, fields, family.heads[architectures[0]])
    if family.config_type is BertConfig:
      fields.setdefault("max_position_embeddings", 512)  # as in transformers
      fields |= _read_variant(path, value, kind, fields)
      fields["next_sentence"] = family is _BERT and architectures != ["BertForMaskedLM"]
    elif family is _MODERN_BERT:
      fields |= _read_layers(path, value)
    else:
      fields["positions"] = "learned"
      if fields.get("intermediate_size") is None:
        width = value.get("n_embd")  # if it is no number, it is refused as hidden_size
        fields["intermediate_size"] = 4 * width if isinstance(width, int) else 0
    return family.heads[architectures[0]], family.config_type(**fields), names
  except WeightsError:
    raise
  except (TypeError, ValueError, AttributeError) as error:
    raise WeightsError(f"{path}: {error} Correct it.") from error


def _another(kind: Any) -> str:
  """Which family a folder is of, which are supported, and whether PyTorch packs it."""
  path = pathlib.Path(packing.__file__).parent / "torch" / "model_types.json"
  tried = json.loads(path.read_text(encoding="utf-8"))
  packs = kind in (*tried["causal"], *tried["bidirectional"])
  instead = "Choose another: packing.torch cannot pack it either."
  if packs:
    instead = "packing.torch.PackedCollator.for_model packs it in PyTorch."
  return f"{kind}; this model supports {', '.join(_FAMILIES)}. {instead}"


def _read_variant(
  path: pathlib.Path, value: dict, kind: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """The fields of an encoder of BERT's kind that differ by variant."""
  variant = VARIANTS[kind]
  found: dict[str, Any] = {"variant": kind, "pooler": variant.has_pooler}
  if variant.counts_from_padding:
    padding = value.get("pad_token_id", _PADDING_ID)
    if type(padding) is not int or padding < 0:
      raise WeightsError(f"{path}: pad_token_id is {json.dumps(padding)}; expected an id.")
    most = fields["max_position_embeddings"] - padding - 1
    found |= {"position_offset": padding + 1, "max_position_embeddings": most}
  if kind == "distilbert":
    found["type_vocab_size"] = 0
  if kind == "electra":
    found["embedding_size"] = fields.get("embedding_size", 128)
  return found


def _read_classes(
  path: pathlib.Path, value: dict, fields: dict, head: str
) -> tuple[str, ...]:
  """Puts the number and kind of classes into `fields` and returns their names.

  Other heads than classifiers, and a regression, have no names.
  """
  labels = value.get("id2label")
  names: tuple[str, ...] = ()
  fields["num_labels"] = value.get("num_labels", 2)
  if isinstance(labels, dict):
    fields["num_labels"] = len(labels)
    if head in ("sequence_classification", "token_classification") and len(labels) > 1:
      names = _label_names(path, labels)
  is_of_sequences = head == "sequence_classification"
  fields["multi_label"] = is_of_sequences and value.get("problem_type") == _MULTI_LABEL
  if value.get("problem_type") == "regression":
    _refuse_unless(path, "num_labels", fields["num_labels"], (1,))
  return names


def _read_layers(path: pathlib.Path, value: dict) -> dict:
  """Reads which layers of a ModernBERT are global, and the bases of rotary frequencies.

  Both also have an older form: `global_attn_every_n_layers`, which is among the fields of
  the family, and `global_rope_theta`.
  """
  default = ModernBertConfig
  fields = {
    "global_base": value.get("global_rope_theta", default.global_base),
    "local_base": value.get("local_rope_theta", default.local_base),
  }
  layers, rotary = value.get("layer_types"), value.get("rope_parameters") or {}
  if isinstance(layers, list):
    num_layers = value.get("num_hidden_layers")
    if len(layers) != num_layers:
      raise WeightsError(
        f"{path}: layer_types has {len(layers)} layers, but num_hidden_layers is "
        f"{json.dumps(num_layers)}. Correct one of them."
      )
    others = range(1, len(layers))
    fields["global_every"] = next((n for n in others if layers[n] == _GLOBAL), len(layers))
    regular = _layer_types(len(layers), fields["global_every"])
    _refuse_unless(path, "layer_types", layers, (regular,))
  else:
    _refuse_unless(path, "layer_types", layers, (None,))
  for field, kind in (("global_base", _GLOBAL), ("local_base", _LOCAL)):
    of_kind = rotary.get(kind) or {}
    _refuse_unless(path, "rope_type", of_kind.get("rope_type", "default"), ("default",))
    fields[field] = of_kind.get("rope_theta", fields[field])
  _refuse_unless(path, "rope_scaling", value.get("rope_scaling"), (None,))
  return fields


def _layer_types(num_layers: int, global_every: int) -> list[str]:
  return [_LOCAL if number % global_every else _GLOBAL for number in range(num_layers)]


def _label_names(path: pathlib.Path, labels: dict) -> tuple[str, ...]:
  numbers = [str(number) for number in range(len(labels))]
  names = tuple(str(labels.get(number)) for number in numbers)
  if labels.keys() != set(numbers) or len(set(names)) < len(names):
    raise WeightsError(
      f"{path}: id2label is {json.dumps(labels)}; expected {len(labels)} names, from 0 on."
    )
  return () if names == _made_up(len(names)) else names


def _made_up(number: int) -> tuple[str, ...]:
  """The names that transformers gives to unnamed classes."""
  return tuple(f"LABEL_{i}" for i in range(number))


def _refuse_unless(path: pathlib.Path, name: str, value, supported):
  if value not in supported:
    raise WeightsError(
      f"{path}: {name} is {json.dumps(value)}; this model supports "
      f"{' or '.join(map(json.dumps, supported))}. Choose another."
    )


def bert_json(
  config: BertConfig, head: str, vocabulary: Vocabulary | None, labels: Sequence[str] = ()
) -> dict:
  """The `config.json` of an encoder of BERT's kind; the inverse of `read_config`."""
  kind, family = config.variant, _FAMILIES[config.variant]
  names = [name for name, of in family.heads.items() if of == head]
  architecture = names[-1] if config.next_sentence else names[0]  # BertForPreTraining
  value = _json(config, kind, architecture) | _classes_json(config, head, labels)
  value["activation" if kind == "distilbert" else "hidden_act"] = "gelu"
  if vocabulary:
    value["pad_token_id"] = _id_of(SPECIAL_TOKENS["pad_token"], vocabulary)
  if VARIANTS[kind].counts_from_padding:
    for name, token in (("bos_token_id", "<s>"), ("eos_token_id", "</s>")):
      value[name] = _id_of(token, vocabulary) if vocabulary else None
    value["pad_token_id"] = config.position_offset - 1
    value["max_position_embeddings"] += config.position_offset
  if kind == "distilbert":
    value |= dict.fromkeys(("qa_dropout", "seq_classif_dropout"), config.dropout_rate)
  if kind == "electra":
    value["embedding_size"] = config.embedding_width
  return value


def modern_bert_json(
  config: ModernBertConfig, head: str, labels: Sequence[str] = ()
) -> dict:
  """The `config.json` of a ModernBERT; the inverse of `read_config`."""
  value = _json(config, "modernbert", model_of(config, head).__name__)
  value |= _classes_json(config, head, labels)
  bases = {_GLOBAL: config.global_base, _LOCAL: config.local_base}
  return value | {
    "layer_types": _layer_types(config.num_layers, config.global_every),
    "rope_parameters": {
      kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
    },
    # The defaults of transformers are ids in the published vocabulary.
    **dict.fromkeys(f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")),
  }


def _classes_json(config: EncoderConfig, head: str, labels: Sequence[str]) -> dict:
  # In transformers, question answering has two labels: start and end.
  num_labels = 2 if head == "question_answering" else config.num_labels
  names = {str(i): name for i, name in enumerate(labels or _made_up(num_labels))}
  value: dict = {
    "id2label": names,
    "label2id": {name: int(i) for i, name in names.items()},
  }
  if head == "sequence_classification" and (config.multi_label or num_labels == 1):
    value["problem_type"] = _MULTI_LABEL if config.multi_label else "regression"
  return value


def gpt2_json(config: Gpt2Config, vocabulary: Vocabulary | None) -> dict:
  """The `config.json` of a GPT-2; the inverse of `read_config`."""
  (architecture,) = _GPT2.heads
  value = _json(config, "gpt2", architecture) | {
    "embd_pdrop": config.dropout_rate,
    "activation_function": "gelu_new",
  }
  end = _END_ID if config.vocab_size > _END_ID else None  # that of GPT-2's own vocabulary
  if vocabulary:
    ids = (_id_of(token, vocabulary) for token in _ENDS)
    end = next((number for number in ids if number is not None), None)
  return value | {"bos_token_id": end, "eos_token_id": end}


def _id_of(token: str, vocabulary: Vocabulary) -> int | None:
  return vocabulary.tokens.index(token) if token in vocabulary.tokens else None


def _json(config: ModelConfig, kind: str, architecture: str) -> dict:
  value = {
    "architectures": [architecture],
    "dtype": jnp.dtype(config.param_dtype).name,
    "tie_word_embeddings": True,
    "model_type": kind,
  }
  return value | {o: getattr(config, n) for n, o in _FAMILIES[kind].fields.items()}
