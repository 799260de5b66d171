"""How well a model's embeddings rank STS-B's pairs of sentences by similarity."""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import scipy.stats

from experiments.finetuning.real_tasks import Files
from model import hf, weights
from pipeline.prediction.chunks import BatchShape
from pipeline.prediction.embeddings import embed_examples
from pipeline.prediction.examples import examples_of
from pipeline.prediction.of_model import open_tokenizer, settings_to_read
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source
from training.evaluation import embed, make_program
from training.mesh import make_mesh


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
  first, second = np.split(_embed(folder, sentences, longest=files.longest), 2)
  labels = [float(pair["label"]) for pair in pairs]
  return 100 * float(scipy.stats.spearmanr((first * second).sum(1), labels).statistic)


def _embed(folder: pathlib.Path, sentences: list[str], *, longest: int) -> np.ndarray:
  """Embeddings of length 1, float[N, D]."""
  stored = weights.encoder_of(hf.open_model(folder))
  settings = settings_to_read(
    "-",
    "",
    trained_on=None,
    task=None,
    changes={"max_sequence_length": longest},
    positions=longest,
    num_labels=2,
  )
  tokenizer = open_tokenizer(folder, stored.vocabulary)
  program = make_program(stored, mesh=make_mesh(1))
  embeddings = embed_examples(
    functools.partial(embed, program, stored.load()),
    examples_of(sentences, settings, tokenizer),
    shape=BatchShape(longest),
  )
  vectors = np.array([one.vector for one in embeddings])
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
