"""python -m model: import, export, verify."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import logging
import pathlib
import sys
import time

import jax
import tqdm

from model import hf, weights
from model.files import check_new_folder, whole_folder
from model.hf.pooling import copy_pooling
from model.hf.tokenizer import BYTE_LEVEL_FILES, ORIGINALS, SPLITTING, copy_files
from model.testing import verify
from packing.commands.program import Parser, fail, print_result
from packing.files import NotWritten

_IMPORT_HELP = """The directory holds config.json, model.safetensors and vocab.txt,
tokenizer.json, or vocab.json with merges.txt; pickles are not opened. The new folder gets
model.json, vocab.txt, checkpoints/0, the tokenizer's files in tokenizer/ for an export, and
tokenizer.json if text is not split as by BERT; also those of sentence-transformers.
Training can start from either of the two:

  python -m model import bert-mini/ --out imported/
  python train.py ... --config.model.init_from=imported \\
      --config.data.vocab_file=imported/vocab.txt
"""
_EXPORT_HELP = """Writes config.json, model.safetensors and the tokenizer. Open them with

  AutoModelForPreTraining.from_pretrained(DIR), AutoTokenizer.from_pretrained(DIR)

examples:
  python -m model export runs/quickstart --out bert/
  python -m model export runs/quickstart --step 1200 --out bert-1200/
"""
_VERIFY_HELP = """Prints a row for every head, attention implementation and dtype, with the
largest difference between packed and unpacked divided by the largest value: for hidden
states and logits, for losses and accuracies per sequence, and for all gradients. If torch
and transformers are installed, it also compares logits with Hugging Face's. The influence,
the largest derivative of one sequence's outputs with respect to another's embeddings, must
be 0. Cases that this machine cannot run are listed with the reason. The exit status is 1 if
anything differs by more than 1e-5 in float32, 1e-12 in float64 or 3e-2 in bfloat16. All
rows take tens of minutes on two cores.

On a new machine, --quick takes one to three minutes. It verifies one head with each
implementation of attention that the device has, in float32 and bfloat16, and compares
attention alone with XLA's, in rows with padding and without sequences:

  python -m model verify --quick

Given FOLDER, verifies the model in it with its own weights, in float32 and bfloat16:

  python -m model verify minilm-l6-h384/

