"""Every field of a run, with the value that BERT's papers give it where they do.

A config file edits this base. Fields are locked: an unknown one on the command line is
refused. `training/config/rules.py` checks their values before any work.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  config = ConfigDict()
  config.seed = 0  # of parameters, dropout, masking and the order of packs
  config.profile = 0  # steps to profile into the run's folder, after the first 10

  config.data = ConfigDict()
  # sentences, documents, text, glue/NAME, squad, classification, regression
  config.data.task = "pretraining"
  config.data.source = "stdlib"  # files, tfds:NAME, ...; "prepared": what directory holds
  config.data.held_out_source = ""  # a source of its own, instead of a fraction
  config.data.mismatched_source = ""  # held out too, of another kind: MNLI has one
  config.data.labels = ""  # classification: its classes, such as "ham,spam"
  config.data.columns = ""  # what fields are called in the source, such as text=content
  config.data.documents = "blank-line"  # how text files split: docs/data.md
  config.data.directory = "data/stdlib"  # the prepared dataset; made where it is not there
  config.data.max_sequence_length = 128  # tokens of a sequence; of a row by default
  config.data.vocab_size = 4096  # of the vocabulary trained on the corpus
  config.data.vocab_file = ""  # a BERT vocabulary, or GPT-2's, to use instead
  config.data.min_sentences = 2  # shorter documents have no next sentence to predict
  config.data.held_out_fraction = 0.05  # of the documents
  config.data.dupe_factor = 1  # times each document is cut, each time at random
  config.data.short_sequence_probability = 0.1  # share of documents cut short
  config.data.doc_stride = 128  # squad: tokens from one window of a context to the next
  config.data.max_question_length = 64  # squad: in tokens
  config.data.cross_documents = False  # sentences: as RoBERTa's FULL-SENTENCES
  config.data.min_words = 0  # text, documents: shorter ones are left out
  # Longer documents, sentences or contexts: truncate, split, error; "": of the task.
  config.data.too_long = ""
  # text: how documents become rows. packed: cut at the row length, packed, and isolated;
  # concat, padding: by atoms, the units of shuffling, which share rows (docs/batches.md).
  config.data.layout = "packed"
  config.data.atom_size = 0  # concat, padding: in tokens; 0: the row length
  config.data.loss_on_padding = False  # padding: predict end tokens that only fill an atom
  # Documents that arrive during training, with packing.algorithm=online: - (standard
  # input), a folder that grows, hf:NAME. data.source is then a sample of them.
  config.data.stream = ""
  config.data.stream_wait = 60.0  # seconds without a batch, then the run saves and stops
  config.data.seed = 0  # of the held-out split and of how documents are cut
  config.data.mask_rate = 0.15  # masked tokens / tokens of a sequence

  config.packing = ConfigDict()
  # near the optimum; none: unpacked, the baseline; online: packed while reading.
  config.packing.algorithm = "auto"
  # 0: chosen, the smallest that costs at most 0.1 % more packs, if a plan with it is found
  # in less than a minute; the row length for no limit.
  config.packing.max_sequences_per_pack = 0
  config.packing.row_length = 0  # tokens; 0: data.max_sequence_length
  config.packing.length_multiple = 1  # each sequence starts at a multiple; 8, 64
  config.packing.separator_tokens = 0  # padding between two sequences of a row
  config.packing.open_packs = 64  # online: most packs that wait for more sequences
  config.packing.look_ahead = 64  # online: most sequences that wait for a pack
  config.packing.max_delay = 0  # online: arrivals after which a pack is closed; 0: no limit
  config.packing.assignment = "fresh"  # other neighbours each epoch; or fixed
  # Where attention skips foreign sequences, a row costs the sum of its squared lengths.
  # even: as many packs, with these sums as equal as possible; none
  config.packing.then = "none"
  # devices: those of a step have nearly the same sums; devices_and_steps: steps too; none
  config.packing.balance = "none"
  # What is done about steps that hold more sequences; the fields below say the recipe
  # without packing. lamb_betas: beta ** packing factor; reduce_batch: fewer rows a step;
  # lr_linear, lr_sqrt: a larger rate; none.
  config.packing.adjust = "lamb_betas"

  config.model = ConfigDict()
  config.model.family = "bert"  # modern_bert; data.task=text always trains a GPT-2
  config.model.size = "base"  # tiny, mini, small, medium, large, xl; given: of init_from
  config.model.init_from = ""  # a folder with weights to start from; drawn if not given
  config.model.dropout_rate = 0.1  # of embeddings and of what a layer adds
  config.model.attention_dropout_rate = 0.1  # of attention's probabilities
  config.model.initializer_range = 0.02  # standard deviation that weights start from
  # none: the ablation without isolation. token_type: the two segments of a sequence do
  # not see each other either.
  config.model.attention_mask = "segment"
  config.model.position_reset = True  # False: the ablation with positions of the row
  config.model.positions = "alibi"  # of a GPT-2; learned: a table, as BERT has
  config.model.next_sentence = True  # False: the ablation without NSP
  config.model.global_every = 3  # modern_bert: each third layer attends to all tokens
  config.model.local_window = 128  # modern_bert: tokens that the other layers attend to
  config.model.global_base = 160_000.0  # modern_bert: of rotary positions, global layers
  config.model.pooling = "cls"  # modern_bert, of classes; mean: of all tokens
  config.model.attention_impl = "xla"  # blocks, cudnn, cudnn_packed, splash: docs/model.md
  config.model.remat = "none"  # layers: compute them twice, to save memory
  config.model.vocab_multiple = 1  # 8 or 128: rows of the token embedding, rounded up
  config.model.dtype = "float32"  # of the computation; or bfloat16

  config.optimizer = ConfigDict()
  config.optimizer.name = "lamb"  # adamw, sgd, adafactor
  config.optimizer.learning_rate = 1e-3  # the peak
  # Steps with a rising rate; a tenth of the run where they would outlast it.
  config.optimizer.warmup_steps = 100
  config.optimizer.warmup = ""  # instead: such as "0.1 epochs", "5e4 sequences"
  config.optimizer.b1 = 0.9  # sgd: the momentum; adafactor: none
  config.optimizer.b2 = 0.999  # lamb, adamw
  config.optimizer.eps = 1e-6  # lamb, adamw
  config.optimizer.weight_decay = 0.01  # not of biases and LayerNorm
  # How the rate falls after the warm-up, to zero: linear; sqrt: as 1 - sqrt(x).
  config.optimizer.decay = "linear"
  config.optimizer.decay_share = 1.0  # of the steps after the warm-up, the share that falls
  config.optimizer.clip_update = 0.0  # adamw: RMS of a tensor's update; 0: not clipped
  config.optimizer.clip_norm = 1.0  # global norm of the gradients; 0: not clipped
  config.optimizer.bias_correction = True  # of lamb's and adamw's moments
  config.optimizer.trust_ratio = "weights"  # lamb; all: of biases and LayerNorm too
  config.optimizer.max_weight_norm = 0.0  # lamb: norms above count as this; 0: no bound

  config.train = ConfigDict()
  config.train.loss_unit = "sequence"  # token; pack: the ablation with the pack's mean
  config.train.batch_size = 32  # sequences a step without packing, over all devices
  config.train.micro_batch_size = 0  # rows computed at once; 0: all rows of a step
  config.train.fsdp = 1  # devices that share one copy of parameters and optimizer
  config.train.skip_bad_steps = 0  # non-finite steps in a row; 0: the first ends the run
  config.train.loader_workers = 0  # processes that make batches; 0: a thread of this one
  config.train.steps = 1000  # without packing
  config.train.duration = ""  # instead of steps: such as "3 epochs", "1e6 sequences"
  config.train.log_every = 20  # steps of the run itself
  config.train.eval_every = 100  # steps; a multiple of log_every
  config.train.checkpoint_every = 200  # steps; a multiple of log_every
  config.train.keep_checkpoints = 2  # the newest
  config.train.keep_best = False  # of the best evaluation, too
  config.train.keep_every = 0  # multiple of checkpoint_every; such steps are kept for good
  config.train.patience = 0  # evaluations without a better one, to end; 0: never
  config.train.target_mlm_accuracy = 0.0  # held out; training ends there; 0: no target
  config.train.peak_flops = 0.0  # of all devices, for peak_share; 0: known or measured
  config.train.trackers = ""  # wandb, mlflow, or both: docs/training.md
  config.train.compilation_cache = ""  # a folder that later runs take their programs from
  config.train.keep_memory = True  # freed memory, for the next step; Linux with glibc
  config.train.throughput_rounds = 24  # timed steps, packed and unpacked each; 0: none
  return config
