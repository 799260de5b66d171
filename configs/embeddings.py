"""Packed training of embeddings, by pairs of texts that belong together.

  python train.py --config=configs/embeddings.py --workdir=runs/mine \\
      --config.model.init_from=FOLDER --config.data.directory=data/pairs \\
      --config.data.source=train.jsonl --config.data.held_out_source=dev.jsonl
  python predict.py runs/mine --embed --input texts.txt --out vectors.npy
  python -m model export runs/mine --out sentence-encoder/

FOLDER is that of a run or of an imported model (python -m model import), or a Hugging Face
directory. Each line of the files has `anchor`, `positive`, and perhaps `negative`,
`negative_1` and so on; with --config.data.task=scored_pairs it has `sentence1`, `sentence2`
and a `score` from -1 to 1. A record has at most data.max_sequence_length tokens, all its
texts together.

Rows are as short as the data allow, since long rows of short texts spend their time on
attention between records: the run chooses the shortest row that holds the longest record
and packs well (packing.row_length=-1), and prints it.

A step has 64 records, packed as docs/embeddings.md says. For more, and so more texts to
choose from, set train.batch_size, with train.micro_batch_size for the rows that fit into
memory.

Recipe: the loss, its temperature of 0.05 and the warm-up for a tenth of the steps are those
of sentence-transformers' MultipleNegativesRankingLoss and of its examples.
"""

from configs import classification


def get_config():
  config = classification.get_config()
  config.data.task = "pairs"
  config.data.directory = "data/pairs"
  config.data.max_sequence_length = 512
  config.packing.max_sequences_per_pack = 0
  config.packing.row_length = -1  # chosen from the lengths
  config.optimizer.warmup = "0.1 epochs"
  config.train.batch_size = 64
  config.train.duration = "1 epoch"
  return config
