"""Does packing hurt, or contamination? ModernBERT-tiny, with rows made in four ways.

  python -m experiments.contamination --data FOLDER

| arm                       | a row holds                                              |
|---------------------------|----------------------------------------------------------|
| packed and isolated       | whole documents that do not see each other               |
| one document a row        | a single document; steps have the same documents         |
| concatenated, with a mask | documents end to end, cut at the end of the row; the     |
|                           | parts do not see each other                              |
| concatenated, no mask     | the same, treated as one document                        |

All models are evaluated on each whole document alone and fine-tuned on tasks of GLUE, and
their embeddings are compared with STS-B's labels. lab/real_data.py says what FOLDER holds.
The same command resumes where it was stopped.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from experiments.finetuning import pretrained, real_tasks
from experiments.finetuning.pretrained import Scores
from experiments.finetuning.real_tasks import Files
from experiments.packing_paper.curves import pictures
from experiments.packing_paper.curves.tables import (
  NAMES,
  length_table,
  mean_difference,
  named,
  table,
)
from lab import command, real_data, records
from lab.exhibits import Exhibit, Part
from lab.plans import made_once
from lab.statistics import SCORE_MARGIN, equivalent, larger, same_score
from lab.studies.identity import weights_digest
from lab.studies.paired_run import held_out
from lab.studies.study import SEEDS, Arm, ByArm, Study
from launch.sweep.jobs import ROOT
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source

# Paragraphs stand in for documents: relative to a row, they are as short as web documents
# in rows of 1,024 tokens. Their order is random, so neighbours in a row are unrelated.
CONFIG = "configs/modern_bert_base.py"
TEXT_BYTES = 30_000_000  # of the articles
ROW_LENGTH = 256
ARMS = (
  Arm("isolated", {}, keep=True),
  Arm("one_a_row", {}, "unpacked", keep=True),
  Arm("pieces", {}, "pieces", keep=True),
  Arm("concatenated", {}, "concatenated", keep=True),
)
OVERRIDES: dict[str, Any] = {
  "data.documents": "line",
  "data.min_words": 20,
  "data.max_sequence_length": ROW_LENGTH,
  "data.vocab_size": 8192,
  "data.held_out_fraction": 0.02,
  "data.too_long": "truncate",
  "packing.algorithm": "optimal",
  "packing.max_sequences_per_pack": 0,
  "model.size": "tiny",
  "model.remat": "none",
  "optimizer.learning_rate": 3e-3,
  "optimizer.decay_share": 0.3,
  "optimizer.warmup": "0.05 epochs",
  "train.batch_size": 16,
  "train.micro_batch_size": 0,
  "train.duration": "1 epochs",
}
CLAIM = "(A question of our own.) Packing does not hurt; contamination does."
SIMILARITY = "stsb"  # the task whose labels embeddings are compared with
FIELDS: dict[str, Any] = {
  "model.family": "modern_bert",
  "model.next_sentence": False,
  "model.attention_dropout_rate": 0.0,
  "model.global_base": 10_000.0,  # as pretrained
  "optimizer.learning_rate": 3e-4,
}


def make_study(part: Part) -> Study:
  """The study.

  Raises:
    InputError: the text is missing.
  """
  source = real_data.write_articles(
    part.real_data(),
    part.folder / "text.txt",
    at_least=TEXT_BYTES,
  )
  places = {"data.source": str(source), "data.directory": str(part.folder / "data")}
  seeds, overrides = part.seeds or SEEDS, OVERRIDES | places
  return Study(part.folder, ARMS, overrides, seeds, part.jobs, config=CONFIG)


def rank_correlation(folder: pathlib.Path, files: Files) -> float:
  """Spearman's correlation of labels and cosines of embeddings, in percent.

  Embeddings are means over the tokens; pairs are those of `files.held_out_source`. The
  model is not trained for this task.

  Args:
    folder: of the model, a Hugging Face directory.
    files: of the task STS-B.
  """
  columns = DatasetSettings("", files.longest, columns=files.columns).column_names()
  fields = DocumentFields(("sentence1", "sentence2", "label"), (), columns)
  pairs = [
    document.fields
    for partition in open_source(files.held_out_source, fields)
    for document in partition.read()
  ]
  sentences = [pair[name] for name in fields.required[:2] for pair in pairs]
  vectors = embed(folder, sentences, longest=files.longest)
  first, second = np.split(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 2)
  labels = [float(pair["label"]) for pair in pairs]
  return 100 * float(scipy.stats.spearmanr((first * second).sum(1), labels).statistic)


def embed(folder: pathlib.Path, texts: Sequence[str], *, longest: int) -> np.ndarray:
  """float32[N, D]: means over the tokens, by predict.py; `longest` in tokens."""
  with tempfile.TemporaryDirectory() as temporary:
    source, out = (pathlib.Path(temporary, name) for name in ("texts.txt", "vectors.npy"))
    source.write_text("\n".join(texts) + "\n")
    words = [sys.executable, "predict.py", str(folder.absolute()), "--embed=mean"]
    words += [f"--max-sequence-length={longest}", f"--input={source}", f"--out={out}"]
    subprocess.run(words, cwd=ROOT, check=True)
    return np.load(out)


def losses(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of the held-out losses of pretraining."""
  names = list(results)
  isolated, one_a_row, pieces, concatenated = map(held_out, results.values())
  apart = [mean_difference(results[name], results["isolated"]) for name in names]
  finding = (
    f"Compared with {NAMES['isolated']} rows, the held-out loss is {apart[1]:+.3f} nats "
    f"with one document a row, {apart[2]:+.3f} concatenated with a mask and "
    f"{apart[3]:+.3f} without one."
  )
  picture = "losses.png"
  pictures.curves(
    part.folder / picture, named(results, names), title=finding, over="real_tokens"
  )
  return part.exhibit(
    "Pretraining",
    "Held-out loss of whole documents",
    finding,
    claim=CLAIM,
    statements=[
      equivalent(
        "Packed and isolated rows reach the same loss as one document a row",
        isolated,
        one_a_row,
        power=concatenated,
      ),
      equivalent(
        "Concatenation with a mask reaches the same loss as packed and isolated rows",
        pieces,
        isolated,
        power=concatenated,
      ),
      larger("Concatenation without a mask ends worse than with one", concatenated, pieces),
      larger(
        "Concatenation without a mask ends worse than packed and isolated rows",
        concatenated,
        isolated,
      ),
    ],
    pictures=[picture],
    text="\n\n".join(
      [
        table(results, names),
        "In the arm that is concatenated without a mask, a row counts as one sequence. The "
        "loss by the length of the document:",
        length_table(results, names),
      ]
    ),
  )


