"""Training steps of Hugging Face's BERT or ModernBERT, on a CPU or an NVIDIA GPU.

These computations have the same loss. `whole` is the published model: its token head sees
all tokens. `masked` gives the head only the masked tokens. `unpadded` does so too, and runs
the encoder on the batch's real tokens as one row, with attention within each sequence: on a
GPU, in 16 bits, by `varlen_attn`; otherwise one sequence after the other. `compiled` is
`masked` with an encoder by `torch.compile`. `flattened` is `unpadded` with transformers'
own collator and FlashAttention. A user of PyTorch can write each of them in a few lines.

On a GPU a step returns before it is done, as JAX's do: reading its loss, or `wait`, waits
for it. No step reads its loss or copies from the host, which would wait too. (Transformers
may, for a padding mask.) On a CPU PyTorch's steps are done when they return.

Transformers accepts a ModernBERT batch in one row only with FlashAttention, which needs a
GPU, and PyTorch's FlexAttention has no gradient on a CPU. So if `unpadded` computes one
sequence after the other, a local layer computes all pairs and masks those outside the
window.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch.nn import functional
from transformers import AttentionInterface, BertForPreTraining, PreTrainedModel
from transformers.utils import logging

from lab.timing.models import ADAMW
from lab.timing.turns import in_turns, queued
from model import BertConfig, EncoderConfig
from model.hf.config import bert_json

if TYPE_CHECKING:
  from pipeline.batches.packed import PackedBatch

Tensors = dict[str, Any]
INPUTS = "input_ids", "token_type_ids", "position_ids", "attention_mask"
OF_BERT = "token_type_ids", "next_sentence_label"  # which ModernBERT does not take
NOT_MASKED = -100  # the label that the loss ignores
UNPADDED = "isopack_unpadded"
ATTENTION = {"unpadded": UNPADDED, "flattened": "flash_attention_2"}  # others: SDPA


class HuggingFace:
  """A model and its optimizer, which all computations of a run share.

  The optimizer is AdamW, without weight decay for biases and LayerNorm.

  Args:
    weights: a folder with the initial weights, or a BertConfig for random ones.
    threads: number of PyTorch's threads; None for PyTorch's default.
    device: "cpu" or "cuda".
    dtype: of the computation, by `torch.autocast`; parameters are float32.
  """

  def __init__(
    self,
    weights: pathlib.Path | EncoderConfig,
    *,
    threads: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
  ):
    if threads:
      torch.set_num_threads(threads)
    self.device, self.dtype = device, getattr(torch, dtype)
    self.model = _model(weights)
    self.model.train()
    torch.nn.Module.to(self.model, device)  # in place
    self._start = {name: x.clone() for name, x in self.model.state_dict().items()}
    self.reset()

  def model_for(self, what: str) -> PreTrainedModel:
    """The model of a key of `COMPUTATIONS`.

    Raises:
      ImportError: FlashAttention is not installed.
    """
    if what in ("whole", "masked"):
      return self.model
    # It shares the parameters. Switching the attention of one model would cost step time.
    model = copy.deepcopy(self.model, {id(x): x for x in self.model.parameters()})
    if what == "compiled":
      model.base_model.compile()
    else:
      model.set_attn_implementation(ATTENTION[what])
    return model

  def reset(self):
    """Restores the initial weights and makes a new optimizer."""
    self.model.load_state_dict(self._start)
    matrices = [x for x in self.model.parameters() if x.ndim > 1]
    others = [x for x in self.model.parameters() if x.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}]
    groups.append({"params": others, "weight_decay": 0.0})
    self.optimizer = torch.optim.AdamW(
      groups,
      lr=ADAMW["learning_rate"],
      betas=(ADAMW["b1"], ADAMW["b2"]),
      eps=ADAMW["eps"],
      weight_decay=ADAMW["weight_decay"],
      fused=True,
    )


def _model(weights: pathlib.Path | EncoderConfig) -> PreTrainedModel:
  if isinstance(weights, pathlib.Path):
    (kind,) = transformers.AutoConfig.from_pretrained(weights).architectures
    kind = getattr(transformers, kind)
    return kind.from_pretrained(weights, attn_implementation="sdpa")
  assert isinstance(weights, BertConfig)
  config = transformers.BertConfig(**bert_json(weights, "pretraining", None))
  return BertForPreTraining._from_config(config, attn_implementation="sdpa")


class Computation:
  """One way to compute the loss of a batch, a key of `COMPUTATIONS`."""

  def __init__(self, trained: HuggingFace, what: str):
    self._prepare, self._loss = COMPUTATIONS[what]
    self._trained = trained
    self._model = trained.model_for(what)
    self.reset = trained.reset

  def to_device(self, batch: PackedBatch) -> Tensors:
    """The inputs of a step, on the device, from a PackedBatch with one sequence a row."""
    left_out = () if isinstance(self._model, BertForPreTraining) else OF_BERT
    return {
      name: value.to(self._trained.device) if isinstance(value, torch.Tensor) else value
      for name, value in self._prepare(batch).items()
      if name not in left_out
    }

  def step(self, batch: Tensors) -> torch.Tensor:
    """Makes one update; returns the loss before it, in nats. A GPU may still compute it."""
    device, dtype = self._trained.device, self._trained.dtype
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
      loss = self._loss(self._model, batch)
    self._trained.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    self._trained.optimizer.step()
    return loss.detach()

  @staticmethod
  def loss(result: torch.Tensor) -> float:
    """The loss before a step, in nats, from what `step` returned; waits for the device."""
    return result.item()

  def wait(self):
    """Returns when the device has made all steps."""
    if self._trained.device == "cuda":
      torch.cuda.synchronize()


def seconds_of_steps(
  config: EncoderConfig,
  batches: Sequence[Mapping[str, np.ndarray]],
  *,
  steps: int,
  blocks: int,
  awaited: int,
  device: str,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
  """Times steps of each computation except `whole`, in turns: queued, and each awaited.

  Args:
    config: of the model; its weights are random, and the computation has its dtype.
    batches: PackedBatches with one sequence a row; too few are repeated.
    steps: of a block of queued steps.
    blocks: of queued steps that are counted.
    awaited: steps that are awaited and counted.
    device: "cpu" or "cuda".

  Returns:
    By computation, seconds of a step: "queued", float[blocks], and "awaited",
    float[awaited]; and why others did not run.

  Raises:
    OutOfMemoryError: PyTorch's; the GPU's memory does not suffice.
  """
  trained = HuggingFace(config, device=device, dtype=np.dtype(config.dtype).name)
  ready: dict[str, tuple[Computation, list[Tensors]]] = {}
  failed: dict[str, str] = {}
  for what in ("masked", "unpadded", "compiled", "flattened"):
    try:
      if what == "flattened" and not importlib.util.find_spec("flash_attn"):
        raise ImportError("flash_attn is not installed")
      computation = Computation(trained, what)
      prepared = [computation.to_device(dict(batch)) for batch in batches]
      computation.step(prepared[0])
      computation.wait()
    except torch.OutOfMemoryError:
      raise
    except Exception as error:  # of compilers and kernels, of many kinds
      failed[what] = str(error).strip().partition("\n")[0] or type(error).__name__
    else:
      ready[what] = computation, prepared

  def runs(steps: int) -> dict[str, Callable[[int], Any]]:
    return {
      what: queued(made.step, prepared, steps=steps, wait=made.wait)
      for what, (made, prepared) in ready.items()
    }

  in_blocks = in_turns(runs(steps), rounds=blocks, name="PyTorch, queued")
  each = in_turns(runs(1), rounds=awaited, name="PyTorch, awaited")
  measured = {
    what: {"queued": in_blocks[what] / steps, "awaited": each[what]} for what in ready
  }
  return measured, failed


# ---- batches, from PackedBatches with one sequence a row ------------------------------


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
    "ends": functional.pad(lengths.cumsum(0), (1, 0)).int(),  # 0 before the first
    "starts": lengths.cumsum(0) - lengths,
    "masked": masked,
    "labels": labels[masked],
    "next_sentence_label": padded["next_sentence_label"],
  }


def _prepare_flattened(batch: PackedBatch) -> Tensors:
  """By transformers' own collator, which makes no label of a sequence's first token."""
  padded = _prepare_whole(batch)
  real = padded["attention_mask"].bool()
  rows = [
    {name: padded[name][i][real[i]].tolist() for name in ("input_ids", "labels")}
    for i in range(len(real))
  ]
  collate: Any = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
  tensors = collate(rows, return_tensors="pt")
  labels = tensors.pop("labels").flatten()
  masked = torch.nonzero(labels != NOT_MASKED)[:, 0]
  return tensors | {
    "token_type_ids": padded["token_type_ids"][real][None],
    "starts": tensors["cu_seq_lens_q"][:-1].long(),
    "masked": masked,
    "labels": labels[masked],
    "next_sentence_label": padded["next_sentence_label"],
  }


# ---- losses ----------------------------------------------------------------------------


def _whole(model: PreTrainedModel, batch: Tensors) -> torch.Tensor:
  return model(**batch).loss


def _masked(model: PreTrainedModel, batch: Tensors) -> torch.Tensor:
  hidden = _encode(model, batch).flatten(0, 1)
  rows, length = batch["input_ids"].shape
  starts = length * torch.arange(rows, device=hidden.device)
  return _heads(model, hidden, starts, batch)


def _unpadded(model: PreTrainedModel, batch: Tensors) -> torch.Tensor:
  hidden = _encode(model, batch, lengths=batch["lengths"], ends=batch["ends"])[0]
  return _heads(model, hidden, batch["starts"], batch)


def _flattened(model: PreTrainedModel, batch: Tensors) -> torch.Tensor:
  ends = {name: batch[name] for name in batch if name.startswith(("cu_seq", "max_length"))}
  return _heads(model, _encode(model, batch, **ends)[0], batch["starts"], batch)


def _encode(model: PreTrainedModel, batch: Tensors, **options) -> torch.Tensor:
  inputs = {name: batch[name] for name in INPUTS if name in batch}
  return model.base_model(**inputs, **options).last_hidden_state


def _heads(
  model: PreTrainedModel, hidden: torch.Tensor, starts: torch.Tensor, batch: Tensors
) -> torch.Tensor:
  """The loss, from all tokens' hidden states [T, D]; sequences begin at `starts`."""
  masked, labels = hidden[batch["masked"]], batch["labels"]
  if not isinstance(model, BertForPreTraining):
    head, decoder = (model.get_submodule(name) for name in ("head", "decoder"))
    return functional.cross_entropy(decoder(head(masked)), labels)
  pooled = model.get_submodule("bert.pooler")(hidden[starts][:, None])
  tokens, sequences = model.cls(masked, pooled)
  next_sentence = functional.cross_entropy(sequences, batch["next_sentence_label"])
  return functional.cross_entropy(tokens, labels) + next_sentence


