"""The recipe of a run, translated from the recipe without packing, and its optimizer.

The settings of a run hold the recipe without packing; `adjust` selects the translation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import optax

from launch.options import check_option
from launch.parts import AdamW, Adaptive, Optimizer, Train, parse_duration
from packing.errors import multiples_near
from training.errors import ConfigError
from training.optimizer import adamw, lamb, packed_betas, sgd, warmup_and_decay

# Of our study, at a packing factor of 1.98 and equal sequences: nats of held-out loss above
# those of the default, `reduce_batch` (experiments.packing_paper.section_3_3_adjustments).
ABOVE_DEFAULT = {"lr_sqrt": 0.078, "none": 0.140, "lamb_betas": 0.178}

_SHORT_WARMUP = 0.1  # fraction of the steps, if the config's warm-up outlasts the run


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The hyperparameters that depend on the batch size; durations are in steps.

  Attributes:
    rows: rows per step, over all devices.
    accumulation: micro-batches per step.
    packing_factor: sequences per row, on average.
    steps: updates of the parameters.
    warmup_steps: how many of them have a rising learning rate.
    shortened_from: the config's warm-up, if it was too long for the steps.
    learning_rate: the peak.
    b1: decay of the momentum.
    b2: decay of the velocity.
    num_sequences: sequences in the dataset; None if not known.
    num_tokens: real tokens in the dataset; None if not known.
    adjust: which of `ADJUSTMENTS` made it from the recipe without packing.
    rounding: fraction by which rounding the rows changed the sequences per step.

  Raises:
    ConfigError: there are no steps, or no step after the warm-up.
  """

  rows: int
  accumulation: int
  packing_factor: float
  steps: int
  warmup_steps: int
  learning_rate: float
  b1: float
  b2: float
  num_sequences: int | None = None
  num_tokens: int | None = None
  shortened_from: int | None = None
  adjust: str = "none"
  rounding: float = 0.0

  def __post_init__(self):
    p = self.packing_factor
    where = f" at a packing factor of {p:.3f}" if p > 1 else ""
    if self.steps < 1:
      raise ConfigError(
        f"config.train.steps comes to {self.steps}{where}. Raise it or train.duration."
      )
    warmup, expected = self.warmup_steps, f"0 to {self.steps - 1}, less than the steps"
    check_option(0 <= warmup < self.steps, "optimizer.warmup_steps", warmup, expected)

  @property
  def sequences(self) -> float:
    """Sequences per step, on average."""
    return self.rows * self.packing_factor

  @property
  def real_tokens(self) -> float | None:
    """Real tokens per step, on average."""
    if not self.num_sequences or not self.num_tokens:
      return None
    return self.sequences * self.num_tokens / self.num_sequences

  @property
  def epochs(self) -> float | None:
    """How often each sequence of the dataset is seen."""
    if not self.num_sequences:
      return None
    return self.steps * self.sequences / self.num_sequences

  def as_dict(self) -> dict[str, Any]:
    """The attributes and the properties, for JSON."""
    names = ("sequences", "real_tokens", "epochs")
    return dataclasses.asdict(self) | {name: getattr(self, name) for name in names}


def unpacked(
  train: Train,
  optimizer: Optimizer,
  *,
  num_sequences: int | None = None,
  num_tokens: int | None = None,
) -> Recipe:
  """The recipe of a run without packing, with its durations converted to steps.

  A warm-up that would outlast the run is shortened to a tenth of the steps, so that any
  run can be tried with few steps.

  Args:
    train: of the run.
    optimizer: of the run.
    num_sequences: sequences in the dataset; needed for durations in epochs.
    num_tokens: real tokens in the dataset.

  Raises:
    ConfigError: there are no steps, or a duration in epochs without `num_sequences`.
  """
  rows, micro = train.batch_size, train.micro_batch_size

  def in_steps(field: str, text: str, steps: int) -> int:
    if not text:
      return steps
    number, unit = parse_duration(field, text)
    if unit == "epoch":
      if num_sequences is None:
        raise ConfigError(
          f"config.{field} is {text!r}; expected steps or sequences, or --num_sequences."
        )
      number, unit = number * num_sequences, "sequence"
    return round(number / rows if unit == "sequence" else number)

  steps = in_steps("train.duration", train.duration, train.steps)
  warmup = asked = in_steps("optimizer.warmup", optimizer.warmup, optimizer.warmup_steps)
  if 0 < steps <= asked:
    warmup = int(steps * _SHORT_WARMUP)
  return Recipe(
    rows=rows,
    accumulation=rows // micro if micro else 1,
    packing_factor=1.0,
    steps=steps,
    warmup_steps=warmup,
    shortened_from=None if warmup == asked else asked,
    learning_rate=optimizer.learning_rate,
    b1=optimizer.b1,
    b2=optimizer.b2 if isinstance(optimizer, Adaptive) else Adaptive.b2,
    num_sequences=num_sequences,
    num_tokens=num_tokens,
  )


