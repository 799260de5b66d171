"""LAMB and other optimizers, the learning rate, and betas for packed batches."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

OPTIMIZERS = ("lamb", "adamw", "sgd")
DECAYS = ("linear", "sqrt")


def warmup_and_decay(
  *,
  peak: float,
  warmup_steps: int,
  total_steps: int,
  decay: str = "linear",
  decay_share: float = 1.0,
) -> optax.Schedule:
  """A learning rate that rises linearly to a peak, stays there, then falls to zero.

  Update `t` (from 0) uses peak * (t + 1) / warmup_steps while that is below the peak,
  so that no update is wasted on a rate of zero.

  Args:
    peak: the highest rate.
    warmup_steps: updates with a rising rate.
    total_steps: updates of the run.
    decay: "linear", as in BERT, or "sqrt": peak * (1 - sqrt(x)), where x is the fraction
      of the decay that has passed.
    decay_share: the rate falls during this last fraction of the updates after the
      warm-up. Below 1 the schedule is trapezoidal.

  Example:
    >>> rate = warmup_and_decay(peak=1.0, warmup_steps=2, total_steps=6)
    >>> [round(float(rate(t)), 2) for t in range(6)]
    [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
    >>> options = {"decay": "sqrt", "decay_share": 0.8}
    >>> rate = warmup_and_decay(peak=1.0, warmup_steps=2, total_steps=6, **options)
    >>> [round(float(rate(t)), 2) for t in range(6)]
    [0.5, 1.0, 1.0, 0.5, 0.29, 0.13]

  References:
    Hagele et al., https://arxiv.org/abs/2405.18392 (1 - sqrt).
  """
  warmup = optax.linear_schedule(
    peak / max(warmup_steps, 1), peak, max(warmup_steps - 1, 1)
  )
  after = total_steps - max(warmup_steps - 1, 0)
  falling = round(decay_share * after)
  if not falling:
    fall = optax.constant_schedule(peak)
  elif decay == "linear":
    fall = optax.linear_schedule(peak, 0.0, falling, after - falling)
  else:

    def fall(step):
      done = jnp.clip((step - (after - falling)) / falling, 0, 1)
      return peak * (1 - jnp.sqrt(done))

  return optax.join_schedules([warmup, fall], [max(warmup_steps - 1, 0)])


def packed_betas(b1: float, b2: float, packing_factor: float) -> tuple[float, float]:
  """Betas for a batch with `packing_factor` times as many sequences.

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
  bias_correction: bool = True,
) -> optax.GradientTransformation:
  """LAMB, as used to train BERT.

  Gradients are clipped to a global norm. Each tensor's update is Adam's direction plus
  weight decay, scaled by the trust ratio norm(parameter) / norm(update), or by 1 if a norm
  is 0. This is layer by layer, since no tensor spans several layers. Biases and LayerNorm
  get no weight decay and no trust ratio, as in Google's code.

  Args:
    learning_rate: a number, or a schedule over updates.
    b1: decay of the momentum.
    b2: decay of the velocity.
    eps: added to the root of the velocity.
    weight_decay: fraction of a weight added to its direction.
    clip_norm: largest global norm of the gradients; 0 for no clipping.
    bias_correction: whether momentum and velocity are divided by 1 - beta ** t, as in the
      paper and NVIDIA's code; Google's BERT and ALBERT do not divide them.

  References:
    You et al., https://arxiv.org/abs/1904.00962, algorithm 2.
  """
  return optax.chain(
    _clip(clip_norm),
    _scale_by_adam(b1, b2, eps, bias_correction=bias_correction),
    _decay(weight_decay),
    optax.masked(_scale_by_trust_ratio(), mask=is_weight_matrix),
    optax.scale_by_learning_rate(learning_rate),
  )


