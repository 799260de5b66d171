"""The tables and figures of the papers, and studies of our own."""

from training import memory

memory.one_pool()  # before any library starts a thread
