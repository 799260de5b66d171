"""The commands of `python -m packing`: arguments, computation and output."""
