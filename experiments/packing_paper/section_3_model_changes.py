"""What packing changes in the model and the optimizer: sections 3.2, 3.3 and D."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lab.exhibits import Exhibit, Part, Value, to_the_digit
from model.losses import mean_per_sequence
from model.masks import packed_attention_mask
from packing.testing import lay_out
from training.optimizer import lamb, packed_betas

POSITIONS = [0, 1, 0, 1, 2]  # of sequences of 2 and 3 tokens, section 3.2.1
SEGMENTS = [1, 1, 1, 2, 2]  # in the code of Figure 2
MASK = [  # as printed beside it
  [1, 1, 1, 0, 0],
  [1, 1, 1, 0, 0],
  [0, 0, 0, 1, 1],
  [0, 0, 0, 1, 1],
  [0, 0, 0, 1, 1],
]
LARGEST_FACTOR = 8
EXACT = 1e-12  # relative, in float64
CLOSE = 1e-6  # relative, in float32


def section_32(part: Part) -> Exhibit:
  """The exhibit of positions that restart, and of the mask from equal segment ids."""

  def same(name: str, paper: list, here: list, note: str = "") -> Value:
    agrees = paper == here
    return Value(name, str(paper), str(here), "", agrees, "" if agrees else note)

  sequences = [{"input_ids": np.arange(length) + 5} for length in (2, 3)]
  positions = lay_out([sequences], row_length=5)["position_ids"][0].tolist()
  mask = packed_attention_mask(jnp.array([SEGMENTS]))[0, 0].astype(int).tolist()
  slip = "a slip: token 3 is of the first sequence in the figure's own segment ids"
  values = [same("positions of 2 and 3 tokens in a row", POSITIONS, positions)]
  for i, row in enumerate(mask):
    values.append(same(f"mask of token {i + 1}", MASK[i], row, slip if i == 2 else ""))
  return part.exhibit(
    "Section 3.2, Figure 2",
    "Positions and mask of a pack",
    "Positions restart in each sequence, and a token attends where segment ids are equal: "
    f"here with the segment ids {' '.join(map(str, SEGMENTS))} of the figure's code.",
    agreement="to the digit",
    claim="Positions restart in each sequence, and the mask is block diagonal.",
    values=values,
  )


def listing_5(part: Part) -> Exhibit:
  """The exhibit of the loss of all sequences at once, and in a loop over them."""
  values = []
  for depth in (1, 3, 16):
    rng = np.random.default_rng(depth)
    loss = rng.exponential(size=(8, 76)).astype(np.float32)  # [B, P], of each masked token
    owners = np.sort(rng.integers(0, depth + 1, loss.shape))  # 0: an empty slot
    means, present = mean_per_sequence(jnp.asarray(loss), jnp.asarray(owners), depth)
    parallel = float(means.sum()) / int(present.sum())
    alone = [
      np.mean(row[of == k], dtype=float)
      for row, of in zip(loss, owners, strict=True)
      for k in range(1, depth + 1)
      if (of == k).any()
    ]
    apart = abs(parallel / np.mean(alone) - 1)
    name = f"at most {depth} in a pack: {len(alone)} sequences"
    values.append(Value(name, "equal", f"{apart:.1e} apart", "", bool(apart < CLOSE)))
  return part.exhibit(
    "Section 3.2.3, Listing 5",
    "The loss of all sequences at once, and in a loop",
    "The loss of each sequence and their mean, computed for all sequences of 8 packs at "
    f"once, are those of a loop over the sequences, to {CLOSE:.0e} in float32.",
    agreement="to the digit",
    claim="The loss per sequence needs no loop over the sequences of a pack.",
    values=values,
  )


def moments_apart(packing_factor: int, *, seed: int) -> float:
  """The largest relative difference between the moments of one packed update and p updates.

  All updates have the same gradient, as the theorem assumes, and start from random momentum
  and velocity, in float64.
  """
  b1, b2 = 0.9, 0.999
  rng = np.random.default_rng(seed)
  with jax.enable_x64(True):
    params, gradient, before = (
      {"kernel": jnp.asarray(rng.normal(size=(5, 7)))} for _ in range(3)
    )

    def moments(number: int, betas: tuple[float, float]):
      optimizer = lamb(1e-3, b1=betas[0], b2=betas[1], clip_norm=0.0)
      state = optimizer.init(params)
      state = optax.tree.set(state, mu=before, nu=jax.tree.map(jnp.square, before))
      for _ in range(number):
        _, state = optimizer.update(gradient, state, params)
      return np.stack([optax.tree.get(state, name)["kernel"] for name in ("mu", "nu")])

    separate = moments(packing_factor, (b1, b2))
    packed = moments(1, packed_betas(b1, b2, packing_factor))
  return float(np.max(np.abs(packed - separate) / np.abs(separate)))


def theorem_d(part: Part) -> Exhibit:
  """The exhibit of the betas of a packed batch."""
  apart = {p: moments_apart(p, seed=p) for p in range(1, LARGEST_FACTOR + 1)}
  beta = packed_betas(0.81, 0.9, 2)[0]
  values = [to_the_digit("0.81 at a packing factor of 2", "0.66", beta)]
  for p, x in apart.items():
    name = f"moments of 1 packed update, {p} separate ones"
    values.append(Value(name, "equal", f"{x:.1e} apart", "", x < EXACT))
  return part.exhibit(
    "Theorem D.1",
    "LAMB's betas to the power of the packing factor",
    "With the same gradient, one update with beta^p gives the momentum and velocity of p "
    f"updates with beta, to {max(apart.values()):.1e} in float64 for p up to "
    f"{LARGEST_FACTOR}. The weights, however, have moved once and not p times.",
    agreement="to the digit",
    claim="Betas to the power of the packing factor keep momentum and velocity as they are "
    "without packing.",
    values=values,
  )


def exhibits(part: Part) -> list[Exhibit]:
  """All exhibits of this part."""
  return [section_32(part), listing_5(part), theorem_d(part)]
