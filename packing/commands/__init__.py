"""What `python -m packing` needs besides the library."""
