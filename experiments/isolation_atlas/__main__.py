"""Which models of transformers keep packed sequences apart, and by which call.

  python -m experiments.isolation_atlas            # all types, half an hour on 2 cores
  python -m experiments.isolation_atlas bert llama # these types, again
  python -m experiments.isolation_atlas --publish  # only write the pages again

Every causal model, masked language model, text encoder and model of images and text that
the installed transformers has is made tiny, with random weights, and gets three sequences
in one row by each call of experiments/isolation_atlas/calls.py. Compared with each sequence
alone are logits, loss and gradients; that no sequence influences another is tested by
changing its tokens, and by derivatives.

The record is experiments/isolation_atlas/record.jsonl. A command that was stopped continues
where it stopped; with another version of transformers or PyTorch it tries all types again.
At the end it writes docs/isolation_atlas.md and packing/torch/model_types.json, by which
`packing.torch.PackedCollator.for_model` accepts and refuses types.
"""

from __future__ import annotations

import concurrent.futures
import sys

import packing
from experiments.isolation_atlas import apart, record
from lab import options
from launch.record.progress import Progress


def main(arguments: list[str] | None = None):
  parser = options.make_parser(__doc__, "experiments.isolation_atlas")
  parser.add_argument("types", nargs="*", metavar="TYPE", help="of transformers")
  options.add(parser, "--jobs", 2, "processes at a time")
  parser.add_argument("--publish", action="store_true", help="try nothing, write the pages")
  chosen = parser.parse_args(arguments)
  try:
    import torch
    import transformers
  except ImportError as error:
    parser.error(f"{error}. make reference installs PyTorch and transformers.")
  from experiments.isolation_atlas import page
  from experiments.isolation_atlas.tiny import KINDS

  everything = [(name, kind) for kind, (names, _) in KINDS.items() for name in names]
  everything = [
    (name, kind)
    for name, kind in everything
    if kind != "encoder" or name not in KINDS["bidirectional"][0]
  ]
  known = {name for name, _ in everything}
  if unknown := sorted({*chosen.types} - known):
    parser.error(
      f"transformers {transformers.__version__} has no text model {unknown[0]!r}"
    )
  versions = {"transformers": transformers.__version__, "torch": torch.__version__}
  try:
    book = record.read(None if chosen.publish else versions, replace=not chosen.types)
  except packing.InputError as error:
    parser.error(str(error))
  if not chosen.publish:
    asked = [
      of
      for of in everything
      if (of[0] in chosen.types if chosen.types else of not in book.entries)
    ]
    with (
      concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool,
      Progress("types", total=len(asked), unit="types") as progress,
    ):
      work = [pool.submit(apart.try_type, of) for of in asked]
      try:
        for done in progress.over(concurrent.futures.as_completed(work)):
          book.add(done.result())
      except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
  page.publish(book)


if __name__ == "__main__":
  sys.exit(options.run(main))
