"""GPT-2 with ALiBi on WikiText-103, in the layouts of the atom-size paper.

  python train.py --config=configs/gpt2_atoms.py --workdir=runs/padding-64 \\
      --config.data.vocab_file=gpt2/tokenizer.json
  python train.py --config=configs/gpt2_atoms.py --workdir=runs/concat-64-by-128 \\
      --config.data.vocab_file=gpt2/tokenizer.json --config.data.layout=concat \\
      --config.data.atom_size=128

Data: WikiText-103-raw as published (https://arxiv.org/abs/1609.07843), wiki.train.raw and
wiki.valid.raw, in data/wikitext-103-raw. Each line is a document; those of fewer than 50
words are left out, as the paper says. But its shares, from which its steps follow, are
those of lines of at most 50 characters (docs/atom_size/exhibits.md, section A.1): of the
validation set, 4 % fewer words remain here, so expect fewer steps. To use a copy that
TensorFlow Datasets has prepared, with each line as a `text`, set
--config.data.source=tfds:FOLDER --config.data.held_out_source=tfds:FOLDER#validation. The
vocabulary is GPT-2's tokenizer.json, at https://huggingface.co/openai-community/gpt2.
Without --config.data.vocab_file, a byte-level BPE of the same size is learned.

To start from a Hugging Face GPT-2, set --config.model.init_from=FOLDER
--config.model.size=given --config.model.positions=learned.

--config.data.layout is padding, concat, concat_isolated or packed; with all but packed,
--config.data.atom_size is from a quarter of a row to 4 rows. For rows of 32 and 128 tokens
set another --config.data.directory and --config.data.max_sequence_length; the paper has 256
rows a step of 32 and of 64 tokens, and 128 rows of 128.

Recipe: 2 epochs and the shuffle's seed are those of the paper (appendices A.3 and A.5),
which gives no optimizer, learning rate, schedule or dropout. Attention has none here, so
that kernels of GPUs can compute it. Learning rate, betas, epsilon, weight
decay and clipping are GPT-3's for this size (Brown et al.,
https://arxiv.org/abs/2005.14165, table 2.1 and appendix B). Batch size and schedule are
not: here the learning rate falls linearly to 0.

Reaches: in the paper, with rows of 64 and atoms of 64, a perplexity over the training rows
of 110.45 (concat, 14,058 steps) and 99.79 (padding, 17,308 steps; table 3). Not run here
yet. Takes: in the paper, 2 to 3 hours on one V100.
"""

from configs import base


def get_config():
  config = base.get_config()
  config.seed = 42
  config.data.task = "text"
  config.data.source = "data/wikitext-103-raw/wiki.train.raw"
  config.data.held_out_source = "data/wikitext-103-raw/wiki.valid.raw"
  config.data.documents = "line"
  config.data.min_words = 50
  config.data.directory = "data/wikitext-103-64"
  config.data.max_sequence_length = 64
  config.data.vocab_size = 50_257
  config.data.layout = "padding"
  config.packing.algorithm = "optimal"  # for layout=packed
  config.packing.max_sequences_per_pack = 64  # no limit
  config.packing.adjust = "none"
  config.model.size = "small"  # 124M parameters
  config.model.attention_dropout_rate = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 6e-4
  config.optimizer.warmup = "0.05 epochs"
  config.optimizer.b2 = 0.95
  config.optimizer.eps = 1e-8
  config.optimizer.weight_decay = 0.1
  config.train.loss_unit = "token"
  config.train.batch_size = 256
  config.train.duration = "2 epochs"
  config.train.log_every = 10
  config.train.eval_every = config.train.checkpoint_every = 1000
  config.train.throughput_rounds = 0  # rows of atoms have no unpacked baseline
  return config
