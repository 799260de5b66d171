"""python -m packing analyze: advice as text or JSON, and the commands that follow it."""

from __future__ import annotations

import argparse
import json
import shlex

from packing.algorithms.progress import Progress
from packing.commands import advisor, arguments, pictures
from packing.row_length import choose_row_length

HELP = "advise: pad, bucket, concatenate or pack, and how"
EXAMPLES = """examples:
  python -m packing analyze my_dataset/       (Hugging Face or prepared)
  python -m packing analyze train.parquet --max-sequence-length 512 --picture rows.png
  python -m packing analyze --histogram wikipedia_512 --hidden-size 1024
  cut -f 3 lengths.tsv | python -m packing analyze -
"""


def add_arguments(command: argparse.ArgumentParser):
  arguments.add_lengths(command, positional=True)
  width = "model width, which sets the share of attention in the cost (default: 768)"
  arguments.add_integer(command, "--hidden-size", "D", width, default=768)
  command.add_argument("--picture", metavar="F.png", help="draw some rows into this file")
  command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options) -> str:
  """Advises, and draws the picture; returns the text to print."""
  if options.lengths is None:
    options.lengths = options.dataset
  if options.picture:
    pictures.check_path(options.picture)
  histogram = arguments.read(options)
  with Progress() as progress:
    progress.step("looking for depth and row length")
    advice = advisor.advise(histogram, hidden_size=options.hidden_size)
  if options.picture:
    pictures.draw(advice, options.picture)
  row, longest = advice.plan.row_length, histogram.max_sequence_length
  # train.py takes a row below the longest sequence allowed only if it chooses it itself,
  # by the cost of BERT-base.
  of_train = row if row >= longest else choose_row_length(histogram)
  flags = _flags(options, advice, of_train)
  if options.json:
    also = {"source": histogram.source, "train_row_length": of_train, "flags": flags}
    return json.dumps(advice.as_dict() | also)
  mean = histogram.num_tokens / histogram.num_sequences
  lines = [
    histogram.source,
    f"{histogram.num_sequences:,} sequences, {histogram.num_tokens:,} tokens, mean "
    f"{mean:.1f}, longest {histogram.longest}",
    f"Padding each to {histogram.max_sequence_length} tokens makes {advice.padding:.1%} of "
    "the tokens padding.",
    "",
    f"Advice: {advice.recommendation}",
    *(f"- {reason}" for reason in advice.reasons),
    "",
    f"{'choice':<15} {'speed-up':>8} {'efficiency':>10} {'shapes':>6}  what it takes",
    *(
      f"{c.name:<15} {c.speed_up:>8.3f} {c.efficiency:>10.4f} {c.num_shapes:>6}  {c.remark}"
      for c in advice.choices
    ),
    "",
    "Speed-ups count a layer's matrix products at width "
    f"{advice.hidden_size}, compared with padding to {histogram.max_sequence_length}.",
    "",
    "To make this plan:",
    f"  python -m packing pack {flags['pack']}",
    *([] if of_train == row else ["", _other_row(row, of_train, longest)]),
    f"  python train.py --config=... --workdir=... {flags['train']}",
  ]
  return "\n".join(lines)


def _other_row(row: int, of_train: int, longest: int) -> str:
  return (
    f"train.py makes another plan, with rows of {of_train} tokens instead of {row}: where "
    f"they could be shorter than {longest} tokens, it chooses their length itself, by the "
    "cost of BERT-base."
  )


def _flags(options, advice: advisor.Advice, of_train: int) -> dict[str, str]:
  """The flags of `pack` that make the advised plan, and those of train.py.

  `of_train` is the row length that train.py takes. If it is another one than advised,
  train.py chooses the depth, too.
  """
  names = ("histogram", "histogram_file", "lengths", "column", "split")
  flags = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
  size, longest = options.max_sequence_length, advice.histogram.max_sequence_length
  row = advice.plan.row_length
  flags |= {
    "--max-sequence-length": size,
    "--too-long": options.too_long if size is not None else None,
    "--row-length": row if row != longest else None,
    "--max-sequences-per-pack": advice.plan.max_sequences_per_pack,
  }
  words = [str(w) for item in flags.items() if item[1] is not None for w in item]
  own = -1 if row < longest else row if row > longest else 0
  depth = advice.plan.max_sequences_per_pack if of_train == row else 0
  return {
    "pack": shlex.join(words),
    "train": f"--config.data.max_sequence_length={longest} "
    + (f"--config.packing.row_length={own} " if own else "")
    + "--config.packing.algorithm=auto "
    f"--config.packing.max_sequences_per_pack={depth}",
  }
