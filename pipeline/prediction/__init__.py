"""From a user's examples to answers in files."""
