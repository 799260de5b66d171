"""Sources of documents: text files, tables, TFDS, the standard library."""
