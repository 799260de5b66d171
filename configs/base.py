"""Every field of a run, with the value from BERT's papers where they give one.

The other config files change some of these values. A run rejects unknown fields,
also those on the command line. `launch/validation.py` checks the values before any work.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  config = ConfigDict()
  config.seed = 0  # seed of parameters, dropout, masking and the order of packs

  config.data = ConfigDict()
  # pretraining, sentences, documents, text, glue/NAME, squad, tagging, classification,
  # multi_label, regression, pairs, scored_pairs
  config.data.task = "pretraining"
  # stdlib: the standard library's text; prepared: the data in data.directory; files,
  # tfds:NAME, ...: docs/data.md
  config.data.source = "stdlib"
  config.data.held_out_source = ""  # a separate source to hold out, instead of a fraction
  config.data.mismatched_source = ""  # a second source to hold out; MNLI has one
  # classification, multi_label, tagging: names of the classes, such as "ham,spam"; "":
  # those in the data
  config.data.labels = ""
  config.data.columns = ""  # names of fields in the source, such as text=content
  # Where documents in text files end: blank-line, line, file, wikiextractor, start:REGEX.
  config.data.documents = "blank-line"
  config.data.directory = "data/stdlib"  # the prepared dataset; made if it does not exist
  config.data.max_sequence_length = 128  # in tokens; also of a row by default
  config.data.vocab_size = 4096  # size of the vocabulary learned from the corpus
  # A vocabulary to use instead: BERT's vocab.txt or a tokenizer.json.
  config.data.vocab_file = ""
  # pretraining, sentences: documents with fewer sentences are left out
  config.data.min_sentences = 2
  config.data.held_out_fraction = 0.05  # fraction of the documents to hold out
  # pretraining: how often each document is cut, each time differently
  config.data.dupe_factor = 1
  # sentences: sequences continue in the next document, as RoBERTa's FULL-SENTENCES
  config.data.cross_documents = False
  config.data.min_words = 0  # text, documents: those with fewer words are left out
  # What to do with documents, sentences or contexts that are too long: truncate, split or
  # error; "": the default of the task.
  config.data.too_long = ""
  # text: how documents become rows. packed: cut at the row length, packed and isolated;
  # concat, concat_isolated, padding: cut into atoms, the units of shuffling, which share
  # rows (docs/batches.md).
  config.data.layout = "packed"
  config.data.atom_size = 0  # of all but packed: in tokens; 0: the row length
  # padding: whether to predict end tokens that only fill an atom
  config.data.loss_on_padding = False
  # With packing.algorithm=online: documents that are read during training, as hf:NAME.
  # data.source is then a sample of them.
  config.data.stream = ""
  config.data.seed = 0  # seed of the held-out split and of how documents are cut
  config.data.mask_rate = 0.15  # fraction of a sequence's tokens that are masked

  config.packing = ConfigDict()
  # auto: near the optimum; optimal, spfhp, lpfhp, nnlshp, ...: docs/packing.md; online:
  # packed while reading; none: unpacked, the baseline
  config.packing.algorithm = "auto"
  # 0: the smallest limit that costs at most 0.5 % more packs than no limit. For no limit,
  # give the row length.
  config.packing.max_sequences_per_pack = 0
  # in tokens; 0: data.max_sequence_length; -1: the shortest that holds the longest sequence
  # and packs well, chosen from the lengths
  config.packing.row_length = 0
  # none; devices: all devices of a step have nearly the same sum of squared lengths
  config.packing.balance = "none"
  # The fields below give the recipe without packing. This one says how to adjust it to
  # steps with more sequences. reduce_batch: fewer rows a step; lamb_betas: beta ** packing
  # factor, as in the paper; lr_linear, lr_sqrt: a higher learning rate; none. At equal
  # sequences, reduce_batch ended lowest in our study (docs/training.md).
  config.packing.adjust = "reduce_batch"

  config.model = ConfigDict()
  config.model.family = "bert"  # bert, modern_bert; data.task=text always trains a GPT-2
  # bert: tiny, mini, small, medium, base, large; modern_bert: tiny, mini, base, large;
  # GPT-2: tiny, mini, small, medium, large, xl; given: the sizes of init_from
  config.model.size = "base"
  config.model.init_from = ""  # folder with initial weights; "": random weights
  # Dropout of embeddings and of what a layer adds; modern_bert: of attention's output only.
  config.model.dropout_rate = 0.1
  # Dropout of attention probabilities. Above 0 only xla computes it, which costs time on an
  # accelerator: docs/speed.md.
  config.model.attention_dropout_rate = 0.1
  # segment: a token sees only its sequence; token_type: only its segment, A or B; none: the
  # ablation without isolation
  config.model.attention_mask = "segment"
  # False: the ablation whose positions continue through the row
  config.model.position_reset = True
  # only GPT-2. alibi: by the distance of two tokens; learned: a table, as in BERT
  config.model.positions = "alibi"
  config.model.next_sentence = True  # False: the ablation without next-sentence prediction
  # modern_bert: base of the rotary positions in layers that attend to all tokens
  config.model.global_base = 160_000.0
  # auto: the fastest that this device can compute; xla, blocks, cudnn, cudnn_packed,
  # splash, splash_interpret: docs/model.md
  config.model.attention_impl = "auto"
  config.model.remat = "none"  # none; layers: compute them twice, to save memory
  # The type of the computation: float32, bfloat16; auto: bfloat16 where that is faster.
  config.model.dtype = "auto"

  config.pairs = ConfigDict()
  # How the vector of a text is made: mean, over its tokens; cls, of its [CLS]; auto: as the
  # files of sentence-transformers in init_from say, otherwise the mean.
  config.pairs.pooling = "auto"
  config.pairs.temperature = 0.05  # cosines are divided by it before the softmax
  # Whether positives also choose their anchors; the loss is then the mean of both.
  config.pairs.both_directions = False
  # Whether an anchor's choices omit texts that equal it, or another positive of it in the
  # step. Otherwise they are negatives.
  config.pairs.omit_equal_texts = False

  config.optimizer = ConfigDict()
  config.optimizer.name = "lamb"  # lamb, adamw, sgd
  config.optimizer.learning_rate = 1e-3  # the peak learning rate
  # Steps of warm-up, without packing: the learning rate rises. If warm-up would last the
  # whole run, it is cut to a tenth of the steps.
  config.optimizer.warmup_steps = 100
  # Instead of warmup_steps, such as "0.1 epochs" or "5e4 sequences".
  config.optimizer.warmup = ""
  config.optimizer.b1 = 0.9  # sgd: the momentum
  config.optimizer.b2 = 0.999  # only lamb and adamw
  config.optimizer.eps = 1e-6  # only lamb and adamw
  config.optimizer.weight_decay = 0.01  # not for biases and LayerNorm
  # How the learning rate falls to zero after the warm-up: linear, or sqrt, as 1 - sqrt(x).
  config.optimizer.decay = "linear"
  # The learning rate falls in the last steps: this fraction of those after the warm-up.
  config.optimizer.decay_share = 1.0
  config.optimizer.clip_update = 0.0  # adamw: largest RMS of a tensor's update; 0: no limit
  config.optimizer.clip_norm = 1.0  # largest global norm of the gradients; 0: no limit
  config.optimizer.bias_correction = True  # lamb, adamw: correct the moments for their bias

  config.train = ConfigDict()
  # What has equal weight: sequence, token; pack: the ablation of the paper
  config.train.loss_unit = "sequence"
  config.train.batch_size = 32  # sequences a step without packing, over all devices
  config.train.micro_batch_size = 0  # rows computed at once; 0: all rows of a step
  config.train.fsdp = 1  # devices that share one copy of parameters and optimizer state
  config.train.steps = 1000  # steps without packing
  config.train.duration = ""  # instead of steps, such as "3 epochs" or "1e6 sequences"
  config.train.log_every = 20  # in steps with packing
  config.train.eval_every = 100  # in steps with packing; a multiple of log_every
  config.train.checkpoint_every = 200  # in steps with packing; a multiple of log_every
  config.train.keep_checkpoints = 2  # how many of the newest checkpoints to keep
  config.train.keep_best = False  # also keep the checkpoint of the best evaluation
  # Stop after this many evaluations without improvement; 0: never.
  config.train.patience = 0
  # Held-out accuracy of masked tokens at which training stops; 0: no target.
  config.train.target_mlm_accuracy = 0.0
  config.train.trackers = ""  # wandb, mlflow, or both: docs/training.md
  # After training, time at most this many packed steps against as many unpacked ones, in
  # about a tenth of the training's time; 0: none.
  config.train.throughput_rounds = 24
  return config