def adamw(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  clip_norm: float,
  clip_update: float = 0.0,
  bias_correction: bool = True,
) -> optax.GradientTransformation:
  """Adam with decoupled weight decay: `lamb` without its trust ratio.

  With `clip_update`, the update of each tensor, before weight decay and learning rate, is
  scaled so that its root mean square is at most that value. StableAdamW does the same
  with 1, but measures the gradient over the root of the velocity instead of the update,
  and scales the weight decay as well.

  References:
    Wortsman et al., https://arxiv.org/abs/2304.13013, section 3.5 (StableAdamW).
  """
  update = optax.clip_by_block_rms(clip_update) if clip_update else optax.identity()
  return optax.chain(
    _clip(clip_norm),
    _scale_by_adam(b1, b2, eps, bias_correction=bias_correction),
    update,
    _decay(weight_decay),
    optax.scale_by_learning_rate(learning_rate),
  )


def sgd(
  learning_rate: optax.ScalarOrSchedule,
  *,
  b1: float,
  weight_decay: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """Gradient descent with momentum.

  The momentum is the average b1 * m + (1 - b1) * g, as in Adam, so that theorem D.1 holds
  for it. Implementations with the sum b1 * m + g make the same updates with 1 - b1 times
  the learning rate.
  """
  return optax.chain(
    _clip(clip_norm),
    optax.ema(b1, debias=False),
    _decay(weight_decay),
    optax.scale_by_learning_rate(learning_rate),
  )


def _clip(norm: float) -> optax.GradientTransformation:
  return _clip_by_norm(norm) if norm else optax.identity()


def _decay(rate: float) -> optax.GradientTransformation:
  return optax.add_decayed_weights(rate, mask=is_weight_matrix)


def _scale_by_adam(
  b1: float, b2: float, eps: float, *, bias_correction: bool
) -> optax.GradientTransformation:
  adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)

  def update(gradients, state, params=None):
    with jax.numpy_dtype_promotion("standard"):  # Optax needs implicit promotion
      direction, state = adam.update(gradients, state, params)
    if not bias_correction:
      direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), state.mu, state.nu)
    return direction, state

  return optax.GradientTransformation(adam.init, update)


def norms(tree: Any) -> Any:
  """The L2 norm of each array of a tree, in at least float32.

  One by one, the norms of LAMB for BERT-base are a thousand kernels, a twentieth of a step
  on an H200. Here they are few.

  Example:
    >>> found = norms({"a": jnp.array([3.0, 4.0]), "b": jnp.array([[1.0], [1.0]])})
    >>> {name: round(float(x), 3) for name, x in found.items()}
    {'a': 5.0, 'b': 1.414}
  """
  arrays, structure = jax.tree.flatten(tree)
  alike = defaultdict(list)  # arrays with equally many rows are summed together
  for number, array in enumerate(arrays):
    squares = jnp.square(array.astype(np.promote_types(array.dtype, np.float32)))
    rows = squares.sum(-1).ravel() if array.ndim > 1 else squares.ravel()
    alike[rows.size, rows.dtype].append((number, rows))
  found = dict[int, jax.Array]()
  for group in alike.values():
    each = jnp.sqrt(jnp.stack([rows for _, rows in group]).sum(-1))
    found |= {number: each[place] for place, (number, _) in enumerate(group)}
  return jax.tree.unflatten(structure, [found[number] for number in range(len(arrays))])


def norm(tree: Any) -> jax.Array:
  """The L2 norm of all arrays of a tree together."""
  return jnp.linalg.norm(jnp.stack(jax.tree.leaves(norms(tree))))


def _clip_by_norm(most: float) -> optax.GradientTransformation:
  """Scales gradients so that their norm is at most this.

  References:
    Pascanu et al., https://arxiv.org/abs/1211.5063.
  """

  def update(gradients, params):
    del params
    found = norm(gradients)
    return jax.tree.map(
      lambda x: jnp.where(found < most, x, x / found.astype(x.dtype) * most), gradients
    )

  return optax.stateless(update)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
  """Scales each update by norm(parameter) / norm(update), or by 1 if a norm is 0.

  References:
    You et al., https://arxiv.org/abs/1904.00962, algorithm 2.
  """

  def update(updates, params):
    def scale(x, of_update, of_parameter):
      none = (of_update == 0) | (of_parameter == 0)
      return x * jnp.where(none, 1, of_parameter / of_update).astype(x.dtype)

    return jax.tree.map(scale, updates, norms(updates), norms(params))

  return optax.stateless(update)
