"""Grids of runs, from one file: `python -m training.sweep`."""
