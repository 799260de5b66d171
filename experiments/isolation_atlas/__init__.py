"""Which models of transformers keep packed sequences apart, and by which call."""
