"""Whether the quickstart learns in bfloat16 what it learns in float32, on a CPU.

Written before the first run; it decides what `model.dtype=auto` means on CPUs that have
instructions for products of bfloat16. No dtypes were compared with these seeds before.

The claim is that the held-out masked-token loss at the end differs by less than 0.02 nats
(`lab.statistics.MARGIN`), by two one-sided paired t tests at the level 0.05. `auto` becomes
bfloat16 there if the claim holds, if `benchmarks.training` shows packed BERT-mini and
BERT-base to be at least 1.1 times as fast in bfloat16, and if these runs of BERT-tiny are
no slower in it. Otherwise it stays float32. docs/speed.md has the outcome: the claim has no
power by these seeds, so it stays float32.
"""


def get_sweep():
  return {
    "config": "configs/quickstart.py",
    "overrides": {"train.throughput_rounds": 0, "train.eval_every": 100},
    "grid": {"model.dtype": ["float32", "bfloat16"], "seed": [11, 12, 13]},
  }
