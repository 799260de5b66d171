"""Timings, side by side with those of peers."""

from training import memory

memory.one_pool()  # before any library starts a thread
