"""The commands of `python -m packing`: their arguments, their work and their output."""
