"""What benchmarks and experiments share: clocks, turns, studies, statistics, tables."""

from training import memory

memory.one_pool()  # before any library starts a thread
