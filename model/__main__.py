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
from model.config import MAX_VOCAB_MULTIPLE
from model.files import NotWritten, check_new_folder, whole_folder
from model.hf.tokenizer import BYTE_LEVEL_FILES, copy_byte_level
from model.testing import verify


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs pages; we, a line
  start = time.perf_counter()
  try:
    result = options.run(options)
  except (weights.WeightsError, OSError) as error:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return 1 if isinstance(error, NotWritten) else 2
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return 130
  if options.json:
    result |= {"seconds": time.perf_counter() - start}
    print(json.dumps(result))
  else:
    print(options.show(result))
  return 0 if result.get("passes", True) else 1


def _lines(result: dict) -> str:
  return "\n".join(f"{name:<14} {value}" for name, value in result.items())


class _Parser(argparse.ArgumentParser):
  """Reports a mistake in one line, like every other, and points to --help."""

  def error(self, message):
    self.exit(2, f"error: {' '.join(message.split())}\nSee {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog="python -m model",
    description="Weights of packed models, to and from Hugging Face directories.",
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  for add in _COMMANDS:
    add(commands)
  return parser


def add_command(commands, name: str, run, *, text: str, epilog: str, show=_lines):
  """Adds a subcommand with --json, and returns its parser.

  Args:
    commands: of the parser.
    name: of the subcommand.
    run: from options to the result, a JSON object; a false `passes` makes the status 1.
    text: the first line of --help.
    epilog: the rest of --help, with examples.
    show: from the result to the text that is printed without --json.
  """
  command = commands.add_parser(
    name,
    help=text,
    description=text[0].upper() + text[1:] + ".",
    epilog=epilog,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  command.add_argument("--json", action="store_true", help="print one JSON object")
  command.set_defaults(run=run, show=show)
  return command


def _add_import(commands):
  command = add_command(
    commands,
    "import",
    _import,
    text="read a Hugging Face directory into a folder of this project",
    epilog="""The directory holds config.json, model.safetensors and vocab.txt or
tokenizer.json; pickles are not opened. The folder gets model.json, vocab.txt, a
tokenizer.json where WordPiece does not split the text, and checkpoints/0. Training can
start from either:

  python -m model import bert-mini/ --out imported/
  python train.py ... --config.model.init_from=imported \\
      --config.data.vocab_file=imported/vocab.txt
""",
  )
  command.add_argument("directory", metavar="DIR", help="a Hugging Face directory")
  command.add_argument(
    "--out", metavar="FOLDER", required=True, help="to write; new or empty"
  )
  command.add_argument(
    "--vocab-multiple",
    metavar="N",
    type=int,
    default=1,
    help="pad the token embedding to a multiple of N entries (default: 1)",
  )


def _import(options) -> dict:
  if not 1 <= options.vocab_multiple <= MAX_VOCAB_MULTIPLE:
    raise weights.WeightsError(
      f"--vocab-multiple is {options.vocab_multiple}; expected at least 1 and at most "
      f"{MAX_VOCAB_MULTIPLE}: no hardware gains by more, and each entry takes memory."
    )
  check_new_folder(options.out)
  stored = hf.open_model(options.directory)
  if stored.step is not None:
    raise weights.WeightsError(
      f"{options.directory} is a folder of this project already; expected a Hugging Face "
      "directory. Give it to --config.model.init_from as it is."
    )
  config, params = weights.resize_vocabulary(
    stored.config, stored.load(), multiple=options.vocab_multiple
  )
  with whole_folder(options.out) as partial:
    weights.save(partial, params)
    weights.describe(
      partial,
      config,
      head=stored.head,
      vocabulary=stored.vocabulary,
      labels=stored.labels,
    )
    if stored.vocabulary and stored.vocabulary.by_json:
      copy_byte_level(stored.directory, partial)
  return _summary(options.out, stored, params)


def _add_export(commands):
  command = add_command(
    commands,
    "export",
    _export,
    text="write the weights of a run as a Hugging Face directory",
    epilog="""Writes config.json, model.safetensors and the tokenizer, which open with

  AutoModelForPreTraining.from_pretrained(DIR), AutoTokenizer.from_pretrained(DIR)

examples:
  python -m model export runs/quickstart --out bert/
  python -m model export runs/quickstart --step 1200 --out bert-1200/
""",
  )
  command.add_argument("folder", metavar="FOLDER", help="a run's, or an imported one")
  command.add_argument("--out", metavar="DIR", required=True, help="to write; new or empty")
  command.add_argument(
    "--step", metavar="N", type=int, help="of the checkpoint (default: the newest)"
  )


def _export(options) -> dict:
  check_new_folder(options.out)
  stored = weights.open_folder(options.folder, step=options.step)
  # Without the entries that vocab_multiple added: they are neither written nor counted.
  config, params = weights.resize_vocabulary(stored.config, stored.load(), multiple=1)
  hf.export_model(
    config,
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
    "architecture": stored.kind.__name__,
    "parameters": sum(x.size for x in jax.tree.leaves(params)),
    "vocab_size": stored.config.vocab_size,
    "tokenizer": _tokenizer_in(folder, stored.vocabulary),
  }


def _tokenizer_in(folder: pathlib.Path, vocabulary: weights.Vocabulary | None) -> str:
  """What a folder that was written has to split text by."""
  if vocabulary and not vocabulary.by_json:
    return "WordPiece"
  there = [name for name in BYTE_LEVEL_FILES if (folder / name).exists()]
  tokens = "its tokens alone" if (folder / weights.VOCABULARY).exists() else "none"
  return there[0] if there else tokens


def _add_verify(commands):
  command = add_command(
    commands,
    "verify",
    _verify,
    show=lambda result: result["table"],
    text="prove that packed equals unpacked, and that no sequence touches another",
    epilog="""Every head, attention implementation and dtype gets a row. It has the largest
difference over the largest value, packed to unpacked: of hidden states and logits, of
losses and accuracies per sequence, and of all gradients. It compares logits with Hugging
Face's if torch and transformers are installed. The largest derivative of one sequence's
outputs by another's embeddings must be 0. Cases that this machine cannot run are named.
Exit status 1 if anything differs by more than 1e-5 in float32, 1e-12 in float64 or 3e-2
in bfloat16. Takes a few minutes on two cores.

With FOLDER, the same for the model in it, with its own weights, in float32 and bfloat16:

  python -m model verify minilm-l6-h384/

The same proofs for your own model: model.testing, and the README.
""",
  )
  command.add_argument(
    "folder",
    nargs="?",
    metavar="FOLDER",
    help="of a model: a run's, an imported one or a Hugging Face directory (default: small "
    "random models of every head)",
  )


def _verify(options) -> dict:
  reference = verify.reference_is_installed()
  show = functools.partial(tqdm.tqdm, desc="verifying", unit=" rows", leave=False)
  stored = hf.open_model(options.folder) if options.folder else None
  rows = verify.verify(show, stored=stored, reference=reference)
  text = verify.table(rows)
  if not reference:
    text += "\n\nNot compared with Hugging Face: torch and transformers are not installed."
  return {
    "passes": all(row.passes for row in rows if row.passes is not None),
    "rows": [dataclasses.asdict(row) | {"passes": row.passes} for row in rows],
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "jax": jax.__version__,
  } | ({} if options.json else {"table": text})


# Each adds a subcommand.
_COMMANDS = (_add_import, _add_export, _add_verify)


if __name__ == "__main__":
  sys.exit(main())
