"""Which tokens of a row a token may attend to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def packed_attention_mask(segment_ids: jax.Array) -> jax.Array:
  """Lets each token attend only within its own sequence.

  Args:
    segment_ids: int32[B, S]; 1, 2, ... numbers the sequences of a pack, 0 is padding.

  Returns:
    bool[B, 1, S, S], True = may attend; False for all padding, as query and as key.

  Raises:
    ValueError: the rank is not 2.

  Example:
    >>> packed_attention_mask(jnp.array([[1, 1, 2, 0]]))[0, 0].astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.2.
  """
  if segment_ids.ndim != 2:
    raise ValueError(f"Expected segment_ids of shape [B, S], found {segment_ids.shape}.")
  same_sequence = jnp.equal(segment_ids[:, :, None], segment_ids[:, None, :])
  return (same_sequence & (segment_ids[:, None, :] > 0))[:, None]


def padding_attention_mask(segment_ids: jax.Array) -> jax.Array:
  """Lets every token attend to all real tokens of its row: packing without isolation.

  Args:
    segment_ids: int32[B, S]; 0 is padding.

  Returns:
    bool[B, 1, 1, S], True = may be attended to.

  Example:
    >>> padding_attention_mask(jnp.array([[1, 1, 2, 0]])).astype(int).tolist()
    [[[[1, 1, 1, 0]]]]
  """
  return (segment_ids > 0)[:, None, None, :]


def near(
  queries: jax.Array, keys: jax.Array, window: int | None, *, causal: bool = False
) -> jax.Array:
  """Which keys are within the window of each query.

  The tokens of a sequence are adjacent, so their distances in the row equal those in the
  sequence.

  Args:
    queries: int32[Q], places in the row.
    keys: int32[K], places in the row.
    window: how far a query sees, in tokens to either side; None for no limit.
    causal: whether a query sees only its own and earlier keys.

  Returns:
    bool[Q, K], True = may attend.

  Example:
    >>> places = jnp.arange(4)
    >>> near(places, places, 1).astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    >>> near(places, places, 1, causal=True).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
  """
  ahead = keys[None] - queries[:, None]
  allowed = jnp.full(ahead.shape, True) if window is None else jnp.abs(ahead) <= window
  return allowed & (ahead <= 0) if causal else allowed


def pairs_within(lengths: np.ndarray, window: int | None) -> np.ndarray:
  """For each sequence, how many pairs of its tokens attend to each other.

  Args:
    lengths: the lengths of the sequences, in tokens.
    window: how far a token sees, in tokens to either side; None for no limit.

  Example:
    >>> pairs_within(np.array([1, 4]), None).tolist()
    [1, 16]
    >>> pairs_within(np.array([1, 4]), 1).tolist()
    [1, 10]
  """
  reach = lengths - 1 if window is None else np.minimum(window, lengths - 1)
  return lengths * (2 * reach + 1) - reach * (reach + 1)


def split_by_token_type(
  segment_ids: jax.Array, token_type_ids: jax.Array, *, token_types: int
) -> jax.Array:
  """Segment ids that number the sentences of a row instead of its sequences.

  With these, the two sentences of a pair do not see each other, which appendix A of the
  paper leaves to future work. [CLS] belongs to sentence A.

  Args:
    segment_ids: int32[B, S].
    token_type_ids: int32[B, S].
    token_types: the number of token types.

  Returns:
    int32[B, S]; 0 is padding.

  Example:
    >>> ids, types = jnp.array([[1, 1, 1, 2, 0]]), jnp.array([[0, 0, 1, 0, 0]])
    >>> split_by_token_type(ids, types, token_types=2).tolist()
    [[1, 1, 2, 3, 0]]
  """
  sentences = (segment_ids - 1) * token_types + token_type_ids + 1
  return jnp.where(segment_ids > 0, sentences, 0)
