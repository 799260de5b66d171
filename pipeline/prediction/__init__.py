"""From a user's examples to answers and embeddings in files."""
