"""Flax NNX models that keep the sequences of a pack apart."""

from model.attention.kernels import IMPLEMENTATIONS, SKIPPING, AttentionError
from model.bert import (
  BertForPreTraining,
  BertForQuestionAnswering,
  BertForSequenceClassification,
  BertForTokenClassification,
)
from model.config import (
  SIZES,
  VARIANTS,
  BertConfig,
  EncoderConfig,
  ModelConfig,
)
from model.gpt2 import Gpt2, Gpt2Config
from model.losses import LOSS_UNITS
from model.models import CONFIGS, LANGUAGE_MODELS, MODELS
from model.modern_bert import ModernBertConfig

__all__ = [
  "CONFIGS",
  "IMPLEMENTATIONS",
  "LANGUAGE_MODELS",
  "LOSS_UNITS",
  "MODELS",
  "SIZES",
  "SKIPPING",
  "VARIANTS",
  "AttentionError",
  "BertConfig",
  "BertForPreTraining",
  "BertForQuestionAnswering",
  "BertForSequenceClassification",
  "BertForTokenClassification",
  "EncoderConfig",
  "Gpt2",
  "Gpt2Config",
  "ModelConfig",
  "ModernBertConfig",
]
