"""What packing needs: section 4.2.1 of arXiv 2107.02027 and more, on the quickstart.

Attention within each sequence or over the whole row, positions that start at 0 in each
sequence or continue through the row, and losses averaged over sequences or over packs, with
3 seeds each. The paper finds that loss and accuracy are far worse without the mask, and
that without the reset of positions accuracy stalls just under its target. It does not train
with losses averaged over packs; section 3.2.3 says why losses are averaged over sequences.

For a quick look: --config.train.steps=400 --config.optimizer.warmup_steps=40. One seed and
its 205 steps do not separate the arms, but the models learn.
"""


def get_sweep():
  return {
    "config": "configs/quickstart.py",
    "overrides": {
      "train.steps": 800,
      "train.eval_every": 100,
      "train.throughput_rounds": 0,
      "train.batch_size": 16,
      "optimizer.warmup_steps": 195,
      "packing.adjust": "lamb_betas",  # as in the paper
    },
    "arms": {
      "packed": {},
      "no mask": {"model.attention_mask": "none"},
      "no position reset": {"model.position_reset": False},
      "neither": {"model.attention_mask": "none", "model.position_reset": False},
      "loss of packs": {"train.loss_unit": "pack"},
    },
    "grid": {"seed": [0, 1, 2]},
  }
