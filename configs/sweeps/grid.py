"""What packing needs, in all combinations: 48 arms of 3 seeds, on the quickstart.

Attention within each sequence or over the whole row; positions that start at 0 in each
sequence or continue; losses averaged over sequences, tokens or packs; packs of at most 2 or
5 sequences; and a heuristic's packs or the provably fewest. On your own data:

  python -m launch.sweep configs/sweeps/grid.py --workdir=runs/sweeps/mine \\
      --config.data.source=prepared --config.data.directory=data/mine \\
      --config.data.max_sequence_length=128

The unpacked baseline is not an arm, since most of these options do not affect it.
"""


def get_sweep():
  return {
    "config": "configs/quickstart.py",
    "overrides": {
      "packing.adjust": "reduce_batch",  # as many sequences a step at every depth
      "train.steps": 800,
      "train.eval_every": 100,
      "train.throughput_rounds": 0,
    },
    "grid": {
      "model.attention_mask": ["segment", "none"],
      "model.position_reset": [True, False],
      "train.loss_unit": ["sequence", "token", "pack"],
      "packing.max_sequences_per_pack": [2, 5],
      "packing.algorithm": ["spfhp", "optimal"],
      "seed": [0, 1, 2],
    },
  }
