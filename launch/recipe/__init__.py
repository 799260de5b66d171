"""The recipe of a run: durations, batch, rate and betas, adjusted to packed rows."""
