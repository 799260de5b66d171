"""How well a model's embeddings rank STS-B's pairs of sentences by similarity."""

from __future__ import annotations

import pathlib

import numpy as np
import scipy.stats

from experiments.finetuning.real_tasks import Files
from lab.embeddings import embedder
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source

ROWS = 8  # in a batch


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
  source = files.held_out_source
  embed = embedder(folder, source=source, longest=files.longest, rows=ROWS)
  vectors = embed(sentences)
  first, second = np.split(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 2)
  labels = [float(pair["label"]) for pair in pairs]
  return 100 * float(scipy.stats.spearmanr((first * second).sum(1), labels).statistic)