def attend_within(
  module,
  query,
  key,
  value,
  _,
  *,
  scaling,
  lengths,
  ends,
  sliding_window=None,
  dropout_p=0.0,
  **__,
) -> tuple[torch.Tensor, None]:
  """[1, N, T, H] of sequences one after another -> [1, T, N, H].

  A token attends to tokens of its own sequence, less than `sliding_window` away. On a CPU,
  `dropout_p` is the rate of dropout of attention.
  """
  del module
  if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
    longest, window = max(lengths), sliding_window
    return _attend_on_gpu(query, key, value, scaling, ends, longest, window), None
  split = (x.split(lengths, dim=2) for x in (query, key, value))
  attended = [
    functional.scaled_dot_product_attention(
      q,
      k,
      v,
      attn_mask=_near(q.shape[2], sliding_window, q.device),
      dropout_p=dropout_p,
      scale=scaling,
    )
    for q, k, v in zip(*split, strict=True)
  ]
  return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


@functools.cache
def _near(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
  """bool[L, L], the pairs of tokens that a local layer computes; None for all pairs."""
  if window is None or length <= window:
    return None
  places = torch.arange(length, device=device)
  return (places[:, None] - places).abs() < window


def _attend_on_gpu(
  query,
  key,
  value,
  scaling: float,
  ends: torch.Tensor,
  longest: int,
  window: int | None,
) -> torch.Tensor:
  """The same by one kernel for variable lengths, which supports only 16-bit types."""
  from torch.nn.attention.varlen import varlen_attn

  heads = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
  arguments: Any = (*heads, ends, ends, longest, longest)
  sides = (-1, -1) if window is None else (window - 1, window - 1)
  attended: Any = varlen_attn(*arguments, scale=scaling, window_size=sides)
  return attended[None]


AttentionInterface.register(UNPADDED, attend_within)
logging.disable_progress_bar()  # while weights are read

COMPUTATIONS = {
  "whole": (_prepare_whole, _whole),
  "masked": (_prepare_masked, _masked),
  "unpadded": (_prepare_unpadded, _unpadded),
  "compiled": (_prepare_masked, _masked),
  "flattened": (_prepare_flattened, _flattened),
}
