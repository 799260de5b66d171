"""BERT-base from scratch on rows of 128 tokens: phase 1 of 2.

  python train.py --config=configs/bert_base_phase1.py --workdir=runs/bert_base_phase1

Data: Wikipedia, or more, prepared once into data/wikipedia-128 by `python -m pipeline
prepare` with --max-sequence-length 128 and BERT's vocabulary (docs/data.md).

Recipe: that of the paper's authors without packing, LAMB at 65,536 sequences a step
(github.com/graphcore/examples, nlp/bert/pytorch/configs_pretraining.yml, pretrain_base_128;
batch size and steps are from You et al., arXiv 1904.00962). Packed as in section 4.3 of
arXiv 2107.02027: with fewer rows a step and all else the same; its packing factor is 1.17.

Reaches: not known after this phase; after both phases and fine-tuning, 88.32 F1 and 81.03
exact match on SQuAD 1.1, packed (table 3 there). Not run here yet.
Takes: not known. Packing made this phase 1.15 times as fast in the paper (table 2).
"""

from configs import base


def get_config():
  config = base.get_config()
  config.data.source = "prepared"
  config.data.directory = "data/wikipedia-128"
  config.data.max_sequence_length = 128
  config.packing.algorithm = "optimal"
  config.packing.max_sequences_per_pack = 3
  config.packing.adjust = "reduce_batch"
  config.model.size = "base"
  config.model.attention_dropout_rate = 0.0
  config.optimizer.name = "lamb"
  config.optimizer.bias_correction = False
  config.optimizer.learning_rate = 6e-3
  config.optimizer.warmup_steps = 1971  # 28 %
  config.train.batch_size = 65536
  config.train.micro_batch_size = 512  # for 8 devices with 64 rows each; set your own
  config.train.steps = 7038
  config.train.eval_every = 200
  config.train.throughput_rounds = 0  # steps of 65,536 rows take too long
  return config
