"""Packed fine-tuning on your own data: a class for one sentence or two.

  python train.py --config=configs/classification.py --workdir=runs/mine \\
      --config.model.init_from=FOLDER --config.data.directory=data/mine \\
      --config.data.source=train.jsonl --config.data.held_out_source=dev.jsonl \\
      --config.data.labels=ham,spam

FOLDER is that of a run or of an imported model (python -m model import). Each line of the
files has `sentence`, `label`, and `sentence2` if there are two. Without data.labels the
classes are those in the data. With --config.data.task=multi_label the label is a list of
classes, with --config.data.task=regression a number. `configs/glue.py` and
`configs/squad.py` start from this file.

Recipe: section A.3 of arXiv 1810.04805 (32 sequences a step, 3 epochs, Adam), packed with
as many sequences a step: the packing factor divides the rows of a step.
"""

from configs import base


def get_config():
  config = base.get_config()
  config.data.task = "classification"
  config.data.source = ""
  config.data.directory = "data/classification"
  config.data.vocab_file = config.model.get_ref("init_from") + "/vocab.txt"
  config.packing.algorithm = "optimal"
  config.packing.max_sequences_per_pack = 128  # no limit
  config.packing.adjust = "reduce_batch"
  config.model.size = "given"
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 3e-5
  config.optimizer.warmup = "0.3 epochs"
  config.train.batch_size = 32
  config.train.duration = "3 epochs"
  config.train.log_every = 10
  config.train.eval_every = 50
  config.train.checkpoint_every = 50
  config.train.keep_best = True
  config.train.patience = 6
  config.train.throughput_rounds = 0  # such runs are short, and are for the model
  return config
