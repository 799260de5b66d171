"""Losses and accuracies per sequence, for all sequences of a batch at once.

An unpacked BERT averages over the sequences of its batch. A pack of three sequences
must therefore weigh three times a pack of one: values are averaged within each sequence
first, and only then over sequences. Everything is returned as a sum and a count, so that
micro-batches and devices can be added without error.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.3 and Listing 5.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def mean_per_sequence(
  values: jax.Array, segment_ids: jax.Array, max_sequences: int
) -> tuple[jax.Array, jax.Array]:
  """Averages token values within each sequence.

  Args:
    values: float[B, P]; one value a token.
    segment_ids: int32[B, P]; the sequence each token belongs to, 0 for none.
    max_sequences: M.

  Returns:
    float[B, M], the mean of each sequence, 0 where it has no token; and bool[B, M],
    whether it has one.

  Example:
    >>> values = jnp.array([[1.0, 3.0, 8.0, 5.0]])
    >>> means, present = mean_per_sequence(values, jnp.array([[1, 1, 2, 0]]), 3)
    >>> means.tolist(), present.tolist()
    ([[2.0, 8.0, 0.0]], [[True, True, False]])
  """
  numbers = jnp.arange(1, max_sequences + 1)
  belongs = (segment_ids[:, None, :] == numbers[None, :, None]).astype(values.dtype)
  count = belongs.sum(-1)  # [B, M]
  return (belongs * values[:, None, :]).sum(-1) / jnp.maximum(count, 1), count > 0


def pretraining_per_sequence(
  outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> dict[str, tuple[jax.Array, jax.Array]]:
  """Loss and accuracy of both heads, for each sequence by itself.

  Args:
    outputs: `mlm_logits` [B, P, V] and `nsp_logits` [B, M, 2].
    batch: a PackedBatch.

  Returns:
    For `mlm_loss`, `mlm_accuracy`, `nsp_loss` and `nsp_accuracy` the values float[B, M],
    losses in nats and accuracies as fractions, and bool[B, M], which of them count.
  """
  max_sequences = batch["sequence_mask"].shape[1]

  def mlm(values):
    return mean_per_sequence(values, batch["mlm_segment_ids"], max_sequences)

  mlm_loss, mlm_correct = _cross_entropy(outputs["mlm_logits"], batch["mlm_labels"])
  nsp_loss, nsp_correct = _cross_entropy(outputs["nsp_logits"], batch["sequence_labels"])
  used = batch["sequence_mask"]
  return {
    "mlm_loss": mlm(mlm_loss),
    "mlm_accuracy": mlm(mlm_correct),
    "nsp_loss": (jnp.where(used, nsp_loss, 0), used),
    "nsp_accuracy": (jnp.where(used, nsp_correct, 0), used),
  }


def pretraining_loss(
  outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The loss that training minimises: mean over sequences, MLM plus NSP.

  Args:
    outputs: `mlm_logits` [B, P, V] and `nsp_logits` [B, M, 2].
    batch: a PackedBatch.

  Returns:
    The loss in nats; and the means over the batch's sequences of the entries of
    `pretraining_per_sequence`, with `loss`.
  """
  metrics = {
    name: values.sum() / jnp.maximum(counts.sum(), 1)
    for name, (values, counts) in pretraining_per_sequence(outputs, batch).items()
  }
  loss = metrics["mlm_loss"] + metrics["nsp_loss"]
  return loss, metrics | {"loss": loss}


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """[..., V] and int[...] -> loss in nats and correctness, in at least float32."""
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
  loss = jax.nn.logsumexp(logits, axis=-1) - label_logits
  return loss, (logits.argmax(-1) == labels).astype(logits.dtype)
