"""Every field of a run, with the value that BERT's papers give it where they do.

A config file edits this base. Fields are locked: an unknown one on the command line is
refused. `training/config.py` checks their values before any work.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  config = ConfigDict()
  config.seed = 0  # of parameters, dropout, masking and the order of packs

  config.data = ConfigDict()
  config.data.source = "stdlib"  # files, tfds:NAME, ...; "prepared": what directory holds
  config.data.held_out_source = ""  # a source of its own, instead of a fraction
  config.data.columns = ""  # what fields are called in the source, such as text=content
  config.data.documents = "blank-line"  # how text files split: line, file, start:REGEX
  config.data.directory = "data/stdlib"  # the prepared dataset; made where it is not there
  config.data.max_sequence_length = 128  # tokens of a sequence and of a row
  config.data.vocab_size = 4096  # of the WordPiece vocabulary trained on the corpus
  config.data.vocab_file = ""  # a BERT vocabulary to use instead
  config.data.min_sentences = 2  # shorter documents have no next sentence to predict
  config.data.held_out_fraction = 0.05  # of the documents
  config.data.dupe_factor = 1  # times each document is cut, each time at random
  config.data.short_sequence_probability = 0.1
  config.data.seed = 0  # of the held-out split and of how documents are cut
  config.data.mask_rate = 0.15  # masked tokens / tokens of a sequence

  config.packing = ConfigDict()
  config.packing.algorithm = "spfhp"  # none: one sequence a row, the unpacked baseline
  config.packing.max_sequences_per_pack = 3  # the row length for no limit
  config.packing.assignment = "fresh"  # other neighbours each epoch; or fixed

  config.model = ConfigDict()
  config.model.size = "base"  # tiny, mini, small, medium, base, large
  config.model.init_from = ""  # a folder with weights to start from; drawn if not given
  config.model.dropout_rate = 0.1
  config.model.attention_dropout_rate = 0.1
  config.model.initializer_range = 0.02  # standard deviation that weights start from
  config.model.attention_mask = "segment"  # none: the ablation without isolation;
  # token_type: the two segments of a sequence do not see each other either
  config.model.position_reset = True  # False: the ablation with positions of the row
  config.model.next_sentence = True  # False: the ablation without NSP
  config.model.attention_impl = "xla"  # cudnn, cudnn_packed, splash
  config.model.remat = "none"  # layers: compute them twice, to save memory
  config.model.vocab_multiple = 1  # 8 or 128: rows of the token embedding, rounded up
  config.model.dtype = "float32"  # of the computation; or bfloat16

  config.optimizer = ConfigDict()
  config.optimizer.learning_rate = 1e-3  # the peak
  config.optimizer.warmup_steps = 100
  config.optimizer.b1 = 0.9  # of the unpacked recipe; raised to the packing factor
  config.optimizer.b2 = 0.999
  config.optimizer.eps = 1e-6
  config.optimizer.weight_decay = 0.01
  config.optimizer.clip_norm = 1.0

  config.train = ConfigDict()
  config.train.loss_unit = "sequence"  # token; pack: the ablation with the pack's mean
  config.train.batch_size = 32  # packs a step, over all devices
  config.train.loader_workers = 0  # processes that make batches; 0: a thread of this one
  config.train.steps = 1000
  config.train.log_every = 20  # steps
  config.train.eval_every = 100  # steps; a multiple of log_every
  config.train.checkpoint_every = 200  # steps; a multiple of log_every
  config.train.keep_checkpoints = 2
  config.train.target_mlm_accuracy = 0.0  # held out, a fraction: stop there; 0: run on
  config.train.peak_flops = 0.0  # FLOP/s of all devices; 0: looked up, or measured
  config.train.throughput_rounds = 24  # steps, packed and unpacked each; 0: do not measure
  return config
