"""Preparing a dataset: in one process, in several, or with Beam."""
