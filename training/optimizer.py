"""LAMB, and what packing asks of it."""

from __future__ import annotations

import jax
import optax


def warmup_linear_decay(
  *, peak: float, warmup_steps: int, total_steps: int
) -> optax.Schedule:
  """BERT's learning rate: linear up to the peak, then linear down to zero.

  Update `t` (from 0) uses peak * (t + 1) / warmup_steps while that is below the peak,
  so that no update is wasted on a rate of zero.

  Example:
    >>> rate = warmup_linear_decay(peak=1.0, warmup_steps=2, total_steps=6)
    >>> [round(float(rate(t)), 2) for t in range(6)]
    [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
  """
  warmup = optax.linear_schedule(
    peak / max(warmup_steps, 1), peak, max(warmup_steps - 1, 1)
  )
  decay = optax.linear_schedule(peak, 0.0, total_steps - max(warmup_steps - 1, 0))
  return optax.join_schedules([warmup, decay], [max(warmup_steps - 1, 0)])


def packed_betas(b1: float, b2: float, packing_factor: float) -> tuple[float, float]:
  """Betas for a batch that holds `packing_factor` times the sequences.

  One update with beta ** p moves momentum and velocity as far as p updates with beta
  and the same gradient.

  Example:
    >>> b1, b2 = packed_betas(0.81, 0.998001, 0.5)
    >>> round(b1, 6), round(b2, 6)
    (0.9, 0.999)

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.3 and theorem D.1.
  """
  return b1**packing_factor, b2**packing_factor


def is_weight_matrix(params):
  """A tree of bools: False for biases and LayerNorm, which LAMB treats as plain Adam."""

  def decide(path, _) -> bool:
    names = [str(getattr(key, "key", key)) for key in path]
    return not names[-1].endswith("bias") and not any("layer_norm" in n for n in names)

  return jax.tree_util.tree_map_with_path(decide, params)


def lamb(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-6,
  weight_decay: float = 0.01,
  clip_norm: float = 1.0,
) -> optax.GradientTransformation:
  """LAMB as BERT is trained with it.

  Gradients are clipped to a global norm; Adam's bias-corrected direction plus weight
  decay is scaled by norm(parameter) / norm(direction), tensor by tensor. Biases and
  LayerNorm get neither decay nor that trust ratio.

  Args:
    learning_rate: a number, or a schedule over updates.
    b1: decay of the momentum.
    b2: decay of the velocity.
    eps: added to the root of the velocity.
    weight_decay: fraction of a weight added to its direction.
    clip_norm: largest global norm of the gradients.

  References:
    You et al., https://arxiv.org/abs/1904.00962, algorithm 2.
  """
  return optax.chain(
    optax.clip_by_global_norm(clip_norm),
    optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    optax.add_decayed_weights(weight_decay, mask=is_weight_matrix),
    optax.masked(optax.scale_by_trust_ratio(), mask=is_weight_matrix),
    optax.scale_by_learning_rate(learning_rate),
  )
