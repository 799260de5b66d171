"""Flax NNX models that keep the sequences of a pack apart."""

from model.attention import IMPLEMENTATIONS, AttentionError
from model.bert import (
  MODELS,
  Bert,
  BertForPreTraining,
  BertForQuestionAnswering,
  BertForSequenceClassification,
  BertForTokenClassification,
)
from model.config import ATTENTION_MASKS, REMATERIALISATIONS, SIZES, BertConfig
from model.losses import LOSS_UNITS

__all__ = [
  "ATTENTION_MASKS",
  "IMPLEMENTATIONS",
  "LOSS_UNITS",
  "MODELS",
  "REMATERIALISATIONS",
  "SIZES",
  "AttentionError",
  "Bert",
  "BertConfig",
  "BertForPreTraining",
  "BertForQuestionAnswering",
  "BertForSequenceClassification",
  "BertForTokenClassification",
]
