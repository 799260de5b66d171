"""Flax NNX models that keep the sequences of a pack apart."""

from model.attention.kernels import IMPLEMENTATIONS, SKIPPING, AttentionError
from model.bert import (
  Bert,
  BertForPreTraining,
  BertForQuestionAnswering,
  BertForSequenceClassification,
  BertForTokenClassification,
)
from model.config import (
  REMATERIALISATIONS,
  SIZES,
  VARIANTS,
  BertConfig,
  EncoderConfig,
  ModelConfig,
)
from model.gpt2 import POSITIONS, Gpt2, Gpt2Config
from model.losses import LOSS_UNITS
from model.models import CONFIGS, LANGUAGE_MODELS, MODELS
from model.modern_bert import POOLINGS, ModernBert, ModernBertConfig

__all__ = [
  "CONFIGS",
  "IMPLEMENTATIONS",
  "LANGUAGE_MODELS",
  "LOSS_UNITS",
  "MODELS",
  "POOLINGS",
  "POSITIONS",
  "REMATERIALISATIONS",
  "SIZES",
  "SKIPPING",
  "VARIANTS",
  "AttentionError",
  "Bert",
  "BertConfig",
  "BertForPreTraining",
  "BertForQuestionAnswering",
  "BertForSequenceClassification",
  "BertForTokenClassification",
  "EncoderConfig",
  "Gpt2",
  "Gpt2Config",
  "ModelConfig",
  "ModernBert",
  "ModernBertConfig",
]
