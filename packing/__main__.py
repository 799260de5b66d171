"""python -m packing: pack, compare, analyze."""

from __future__ import annotations

import argparse
import ast
import json
import pathlib
import shlex
import sys
import time
from typing import Any

import numpy as np

from packing import files
from packing.algorithms.depth import choose_depth
from packing.algorithms.progress import progress
from packing.commands import advisor, inputs, pictures
from packing.commands.compare import FORMATS, compare, render
from packing.errors import InputError, check_integer, short_repr
from packing.histogram import (
  MAX_SEQUENCE_LENGTH,
  Histogram,
  histogram_names,
  load_histogram,
)
from packing.pack import ALGORITHMS, check_options, pack

_EPILOGS = {
  "pack": """examples:
  python -m packing pack --histogram wikipedia_512 --max-sequences-per-pack 3
  python -m packing pack --lengths lengths.npy --max-sequence-length 512 \\
      --algorithm optimal --output plan.json --certificate certificate.json
  python -m packing pack --histogram squad_1_1_384 --algorithm nnlshp \\
      --max-sequences-per-pack 3 --option residual_offset=64 --option residual_weight=0.002
""",
  "compare": """examples:
  python -m packing compare --histogram wikipedia_512 --algorithms lpfhp \\
      --depths 1,2,3,4,8,16,max
  python -m packing compare --lengths dataset.parquet --max-sequence-length 512 \\
      --algorithms none,sorted,greedy,spfhp,lpfhp,optimal --format markdown
""",
  "analyze": """examples:
  python -m packing analyze my_dataset/       (Hugging Face or prepared)
  python -m packing analyze train.parquet --max-sequence-length 512 --pictures pictures/
  python -m packing analyze --histogram wikipedia_512 --hidden-size 1024
""",
}


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  try:
    text = options.run(options)
  except InputError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return 130
  except MemoryError:
    print(
      "error: There is not enough memory for this. Use fewer lengths, a larger "
      "--length-multiple, or algorithm lpfhp.",
      file=sys.stderr,
    )
    return 2
  if sys.stdout is None:
    print("error: Cannot write the result: standard output is closed.", file=sys.stderr)
    return 1
  try:
    print(text, flush=True)
  except BrokenPipeError:
    sys.stderr.close()  # the reader has had enough
    return 1
  except OSError as error:
    print(f"error: Cannot write the result: {error.strerror}.", file=sys.stderr)
    sys.stdout = None  # nothing more can be written
    return 1
  return options.status


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one line, as for all mistakes, and where to read on."""

  def error(self, message):
    message = " ".join(message.split())
    if len(message) > 300:
      message = message[:297] + "..."
    self.exit(2, f"error: {message}\nSee {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog="python -m packing",
    description="Packs sequences of different lengths into rows of one length, with the "
    "fewest rows that any plan can have, proven.",
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  for name, run, text in (
    ("pack", _pack, "make one plan, and say how far it is from the proven minimum"),
    ("compare", _compare, "run algorithms side by side at several depths"),
    ("analyze", _analyze, "advise: pad, bucket, concatenate or pack, and how"),
  ):
    command = commands.add_parser(
      name,
      help=text,
      description=text[0].upper() + text[1:] + ".",
      epilog=_EPILOGS[name],
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, status=0)
    _add_input(command, positional=name == "analyze")
    if name != "analyze":
      _add_geometry(command)
    {"pack": _add_pack, "compare": _add_compare, "analyze": _add_analyze}[name](command)
  return parser


def _add_input(command, *, positional: bool):
  group = command.add_argument_group("lengths, from one of")
  source = group.add_mutually_exclusive_group(required=True)
  if positional:
    source.add_argument("dataset", nargs="?", metavar="PATH", help="the same as --lengths")
  source.add_argument(
    "--histogram", metavar="NAME", help=f"built in: {', '.join(histogram_names())}"
  )
  source.add_argument(
    "--histogram-file",
    metavar="F.json",
    help='{"max_sequence_length": S, "counts": [S whole numbers]}',
  )
  source.add_argument(
    "--lengths",
    metavar="PATH",
    help=".npy or text file of integers; Arrow or Parquet file with a column of lists or "
    "of integers; a directory of those (Hugging Face save_to_disk, pipeline prepare)",
  )
  group.add_argument(
    "--column",
    metavar="NAME",
    help="column of an Arrow or Parquet file (found if left out)",
  )
  group.add_argument(
    "--split", metavar="NAME", help="split of a directory, or all (default: train)"
  )
  group.add_argument(
    "--max-sequence-length",
    metavar="S",
    type=int,
    help="longest length allowed, in tokens (default: the longest found)",
  )
  group.add_argument(
    "--too-long",
    choices=("refuse", "truncate", "drop"),
    default="refuse",
    help="what to do with sequences beyond S (default: refuse)",
  )


def _add_geometry(command):
  command.add_argument(
    "--row-length", metavar="L", type=int, help="tokens of a row, if longer than S"
  )
  command.add_argument(
    "--length-multiple",
    metavar="N",
    type=int,
    default=1,
    help="round lengths up to a multiple of N (default: 1)",
  )
  command.add_argument(
    "--separator-tokens",
    metavar="T",
    type=int,
    default=0,
    help="tokens between two sequences of a row (default: 0)",
  )
  command.add_argument("--seed", metavar="N", type=int, default=0, help="default: 0")


def _add_pack(command):
  command.add_argument(
    "--algorithm",
    metavar="A",
    default="optimal",
    help=f"one of {', '.join(ALGORITHMS)} (default: optimal)",
  )
  command.add_argument(
    "--max-sequences-per-pack",
    metavar="M",
    default="auto",
    help="depth limit, or max for none (default: auto, the smallest that costs at most "
    "0.1 %% more packs)",
  )
  command.add_argument(
    "--option",
    metavar="NAME=VALUE",
    action="append",
    default=[],
    help="option of the algorithm, such as work_limit=1000000000 (may be repeated)",
  )
  command.add_argument("--output", metavar="F.json", help="write the plan here")
  command.add_argument("--certificate", metavar="F.json", help="write the certificate here")
  command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_compare(command):
  command.add_argument(
    "--algorithms",
    metavar="A,B,...",
    default="none,sorted,spfhp,lpfhp,optimal",
    help=f"of sorted, {', '.join(ALGORITHMS)} (default: none,sorted,spfhp,lpfhp,optimal)",
  )
  command.add_argument(
    "--depths",
    metavar="M,M,...",
    default="2,3,4,8,max",
    help="depth limits; max for none (default: 2,3,4,8,max)",
  )
  command.add_argument(
    "--option",
    metavar="A:NAME=VALUE",
    action="append",
    default=[],
    help="option of algorithm A, such as nnlshp:residual_weight=1 (may be repeated)",
  )
  command.add_argument(
    "--batch-size",
    metavar="B",
    type=int,
    default=256,
    help="of sorted batching (default: 256)",
  )
  command.add_argument("--format", choices=FORMATS, default="table", help="default: table")
  command.add_argument("--json", action="store_true", help="the same as --format json")
  command.add_argument("--output", metavar="FILE", help="write the table here as well")


def _add_analyze(command):
  command.add_argument(
    "--hidden-size",
    metavar="D",
    type=int,
    default=768,
    help="model width, for the share of attention in the cost (default: 768)",
  )
  command.add_argument(
    "--buckets", metavar="N", type=int, default=8, help="shapes for bucketing (default: 8)"
  )
  command.add_argument(
    "--batch-size",
    metavar="B",
    type=int,
    default=256,
    help="of sorted batching (default: 256)",
  )
  command.add_argument(
    "--pictures", metavar="DIR", help="draw histogram, efficiency and fill here"
  )
  command.add_argument("--json", action="store_true", help="print one JSON object")


def _histogram(options) -> Histogram:
  size = options.max_sequence_length
  if size is not None:
    size = check_integer(
      "--max-sequence-length", size, at_least=1, at_most=MAX_SEQUENCE_LENGTH
    )
  path = options.lengths
  if path is None:
    path = getattr(options, "dataset", None)
  if path is None:
    if options.histogram is not None:
      histogram = load_histogram(options.histogram)
    else:
      histogram = inputs.read_histogram(options.histogram_file)
    return histogram if size is None else _resize(histogram, size, options.too_long)
  lengths, source = inputs.read_lengths(path, column=options.column, split=options.split)
  if lengths.size == 0:
    raise InputError(f"{path} holds no sequence; expected at least one.")
  if size is None:
    size = max(int(lengths.max()), 1)
  elif options.too_long == "drop":
    lengths = lengths[lengths <= size]
    if lengths.size == 0:
      raise InputError(f"No sequence of {path} has at most {size} tokens.")
  elif options.too_long == "truncate":
    lengths = np.minimum(lengths, size)
  try:
    return Histogram.from_lengths(lengths, max_sequence_length=size, source=source)
  except InputError as error:
    hint = " Or pass --too-long truncate or drop." if lengths.max() > size else ""
    raise InputError(f"{path}: {error}{hint}") from error


def _resize(histogram: Histogram, size: int, too_long: str) -> Histogram:
  """The histogram with another maximum sequence length."""
  counts = np.zeros(size, np.int64)
  kept = histogram.counts[:size]
  counts[: kept.size] = kept
  beyond = int(histogram.counts[size:].sum())
  if beyond and too_long == "refuse":
    raise InputError(
      f"{beyond} sequences are longer than --max-sequence-length {size}. Pass a larger "
      "one, or --too-long truncate or drop."
    )
  if too_long == "truncate":
    counts[-1] += beyond
  return Histogram(counts, source=histogram.source)


def _pack(options) -> str:
  # What cannot be is refused before any work.
  depth: int | str | None = options.max_sequences_per_pack
  if depth != "auto":
    depth = _depth(options.max_sequences_per_pack)
  chosen: dict[str, Any] = dict(_option(text) for text in options.option)
  check_options(options.algorithm, chosen)
  check_integer("--seed", options.seed, at_least=0)
  written = [p for p in (options.output, options.certificate) if p is not None]
  if len({pathlib.Path(p).absolute() for p in written}) < len(written):
    raise InputError(
      f"--output and --certificate are both {short_repr(options.output)}; expected two "
      "files. "
      "Name another one."
    )
  for path in written:
    files.check_writable(path)
  histogram = _histogram(options)
  start = time.perf_counter()
  with progress() as bar:
    bar.step(f"{options.algorithm} at depth {options.max_sequences_per_pack}")
    plan = pack(
      histogram,
      algorithm=options.algorithm,
      max_sequences_per_pack=depth,
      row_length=options.row_length,
      length_multiple=options.length_multiple,
      separator_tokens=options.separator_tokens,
      seed=options.seed,
      progress=bar,
      **chosen,
    )
  seconds = time.perf_counter() - start
  if options.output is not None:
    plan.save(options.output)
  if options.certificate is not None:
    plan.certificate().save(options.certificate)
  if bar.stopped:
    options.status = 130
    print(
      f"interrupted: the best plan so far has {plan.num_packs:,} packs; at least "
      f"{plan.lower_bound:,} are needed.",
      file=sys.stderr,
    )
  if not options.json:
    details = [
      f"{name}: {short_repr(value) if isinstance(value, list) else value}"
      for name, value in plan.details.items()
    ]
    return "\n".join([str(plan.certificate()), *details, f"seconds: {seconds:.3f}"])
  return json.dumps(
    {
      "algorithm": plan.algorithm,
      "max_sequence_length": histogram.max_sequence_length,
      "row_length": plan.row_length,
      "max_sequences_per_pack": (
        "max"
        if plan.max_sequences_per_pack == plan.row_length
        else plan.max_sequences_per_pack
      ),
      "length_multiple": plan.length_multiple,
      "separator_tokens": plan.separator_tokens,
      "num_sequences": plan.num_sequences,
      "num_packs": plan.num_packs,
      "lower_bound": plan.lower_bound,
      "gap": plan.gap,
      "num_strategies": plan.num_strategies,
      "num_tokens": plan.num_row_tokens,
      "num_real_tokens": histogram.num_tokens,
      "num_padding_tokens": plan.num_padding_tokens,
      "efficiency": plan.efficiency,
      "packing_factor": plan.packing_factor,
      "packing_depth": plan.packing_depth,
      "histogram_sha256": histogram.sha256,
      "details": plan.details,
      "seconds": seconds,
    }
  )


def _compare(options) -> str:
  algorithms = [name.strip() for name in options.algorithms.split(",") if name.strip()]
  depths = [_depth(text.strip()) for text in options.depths.split(",")]
  chosen: dict[str, dict] = {}
  for text in options.option:
    name, separator, rest = text.partition(":")
    if not separator or name not in algorithms:
      raise InputError(
        f"--option is {short_repr(text)}; expected A:NAME=VALUE with A one of "
        f"{', '.join(algorithms)}."
      )
    key, value = _option(rest)
    chosen.setdefault(name, {})[key] = value
  check_integer("--seed", options.seed, at_least=0)
  if options.output is not None:
    files.check_writable(options.output)
  histogram = _histogram(options)
  with progress(len(algorithms) * len(depths)) as bar:
    rows = compare(
      histogram,
      algorithms=algorithms,
      depths=depths,
      row_length=options.row_length,
      length_multiple=options.length_multiple,
      separator_tokens=options.separator_tokens,
      seed=options.seed,
      batch_size=options.batch_size,
      options=chosen,
      progress=bar,
    )
  text = render(rows, style="json" if options.json else options.format)
  if options.output is not None:
    files.write_text(options.output, text + "\n")
  return text


def _analyze(options) -> str:
  histogram = _histogram(options)
  with progress() as bar:
    bar.step("looking for depth and row length")
    advice = advisor.advise(
      histogram,
      hidden_size=options.hidden_size,
      num_buckets=options.buckets,
      batch_size=options.batch_size,
    )
  drawn = pictures.draw(advice, options.pictures) if options.pictures else []
  flags = _flags(options, advice)
  if options.json:
    result = advice.as_dict() | {"source": histogram.source, "flags": flags}
    return json.dumps(result | {"pictures": [str(path) for path in drawn]})
  mean = histogram.num_tokens / histogram.num_sequences
  lines = [
    f"{histogram.source}",
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
    f"{'row':>6} {'depth':>6} {'packs':>12} {'efficiency':>10} {'speed-up':>8} "
    f"{'skipping':>8}  by",
    *(
      f"{p.row_length:>6} {p.max_sequences_per_pack or 'max':>6} {p.num_packs:>12} "
      f"{p.efficiency:>10.4f} {p.speed_up:>8.3f} {p.speed_up_blocks:>8.3f}  {p.algorithm}"
      for p in advice.packs
    ),
    "",
    "Speed-ups count a layer's matrix products at width "
    f"{advice.hidden_size}, over padding to {histogram.max_sequence_length}; 'skipping' is "
    "for attention kernels that skip foreign blocks.",
    "",
    "To make this plan:",
    f"  python -m packing pack {flags['pack']}",
    f"  python train.py --config=... --workdir=... {flags['train']}",
    *(f"wrote {path}" for path in drawn),
  ]
  return "\n".join(lines)


def _flags(options, advice: advisor.Advice) -> dict[str, str]:
  """By command, what to give it for the advised plan."""
  algorithm = advisor.solver(advice.histogram)
  if options.histogram is not None:
    given = {"--histogram": options.histogram}
  elif options.histogram_file is not None:
    given = {"--histogram-file": options.histogram_file}
  else:
    given = {
      "--lengths": options.lengths or options.dataset,
      "--column": options.column,
      "--split": options.split,
    }
  size, rows = options.max_sequence_length, advice.histogram.max_sequence_length
  row = advice.plan.row_length
  given |= {
    "--max-sequence-length": size,
    "--too-long": options.too_long if size is not None else None,
    "--row-length": row if row > rows else None,
    "--algorithm": algorithm,
    "--max-sequences-per-pack": advice.plan.max_sequences_per_pack,
  }
  # Rows of train.py are as long as the longest sequence may be.
  depth = choose_depth(advice.histogram, algorithm=algorithm)
  return {
    "pack": shlex.join(
      str(w) for item in given.items() if item[1] is not None for w in item
    ),
    "train": f"--config.data.max_sequence_length={rows} "
    f"--config.packing.algorithm={algorithm} "
    f"--config.packing.max_sequences_per_pack={depth}",
  }


def _depth(text: str) -> int | None:
  if text == "max":
    return None
  try:
    depth = int(text)
  except ValueError:
    depth = 0
  if depth < 1:
    raise InputError(
      f"A depth is {short_repr(text)}; expected a whole number of at least 1, or max."
    )
  return depth


def _option(text: str) -> tuple[str, object]:
  name, separator, value = text.partition("=")
  if not separator or not name.isidentifier():
    raise InputError(f"--option is {short_repr(text)}; expected NAME=VALUE.")
  try:
    return name, ast.literal_eval(value)
  except (ValueError, SyntaxError, RecursionError, MemoryError):
    return name, value


if __name__ == "__main__":
  sys.exit(main())
