"""Training: optimizers, the compiled step, checkpoints, evaluation; reads no config."""
