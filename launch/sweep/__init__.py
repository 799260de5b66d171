"""Grids of runs, from one file: `python -m launch.sweep`."""
