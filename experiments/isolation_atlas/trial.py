"""Tries one type of model: each attention, each call."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import transformers

import packing.torch
from experiments.isolation_atlas.calls import CALLS, Collate
from experiments.isolation_atlas.examples import examples
from experiments.isolation_atlas.record import NO_MASK
from experiments.isolation_atlas.tiny import KINDS, build, tiny
from packing.testing import isolation
from packing.torch import models

ATTENTIONS = ("eager", "sdpa", "flex_attention")
SLOW_CALLS = ("positions", "flattening", "four axes")  # FlexAttention is slow on a CPU
# What models raise that compute no gradient here: FlexAttention on a CPU (a RuntimeError),
# and Reformer in evaluation mode. `page` accepts no type of which no gradient was compared.
_NO_GRADIENT = (RuntimeError, AssertionError)
# In longer rows than those tried here, their attention skips tokens by place in the row.
SPARSE = ("big_bird", "bigbird_pegasus", "longformer", "reformer")


class Numbers(NamedTuple):
  """What was measured of a call, relative to the largest number of each alone.

  Attributes:
    outputs: the largest difference of logits (or hidden states) from each sequence alone.
    influence: the largest change of an output when the tokens of another sequence change.
    derivative: the largest derivative of an output by the embeddings of another sequence;
      None for a model that has no table of embeddings.
    loss: the difference of the model's own loss; None if it has none.
    gradients: the largest difference of a gradient of the loss, or of a weighted sum of
      the outputs. All three are None if the model has no gradient here, such as that of
      FlexAttention on a CPU.
  """

  outputs: float
  influence: float
  derivative: float | None
  loss: float | None
  gradients: float | None


def try_type(model_type: str, kind: str) -> dict[str, Any]:
  """The entry of a type in the record.

  Returns:
    `type`, `kind`, and `text_type`, that of its text model; of a text encoder `is_causal`,
    whether it sees no later tokens; and either `cannot`, why no tiny model ran, or `model`,
    the class, and `found`: by attention and call the `Numbers`, or why it was refused.
  """
  warnings.filterwarnings("ignore")
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(1)
  torch.compiler.set_stance("force_eager")  # compiling FlexAttention takes a minute
  entry: dict[str, Any] = {"type": model_type, "kind": kind}
  try:
    config = tiny(model_type)
    text = models.text_config(config)
    entry["text_type"] = text.model_type
    if getattr(config, "is_encoder_decoder", False) and kind != "encoder":
      return entry | {"cannot": "it has an encoder and a decoder"}
    if kind == "causal" and hasattr(text, "is_decoder"):
      text.is_decoder = True
    plain = build(KINDS[kind][1], config, "eager")
    with torch.no_grad():
      plain(input_ids=torch.arange(5, 12)[None])
  except Exception as error:
    return entry | {"cannot": describe(error)}
  found: dict[str, Any] = {}
  for attention in ATTENTIONS:
    try:
      model = build(KINDS[kind][1], config, attention)
    except (ValueError, ImportError):  # it does not have this implementation
      continue
    if kind == "encoder":
      entry["is_causal"] = is_causal = _sees_no_later_token(model)
    else:
      is_causal = kind != "bidirectional" and getattr(text, "is_causal", True) is not False
    calls = SLOW_CALLS if attention == "flex_attention" else CALLS
    found[attention] = {name: _try_call(model, is_causal, name) for name in calls}
  return entry | {"model": type(plain).__name__, "found": found}


def _sees_no_later_token(model: Any) -> bool:
  """Whether another last token changes no earlier output."""
  ids = torch.arange(5, 12)[None]
  other = ids.clone()
  other[0, -1] += 1
  with torch.no_grad():
    a, b = (_output(model(input_ids=x))[0, :-1] for x in (ids, other))
  return torch.equal(a, b)


def _try_call(model: Any, is_causal: bool, name: str) -> list[float | None] | str:
  try:
    collate = CALLS[name](model, is_causal)
    collate(examples())
  except Exception as error:  # no batch was made, so the model was not called
    return f"{NO_MASK}{error}"
  try:
    return [_short(x) for x in measure(model, collate, is_causal)]
  except Exception as error:
    return describe(error)


def measure(model: Any, collate: Collate, is_causal: bool) -> Numbers:
  """Compares sequences in one row with each alone.

  Raises:
    Exception: the model does not take this call.
  """
  rows = examples()
  found = isolation(model, collate, examples=rows)
  derivative = loss = gradient = None
  with contextlib.suppress(*_NO_GRADIENT):
    derivative = _derivative(model, collate, rows)
    alone, packed = _alone(model, rows, is_causal), _packed(model, collate, rows, is_causal)
    gradient = _relative(packed[1], alone[1])
    loss = None if alone[0] is None else _relative(packed[0], alone[0])
  model.zero_grad(set_to_none=True)
  return Numbers(found.difference, found.influence, derivative, loss, gradient)


def _alone(model: Any, rows: Sequence[dict], is_causal: bool) -> tuple[Any, torch.Tensor]:
  """The mean loss over all targets, and its gradients."""
  total, count = torch.zeros(()), 0
  has_loss = _has_loss(model)
  for number, example in enumerate(rows):
    ids = torch.as_tensor(example["input_ids"])[None]
    if has_loss:
      here = ids.numel() - is_causal
      total = total + model(input_ids=ids, labels=ids).loss * here
      count += here
    else:
      total = total + _weighted(_output(model(input_ids=ids))[0], number)
  total = total / max(count, 1)
  total.backward()
  return (total.detach() if has_loss else None), gradients(model)


def _packed(
  model: Any, collate: Collate, rows: Sequence[dict], is_causal: bool
) -> tuple[Any, torch.Tensor]:
  batch = dict(collate(rows))
  places = _places(batch["input_ids"], rows)
  if _has_loss(model):
    labels = torch.full_like(batch["input_ids"], packing.torch.IGNORED)
    for (row, first), example in zip(places, rows, strict=True):
      targets = torch.as_tensor(example["input_ids"])[is_causal:]
      labels[row, first + is_causal : first + len(example["input_ids"])] = targets
    loss = model(**batch | {"labels": labels}).loss
    loss.backward()
    return loss.detach(), gradients(model)
  batch.pop("labels", None)
  output = _output(model(**batch))
  total = torch.zeros(())
  for number, ((row, first), example) in enumerate(zip(places, rows, strict=True)):
    own = output[row, first : first + len(example["input_ids"])]
    total = total + _weighted(own, number)
  total.backward()
  return None, gradients(model)


def _derivative(model: Any, collate: Collate, rows: Sequence[dict]) -> float | None:
  """The largest derivative of an output by the embedding of another sequence's token."""
  try:
    table = model.get_input_embeddings()
  except (NotImplementedError, AttributeError):
    return None
  batch = dict(collate(rows))
  batch.pop("labels", None)
  embedded: list[torch.Tensor] = []
  hook = table.register_forward_hook(lambda module, inputs, out: embedded.append(out))
  try:
    output = _output(model(**batch))
  finally:
    hook.remove()
  shape = batch["input_ids"].shape
  if not embedded or not isinstance(embedded[0], torch.Tensor):
    return None  # such as quantised embeddings with their scale
  if embedded[0].numel() % shape.numel() or not embedded[0].requires_grad:
    return None
  largest = 0.0
  places = _places(batch["input_ids"], rows)
  for number, ((row, first), example) in enumerate(zip(places, rows, strict=True)):
    own = slice(first, first + len(example["input_ids"]))
    total = _weighted(output[row, own], number)
    (by,) = torch.autograd.grad(total, embedded[0], retain_graph=True)
    sizes = by.reshape(*shape, -1).abs().amax(-1)
    sizes[row, own] = 0
    for (row_, first_), other in zip(places, rows, strict=True):
      there = sizes[row_, first_ : first_ + len(other["input_ids"])]
      largest = max(largest, float(there.max()))
  return largest


