"""Training: recipes, optimizers, steps, checkpoints, evaluation, runs and sweeps."""
