"""python -m pipeline: prepare."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import sys

if not sys.stderr.isatty():  # in a log, each update of a bar adds a line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import packing
from packing import InputError
from packing.commands.program import Parser, fail, print_result
from packing.errors import check_integer
from pipeline.dataset import PreparedDataset
from pipeline.preparation.beam import BeamRunner
from pipeline.preparation.prepare import prepare
from pipeline.settings import TOO_LONG, DatasetSettings
from pipeline.tasks.registry import TASKS

_PREPARE_EXAMPLES = """sources:
  stdlib                      docstrings and help topics of this Python
  tfds:glue/cola              TensorFlow Datasets, prepared as array_record
  tfds:squad#validation       a split other than train
  corpus/  'corpus/*.txt'     files by suffix: .txt, .jsonl, .csv, .tsv, .parquet, .arrow,
                              .json (SQuAD's layout), .conll (words and tags); also
                              folders written by Hugging Face's save_to_disk

examples:
  python -m pipeline prepare --source 'wiki/*.txt' --vocab-file vocab.txt \\
      --max-sequence-length 128 --dupe-factor 5 --held-out-fraction 0.01 \\
      --out data/wiki-128
  python -m pipeline prepare --source tfds:glue/mrpc --task glue/mrpc \\
      --vocab-file vocab.txt --max-sequence-length 128 --out data/mrpc \\
      --held-out-source tfds:glue/mrpc#validation
  python -m pipeline prepare --source reviews.csv --task classification \\
      --labels bad,good --vocab-file vocab.txt --max-sequence-length 128 \\
      --held-out-fraction 0.05 --out data/reviews
  python -m pipeline prepare --source train-v1.1.json --task squad \\
      --held-out-source dev-v1.1.json --vocab-file vocab.txt \\
      --max-sequence-length 384 --out data/squad
  python -m pipeline prepare --source tokens.parquet --task tokens \\
      --columns input_ids=tokens --vocab-file tokenizer.json \\
      --max-sequence-length 1024 --too-long split --out data/tokens

If the command is stopped, run it again: it resumes where it stopped. If the dataset is
complete, it only prints what the dataset holds.
"""


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  again = "Run the same command again: it resumes where it stopped."
  try:
    text = _prepare(options)
  except InputError as error:
    return fail(2, str(error))
  except KeyboardInterrupt:
    return fail(130, f"Stopped. {again}")
  except OSError as error:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return fail(1, f"{error}. Make room. {again}" if is_full else f"{error}.")
  return print_result(text)


def _parser() -> Parser:
  parser = Parser(
    prog="python -m pipeline",
    description="Turns text into sequences on disk, ready to be packed.",
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  command = commands.add_parser(
    "prepare",
    help="turn text into sequences",
    description="Turn text into sequences.",
    epilog=_PREPARE_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  _add_prepare(command)
  command.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def _add_prepare(command):
  defaults = {field.name: field.default for field in dataclasses.fields(DatasetSettings)}

  def add(group, name: str, text: str, **options):
    default = defaults[name]
    if default not in ("", dataclasses.MISSING):
      text += f" (default: {default})"
    group.add_argument(
      f"--{name.replace('_', '-')}",
      default=None if "source" in name or default is dataclasses.MISSING else default,
      required=default is dataclasses.MISSING,
      help=text,
      **options,
    )

  number = {"type": int, "metavar": "N"}
  fraction = {"type": float, "metavar": "F"}
  group = command.add_argument_group("input")
  text = "where documents come from; see below; may be given several times"
  add(group, "source", text, metavar="SOURCE", action="append")
  add(
    group,
    "documents",
    "where documents in text files end: blank-line, line, file, wikiextractor or "
    "start:REGEX",
  )
  add(group, "columns", "names of fields in the source", metavar="FIELD=NAME,...")
  add(
    group,
    "held_out_source",
    "a separate source to hold out",
    metavar="SOURCE",
    action="append",
  )
  add(group, "held_out_fraction", "fraction of documents to hold out", **fraction)
  text = "a second source to hold out, such as tfds:glue/mnli#validation_mismatched"
  add(group, "mismatched_source", text, metavar="SOURCE", action="append")
  group = command.add_argument_group("output")
  group.add_argument("--out", required=True, metavar="DIR", help="the prepared dataset")
  add(group, "task", f"one of {', '.join(TASKS)}", metavar="TASK")
  add(group, "max_sequence_length", "in tokens, special tokens included", **number)
  add(group, "too_long", "what to do with longer sequences", choices=TOO_LONG)
  text = "BERT's vocab.txt, or a tokenizer.json"
  add(group, "vocab_file", text, metavar="FILE")
  text = "size of the vocabulary that is learned without --vocab-file"
  add(group, "vocab_size", text, **number)
  add(group, "seed", "seed of all random choices", **number)
  add(group, "shard_bytes", "bytes of documents in a shard", **number)
  group = command.add_argument_group("for --task pretraining")
  text = "how often each document is cut, each time differently"
  add(group, "dupe_factor", text, **number)
  text = "leave out documents with fewer; also for --task sentences"
  add(group, "min_sentences", text, **number)
  group = command.add_argument_group("for --task sentences")
  text = "continue sequences in the next document, after a [SEP]"
  add(group, "cross_documents", text, action=argparse.BooleanOptionalAction)
  group = command.add_argument_group("for --task text and documents")
  add(group, "min_words", "leave out documents with fewer", **number)
  group = command.add_argument_group("for --task classification, multi_label and tagging")
  text = "class names, in the order of their numbers (default: those in the data, sorted)"
  add(group, "labels", text, metavar="NAME,...")
  group = command.add_argument_group("execution")
  text = (
    "processes (default: one per core, at most 10); with --runner, the workers it has, "
    "which share files if there are fewer (default: 1)"
  )
  group.add_argument("--workers", **number, help=text)
  text = "run as an Apache Beam pipeline: DirectRunner, FlinkRunner, SparkRunner, ..."
  group.add_argument("--runner", metavar="NAME", help=text)
  group.add_argument(
    "--runner-option",
    metavar="OPTION",
    action="append",
    default=[],
    help="for the Beam runner, such as --runner-option=--flink_master=localhost:8081",
  )


def _runner(options) -> BeamRunner | None:
  if options.runner_option and not options.runner:
    raise packing.InputError("--runner-option needs --runner; give both.")
  if not options.runner:
    return None
  return BeamRunner(options.runner, options.runner_option, num_workers=options.workers or 1)


def _prepare(options) -> str:
  names = [field.name for field in dataclasses.fields(DatasetSettings)]
  given = {name: getattr(options, name) for name in names}
  for name in ("source", "held_out_source", "mismatched_source"):
    listed = given[name] or [""]
    given[name] = listed[0] if len(listed) == 1 else json.dumps(listed, ensure_ascii=False)
  if options.held_out_source and options.held_out_fraction:
    raise InputError(
      "--held-out-source is held out instead of a fraction; leave out --held-out-fraction."
    )
  settings = DatasetSettings(**given)
  if options.workers is not None:
    check_integer("--workers", options.workers, at_least=1, at_most=4096)
  dataset = prepare(
    options.out, settings, num_workers=options.workers, runner=_runner(options)
  )
  return _described(dataset, options)


def _described(dataset: PreparedDataset, options) -> str:
  manifest = dataset.manifest
  if options.json:
    kept = ("settings", "source", "tokenizer", "labels", "counts", "histograms")
    shards = sum(map(len, manifest["shards"].values()))
    result = {"directory": str(dataset.directory), "num_shards": shards}
    return json.dumps(result | {name: manifest[name] for name in kept})
  settings, counts = manifest["settings"], manifest["counts"]
  lines = [
    f"{dataset.directory}: {settings['task']} from {settings['source']}",
    f"{'documents':<12} {counts['documents']:>14,} read, {counts['documents_used']:,} used",
    f"{'vocabulary':<12} {manifest['tokenizer']['size']:>14,} tokens",
  ]
  limit = settings["max_sequence_length"]
  for split in manifest["shards"]:
    numbers = counts[split]
    if numbers["sequences"]:
      mean = numbers["tokens"] / numbers["sequences"]
      lines.append(
        f"{split.replace('_', ' '):<12} {numbers['sequences']:>14,} sequences, "
        f"{numbers['tokens']:,} tokens, {mean:.1f} of {limit} on average"
      )
      details = [
        f"{name.replace('_', ' ')} {round(value, 4) if value % 1 else int(value):,}"
        for name, value in numbers.items()
        if name not in ("sequences", "tokens")
      ]
      lines.append(f"{'':<12} {'':>14} {', '.join(details)}")
  return "\n".join(lines)


if __name__ == "__main__":
  sys.exit(main())
