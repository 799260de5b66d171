"""Flax NNX models that keep the sequences of a pack apart."""

from model.bert import BertForPreTraining
from model.config import ATTENTION_MASKS, SIZES, BertConfig

__all__ = ["ATTENTION_MASKS", "SIZES", "BertConfig", "BertForPreTraining"]