def _places(ids: torch.Tensor, rows: Sequence[dict]) -> list[tuple[int, int]]:
  """The row and the place of the first token of each example; no token comes twice."""
  firsts = [example["input_ids"][0] for example in rows]
  found = [torch.nonzero(ids == first)[0].tolist() for first in firsts]
  return [(row, place) for row, place in found]


def _has_loss(model: Any) -> bool:
  ids = torch.arange(5, 12)[None]
  try:
    with torch.no_grad():
      return getattr(model(input_ids=ids, labels=ids), "loss", None) is not None
  except Exception:
    return False


def _output(output: Any) -> torch.Tensor:
  logits = getattr(output, "logits", None)
  return output.last_hidden_state if logits is None else logits


def _weighted(values: torch.Tensor, number: int) -> torch.Tensor:
  """A sum with weights that are the same in a row and alone."""
  generator = torch.Generator().manual_seed(number)
  return (values * torch.randn(values.shape, generator=generator)).sum()


def gradients(model: Any) -> torch.Tensor:
  """All gradients of a model in one vector; they are set to None."""
  found = [torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters()]
  model.zero_grad(set_to_none=True)
  return torch.cat([x.flatten() for x in found])


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
  return float((a - b).abs().max() / (b.abs().max() + 1e-30))


def _short(number: float | None) -> float | None:
  return None if number is None else float(f"{number:.2g}")


def describe(error: BaseException) -> str:
  """The error in one short line."""
  return f"{type(error).__name__}: {' '.join(str(error).split())[:110]}"
