"""Packed fine-tuning on your own data: a tag for each word, such as names of entities.

  python train.py --config=configs/tagging.py --workdir=runs/tags \\
      --config.model.init_from=FOLDER --config.data.directory=data/tags \\
      --config.data.source=train.conll --config.data.held_out_source=dev.conll
  echo 'Ada Lovelace lived in London' | python predict.py runs/tags

FOLDER is that of a run or of an imported model (python -m model import). The files have a
word and its tag a line, or are JSON lines or tables with the lists `tokens` and `tags`
(docs/data.md). The classes are the tags in the training data, unless data.labels names
them.

Recipe: section 5.3 of arXiv 1810.04805, with the hyperparameters of section A.3: the first
piece of a word carries its tag.
"""

from configs import classification


def get_config():
  config = classification.get_config()
  config.data.task = "tagging"
  config.data.directory = "data/tags"
  return config
