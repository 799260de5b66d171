"""Answers of a fine-tuned model: text in, JSON out, packed inside.

  python predict.py runs/cola --input sentences.txt
  echo 'The book was written.' | python predict.py runs/cola

Answers are JSON objects, one a line, in the order of the input, the same as without
packing.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

if not sys.stderr.isatty():  # in a log, a progress bar is a new line at each change
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import numpy as np
import tqdm

import model
import packing
import pipeline
from model import attention, hf, weights
from packing import InputError
from packing.errors import check_integer, short_repr
from packing.files import whole_file
from pipeline.prediction.chunks import CHUNK_SIZE, BatchShape, pack_examples
from pipeline.prediction.examples import STANDARD_INPUT, read_examples
from pipeline.prediction.submission import MATCHED, MISMATCHED
from pipeline.tasks.squad import MAX_ANSWER_LENGTH
from pipeline.tasks.table import TASKS
from pipeline.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer
from training.command import Parser
from training.errors import ConfigError
from training.evaluation import make_program, predict
from training.mesh import make_mesh, replicated
from training.record import workdir
from training.step import ModelProgram

_EXAMPLES = """FOLDER is a run's, an imported one (python -m model import), or a Hugging
Face directory of BertForSequenceClassification or BertForQuestionAnswering. A run has its
own task and its own way of cutting text; its checkpoint is the best if the run keeps that,
else the newest.

