"""BERT-large from scratch on rows of 128 tokens: phase 1 of 2.

  python train.py --config=configs/bert_large_phase1.py --workdir=runs/bert_large_phase1

Data and recipe are those of configs/bert_base_phase1.py, except that LAMB's moments are
corrected for their bias (github.com/graphcore/examples,
nlp/bert/pytorch/configs_pretraining.yml, pretrain_large_128). NVIDIA trains with the same
batch, steps and rate; its warm-up is longer, 28.43 % of the steps or 2,001
(github.com/NVIDIA/DeepLearningExamples,
PyTorch/LanguageModeling/BERT/scripts/configs/pretrain_config.sh).

Reaches: not known after this phase; after both phases and fine-tuning, 90.65 F1 and 84.12
exact match on SQuAD 1.1, packed (table 3 of arXiv 2107.02027). Not run here yet.
Takes: not known. Packing made this phase 1.15 times as fast in the paper (table 2).
"""

from configs import bert_base_phase1


def get_config():
  config = bert_base_phase1.get_config()
  config.model.size = "large"
  config.optimizer.bias_correction = True
  config.train.micro_batch_size = 256  # for 8 devices with 32 rows each; set your own
  return config
