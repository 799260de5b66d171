"""Answers examples with a fine-tuned model, or computes embeddings, on packed batches.

  python predict.py runs/cola --input sentences.txt
  echo 'The book was written.' | python predict.py runs/cola
  python predict.py minilm-l6-h384 --embed --input sentences.txt --out sentences.npy

Prints one JSON object per line, in the order of the input. Results are the same as without
packing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from training import compiler, memory
from training.stopping import signals

memory.one_pool()
compiler.set_flags()
if __name__ == "__main__":
  signals.listen()
if not sys.stderr.isatty():  # in a log, each update of a progress bar is a new line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import numpy as np
import tqdm

import model
import packing
import pipeline
from launch import computation, workdir
from launch.command import MISTAKES
from launch.computation import Computation
from launch.data import dataset_settings
from launch.door import settings_of
from model import attention, hf, weights
from model.hf.pooling import Pooling, read_pooling
from packing import InputError
from packing.commands.program import Parser, fail
from packing.errors import check, check_integer
from packing.files import whole_file
from pipeline.prediction.answers import answer_examples
from pipeline.prediction.chunks import ORDINARY_ROW, ROW_MULTIPLE, BatchShape
from pipeline.prediction.embeddings import (
  POOLINGS,
  as_json,
  embed_examples,
  write_embeddings,
)
from pipeline.prediction.examples import STANDARD_INPUT, Example, examples_of, read_examples
from pipeline.prediction.of_model import (
  LONGEST_WINDOW,
  default_task,
  open_tokenizer,
  settings_to_read,
)
from pipeline.sources.partitions import source_files, source_names
from pipeline.tasks import squad
from pipeline.tasks.encoder import SPECIAL_IN_TEXT, about_special_tokens
from pipeline.tokenizer import Tokenizer
from training import evaluation
from training.mesh import make_mesh, replicated
from training.step import ModelProgram

_EPILOG = """FOLDER is the folder of a run or an imported model (python -m model
import), or a Hugging Face directory of BertForSequenceClassification,
BertForTokenClassification, BertForQuestionAnswering, the same heads of RoBERTa, XLM-R,
CamemBERT, DistilBERT and ELECTRA, or one of ModernBERT's classifiers; with --embed, of any
of these encoders. A run determines the task and how text is split;
its best checkpoint is used if the run keeps it (train.keep_best), otherwise the newest.

