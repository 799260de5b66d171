"""Evaluation and prediction, with the same results whether sequences are packed or not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from model import ModelConfig, losses
from training.step import ModelProgram

LENGTH_BINS = 4
_READ = ("sequence_mask", "sequence_labels", "segment_ids", "mlm_segment_ids", "mlm_labels")
_PREDICTED = ("sequence_mask", "segment_ids", "cls_positions", "sequence_ids")
_EMBEDDED = (*_PREDICTED, "text_numbers")

Batches = Iterable[Mapping[str, np.ndarray]]
Score = Callable[[Sequence[np.ndarray]], dict[str, float]]


class HeldOut(NamedTuple):
  """A set of sequences to evaluate on.

  Attributes:
    batches: makes PackedBatches that hold each sequence once; each process makes only its
      own rows.
    num_batches: how many batches it makes.
    score: computes the task's metrics, `score` among them, from the head's outputs for
      each sequence; for pairs from the vectors of all texts, with `loss` and `sequences`,
      the number of records. None for language models.
    prefix: the beginning of the names of its metrics.
    pooling: of the vectors of pairs.
  """

  batches: Callable[[], Iterator[dict[str, np.ndarray]]]
  num_batches: int
  score: Score | None
  prefix: str
  pooling: str = ""


def evaluate(
  program: ModelProgram,
  params,
  held_out: Iterable[HeldOut],
  *,
  unigram_token: int,
  over: Callable[[Batches], Iterator] = iter,
) -> dict:
  """Losses and metrics of a model on held-out sequences.

  Args:
    program: the compiled model.
    params: the model's parameters.
    held_out: one or several sets, each with its own prefix.
    unigram_token: the id that the unigram baseline always predicts; used for pretraining.
    over: wraps the batches, such as to show progress.

  Returns:
    The result of `evaluate_pretraining` or `evaluate_causal`. For other heads: `loss`, the
    mean over sequences; the metrics of `score`; and `sequences`, the number of sequences.
  """
  figures: dict = {}
  for one in held_out:
    batches = over(one.batches())
    if program.head == "causal":
      values = evaluate_causal(program, params, batches)
    elif one.score is None:
      values = evaluate_pretraining(program, params, batches, unigram_token=unigram_token)
    elif program.head == "encoder":
      vectors = embed(program, params, batches, pooling=one.pooling)
      finite = all(np.isfinite(vector).all() for vector in vectors)
      values = one.score(vectors) if finite else {"loss": math.nan}
    else:
      logits, loss = predict(program, params, batches)
      # A loss that is not finite is reported by the caller.
      values = {"loss": loss, **(one.score(logits) if np.isfinite(loss) else {})}
      values["sequences"] = len(logits)
    figures |= {f"{one.prefix}{name}": value for name, value in values.items()}
  return figures


def evaluate_causal(program: ModelProgram, params, batches: Batches) -> dict:
  """Averages the loss of a causal model over all predicted tokens.

  Args:
    program: the compiled model.
    params: the model's parameters.
    batches: PackedBatches; each process passes only its own rows. Where windows overlap,
      `loss_mask` makes each token a target only once.

  Returns:
    `causal_loss` in nats and `causal_accuracy`, a fraction, as means over the tokens;
    `loss`, equal to `causal_loss`; `perplexity`, its exponential; `tokens`, the number of
    predicted tokens; and `sequences`, the number of sequences.
  """
  totals = {"causal_loss": 0.0, "causal_accuracy": 0.0}
  tokens = sequences = 0
  read = ("sequence_mask", "segment_ids", "loss_mask")
  for batch, results, _ in _results(program, params, batches, read):
    used = batch["sequence_mask"]
    owners = np.asarray(losses.next_token_owners(batch))
    targets = _belongs(owners, used.shape[1]).sum(-1)  # [B, M]
    for name in totals:
      totals[name] += float((results[name][0].astype(np.float64) * targets).sum())
    tokens += int(targets.sum())
    sequences += int(used.sum())
  means = {name: total / tokens for name, total in totals.items()}
  loss = means["causal_loss"]
  return {
    "loss": loss,
    **means,
    "perplexity": math.exp(min(loss, 700)),  # JSON has no infinity
    "tokens": tokens,
    "sequences": sequences,
  }


def evaluate_pretraining(
  program: ModelProgram, params, batches: Batches, *, unigram_token: int
) -> dict:
  """Averages loss and accuracy over sequences.

  Args:
    program: the compiled model.
    params: the model's parameters.
    batches: PackedBatches that hold each sequence once; each process passes only its own
      rows.
    unigram_token: the id that the unigram baseline always predicts.

  Returns:
    `mlm_loss`, `mlm_accuracy` and `loss`, as means over sequences (nats, fractions);
    `unigram_mlm_accuracy`, the accuracy of always predicting the most frequent token, on
    the same masked tokens; with a next-sentence head `nsp_loss`, `nsp_accuracy` and
    `nsp_majority_accuracy`, the accuracy of always predicting the more frequent label;
    `mlm_accuracy_by_length`, one object per quarter of the row length: `from` and `to` in
    tokens, `sequences` (those with a masked token), `mlm_accuracy` and `mlm_loss`; and
    `sequences`, the number of all sequences.
  """
  columns = defaultdict[str, list[np.ndarray]](list)
  row_length = 0
  for batch, results, _ in _results(program, params, batches, _READ):
    used = batch["sequence_mask"]
    row_length = batch["segment_ids"].shape[1]
    for name, (values, counts) in results.items():
      columns[name].append(values[used])
      columns[f"{name}_counts"].append(counts[used])
    belongs = _belongs(batch["mlm_segment_ids"], used.shape[1])
    hits = (belongs & (batch["mlm_labels"] == unigram_token)[:, None, :]).sum(-1)
    hit_rates = hits / np.maximum(belongs.sum(-1), 1)
    columns["unigram_mlm_accuracy"].append(hit_rates[used])
    columns["labels"].append(batch["sequence_labels"][used])
    lengths = _belongs(batch["segment_ids"], used.shape[1]).sum(-1)
    columns["lengths"].append(lengths[used])

  values = {name: np.concatenate(parts) for name, parts in columns.items()}
  has_mlm = values["mlm_loss_counts"]

  def mean(name: str, mask) -> float:
    return float(values[name][mask].mean())

  means = {
    name: mean(name, values[f"{name}_counts"])
    for name in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    if name in values
  }
  if "nsp_accuracy" in means:
    random_next = float(values["labels"].mean())
    means["nsp_majority_accuracy"] = max(random_next, 1 - random_next)
  edges = np.linspace(0, row_length, LENGTH_BINS + 1).astype(int)
  by_length = []
  for low, high in itertools.pairwise(edges.tolist()):
    inside = has_mlm & (values["lengths"] > low) & (values["lengths"] <= high)
    if inside.any():
      by_length.append(
        {
          "from": low + 1,
          "to": high,
          "sequences": int(inside.sum()),
          "mlm_accuracy": mean("mlm_accuracy", inside),
          "mlm_loss": mean("mlm_loss", inside),
        }
      )
  return {
    "loss": means["mlm_loss"] + means.get("nsp_loss", 0.0),
    **means,
    "unigram_mlm_accuracy": mean("unigram_mlm_accuracy", has_mlm),
    "mlm_accuracy_by_length": by_length,
    "sequences": int(values["lengths"].size),
  }


class Predictions(NamedTuple):
  """The outputs of a head for some sequences.

  Attributes:
    logits: one array per sequence, in the order of their numbers: float[num_labels];
      float[length, num_labels] for tags; or float[length, 2] for the start and the end of
      an answer.
    loss: the mean over the sequences that have one, in nats; for a regression, the mean
      squared error. NaN if none has one.
  """

  logits: list[np.ndarray]
  loss: float


def prediction_config(
  config: ModelConfig, *, dtype: str = "auto", attention_impl: str = "auto"
) -> ModelConfig:
  """A model's config for prediction.

  Args:
    config: the model's.
    dtype: dtype of the computation; "auto" for the fastest on this device.
    attention_impl: a key of `model.IMPLEMENTATIONS`; "auto" for the fastest.
  """
  return dataclasses.replace(
    config,
    attention_impl=attention_impl,
    attention_dropout_rate=0.0,  # prediction has no dropout, so any kernel may run
    remat="none",
    dtype=dtype,
  )


def predict(program: ModelProgram, params, batches: Batches) -> Predictions:
  """Runs a model on packed batches, and separates its outputs by sequence.

  Args:
    program: the compiled model; its head is not that of a language model.
    params: the model's parameters.
    batches: PackedBatches that hold each sequence once; each process passes only its own
      rows.
  """
  found: dict[tuple[int, ...], np.ndarray] = {}
  losses = []
  for batch, values, outputs in _results(program, params, batches, _PREDICTED):
    ((name, logits),) = outputs.items()
    found |= _by_number(name, logits, batch)
    loss, exists = values[name.replace("_logits", "_loss")]
    losses.append(loss[exists])  # a window may score no word
  each = np.concatenate(losses)
  loss = float(each.mean()) if each.size else float("nan")
  return Predictions([found[number] for number in sorted(found)], loss)


def embed(
  program: ModelProgram, params, batches: Batches, *, pooling: str = "mean"
) -> list[np.ndarray]:
  """Embeddings of sequences, float[D] each, in the order of the sequences' numbers.

  Pairs have those of their texts, in the order of the texts' numbers.

  Args:
    program, params, batches: as for `predict`, but the head is "encoder".
    pooling: mean, cls or pooled, as in the outputs of `model.bert.BertModel`.
  """
  found: dict[tuple[int, ...], np.ndarray] = {}
  for batch, _, outputs in _results(program, params, batches, _EMBEDDED):
    name = f"sequence_{pooling}"
    found |= _by_number(name, outputs[name], batch)
  return [found[number] for number in sorted(found)]


def _results(
  program: ModelProgram, params, batches: Batches, names: Sequence[str]
) -> Iterator[tuple[dict, dict, dict]]:
  """Yields each batch's fields of these names (of all processes), losses and outputs.

  Each step starts before the results of the previous one are yielded, so that devices work
  meanwhile.
  """
  steps = ((b, program.eval_step(params, program.put_batch(b))) for b in batches)
  ahead = itertools.pairwise(itertools.chain(steps, [None]))
  for (block, results), _ in ahead:  # type: ignore[misc]
    values, outputs = jax.device_get(results)
    fields = {name: block[name] for name in names if name in block}
    yield multihost_utils.process_allgather(fields, tiled=True), values, outputs


def _by_number(name: str, values: np.ndarray, batch) -> dict[tuple[int, ...], np.ndarray]:
  """Outputs by the numbers of a sequence, of pairs also that of a text."""
  used, fields = batch["sequence_mask"], ("sequence_ids", "text_numbers")
  numbers = zip(*(batch[x][used].tolist() for x in fields if x in batch), strict=True)
  return dict(zip(numbers, take_apart(name, values, batch), strict=True))


def _belongs(owners: np.ndarray, max_sequences: int) -> np.ndarray:
  """int[B, K] -> bool[B, M, K], which items belong to which sequence of their pack."""
  numbers = np.arange(1, max_sequences + 1)
  return owners[:, None, :] == numbers[None, :, None]


def take_apart(
  name: str, values: np.ndarray, batch: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
  """Splits an output of a model by sequence, as if each had been alone.

  Args:
    name: the output's name. An output called `sequence_...` has an entry for each
      sequence, any other output has one for each token.
    values: [B, M, ...] or [B, S, ...].
    batch: the PackedBatch.

  Returns:
    For each sequence, in the order of `batch["sequence_ids"][batch["sequence_mask"]]`, its
    entry [...] or the entries of its tokens [length, ...].

  Example:
    >>> from packing.testing import lay_out
    >>> batch = lay_out([[{"input_ids": [7, 8]}, {"input_ids": [9]}]], row_length=4)
    >>> [x.tolist() for x in take_apart("token_logits", np.array([[3, 4, 5, 6]]), batch)]
    [[3, 4], [5]]
  """
  used = np.asarray(batch["sequence_mask"])
  if name.startswith("sequence_"):
    return list(values[used])
  rows, slots = np.nonzero(used)
  starts = np.asarray(batch["cls_positions"])[rows, slots]
  belongs = _belongs(np.asarray(batch["segment_ids"]), used.shape[1])
  lengths = belongs.sum(-1)[rows, slots]
  places = zip(rows.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
  return [values[row, start:stop] for row, start, stop in places]
