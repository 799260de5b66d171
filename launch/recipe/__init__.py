"""The recipe of a run: durations, batch, rate and betas, adjusted to packed rows."""

from launch.recipe.adjustment import (
  ADJUSTMENTS,
  Recipe,
  check_recipe,
  learning_rates,
  make_optimizer,
  make_schedule,
  packed,
  parse_duration,
  resolve,
  unpacked,
)

__all__ = [
  "ADJUSTMENTS",
  "Recipe",
  "check_recipe",
  "learning_rates",
  "make_optimizer",
  "make_schedule",
  "packed",
  "parse_duration",
  "resolve",
  "unpacked",
]
