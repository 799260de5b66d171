"""The models, by the name of their head."""

from __future__ import annotations

from model.bert import (
  BertForPreTraining,
  BertForQuestionAnswering,
  BertForSequenceClassification,
  BertForTokenClassification,
)
from model.blocks import Transformer
from model.gpt2 import Gpt2

# As configs and commands name them.
MODELS: dict[str, type[Transformer]] = {
  "pretraining": BertForPreTraining,
  "sequence_classification": BertForSequenceClassification,
  "token_classification": BertForTokenClassification,
  "question_answering": BertForQuestionAnswering,
  "causal": Gpt2,
}
# Those whose logits are over the vocabulary, too many to take out of a step.
LANGUAGE_MODELS = ("pretraining", "causal")
