"""Five tasks of GLUE, STS-B by vectors, and SQuAD 1.1, from a folder with real data."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lab import real_data
from packing import InputError
from pipeline.sources import compressed


class Files(NamedTuple):
  """The files of a task, as the config's `data` names them.

  Attributes:
    source: to train on.
    held_out_source: to evaluate on.
    columns: the names of the fields in the files.
    longest: the length of rows with one sequence each. Either no sequence is longer, or
      the task cuts sequences there.
    at_once: how many of these rows are computed at once, for memory; 0 for all of a step.
    fields: of the config, in which the task differs from its config file.
  """

  source: str
  held_out_source: str
  columns: str = ""
  longest: int = 128
  at_once: int = 0
  fields: Mapping[str, Any] = {}

  def overrides(self, directory: pathlib.Path) -> dict[str, Any]:
    """Fields of the config of a run whose score is that of its last step.

    `directory` is for the prepared examples.
    """
    return {
      "data.source": self.source,
      "data.held_out_source": self.held_out_source,
      "data.columns": self.columns,
      "data.directory": str(directory),
      "train.throughput_rounds": 0,
      "train.log_every": 20,
      "train.eval_every": 1_000_000,  # the last step is always evaluated
      "train.checkpoint_every": 200,
      "train.keep_checkpoints": 1,
      "train.keep_best": False,
      "train.patience": 0,
      **self.fields,
    }


# By the task of configs/glue.py: folder, columns, and the longest sequence in tokens.
_GLUE = {
  "cola": ("CoLA", "sentence=3,label=1", 47),
  "rte": ("RTE", "", 128),
  "mrpc": ("MRPC", "sentence1=#1 String,sentence2=#2 String,label=Quality", 103),
  "stsb": ("STS-B", "label=score", 125),
  "sst2": ("SST-2", "", 66),
}
GLUE = tuple(_GLUE)
PAIRS = "stsb_pairs"  # STS-B by the cosine of the vectors of its sentences
TASKS = (*GLUE, PAIRS, "squad")
# Examples to train on; other tasks use all.
AT_MOST = {"sst2": 10_000, PAIRS: 2_000, "squad": 20_000}
QUICK_EXAMPLES = 64  # of each task
QUICK = {"train.duration": "64 sequences", "optimizer.warmup": "32 sequences"}
LEARNING_RATE = 1e-4  # for a small model; BERT-base uses at most 5e-5
_SQUAD_ROW = 384


def config_of(task: str) -> str:
  """The config file of a task."""
  others = {"squad": "configs/squad.py", PAIRS: "configs/embeddings.py"}
  return others.get(task, f"configs/glue.py:{task}")


def files(
  task: str,
  data: str | os.PathLike[str],
  folder: pathlib.Path,
  *,
  at_most: int = 0,
  held_out_at_most: int = 0,
) -> Files:
  """The files of one of `TASKS`.

  Args:
    task: its name.
    data: the folder with real data.
    folder: for subsets, if there are any.
    at_most: examples to train on, drawn at random; 0 for all. For SQuAD, whole articles
      are drawn until there are at least as many.
    held_out_at_most: the same of the dev set, for SQuAD alone: that of the other tasks is
      always whole.

  Raises:
    InputError: a file is missing, or does not have the expected layout.
  """
  if task == "squad":
    source = real_data.find(data, "squad/train-v1.1*.json*")
    held_out = real_data.find(data, "squad/dev-v1.1*.json*")
    if at_most:
      source = _some_articles(source, folder / f"squad-{at_most}.json", at_most)
    if held_out_at_most:
      path = folder / f"squad-dev-{held_out_at_most}.json"
      held_out = _some_articles(held_out, path, held_out_at_most)
    return Files(str(source), str(held_out), longest=_SQUAD_ROW, at_once=8)
  if task == PAIRS:
    sentences = files("stsb", data, folder, at_most=at_most)
    return Files(
      _with_cosines(sentences.source, folder / f"{PAIRS}-train.jsonl"),
      _with_cosines(sentences.held_out_source, folder / f"{PAIRS}-dev.jsonl"),
      fields={
        "data.task": "scored_pairs",
        "data.max_sequence_length": 128,
        "packing.row_length": 0,  # 128, as in the published runs
        "train.batch_size": 32,
      },
    )
  name, columns, longest = _GLUE[task]
  source = real_data.find(data, f"glue/{name}/train.tsv")
  held_out = real_data.find(data, f"glue/{name}/dev.tsv")
  if at_most:
    path = folder / f"{task}-{at_most}.tsv"
    source = _some_lines(source, path, at_most, header=task != "cola")
  return Files(str(source), str(held_out), columns, longest)


def glue(
  data: str | os.PathLike[str],
  folder: pathlib.Path,
  names: Sequence[str] = GLUE,
  *,
  quick: bool = False,
) -> dict[str, Files]:
  """The files of some tasks, of all of GLUE by default; raises as `files`."""
  at_most = dict.fromkeys(names, QUICK_EXAMPLES) if quick else AT_MOST
  return {x: files(x, data, folder, at_most=at_most.get(x, 0)) for x in names}


def _some_lines(
  source: pathlib.Path, path: pathlib.Path, number: int, *, header: bool
) -> pathlib.Path:
  """Writes some lines, drawn at random, in their order; with no more lines, the source."""
  lines = source.read_bytes().splitlines(keepends=True)
  first = int(header)
  if len(lines) - first <= number:
    return source
  drawn = np.random.default_rng(0).permutation(len(lines) - first)[:number]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(b"".join(lines[:first] + [lines[first + i] for i in sorted(drawn)]))
  return path


def _with_cosines(source: str, path: pathlib.Path) -> str:
  """Writes STS-B's sentences with scores from 0 to 1; returns the path."""
  header, *lines = pathlib.Path(source).read_text().splitlines()
  names = header.split("\t")
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open("w") as file:
    for line in lines:
      fields = dict(zip(names, line.split("\t"), strict=False))
      record = {name: fields[name] for name in ("sentence1", "sentence2")}
      print(json.dumps(record | {"score": float(fields["score"]) / 5}), file=file)
  return str(path)


def _some_articles(source: pathlib.Path, path: pathlib.Path, number: int) -> pathlib.Path:
  """Writes articles in SQuAD's layout, drawn at random until there are enough questions."""
  with contextlib.closing(compressed.open_binary(source)) as file:
    content = file.read()
  try:
    articles = json.loads(content)["data"]
    questions = [sum(len(x["qas"]) for x in one["paragraphs"]) for one in articles]
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(f"{source} is not in SQuAD's layout: {error!r}.") from None
  drawn = np.random.default_rng(0).permutation(len(articles))
  before = np.cumsum([0, *(questions[i] for i in drawn)])[:-1]
  kept = sorted(drawn[before < number])
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({"version": "1.1", "data": [articles[i] for i in kept]}))
  return path
