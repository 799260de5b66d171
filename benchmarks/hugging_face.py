"""Training steps of Hugging Face's BERT in PyTorch, for `benchmarks/training.py`.

Three computations with one loss. `whole` is the model as it comes: the head that predicts
tokens sees all of them. `masked` gives it only the masked tokens. So does `unpadded`,
and it runs the encoder on the real tokens of a batch in one row, with attention within
each sequence. A user of PyTorch can write each of them in a few lines.
"""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, BertForPreTraining
from transformers.utils import logging

from pipeline.batches.packed import PackedBatch

Tensors = dict[str, Any]
NOT_MASKED = -100  # as the labels of the model have it
UNPADDED = "isopack_unpadded"


class HuggingFace:
  """A model and its optimizer, which all computations of a run share.

  Args:
    folder: of the weights of the start.
    attention: of the padded computations, such as "sdpa" and "eager".
    threads: of PyTorch; as many as it takes by itself if None.
    adamw: `learning_rate`, `b1`, `b2`, `eps` and `weight_decay`, which neither biases nor
      LayerNorm have.
  """

  def __init__(
    self, folder: str | pathlib.Path, attention: str, threads: int | None, **adamw: float
  ):
    if threads:
      torch.set_num_threads(threads)
    self.model = BertForPreTraining.from_pretrained(folder, attn_implementation=attention)
    self.model.train()
    # It shares the parameters: switching attention would count in the time of steps.
    self.unpadded = copy.deepcopy(self.model, {id(x): x for x in self.model.parameters()})
    self.unpadded.set_attn_implementation(UNPADDED)
    self._adamw = adamw
    self._start = {name: x.clone() for name, x in self.model.state_dict().items()}
    self.reset()

  def reset(self):
    """The weights of the start, and a new optimizer."""
    self.model.load_state_dict(self._start)
    options = self._adamw
    matrices = [x for x in self.model.parameters() if x.ndim > 1]
    others = [x for x in self.model.parameters() if x.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}]
    groups.append({"params": others, "weight_decay": 0.0})
    self.optimizer = torch.optim.AdamW(
      groups,
      lr=options["learning_rate"],
      betas=(options["b1"], options["b2"]),
      eps=options["eps"],
      weight_decay=options["weight_decay"],
      fused=True,
    )


class Computation:
  """One way to compute the loss of a batch, a key of `COMPUTATIONS`."""

  def __init__(self, trained: HuggingFace, what: str):
    self.prepare, self._loss = COMPUTATIONS[what]
    self._trained = trained
    self._model = trained.unpadded if what == "unpadded" else trained.model
    self.reset = trained.reset

  def step(self, batch: Tensors) -> float:
    """One update; the loss before it, in nats."""
    loss = self._loss(self._model, batch)
    self._trained.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    self._trained.optimizer.step()
    return loss.item()


# ---- batches, of PackedBatches with one sequence a row --------------------------------


def _prepare_whole(batch: PackedBatch) -> Tensors:
  used = batch["sequence_mask"][:, 0]
  labels = np.full(batch["input_ids"].shape, NOT_MASKED)
  rows, slots = np.nonzero(batch["mlm_segment_ids"])
  labels[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
  arrays = {
    "input_ids": batch["input_ids"],
    "token_type_ids": batch["token_type_ids"],
    "attention_mask": batch["segment_ids"] > 0,
    "labels": labels,
    "next_sentence_label": batch["sequence_labels"][:, 0],
  }
  return {k: torch.tensor(array[used].astype(np.int64)) for k, array in arrays.items()}


def _prepare_masked(batch: PackedBatch) -> Tensors:
  tensors = _prepare_whole(batch)
  labels = tensors["labels"].flatten()
  tensors["masked"] = torch.nonzero(labels != NOT_MASKED)[:, 0]
  tensors["labels"] = labels[tensors["masked"]]
  return tensors


def _prepare_unpadded(batch: PackedBatch) -> Tensors:
  padded = _prepare_whole(batch)
  real = padded["attention_mask"].bool()
  lengths = real.sum(1)
  labels = padded["labels"][real]
  masked = torch.nonzero(labels != NOT_MASKED)[:, 0]
  positions = torch.arange(real.shape[1]).expand(real.shape)
  return {
    "input_ids": padded["input_ids"][real][None],
    "token_type_ids": padded["token_type_ids"][real][None],
    "position_ids": positions[real][None],
    "lengths": lengths.tolist(),
    "starts": lengths.cumsum(0) - lengths,
    "masked": masked,
    "labels": labels[masked],
    "next_sentence_label": padded["next_sentence_label"],
  }


# ---- losses ----------------------------------------------------------------------------


def _whole(model: BertForPreTraining, batch: Tensors) -> torch.Tensor:
  return model(**batch).loss


def _masked(model: BertForPreTraining, batch: Tensors) -> torch.Tensor:
  inputs = ("input_ids", "token_type_ids", "attention_mask")
  outputs = model.bert(**{name: batch[name] for name in inputs})
  hidden = outputs.last_hidden_state.flatten(0, 1)
  return _heads(model, hidden[batch["masked"]], outputs.pooler_output, batch)


def _unpadded(model: BertForPreTraining, batch: Tensors) -> torch.Tensor:
  inputs = ("input_ids", "token_type_ids", "position_ids")
  outputs = model.bert(**{name: batch[name] for name in inputs}, lengths=batch["lengths"])
  hidden = outputs.last_hidden_state[0]
  pooled = model.get_submodule("bert.pooler")(hidden[batch["starts"]][:, None])
  return _heads(model, hidden[batch["masked"]], pooled, batch)


def _heads(
  model: BertForPreTraining, masked: torch.Tensor, pooled: torch.Tensor, batch: Tensors
) -> torch.Tensor:
  tokens, sequences = model.cls(masked, pooled)
  next_sentence = functional.cross_entropy(sequences, batch["next_sentence_label"])
  return functional.cross_entropy(tokens, batch["labels"]) + next_sentence


def _attend_within(
  module, query, key, value, attention_mask, *, scaling, lengths, **_
) -> tuple[torch.Tensor, None]:
  """[1, N, T, H] of sequences one after another -> [1, T, N, H]."""
  del module, attention_mask
  split = (x.split(lengths, dim=2) for x in (query, key, value))
  attended = [
    functional.scaled_dot_product_attention(q, k, v, scale=scaling)
    for q, k, v in zip(*split, strict=True)
  ]
  return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(UNPADDED, _attend_within)
logging.disable_progress_bar()  # of weights that are read

COMPUTATIONS = {
  "whole": (_prepare_whole, _whole),
  "masked": (_prepare_masked, _masked),
  "unpadded": (_prepare_unpadded, _unpadded),
}
