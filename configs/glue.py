"""Packed fine-tuning on a task of GLUE.

  python train.py --config=configs/glue.py:cola --workdir=runs/cola \\
      --config.model.init_from=FOLDER
  python eval.py runs/cola
  python predict.py runs/cola --input='tfds:glue/cola#test' --out=answers.jsonl

FOLDER is that of a run or of an imported model (python -m model import). The data comes
from TensorFlow Datasets, prepared once (docs/data.md). To use other files with the same
fields, set --config.data.source and --config.data.held_out_source; for mnli also
--config.data.mismatched_source, which may be empty.

Recipe: that of `configs/classification.py`, evaluated 4 or 5 times an epoch. A run ends
after 6 evaluations without improvement, and the best checkpoint is kept. The dev set of
MNLI has a matched and a mismatched part.

Reaches: BERT-base without packing, table 1 of arXiv 1810.04805; not run here. A small
encoder was run here on five of the tasks: docs/finetuning.md has its scores.
"""

from configs import classification

# Sequences of the training set.
TASKS = {
  "cola": 8_551,
  "sst2": 67_349,
  "mrpc": 3_668,
  "qqp": 363_846,
  "stsb": 5_749,
  "mnli": 392_702,
  "qnli": 104_743,
  "rte": 2_490,
  "wnli": 635,
}


def get_config(task: str = "cola"):
  if task not in TASKS:
    raise LookupError(f"Expected glue.py:TASK of {', '.join(TASKS)}; found :{task}.")
  config = classification.get_config()
  dev = "validation_matched" if task == "mnli" else "validation"
  config.data.task = f"glue/{task}"
  config.data.source = f"tfds:glue/{task}"
  config.data.held_out_source = f"tfds:glue/{task}#{dev}"
  if task == "mnli":
    config.data.mismatched_source = "tfds:glue/mnli#validation_mismatched"
  config.data.directory = f"data/glue-{task}"
  quarter = TASKS[task] // (4 * config.train.batch_size)
  config.train.log_every = max(quarter // 5, 1)
  config.train.eval_every = config.train.checkpoint_every = 5 * config.train.log_every
  return config
