"""Answers: text in, what a fine-tuned model says of it out, packed inside.

  python predict.py runs/cola --input sentences.txt
  echo 'The book was written.' | python predict.py runs/cola

An answer is one JSON object a line, in the order of the input, the same as without packing.
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
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from jax.sharding import Mesh

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
from training.evaluation import predict
from training.mesh import make_mesh, replicated
from training.record import workdir
from training.step import TrainingProgram

_EXAMPLES = """FOLDER is a run's, an imported one (python -m model import), or a Hugging
Face directory of BertForSequenceClassification or BertForQuestionAnswering. Of a run, the
task and how text is cut are its own, and the checkpoint is the best where the run keeps
that, else the newest.

input:
  -                           the default, standard input: JSON lines, or a sentence a
                              line, a tab between the two of a pair
  FILE, FOLDER, 'FILES*'      by their suffix: .txt, .jsonl, .csv, .tsv, .parquet, .arrow,
                              .json (SQuAD's layout); also Hugging Face save_to_disk
  tfds:glue/cola#test         TensorFlow Datasets, prepared as array_record

output, a line an example; the id is that of the source, else the number from 0:
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
_LONGEST_WINDOW = 384  # tokens, of BERT on SQuAD, where nothing says otherwise
_DTYPES = "float32", "bfloat16"


def main(arguments: list[str] | None = None) -> int:
  """Answers the examples of one source; returns the exit status."""
  options = _parser().parse_args(arguments)
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs pages; we, a line
  try:
    run(options)
  except BrokenPipeError:  # the reader has had enough; what is left has nowhere to go
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
    print("interrupted", file=sys.stderr)
    return 130
  return 0


def run(options: argparse.Namespace):
  """What the command does, its options parsed."""
  check_integer("--max-answer-length", options.max_answer_length, at_least=1)
  if options.genres != MATCHED and not options.submission:
    raise InputError(f"--genres {options.genres} is of a --submission; give both.")
  fine_tuned = open_model(options)
  settings, stored = fine_tuned.settings, fine_tuned.stored
  mesh = make_mesh()
  rows = BatchShape(
    settings.max_sequence_length,
    batch_size=-(-options.batch_size // mesh.size) * mesh.size,
    max_sequences=options.max_sequences_per_pack,
    algorithm=options.algorithm,
  )
  _check_isolated(stored, rows)
  program = make_program(
    stored, mesh=mesh, dtype=options.dtype, attention_impl=options.attention_impl
  )
  attention.check(program.config, rows.length)
  if options.input == STANDARD_INPUT and sys.stdin.isatty():
    print("reading standard input; Ctrl-D ends it", file=sys.stderr)
  tally: collections.Counter[str] = collections.Counter()
  examples = read_examples(options.input, settings, fine_tuned.tokenizer, tally)

  def found() -> Iterator[dict]:
    return answers(
      program,
      jax.device_put(stored.load(), replicated(mesh)),
      examples,
      task=settings.task,
      rows=rows,
      labels=fine_tuned.labels,
      max_answer_length=options.max_answer_length,
    )

  # Where answers and progress go to the same terminal, they would be mixed.
  hidden = not (options.out or options.submission) and sys.stdout.isatty()
  _write(found, options, task=settings.task, hidden=hidden)
  _report_cuts(tally, settings)


def _write(found, options, *, task: str, hidden: bool):
  start = time.perf_counter()
  number = 0

  def shown_answers() -> Iterator[dict]:
    nonlocal number
    with tqdm.tqdm(found(), desc="answering", unit=" examples", disable=hidden) as bar:
      for answer in bar:
        number += 1
        yield answer

  if options.submission:
    files = pipeline.write_submission(
      options.submission, task, shown_answers(), genres=options.genres
    )
    told = f", wrote {', '.join(map(str, files))}"
  elif options.out:
    with whole_file(options.out) as file:
      for answer in shown_answers():
        file.write(json.dumps(answer).encode() + b"\n")
    told = f", wrote {options.out}"
  else:
    for answer in shown_answers():
      print(json.dumps(answer), flush=True)
    told = ""
  seconds = time.perf_counter() - start
  print(f"answered {number:,} examples in {seconds:.1f} s{told}", file=sys.stderr)


def _report_cuts(tally: collections.Counter[str], settings: pipeline.DatasetSettings):
  """Says how many examples lost tokens; a context that is split into windows loses none."""
  cut = {"max_question_length": tally["truncated_questions"]}
  if settings.task != "squad" or settings.too_long == "truncate":
    cut["max_sequence_length"] = tally["too_long"]
  for name, count in cut.items():
    if count:
      limit = f"--{name.replace('_', '-')} {getattr(settings, name)}"
      print(f"cut {count:,} of them: longer than {limit}", file=sys.stderr)


# ---- the core: examples and a model in, answers out -------------------------------------


def answers(
  program: TrainingProgram,
  params,
  examples: Iterable[pipeline.Example],
  *,
  task: str,
  rows: BatchShape,
  labels: tuple[str, ...] = (),
  chunk_size: int = CHUNK_SIZE,
  max_answer_length: int = MAX_ANSWER_LENGTH,
) -> Iterator[dict]:
  """What a model says of examples, in their order, computed on packs of one shape.

  Args:
    program: of the model, such as `make_program` gives.
    params: of the model, best on the devices already.
    examples: of `pipeline.read_examples`; no more than a chunk of them is held.
    task: that they are read for.
    rows: to pack them into; its batch size is a multiple of the devices.
    labels: names of the classes, in the order of their numbers.
    chunk_size: sequences that are packed together.
    max_answer_length: of squad, in tokens.

  Returns:
    Answers as `pipeline.answer` gives them.

  Raises:
    InputError: of the examples.
    WeightsError: what the model gives is not finite.
  """
  for chunk in pack_examples(
    examples, TASKS[task].schema, rows=rows, chunk_size=chunk_size
  ):
    outputs: list[np.ndarray] = []
    if chunk.num_packs:
      outputs, loss = predict(program, params, chunk.batches())
      if not np.isfinite(loss):
        raise weights.WeightsError(
          f"What the model gives for {chunk.examples[0].where} or an example after it is "
          "not finite. Check the weights, or compute with --dtype float32."
        )
    yield from pipeline.answer(
      task,
      chunk.examples,
      chunk.by_example(outputs),
      label_names=labels,
      max_answer_length=max_answer_length,
    )


def make_program(
  stored: weights.StoredModel,
  *,
  mesh: Mesh,
  dtype: str | None = None,
  attention_impl: str = "xla",
) -> TrainingProgram:
  """A stored model as a function of parameters and batches.

  Args:
    stored: the model.
    mesh: rows of a batch are split over its devices.
    dtype: of the computation; that of the model if not given.
    attention_impl: a key of `model.IMPLEMENTATIONS`.
  """
  config = dataclasses.replace(
    stored.config,
    attention_impl=attention_impl,
    attention_dropout_rate=0.0,  # nothing is dropped here, so any kernel may run
    remat="none",
    dtype=jnp.dtype(dtype) if dtype else stored.config.dtype,
  )
  # Its optimizer is not run.
  return TrainingProgram(config, optax.identity(), mesh=mesh, seed=0, head=stored.head)


def _check_isolated(stored: weights.StoredModel, rows: BatchShape):
  config = stored.bert
  alone = config.attention_mask != "none" and config.position_reset
  if not alone and rows.algorithm != "none":
    raise InputError(
      f"{stored.directory} was trained with attention_mask={config.attention_mask} and "
      f"position_reset={config.position_reset}, so that answers depend on what else is in "
      "the row. Give --algorithm none."
    )


# ---- the model and its task -------------------------------------------------------------


class FineTuned(NamedTuple):
  """A model, and how text becomes its sequences.

  Attributes:
    stored: the model, its parameters not read yet.
    settings: of `pipeline.read_examples`.
    tokenizer: with the vocabulary of the model.
    labels: names of the classes; () for none.
  """

  stored: weights.StoredModel
  settings: pipeline.DatasetSettings
  tokenizer: Tokenizer
  labels: tuple[str, ...]


def open_model(options: argparse.Namespace) -> FineTuned:
  """Opens what FOLDER is, checked as far as can be before any work.

  Raises:
    WeightsError, ConfigError, InputError: it is no model that answers, or the options do
      not fit it.
  """
  folder = pathlib.Path(options.folder)
  run_config = None
  if (folder / weights.MODEL).exists() and workdir.is_run(folder):
    run_config = workdir.read_config(folder)
    best = run_config["train"].get("keep_best", False)  # not in older runs
    step = workdir.choose_step(folder, options.step, prefer_best=best)
  else:
    if options.step and not options.step.isdecimal():
      raise InputError(f"--step is {short_repr(options.step)}; expected a number: no run.")
    step = int(options.step) if options.step else None
  stored = hf.open_model(folder, step=step)
  if stored.head == "causal":
    raise InputError(
      f"{folder} holds a {model.MODELS[stored.head].__name__}, which predicts next tokens. "
      "Here it is trained and evaluated (train.py, eval.py); to write text, export it: "
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
  """How examples are read and cut: as for training, but for what the options say."""
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
      f"The task {short_repr(task)} is not one of a "
      f"{model.MODELS[stored.head].__name__}, which "
      f"{folder} holds; expected one of {', '.join(fitting)}."
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
  # The reader asks for names of classes and looks at none; the model's may have commas.
  names = ",".join(f"LABEL_{n}" for n in range(max(stored.bert.num_labels, 2)))
  return dataclasses.replace(settings, labels=names if task == "classification" else "")


def _tokenizer(
  stored: weights.StoredModel, settings: pipeline.DatasetSettings
) -> Tokenizer:
  folder = stored.directory
  if stored.vocabulary is None:
    raise InputError(
      f"{folder} has no vocabulary; expected {VOCABULARY_FILE} there. Copy the one that it "
      "was trained with to it."
    )
  if not stored.vocabulary.lowercase:
    raise InputError(
      f"{folder} is cased; expected an uncased model, since text is lowered here. Give "
      "another model."
    )
  path = folder / VOCABULARY_FILE
  if settings.vocab_file.endswith(".json"):  # may split text in a way of its own
    path = pathlib.Path(settings.vocab_file)
  elif not path.exists():
    path = folder / TOKENIZER_FILE
  tokenizer = Tokenizer(path)
  if tuple(tokenizer.vocabulary) != stored.vocabulary.tokens:
    raise InputError(
      f"The vocabulary of {path} ({len(tokenizer.vocabulary)} tokens) is not that of "
      f"{folder} ({len(stored.vocabulary.tokens)} tokens). Restore the one that it was "
      "trained with."
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
  add("folder", metavar="FOLDER", help="of the fine-tuned model")
  add("--input", metavar="SOURCE", default=STANDARD_INPUT, help="default: -")
  output = parser.add_mutually_exclusive_group()
  output.add_argument(
    "--out", metavar="FILE", help="write answers there, whole or not at all"
  )
  output.add_argument(
    "--submission",
    metavar="PATH",
    help="write what the server of GLUE or SQuAD takes: a file, or a folder for it",
  )
  add(
    "--genres",
    choices=(MATCHED, MISMATCHED),
    default=MATCHED,
    help=f"of the MNLI test set that is submitted (default: {MATCHED})",
  )
  add("--step", metavar="N", help="of the run's checkpoint; or best")
  add("--task", metavar="TASK", help="of a model without a run (default: by its head)")
  add("--columns", metavar="FIELD=NAME,...", help="what fields are called in the source")
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
  sys.exit(main())
