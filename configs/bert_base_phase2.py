"""BERT-base on rows of 384 or 512 tokens, from phase 1: phase 2 of 2.

  python train.py --config=configs/bert_base_phase2.py:384 --workdir=runs/bert_base_384

Starts from the newest checkpoint in runs/bert_base_phase1, with random embeddings for
positions from 128 on and a new optimizer state. Data: data/wikipedia-384 or
data/wikipedia-512, prepared with the same vocabulary as phase 1 (docs/data.md).

Recipe: that of the paper's authors without packing, the same for both lengths: LAMB at
16,384 sequences a step (github.com/graphcore/examples,
nlp/bert/pytorch/configs_pretraining.yml, pretrain_base_384 and pretrain_base_512). Packed
as in section 4.3 of arXiv 2107.02027; its packing factor is 1.70 at 384, and 2.00 at 512
(table 1).

Reaches: with 384, after fine-tuning, 88.32 F1 and 81.03 exact match on SQuAD 1.1, packed
(table 3 there); with 512 not known. Not run here yet.
Takes: not known. Packing made it 1.68 times as fast at 384 in the paper (table 2).
"""

from configs import bert_base_phase1


def get_config(length: str = "384"):
  if length not in ("384", "512"):
    raise LookupError(f"Expected bert_base_phase2.py:384 or :512, found :{length}.")
  config = bert_base_phase1.get_config()
  config.data.directory = f"data/wikipedia-{length}"
  config.data.max_sequence_length = int(length)
  config.model.init_from = "runs/bert_base_phase1"
  config.optimizer.learning_rate = 2.828e-3
  config.optimizer.warmup_steps = 274  # 12.8 %
  config.train.batch_size = 16384
  config.train.micro_batch_size = 128  # for 8 devices with 16 rows each; set your own
  config.train.steps = 2137
  return config