For the same proofs of a model of your own, see docs/how_to_check_a_model.md.
"""


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs pages
  start = time.perf_counter()
  try:
    result = options.run(options)
  except (weights.WeightsError, OSError) as error:
    return fail(1 if isinstance(error, NotWritten) else 2, str(error))
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return 130
  if options.json:
    text = json.dumps(result | {"seconds": time.perf_counter() - start})
  else:
    text = options.show(result)
  return print_result(text, 0 if result.get("passes", True) else 1)


def _lines(result: dict) -> str:
  return "\n".join(f"{name:<14} {value}" for name, value in result.items())


def _parser() -> Parser:
  parser = Parser(
    prog="python -m model",
    description="Converts weights of packed models from and to Hugging Face directories, "
    "and verifies the models.",
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  for name, add, run, show, text, epilog in _COMMANDS:
    command = commands.add_parser(
      name,
      help=text,
      description=text[0].upper() + text[1:] + ".",
      epilog=epilog,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, show=show)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    add(command)
  return parser


def _add_import(command):
  command.add_argument("directory", metavar="DIR", help="a Hugging Face directory")
  command.add_argument(
    "--out", metavar="FOLDER", required=True, help="folder to write; new or empty"
  )


def _import(options) -> dict:
  check_new_folder(options.out)
  stored = hf.open_model(options.directory)
  if stored.step is not None:
    raise weights.WeightsError(
      f"{options.directory} is a folder of this project already. Use it without an import."
    )
  params = stored.load()
  with whole_folder(options.out) as partial:
    copy_pooling(stored.directory, partial)
    weights.save(partial, params)
    weights.describe(
      partial,
      stored.config,
      head=stored.head,
      vocabulary=stored.vocabulary,
      labels=stored.labels,
    )
    copy_files(stored.directory, pathlib.Path(partial) / ORIGINALS)
    if stored.vocabulary and stored.vocabulary.by_json:
      copy_files(stored.directory, partial, SPLITTING)
  return _summary(options.out, stored, params)


def _add_export(command):
  command.add_argument("folder", metavar="FOLDER", help="a run's folder or an imported one")
  command.add_argument(
    "--out", metavar="DIR", required=True, help="folder to write; new or empty"
  )
  command.add_argument(
    "--step",
    metavar="N",
    help="step of the checkpoint, or best (default: the best if the run keeps it, "
    "train.keep_best; otherwise the newest)",
  )


def _export(options) -> dict:
  check_new_folder(options.out)
  step, why = weights.choose_step(options.folder, options.step)
  stored = weights.open_folder(options.folder, step=step)
  print(f"step {step} of {options.folder} ({why})", file=sys.stderr)
  params = stored.load()
  hf.export_model(
    stored.config,
    params,
    options.out,
    vocabulary=stored.vocabulary,
    labels=stored.labels,
    tokenizer=stored.directory,
  )
  return {"step": stored.step} | _summary(options.out, stored, params)


def _summary(out: str, stored: weights.StoredModel, params: weights.Params) -> dict:
  folder = pathlib.Path(out)
  return {
    "directory": str(folder),
    "architecture": stored.name,
    "parameters": sum(x.size for x in jax.tree.leaves(params)),
    "vocab_size": stored.config.vocab_size,
    "tokenizer": _tokenizer_in(folder, stored.vocabulary),
  }


def _tokenizer_in(folder: pathlib.Path, vocabulary: weights.Vocabulary | None) -> str:
  """The tokenizer in a folder that was written, in words."""
  if vocabulary and not vocabulary.by_json:
    return "WordPiece"
  there = [name for name in BYTE_LEVEL_FILES if (folder / name).exists()]
  tokens = "tokens only" if (folder / weights.VOCABULARY).exists() else "none"
  return there[0] if there else tokens


def _add_verify(command):
  command.add_argument(
    "folder",
    nargs="?",
    metavar="FOLDER",
    help="a run's folder, an imported one or a Hugging Face directory (default: small "
    "random models with every head)",
  )
  command.add_argument(
    "--quick", action="store_true", help="a short part of it; not with FOLDER"
  )


def _verify(options) -> dict:
  reference = verify.reference_is_installed()
  show = functools.partial(tqdm.tqdm, desc="verifying", unit=" rows", leave=False)
  comparisons: list[verify.KernelComparison] = []
  if options.quick:
    if options.folder:
      raise weights.WeightsError("--quick takes no FOLDER. Give one of them.")
    rows, comparisons = verify.quick(show)
  else:
    stored = None
    if options.folder:
      step = weights.choose_step(options.folder).step
      stored = hf.open_model(options.folder, step=step)
    rows = verify.verify(show, stored=stored, reference=reference)
  text = "\n\n".join(
    filter(None, (verify.table(rows), verify.comparison_table(comparisons)))
  )
  if not reference and not options.quick:
    text += "\n\nNot compared with Hugging Face: torch and transformers are not installed."
  return {
    "passes": all(row.passes for row in rows if row.passes is not None)
    and not any(x.outcome == "FAILS" for x in comparisons),
    "rows": [dataclasses.asdict(row) | {"passes": row.passes} for row in rows],
    "tables": {"largest": verify.largest(rows)},
    "beside_xla": [dataclasses.asdict(x) | {"passes": x.passes} for x in comparisons],
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "jax": jax.__version__,
  } | ({} if options.json else {"table": text})


# Name, function that adds arguments, function from options to a result in JSON (if its
# `passes` is false, the exit status is 1), function from that to text, and help.
_COMMANDS = (
  (
    *("import", _add_import, _import, _lines),
    "read a Hugging Face directory into a folder of this project",
    _IMPORT_HELP,
  ),
  (
    *("export", _add_export, _export, _lines),
    "write the weights of a run as a Hugging Face directory",
    _EXPORT_HELP,
  ),
  (
    *("verify", _add_verify, _verify, lambda result: result["table"]),
    "prove that packed equals unpacked, and that no sequence influences another",
    _VERIFY_HELP,
  ),
)


if __name__ == "__main__":
  sys.exit(main())