def packed(
  recipe: Recipe, *, packing_factor: float, adjust: str, multiple: int = 1
) -> Recipe:
  """Translates a recipe without packing to the corresponding one for packed rows.

  `reduce_batch` divides the rows per step by the packing factor p and rounds them to a
  multiple. All others keep the rows. Steps and warm-up are then divided by the factor by
  which the sequences per step grew: by p, or for `reduce_batch` by what the rounding
  changed. So the total number of sequences stays the same, to within half a step. In
  addition, `lamb_betas` raises the betas to the power p, and `lr_linear` and `lr_sqrt`
  multiply the learning rate by p or by its square root.

  Args:
    recipe: the recipe without packing.
    packing_factor: p, sequences per row.
    adjust: one of `ADJUSTMENTS`.
    multiple: the rows per step must be a multiple of this: the micro-batch size if there
      is one, otherwise the number of devices.

  Raises:
    ConfigError: the packing factor is below 1, or too few steps are left.

  Example:
    >>> recipe = Recipe(96, 12, 1.0, steps=100, warmup_steps=10, learning_rate=1e-3,
    ...                 b1=0.9, b2=0.999)
    >>> few = packed(recipe, packing_factor=2.0, adjust="reduce_batch", multiple=8)
    >>> few.rows, few.accumulation, few.steps, few.sequences
    (48, 6, 100, 96.0)
    >>> slow = packed(recipe, packing_factor=2.0, adjust="lamb_betas", multiple=8)
    >>> slow.rows, slow.steps, slow.warmup_steps, round(slow.b1, 4), slow.sequences
    (96, 50, 5, 0.81, 192.0)

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, sections 3.3 and 4.2, theorem D.1.
  """
  p = packing_factor
  if not 1 <= p < math.inf:
    raise ConfigError(f"packing_factor is {p}; expected at least 1 sequence a row.")
  rows, steps, warmup_steps = recipe.rows, recipe.steps, recipe.warmup_steps
  exact = recipe.rows / p if adjust == "reduce_batch" else recipe.rows
  if adjust == "reduce_batch":
    rows = max(1, round(exact / multiple)) * multiple
  growth = p * (rows / recipe.rows)  # of the sequences per step
  steps = round(steps / growth)
  warmup_steps = min(round(warmup_steps / growth), max(steps - 1, 0))
  b1, b2, rate = recipe.b1, recipe.b2, recipe.learning_rate
  if adjust == "lamb_betas":
    b1, b2 = packed_betas(b1, b2, p)
  return dataclasses.replace(
    recipe,
    rows=rows,
    accumulation=rows // multiple if recipe.accumulation > 1 else 1,
    packing_factor=p,
    steps=steps,
    warmup_steps=warmup_steps,
    learning_rate=rate * {"lr_linear": p, "lr_sqrt": math.sqrt(p)}.get(adjust, 1.0),
    b1=b1,
    b2=b2,
    adjust=adjust,
    rounding=rows / exact - 1,
  )


def resolve(
  train: Train,
  optimizer: Optimizer,
  *,
  packing_factor: float,
  num_sequences: int | None = None,
  num_tokens: int | None = None,
  num_devices: int = 1,
) -> tuple[Recipe, Recipe]:
  """The recipe of a run without packing, and the one to run.

  Args:
    train: of the run.
    optimizer: of the run.
    packing_factor: sequences per row in its plan.
    num_sequences: sequences in its dataset; None if not known.
    num_tokens: real tokens in its dataset; None if not known.
    num_devices: devices that share a batch.

  Raises:
    ConfigError: the devices cannot share a batch, or too few steps are left.
  """
  _check_devices(train, num_devices)
  before = unpacked(train, optimizer, num_sequences=num_sequences, num_tokens=num_tokens)
  after = packed(
    before,
    packing_factor=packing_factor,
    adjust=train.adjust,
    multiple=train.micro_batch_size or num_devices,
  )
  return before, after


def check_recipe(train: Train, optimizer: Optimizer, *, num_devices: int):
  """Refuses a recipe that no dataset and no plan can mend.

  Args:
    train: of the run.
    optimizer: of the run.
    num_devices: devices that share a batch.

  Raises:
    ConfigError: a value is wrong; the message names the field.
  """
  _check_devices(train, num_devices)
  texts = {"train.duration": train.duration, "optimizer.warmup": optimizer.warmup}
  units = [parse_duration(field, text)[1] for field, text in texts.items() if text]
  if "epoch" not in units:
    unpacked(train, optimizer)


def _check_devices(train: Train, number: int):
  for name in ("batch_size", "micro_batch_size"):
    rows = getattr(train, name)
    near = multiples_near(rows, number)
    expected = f"a multiple of the {number} devices, such as {near}"
    check_option(rows % number == 0, f"train.{name}", rows, expected)
  expected = f"a divisor of {number}, the number of devices"
  check_option(number % train.fsdp == 0, "train.fsdp", train.fsdp, expected)


def make_schedule(optimizer: Optimizer, recipe: Recipe) -> optax.Schedule:
  """The learning rate of a recipe, over updates from 0."""
  return warmup_and_decay(
    peak=recipe.learning_rate,
    warmup_steps=recipe.warmup_steps,
    total_steps=recipe.steps,
    decay=optimizer.decay,
    decay_share=optimizer.decay_share,
  )


def learning_rates(optimizer: Optimizer, recipe: Recipe) -> np.ndarray:
  """float[steps]: the learning rate of each update."""
  rates = jax.jit(jax.vmap(make_schedule(optimizer, recipe)))
  return np.asarray(rates(np.arange(recipe.steps)))


def make_optimizer(optimizer: Optimizer, recipe: Recipe) -> optax.GradientTransformation:
  """The optimizer of a run, with the learning rate and the betas of a recipe."""
  rate = make_schedule(optimizer, recipe)
  common: dict[str, Any] = {
    "weight_decay": optimizer.weight_decay,
    "clip_norm": optimizer.clip_norm,
  }
  if not isinstance(optimizer, Adaptive):
    return sgd(rate, b1=recipe.b1, **common)
  common |= {"b1": recipe.b1, "b2": recipe.b2, "eps": optimizer.eps}
  common |= {"bias_correction": optimizer.bias_correction}
  if isinstance(optimizer, AdamW):
    return adamw(rate, clip_update=optimizer.clip_update, **common)
  return lamb(rate, **common)
