"""Where documents come from: text files, tables, TFDS, the standard library."""
