"""Times packed embeddings of texts against transformers with padding, in one run.

    python -m benchmarks.embeddings minilm-l6-h384 --input sentences.txt
    python -m benchmarks.embeddings minilm-l6-h384 --input dev.tsv --column sentence1

The model can be any BERT or ModernBERT. A text is a line of a text file or a record of a
table. In each round, each way turns all texts into vectors once, in random order of the
ways; the time includes tokenising, packing and sorting. Transformers gets batches of
texts that are sorted by length and padded to the longest of the batch, as in sentence-
transformers, and uses PyTorch's default number of threads; `make reference` installs it.
The first pass compiles and is reported separately.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np

from benchmarks.command import make_parser, write
from lab.embeddings import Embed, embedder
from lab.machine import machine_and_device
from lab.options import add, run
from lab.statistics import quartiles, ratio, spread
from lab.table import record_table
from lab.timing.turns import measure_rates
from model import weights
from packing import InputError
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source

PACKED = "packed"


def read_texts(source: str, column: str) -> list[str]:
  """The texts of a source; in a table, those of `column`."""
  fields = DocumentFields(
    ("sentence",), columns=(("sentence", column),), line_fields=("sentence",)
  )
  documents = itertools.chain.from_iterable(
    part.read() for part in open_source(source, fields)
  )
  # In a table a text may hold a tab, which `examples_of` would take for two sentences.
  return [document.fields["sentence"].replace("\t", " ") for document in documents]


def theirs(folder: str, *, longest: int, batch_size: int) -> Embed:
  """Embeds texts by transformers, sorted by length and padded to the batch's longest."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

  def run(texts: list[str]) -> np.ndarray:
    order = np.argsort([-len(text) for text in texts], kind="stable")
    vectors = np.empty((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(texts), batch_size):
      part = order[start : start + batch_size]
      inputs = tokenizer(
        [texts[number] for number in part],
        padding=True,
        truncation=True,
        max_length=longest,
        return_tensors="pt",
      )
      with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state
      mask = inputs["attention_mask"][..., None]
      vectors[part] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    return vectors

  return run


def measure(ways: dict[str, Embed], texts: list[str], *, rounds: int) -> dict[str, dict]:
  """Measures each way, in turns: texts a second, the first pass, compilations."""
  runs = {name: lambda _, way=way: way(texts) for name, way in ways.items()}
  vectors, measured = measure_rates(runs, len(texts), rounds=rounds, name="embedding")
  for name, values in measured.items():
    gap = np.abs(vectors[name] - vectors[PACKED]).max()
    values["difference"] = float(gap / np.abs(vectors[PACKED]).max())
  return measured


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__, "embeddings")
  parser.add_argument("folder", help="a Hugging Face directory")
  parser.add_argument(
    "--input", required=True, metavar="SOURCE", help="where the texts are"
  )
  add(parser, "--column", "sentence", "the texts' column in a table", metavar="NAME")
  add(parser, "--max-sequence-length", 128, "most tokens of a text and of a row")
  add(parser, "--rows", 32, "rows in a batch of packs")
  add(parser, "--batch-size", 32, "texts in a padded batch")
  add(parser, "--rounds", 5)
  options = parser.parse_args(arguments)
  longest = options.max_sequence_length
  try:
    packed = embedder(
      options.folder, source=options.input, longest=longest, rows=options.rows
    )
    texts = read_texts(options.input, options.column)
  except (InputError, weights.WeightsError) as error:
    parser.error(str(error).rstrip("."))
  if not texts:
    parser.error(f"{options.input} holds no text")
  ways = {PACKED: packed}
  if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    peer = theirs(options.folder, longest=longest, batch_size=options.batch_size)
    ways["transformers, sorted by length"] = peer
  here = machine_and_device()
  measured = measure(ways, texts, rounds=options.rounds)
  print(f"{here}\n{len(texts):,} texts of {options.input}, {options.rounds} rounds\n")
  records = [
    {
      "way": name,
      "texts a second (quartiles)": spread(quartiles(way["rates"]), 0),
      "packed is faster (quartiles)": ratio(measured[PACKED]["rates"], way["rates"]),
      "compilations": str(way["compilations"]),
      "first pass": f"{way['first_seconds']:.1f} s",
      "difference": f"{way['difference']:.1e}",
    }
    for name, way in measured.items()
  ]
  print(record_table(records, left=["way"]))
  if len(ways) == 1:
    print("\nNo peers: torch and transformers are not installed (make reference).")
  write(options, here, ways=measured)


if __name__ == "__main__":
  sys.exit(run(main))
