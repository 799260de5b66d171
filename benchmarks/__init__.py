"""Timings, beside peers."""

from training import memory

memory.one_pool()  # before a library starts a thread
