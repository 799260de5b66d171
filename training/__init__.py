"""Optimizer, compiled step, checkpoints and metrics."""
