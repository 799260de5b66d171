"""Flax NNX models that keep the sequences of a pack apart."""

from model.bert import BertForPreTraining
from model.config import SIZES, BertConfig

__all__ = ["SIZES", "BertConfig", "BertForPreTraining"]
