"""A small packed BERT on the standard library's own text; `make train`.

Reaches a held-out masked-token accuracy of about 3 times the unigram baseline in under
4 minutes on 2 CPU cores.
"""

from configs import base


def get_config():
  config = base.get_config()
  config.data.directory = "data/quickstart"
  config.data.vocab_size = 2048  # enough for half a million tokens
  config.data.max_sequence_length = 192  # half of it is padding without packing
  config.packing.max_sequences_per_pack = 5
  config.model.size = "tiny"
  config.model.dropout_rate = 0.0  # a few epochs of a tiny model do not overfit
  config.optimizer.learning_rate = 0.02
  config.optimizer.warmup_steps = 90
  config.train.batch_size = 24
  config.train.steps = 900
  config.train.log_every = 10
  config.train.eval_every = 50
  config.train.checkpoint_every = 300
  return config