input:
  -                           standard input (the default): JSON lines, or one sentence per
                              line, with a tab between the two sentences of a pair; for
                              tags, words separated by spaces
  FILE, FOLDER, 'FILES*'      read by suffix: .txt, .jsonl, .csv, .tsv, .parquet, .arrow,
                              .json (SQuAD's layout); also Hugging Face save_to_disk
  tfds:glue/cola#test         TensorFlow Datasets, prepared as array_record

output: one line per example, with its id in the source or, without one, its number from 0:
  {"id": "0", "label": "acceptable", "probabilities": {"unacceptable": ..., ...}}
  {"id": "0", "labels": ["sad", "angry"], "probabilities": {"angry": ..., "sad": ..., ...}}
  {"id": "0", "value": 3.25}
  {"id": "0", "tokens": ["in", "Denver"], "tags": ["O", "B-LOC"], "probabilities": [...]}
  {"id": "56be4db0", "answer": "Denver Broncos", "probability": ..., "n_best": [...]}
  {"id": "0", "embedding": [0.0676, ...]}     with --embed; --out FILE.npy holds only
                              float32[N, D], FILE.parquet has the columns id and embedding

examples:
  python predict.py runs/cola --input sentences.txt --out answers.jsonl
  python predict.py runs/squad --input dev-v1.1.json --out answers.jsonl
  python predict.py bert-sst2/ --input reviews.csv --columns sentence=review,id=number
"""
AUTO = "auto"  # of --embed: as the folder says
_DTYPES = "auto", "float32", "bfloat16"


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  options = _parser().parse_args(arguments)
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs every file
  try:
    run(options)
  except BrokenPipeError:  # the reader of the output has ended
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except MISTAKES as error:
    return fail(2, str(error))
  except OSError as error:
    return fail(1, str(error))
  except KeyboardInterrupt:
    signals.leave()
  return 0


def run(options: argparse.Namespace):
  """Runs the command with parsed options."""
  check_integer("--max-answer-length", options.max_answer_length, at_least=1)
  if options.out:
    _check_out(options.out, options.input, embed=bool(options.embed))
  compiler.keep_programs()
  opened = open_model(options)
  results = make_results(opened, options)
  if options.input == STANDARD_INPUT and sys.stdin.isatty():
    print("reading standard input; Ctrl-D ends it", file=sys.stderr)
  if opened.used:
    print(f"predict.py: {opened.used}", file=sys.stderr)
  if opened.pooling.description:
    longest = options.max_sequence_length
    replaced = opened.pooling.max_length and longest
    instead = f"; --max-sequence-length {longest} instead" if replaced else ""
    print(f"predict.py: {opened.pooling.description}{instead}", file=sys.stderr)
  tally: collections.Counter[str] = collections.Counter()
  examples = read_examples(options.input, opened.settings, opened.tokenizer, tally)
  _write(results(examples), options, opened)
  _report_cuts(tally, opened.settings)


def embed(
  folder: str | pathlib.Path, sentences: Iterable[str], *, pooling: str = AUTO
) -> np.ndarray:
  """Computes embeddings of texts with any encoder of `model`, on packed batches.

  Args:
    folder: the folder of a run or an imported model, or a Hugging Face directory.
    sentences: the texts, as many as fit into memory; a tab separates the two sentences of
      a pair.
    pooling: a key of `POOLINGS`; or "auto", as a folder of sentence-transformers says,
      which also limits the tokens of a text, and "mean" for other folders.

  Returns:
    float32[N, D], in the order of the texts.

  Raises:
    InputError, WeightsError: there is no such model or pooling, `sentences` is one text,
      or a sentence is not text or has two tabs.
  """
  expected = "several texts. Put a single text in a list"
  check(not isinstance(sentences, str | bytes), "sentences", sentences, expected)
  known = *POOLINGS, AUTO
  check(pooling in known, "pooling", pooling, f"one of {', '.join(known)}")
  options = _parser().parse_args([f"--embed={pooling}", "--", str(folder)])
  opened = open_model(options)
  examples = examples_of(sentences, opened.settings, opened.tokenizer)
  vectors = [vector for _, vector in make_results(opened, options)(examples)]
  return np.array(vectors, np.float32).reshape(-1, opened.stored.config.hidden_size)


def make_results(
  opened: Opened, options: argparse.Namespace
) -> Callable[[Iterator[Example]], Iterator[Any]]:
  """Makes a function from examples to the model's answers or embeddings.

  The options are checked at once. The parameters are read when the first result is
  requested.
  """
  stored, settings, mesh = opened.stored, opened.settings, make_mesh()
  program = ModelProgram(opened.computed.config, mesh=mesh, head=stored.head)
  shape = BatchShape(
    settings.max_sequence_length,
    batch_size=-(-options.batch_size // mesh.size) * mesh.size,
    max_sequences=options.max_sequences_per_pack,
    algorithm=options.algorithm,
    row_multiple=_row_multiple(program.config, settings.max_sequence_length),
    batch_multiple=mesh.size,
  )
  _check_isolated(stored, shape)

  def results(examples: Iterator[Example]) -> Iterator[Any]:
    params = jax.device_put(stored.load(), replicated(mesh))
    if options.embed:
      mode, normalized = opened.pooling.mode, opened.pooling.normalized
      vectors_of = functools.partial(evaluation.embed, program, params, pooling=mode)
      yield from embed_examples(vectors_of, examples, shape=shape, normalized=normalized)
    else:
      yield from answer_examples(
        functools.partial(evaluation.predict, program, params),
        examples,
        task=settings.task,
        shape=shape,
        labels=opened.labels,
        max_answer_length=options.max_answer_length,
      )

  return results


def _write(results: Iterator[Any], options: argparse.Namespace, opened: Opened):
  start, number, wrote = time.perf_counter(), 0, ""
  what = "embedding" if options.embed else "answering"
  to_text = as_json if options.embed else json.dumps
  # On the terminal, the progress bar would mix with the results.
  hidden = not options.out and sys.stdout.isatty()

  def counted() -> Iterator[Any]:
    nonlocal number
    with tqdm.tqdm(results, desc=what, unit=" examples", disable=hidden) as bar:
      for result in bar:
        number += 1
        yield result

  if options.out and options.embed:
    width = opened.stored.config.hidden_size
    write_embeddings(options.out, counted(), width=width)
    wrote = f", wrote {options.out}"
  elif options.out:
    with whole_file(options.out) as file:
      for answer in counted():
        file.write(to_text(answer).encode() + b"\n")
    wrote = f", wrote {options.out}"
  else:
    for result in counted():
      print(to_text(result), flush=True)
  seconds = time.perf_counter() - start
  done = "embedded" if options.embed else "answered"
  said = f"{done} {number:,} examples in {seconds:.1f} s{wrote}"
  print(f"{said}, {opened.computed}", file=sys.stderr)


def _check_out(out: str, source: str, *, embed: bool):
  """Rejects a name of another format, and a file that the input reads."""
  suffix = pathlib.Path(out).suffix
  formats = (".npy", ".parquet") if embed else ()
  fits = suffix in formats or suffix.lower() not in (".npy", ".parquet", ".csv", ".tsv")
  endings = ".npy, .parquet or .jsonl" if embed else ".jsonl, since answers are JSON lines"
  check(fits, "--out", out, f"a name that ends in {endings}")
  if source != STANDARD_INPUT:
    target = pathlib.Path(out).resolve()
    read = {x.resolve() for x in map(pathlib.Path, source_names(source))}
    read |= {path.resolve() for path in source_files(source)}
    fits = read.isdisjoint((target, *target.parents))
    check(fits, "--out", out, f"a file that --input={source} does not read")


def _report_cuts(tally: collections.Counter[str], settings: pipeline.DatasetSettings):
  """Prints how many examples lost tokens; a context split into windows loses none."""
  longest = settings.max_sequence_length
  if count := tally["truncated_questions"]:
    most = squad.limits(longest)[0]
    print(f"truncated {count:,} questions: longer than {most} tokens", file=sys.stderr)
  if count := tally["untagged_words"]:
    print(f"{count:,} words have no tokens, and so no tag (null)", file=sys.stderr)
  if count := tally[SPECIAL_IN_TEXT]:
    print(about_special_tokens(count), file=sys.stderr)
  cut = settings.task not in ("squad", "tagging") or settings.too_long == "truncate"
  if cut and (count := tally["too_long"]):
    examples = f"{count:,} example{'' if count == 1 else 's'}"
    limit = f"--max-sequence-length {longest}"
    print(f"truncated {examples}: longer than {limit}", file=sys.stderr)


def _row_multiple(config: model.ModelConfig, longest: int) -> int:
  """The number of tokens that rows are rounded up to, so that attention can compute them.

  Raises:
    AttentionError: the attention cannot compute rows of the longest sequence.
  """
  attention.check_model(config, longest)
  multiple = ROW_MULTIPLE
  while multiple < longest:
    with contextlib.suppress(model.AttentionError):
      attention.check_model(config, multiple)
      break
    multiple *= 2
  return multiple


def _check_isolated(stored: weights.StoredModel, shape: BatchShape):
  fits = stored.config.isolated or shape.algorithm == "none"
  expected = f"none, since answers of {stored.directory} depend on the rest of the row"
  check(fits, "--algorithm", shape.algorithm, expected)


# ---- the model and its task -------------------------------------------------------------


class Opened(NamedTuple):
  """An opened model, and what is needed to read examples for it.

  Attributes:
    stored: the model, whose parameters are not read yet.
    settings, tokenizer: how to read examples.
    labels: names of the classes; () for none.
    used: the checkpoint of a run and why this one, in words; "" for other folders.
    pooling: how embeddings are made.
    computed: the dtype and the attention, by the options or the fastest on this device.
  """

  stored: weights.StoredModel
  settings: pipeline.DatasetSettings
  tokenizer: Tokenizer
  labels: tuple[str, ...]
  used: str
  pooling: Pooling
  computed: Computation


def open_model(options: argparse.Namespace) -> Opened:
  """Opens the model in FOLDER, and checks what can be checked before any work.

  Raises:
    WeightsError, ConfigError, InputError: the folder holds no model that can answer, or
      the options do not fit it.
  """
  folder = pathlib.Path(options.folder)
  trained_on, used = None, ""
  if (folder / weights.MODEL).exists() and workdir.is_run(folder):
    trained_on = dataset_settings(settings_of(workdir.get_config(str(folder))).data)
    step, why = weights.choose_step(folder, options.step)
    used = f"step {step} of {folder} ({why})"
  else:
    fits = not options.step or options.step.isdecimal()
    check(fits, "--step", options.step, f"a number: {folder} is not a run")
    step = int(options.step) if options.step else None
  memory.keep()
  stored = hf.open_model(folder, step=step)
  if stored.head == "causal":
    raise InputError(
      f"{folder} only predicts next tokens, and predict.py writes no text. If it has "
      "model.positions=learned, transformers can, after python -m model export."
    )
  longest, pooling = options.max_sequence_length, Pooling("")
  if options.embed:
    stored = _encoder(stored, options)
    given = None if options.embed == AUTO else options.embed
    pooling = read_pooling(stored, instead=given)
    longest = pooling.max_length if longest is None else longest
  elif default_task(stored.head, 1) is None:
    raise InputError(
      f"{folder} holds a {stored.name}, which cannot answer examples. Give "
      f"--embed for embeddings, or train it: train.py --config.model.init_from={folder}."
    )
  config = stored.config_as(model.EncoderConfig)
  task = options.task
  if not trained_on:
    several = config.multi_label
    task = task or default_task(stored.head, config.num_labels, multi_label=several)
  settings = settings_to_read(
    options.input,
    "" if options.embed else stored.head,
    trained_on=trained_on,
    task=task,
    changes={"columns": options.columns, "max_sequence_length": longest},
    positions=config.max_position_embeddings,
    num_labels=config.num_labels,
    multi_label=config.multi_label,
  )
  labels: tuple[str, ...] = ()
  if stored.head in ("sequence_classification", "token_classification"):
    outputs = config.num_labels
    labels = pipeline.label_names(settings.task, outputs, given=stored.labels)
  tokenizer = open_tokenizer(folder, stored.vocabulary, vocab_file=settings.vocab_file)
  names = {"dtype": options.dtype, "attention_impl": options.attention_impl}
  computed = computation.of(
    evaluation.prediction_config(stored.config, **names), [settings.max_sequence_length]
  )
  return Opened(stored, settings, tokenizer, labels, used, pooling, computed)


def _encoder(
  stored: weights.StoredModel, options: argparse.Namespace
) -> weights.StoredModel:
  if options.task:
    raise InputError("--embed and --task exclude each other; leave out one.")
  encoder = weights.encoder_of(stored)
  if options.embed == "pooled" and not getattr(encoder.config, "pooler", False):
    raise InputError(f"{stored.directory} has no pooler. Give --embed mean or cls.")
  return encoder


# ---- the command line -------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
  parser = Parser(
    prog="python predict.py",
    description=__doc__.split("\n")[0],
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add: Callable = parser.add_argument
  add("folder", metavar="FOLDER", help="the folder with the fine-tuned model")
  add("--input", metavar="SOURCE", default=STANDARD_INPUT, help="default: -")
  add("--out", metavar="FILE", help="write results to FILE, whole or not at all")
  add(
    "--embed",
    nargs="?",
    const=AUTO,
    choices=(*POOLINGS, AUTO),
    metavar="POOLING",
    help="compute embeddings instead of answers: "
    + "; ".join(f"{name}, {what}" for name, what in POOLINGS.items())
    + f" (default: {AUTO}, as the files of sentence-transformers say, otherwise mean)",
  )
  add("--step", metavar="N", help="the step of a run's checkpoint, or best")
  add(
    "--task",
    metavar="TASK",
    help="the task, of a model without a run (default: by its head)",
  )
  add(
    "--columns",
    metavar="FIELD=NAME,...",
    help="the source's names for fields, besides the run's",
  )
  add(
    "--max-sequence-length",
    metavar="S",
    type=int,
    help="the most tokens of a sequence or a row (default: the run's; without a run, the "
    f"model's positions, but {LONGEST_WINDOW} for squad)",
  )
  add(
    "--max-answer-length",
    metavar="N",
    type=int,
    default=squad.MAX_ANSWER_LENGTH,
    help=f"squad: the most tokens of an answer (default: {squad.MAX_ANSWER_LENGTH})",
  )
  add(
    "--batch-size",
    metavar="B",
    type=int,
    default=8,
    help=f"rows of --max-sequence-length tokens, or of {ORDINARY_ROW} if that is longer, "
    "in a batch; batches of shorter rows have as many tokens (default: 8)",
  )
  add(
    "--algorithm",
    choices=packing.ALGORITHMS,
    metavar="A",
    default=BatchShape.algorithm,
    help=f"packing algorithm: {', '.join(packing.ALGORITHMS)}; none for one sequence per "
    f"row (default: {BatchShape.algorithm})",
  )
  add(
    "--max-sequences-per-pack",
    metavar="M",
    type=int,
    help="the most sequences of a row (default: S / 4, at most 128: hardly a limit)",
  )
  fastest = "(default: auto, the fastest on this device)"
  add("--dtype", choices=_DTYPES, default="auto", help=f"of the computation {fastest}")
  add(
    "--attention-impl",
    choices=("auto", *model.IMPLEMENTATIONS),
    default="auto",
    help=f"implementation of attention {fastest}",
  )
  return parser


if __name__ == "__main__":
  signals.resume_hint = lambda: "A file of results is written whole or not at all."
  sys.exit(main())
