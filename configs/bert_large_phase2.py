"""BERT-large on rows of 384 or 512 tokens, from phase 1: phase 2 of 2.

  python train.py --config=configs/bert_large_phase2.py:384 --workdir=runs/bert_large_384

Starts from the newest checkpoint in runs/bert_large_phase1. Data and recipe are those of
configs/bert_base_phase2.py, except that LAMB's moments are corrected for their bias
(github.com/graphcore/examples, nlp/bert/pytorch/configs_pretraining.yml, pretrain_large_384
and pretrain_large_512). NVIDIA's second phase differs: 32,768 sequences of 512 tokens a
step, 1,563 steps of which 12.8 % are warm-up, a learning rate of 4e-3.

Reaches: with 384, after fine-tuning, 90.65 F1 and 84.12 exact match on SQuAD 1.1, packed
(table 3 of arXiv 2107.02027); with 512 not known. Not run here yet.
Takes: not known. Packing made it 1.69 times as fast at 384 in the paper (table 2).
"""

from configs import bert_base_phase2


def get_config(length: str = "384"):
  config = bert_base_phase2.get_config(length)
  config.model.size = "large"
  config.model.init_from = "runs/bert_large_phase1"
  config.optimizer.bias_correction = True
  config.train.micro_batch_size = 64  # for 8 devices with 8 rows each; set your own
  return config
