"""ModernBERT-base from scratch, on rows of 1,024 tokens and then of 8,192.

  python train.py --config=configs/modern_bert_base.py --workdir=runs/modern_bert
  python train.py --config=configs/modern_bert_base.py:8192 --workdir=runs/modern_bert_8k \\
    --config.model.init_from=runs/modern_bert

Data: text, prepared once into data/documents-1024 and data/documents-8192 by `python -m
pipeline prepare --task documents` with --max-sequence-length and one --vocab-file
(docs/data.md). The authors have 1.7 trillion tokens, and a tokenizer of 50,368 tokens.

Recipe: the authors' (Warner et al., arXiv 2412.13663, and yamls/modernbert of
github.com/AnswerDotAI/ModernBERT). It is for packed rows, so a step has as many rows with
packing as without (packing.adjust is none). steps and warmup_steps are for full rows;
train.py divides them by the packing factor, so to train on as many tokens multiply both by
it (docs/training.md). Three things differ here. The authors' batch grows over the first 50
billion tokens; ours has a constant size. Their optimizer is StableAdamW. They evaluate with
15 % of the tokens masked; here it is 30 %, as in training. Their weight decay of 1e-5 a
step is 0.0125 times the learning rate.

Reaches: not known. Not run here. A small model, on a CPU, on any text:

  python train.py --config=configs/modern_bert_base.py --workdir=runs/tiny \\
    --config.model.size=tiny --config.data.source=stdlib \\
    --config.data.directory=data/documents --config.data.max_sequence_length=256 \\
    --config.train.batch_size=8 --config.train.micro_batch_size=0 \\
    --config.train.steps=200 --config.optimizer.warmup_steps=20 \\
    --config.train.log_every=20 --config.train.eval_every=100 \\
    --config.train.checkpoint_every=100 --config.data.vocab_size=4096
"""

from configs import base


def get_config(context: str = "1024"):
  if context not in ("1024", "8192"):
    raise LookupError(f"Expected modern_bert_base.py, or :8192; found :{context}.")
  length = int(context)
  config = base.get_config()
  config.data.task = "documents"
  config.data.source = "prepared"
  config.data.directory = f"data/documents-{context}"
  config.data.max_sequence_length = length
  config.data.vocab_size = 50_368
  config.data.mask_rate = 0.3
  config.packing.adjust = "none"
  config.model.family = "modern_bert"
  config.model.next_sentence = False
  config.model.size = "base"
  config.model.attention_dropout_rate = 0.0
  config.model.remat = "layers"
  config.optimizer.name = "adamw"
  config.optimizer.b2 = 0.98
  config.optimizer.clip_norm = 0.0
  config.optimizer.clip_update = 1.0
  config.optimizer.decay = "sqrt"
  config.train.loss_unit = "token"
  config.train.eval_every = 4000
  config.train.log_every = 100
  config.train.checkpoint_every = 4000
  config.train.throughput_rounds = 0
  if context == "1024":
    config.model.global_base = 10_000.0
    config.optimizer.learning_rate = 8e-4
    config.optimizer.weight_decay = 0.0125
    config.optimizer.warmup_steps = 636  # 3 billion tokens
    config.optimizer.decay_share = 0.0  # constant
    config.train.batch_size = 4608
    config.train.micro_batch_size = 768  # for 8 devices with 96 rows each; set your own
    config.train.steps = 364_296  # 1,719 billion tokens
  else:
    config.optimizer.learning_rate = 3e-4
    config.optimizer.weight_decay = 0.0333
    config.optimizer.warmup_steps = 0
    config.optimizer.decay_share = 1 / 6  # 50 of 300 billion tokens
    config.train.batch_size = 576
    config.train.micro_batch_size = 96
    config.train.steps = 63_578
  return config