input:
  -                           the default, standard input: JSON lines, or a sentence a
                              line, a tab between the two of a pair
  FILE, FOLDER, 'FILES*'      by their suffix: .txt, .jsonl, .csv, .tsv, .parquet, .arrow,
                              .json (SQuAD's layout); also Hugging Face save_to_disk
  tfds:glue/cola#test         TensorFlow Datasets, prepared as array_record

output, a line for each example, with its id in the source, else its number from 0:
  {"id": "0", "label": "acceptable", "probabilities": {"unacceptable": ..., ...}}
  {"id": "0", "value": 3.25}
  {"id": "56be4db0", "answer": "Denver Broncos", "probability": ..., "n_best": [...]}

examples:
  python predict.py runs/cola --input sentences.txt --out answers.jsonl
  python predict.py runs/squad --input dev-v1.1.json --submission predictions.json
  python predict.py runs/mnli --input 'tfds:glue/mnli#test_mismatched' \\
      --submission glue/ --genres mismatched
  python predict.py bert-sst2/ --input reviews.csv --columns sentence=review,id=number
"""
_DEFAULT_TASKS = {
  "sequence_classification": "classification",
  "question_answering": "squad",
}
_LONGEST_WINDOW = 384  # tokens by default, as for BERT on SQuAD
_INTERRUPTED = 130
_DTYPES = "float32", "bfloat16"


def main(arguments: list[str] | None = None) -> int:
  """Answers the examples of one source; returns the exit status."""
  options = _parser().parse_args(arguments)
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # or Orbax logs pages
  try:
    run(options)
  except BrokenPipeError:  # the reader has left; buffered output has nowhere to go
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except (InputError, ConfigError, weights.WeightsError, model.AttentionError) as error:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return 2
  except OSError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr, flush=True)
    return _INTERRUPTED
  return 0


def run(options: argparse.Namespace):
  """Runs the command with parsed options."""
  check_integer("--max-answer-length", options.max_answer_length, at_least=1)
  if options.genres != MATCHED and not options.submission:
    raise InputError(f"--genres {options.genres} needs --submission; give both.")
  fine_tuned = open_model(options)
  settings, stored = fine_tuned.settings, fine_tuned.stored
  mesh = make_mesh()
  shape = BatchShape(
    settings.max_sequence_length,
    batch_size=-(-options.batch_size // mesh.size) * mesh.size,
    max_sequences=options.max_sequences_per_pack,
    algorithm=options.algorithm,
  )
  _check_isolated(stored, shape)
  program = make_program(
    stored, mesh=mesh, dtype=options.dtype, attention_impl=options.attention_impl
  )
  attention.check(program.config, shape.length)
  if options.input == STANDARD_INPUT and sys.stdin.isatty():
    print("reading standard input; Ctrl-D ends it", file=sys.stderr)
  tally: collections.Counter[str] = collections.Counter()
  examples = read_examples(options.input, settings, fine_tuned.tokenizer, tally)

  def lazy_answers() -> Iterator[dict]:
    params = jax.device_put(stored.load(), replicated(mesh))
    yield from answers(
      program,
      params,
      examples,
      task=settings.task,
      shape=shape,
      labels=fine_tuned.labels,
      max_answer_length=options.max_answer_length,
    )

  _write(lazy_answers(), options, task=settings.task)
  _report_cuts(tally, settings)


def _write(answers: Iterator[dict], options: argparse.Namespace, *, task: str):
  start, number, wrote = time.perf_counter(), 0, ""
  # On one terminal, answers and progress would be mixed.
  hidden = not (options.out or options.submission) and sys.stdout.isatty()

  def counted() -> Iterator[dict]:
    nonlocal number
    with tqdm.tqdm(answers, desc="answering", unit=" examples", disable=hidden) as bar:
      for answer in bar:
        number += 1
        yield answer

  if options.submission:
    files = pipeline.write_submission(
      options.submission, task, counted(), genres=options.genres
    )
    wrote = f", wrote {', '.join(map(str, files))}"
  elif options.out:
    with whole_file(options.out) as file:
      for answer in counted():
        file.write(json.dumps(answer).encode() + b"\n")
    wrote = f", wrote {options.out}"
  else:
    for answer in counted():
      print(json.dumps(answer), flush=True)
  seconds = time.perf_counter() - start
  print(f"answered {number:,} examples in {seconds:.1f} s{wrote}", file=sys.stderr)


def _report_cuts(tally: collections.Counter[str], settings: pipeline.DatasetSettings):
  """Reports how many examples lost tokens; a context split into windows loses none."""
  cut = {"max_question_length": tally["truncated_questions"]}
  if settings.task != "squad" or settings.too_long == "truncate":
    cut["max_sequence_length"] = tally["too_long"]
  for name, count in cut.items():
    if count:
      limit = f"--{name.replace('_', '-')} {getattr(settings, name)}"
      print(f"cut {count:,} of them: longer than {limit}", file=sys.stderr)


# ---- examples and a model in, answers out ----------------------------------------------


def answers(
  program: ModelProgram,
  params,
  examples: Iterable[pipeline.Example],
  *,
  task: str,
  shape: BatchShape,
  labels: tuple[str, ...] = (),
  chunk_size: int = CHUNK_SIZE,
  max_answer_length: int = MAX_ANSWER_LENGTH,
) -> Iterator[dict]:
  """A model's answers to examples, in their order, computed on packs of one shape.

  Args:
    program: of the model, such as `training.evaluation.make_program` gives.
    params: of the model, preferably on the devices already.
    examples: from `pipeline.read_examples`; at most a chunk of them is held.
    task: that they are read for.
    shape: of the batches; the batch size is a multiple of the number of devices.
    labels: names of the classes, in the order of their numbers.
    chunk_size: how many sequences are packed together.
    max_answer_length: for squad, in tokens.

  Returns:
    Answers as `pipeline.answer` gives them.

  Raises:
    InputError: an example is invalid.
    WeightsError: the outputs of the model are not finite.
  """
  for chunk in pack_examples(
    examples, TASKS[task].schema, shape=shape, chunk_size=chunk_size
  ):
    outputs: list[np.ndarray] = []
    if chunk.num_packs:
      outputs, loss = predict(program, params, chunk.batches())
      if not np.isfinite(loss):
        raise weights.WeightsError(
          f"The model's output for {chunk.examples[0].where} or an example after it is "
          "not finite. Check the weights, or compute with --dtype float32."
        )
    yield from pipeline.answer(
      task,
      chunk.examples,
      chunk.by_example(outputs),
      label_names=labels,
      max_answer_length=max_answer_length,
    )


def _check_isolated(stored: weights.StoredModel, shape: BatchShape):
  config = stored.bert
  isolated = config.attention_mask != "none" and config.position_reset
  if not isolated and shape.algorithm != "none":
    raise InputError(
      f"{stored.directory} was trained with attention_mask={config.attention_mask} and "
      f"position_reset={config.position_reset}, so answers depend on the other sequences "
      "in the row. Give --algorithm none."
    )


# ---- the model and its task -------------------------------------------------------------


class FineTuned(NamedTuple):
  """A model, and how text becomes its sequences.

  Attributes:
    stored: the model; its parameters are not read yet.
    settings: for `pipeline.read_examples`.
    tokenizer: has the vocabulary of the model.
    labels: names of the classes; () for none.
  """

  stored: weights.StoredModel
  settings: pipeline.DatasetSettings
  tokenizer: Tokenizer
  labels: tuple[str, ...]


def open_model(options: argparse.Namespace) -> FineTuned:
  """Opens the model in FOLDER, and checks all that can be checked before any work.

  Raises:
    WeightsError, ConfigError, InputError: the folder has no model that answers, or the
      options do not fit it.
  """
  folder = pathlib.Path(options.folder)
  run_config = None
  if (folder / weights.MODEL).exists() and workdir.is_run(folder):
    run_config = workdir.read_config(folder)
    best = run_config["train"].get("keep_best", False)  # not in older runs
    step = workdir.choose_step(folder, options.step, prefer_best=best)
  else:
    if options.step and not options.step.isdecimal():
      raise InputError(
        f"--step is {short_repr(options.step)}; expected a number: {folder} is not a run."
      )
    step = int(options.step) if options.step else None
  stored = hf.open_model(folder, step=step)
  if stored.head == "causal":
    raise InputError(
      f"{folder} holds a {model.MODELS[stored.head].__name__}, which predicts next tokens. "
      "Train and evaluate it with train.py and eval.py; to write text with it, export it: "
      "python -m model export."
    )
  if stored.head not in _DEFAULT_TASKS:
    raise InputError(
      f"{folder} holds a {model.MODELS[stored.head].__name__}, which answers nothing. "
      "Fine-tune it first, such as with: python train.py --config=configs/glue.py:cola "
      f"--workdir=RUN --config.model.init_from={folder}; then give RUN."
    )
  settings = _settings(options, stored, run_config)
  labels: tuple[str, ...] = ()
  if stored.head == "sequence_classification":
    outputs = stored.bert.num_labels
    labels = pipeline.label_names(settings.task, outputs, given=stored.labels)
  return FineTuned(stored, settings, _tokenizer(stored, settings), labels)


def _settings(options, stored, run_config: dict | None) -> pipeline.DatasetSettings:
  """How to read and cut examples: as for training, except for the options given."""
  folder, positions = stored.directory, stored.config.max_position_embeddings
  if run_config is None:
    task = options.task or _DEFAULT_TASKS[stored.head]
    if options.task is None and stored.bert.num_labels == 1 and task == "classification":
      task = "regression"
    longest = min(positions, _LONGEST_WINDOW) if task == "squad" else positions
    settings = pipeline.DatasetSettings(options.input, longest, task=task)
  else:
    settings = pipeline.settings_of(run_config["data"])
    task = settings.task
    if options.task not in (None, task):
      raise InputError(
        f"--task is {short_repr(options.task)}; {folder} is a run of {task}. Leave it out."
      )
  head = pipeline.TASK_HEADS.get(task)
  if head != stored.head:
    fitting = [name for name, head in pipeline.TASK_HEADS.items() if head == stored.head]
    raise InputError(
      f"The task {short_repr(task)} does not fit the {model.MODELS[stored.head].__name__} "
      f"in {folder}; expected one of {', '.join(fitting)}."
    )
  given = {
    "columns": options.columns,
    "max_sequence_length": options.max_sequence_length,
    "doc_stride": options.doc_stride,
    "max_question_length": options.max_question_length,
  }
  settings = dataclasses.replace(
    settings, **{name: value for name, value in given.items() if value is not None}
  )
  if settings.max_sequence_length > positions:
    raise InputError(
      f"--max-sequence-length is {settings.max_sequence_length}; expected at most "
      f"{positions}, the positions of {folder}."
    )
  # The reader needs names of classes but uses none; the model's own may have commas.
  names = ",".join(f"LABEL_{n}" for n in range(max(stored.bert.num_labels, 2)))
  return dataclasses.replace(settings, labels=names if task == "classification" else "")


def _tokenizer(
  stored: weights.StoredModel, settings: pipeline.DatasetSettings
) -> Tokenizer:
  folder = stored.directory
  if stored.vocabulary is None:
    raise InputError(
      f"{folder} has no vocabulary; expected {VOCABULARY_FILE} there. Copy the one that "
      "the model was trained with into it."
    )
  if not stored.vocabulary.lowercase:
    raise InputError(
      f"{folder} is cased; expected an uncased model, since text is lower-cased here. Give "
      "another model."
    )
  path = folder / VOCABULARY_FILE
  if settings.vocab_file.endswith(".json"):  # may have its own way to split text
    path = pathlib.Path(settings.vocab_file)
  elif not path.exists():
    path = folder / TOKENIZER_FILE
  tokenizer = Tokenizer(path)
  if tuple(tokenizer.vocabulary) != stored.vocabulary.tokens:
    raise InputError(
      f"The vocabulary of {path} ({len(tokenizer.vocabulary)} tokens) differs from that "
      f"of {folder} ({len(stored.vocabulary.tokens)} tokens). Restore the one that the "
      "model was trained with."
    )
  return tokenizer


# ---- the command line -------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
  parser = Parser(
    prog="python predict.py",
    description=__doc__.split("\n")[0],
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add: Callable = parser.add_argument
  add("folder", metavar="FOLDER", help="with the fine-tuned model")
  add("--input", metavar="SOURCE", default=STANDARD_INPUT, help="default: -")
  output = parser.add_mutually_exclusive_group()
  output.add_argument(
    "--out", metavar="FILE", help="write answers there, whole or not at all"
  )
  output.add_argument(
    "--submission",
    metavar="PATH",
    help="write the format of the GLUE or SQuAD server: a file, or a folder for it",
  )
  add(
    "--genres",
    choices=(MATCHED, MISMATCHED),
    default=MATCHED,
    help=f"of the MNLI test set to submit (default: {MATCHED})",
  )
  add("--step", metavar="N", help="of the run's checkpoint; or best")
  add("--task", metavar="TASK", help="of a model without a run (default: by its head)")
  add("--columns", metavar="FIELD=NAME,...", help="names of fields in the source")
  add(
    "--max-sequence-length",
    metavar="S",
    type=int,
    help="tokens of a sequence and of a row (default: the run's; else all positions, for "
    f"squad {_LONGEST_WINDOW})",
  )
  add("--doc-stride", metavar="N", type=int, help="squad: tokens from window to window")
  add("--max-question-length", metavar="N", type=int, help="squad: in tokens")
  add(
    "--max-answer-length",
    metavar="N",
    type=int,
    default=MAX_ANSWER_LENGTH,
    help=f"squad: in tokens (default: {MAX_ANSWER_LENGTH})",
  )
  add("--batch-size", metavar="B", type=int, default=8, help="rows a step (default: 8)")
  add(
    "--algorithm",
    choices=packing.ALGORITHMS,
    metavar="A",
    default=BatchShape.algorithm,
    help=f"of packing: {', '.join(packing.ALGORITHMS)}; none for one sequence a row "
    f"(default: {BatchShape.algorithm})",
  )
  add(
    "--max-sequences-per-pack", metavar="M", type=int, help="default: S / 4, hardly a limit"
  )
  add("--dtype", choices=_DTYPES, help="of the computation (default: the model's)")
  add(
    "--attention-impl",
    choices=model.IMPLEMENTATIONS,
    default="xla",
    help="default: xla, which runs on any device",
  )
  return parser


if __name__ == "__main__":
  status = main()
  if status == _INTERRUPTED:  # threads that still compile would crash an ordinary exit
    os._exit(status)
  sys.exit(status)