def downstream(part: Part, scores: Mapping[str, Scores], ranks: Scores) -> Exhibit:
  """The exhibit of the scores of fine-tuned models and the correlations of embeddings."""
  of_arm = {arm: np.mean([of[arm] for of in scores.values()], axis=0) for arm in ranks}
  means = {arm: values.tolist() for arm, values in of_arm.items()}
  every = {**scores, "mean of these": means, "embeddings": ranks}

  def apart(values: Scores, arm: str) -> str:
    return f"{np.mean(np.subtract(values[arm], values['isolated'])):+.1f}"

  others = [arm for arm in ranks if arm != "isolated"]
  finding = (
    f"Compared with {NAMES['isolated']} rows, the mean score and the correlation of "
    "embeddings differ by "
    + "; ".join(f"{apart(means, x)} and {apart(ranks, x)} ({NAMES[x]})" for x in others)
    + " points."
  )
  same = [
    same_score(
      f"{name}: packed and isolated rows score the same as one document a row",
      of["isolated"],
      of["one_a_row"],
      of["concatenated"],
    )
    for name, of in every.items()
  ]
  better = [
    larger(
      f"{name}: packed and isolated rows score higher than concatenation without a mask",
      of["isolated"],
      of["concatenated"],
      margin=SCORE_MARGIN,
      unit="points",
    )
    for name, of in every.items()
  ]
  in_words = {name: {NAMES[arm]: of[arm] for arm in ranks} for name, of in every.items()}
  return part.exhibit(
    "Fine-tuning",
    "Scores after pretraining, and embeddings",
    finding,
    claim=CLAIM,
    statements=[*same, *better],
    text="Scores in percent on the dev set, mean and standard deviation over seeds. "
    "'embeddings' is Spearman's correlation of cosines with STS-B's labels, without "
    "fine-tuning:\n\n" + pretrained.score_table(in_words),
  )


def exhibits(part: Part) -> list[Exhibit]:
  """Pretrains, fine-tunes and embeds what is not finished yet.

  Raises:
    InputError: real data are missing.
    Stopped: as by `Study.run`.
  """
  tasks = real_tasks.glue(part.real_data(), part.folder / "text")
  study = make_study(part)
  study.run()
  models = {arm.name: study.kept_of(arm.name) for arm in study.arms}
  data = study.runs[0][1].settings.data.directory  # exists even if the models were deleted
  overrides = FIELDS | {"data.vocab_file": f"{data}/tokenizer.json"}
  fine_tuned = pretrained.make_studies(models, tasks, part.folder, overrides)
  pairs = pathlib.Path(tasks[SIMILARITY].held_out_source).read_bytes()
  of_data = hashlib.sha256(pairs).hexdigest()[:8]

  def rank_of(model: pathlib.Path) -> pathlib.Path:
    of_weights = (weights_digest(str(model)) or "")[:8]
    return part.folder / "ranks" / f"{model.name}-{of_weights}-{of_data}.json"

  every = study.kept_of(*models)
  kept = {model for model in every if records.read(rank_of(model)) is None}
  results = study.run(kept=kept | pretrained.to_start_from(fine_tuned))
  scores = pretrained.fine_tune(fine_tuned, models, jobs=part.jobs)
  correlations: Scores = {
    arm: [
      made_once(
        rank_of(model), functools.partial(rank_correlation, model, tasks[SIMILARITY])
      )
      for model in folders
    ]
    for arm, folders in models.items()
  }
  return [losses(part, results), downstream(part, scores, correlations)]


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "contamination", workdir="results/contamination")
  command.add_training(parser, seeds="3")
  options = parser.parse_args(arguments)
  line = "python -m experiments.contamination --data FOLDER"
  return command.run_part(exhibits, options, line)


if __name__ == "__main__":
  sys.exit(main())
