"""A small encoder with random weights, and a folder as that with real data."""

import gzip
import json

import jax
import numpy as np

from model import hf, weights
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs


def write(folder, words, **fields):
  """Writes an encoder that knows `words` and the special tokens; returns all its tokens.

  `fields` are of its config.
  """
  tokens = (*SPECIAL_TOKENS, *words)
  config = packs.small_config(vocab_size=len(tokens), **fields)
  params = jax.tree.map(np.asarray, packs.random_params(config)[1])
  hf.export_model(config, params, folder, vocabulary=weights.Vocabulary(tokens))
  return tokens


WORDS = [f"{a}{b}" for a in "bdfglmnprst" for b in ("a", "e", "i", "o", "u")]
ARTICLES, PARAGRAPHS = 60, 4


def article(number: int) -> str:
  """A title and paragraphs, a line each, and the blank line that ends an article."""
  rng = np.random.default_rng(number)
  sentences = [
    " ".join(rng.choice(WORDS, rng.integers(4, 30))).capitalize() + "."
    for _ in range(5 * PARAGRAPHS)
  ]
  lines = (" ".join(part) for part in np.split(np.array(sentences), PARAGRAPHS))
  return f"Title {number}\n" + "\n".join(lines) + "\n\n"


def write_real_data(folder):
  """Writes articles in two files, CoLA, MRPC, STS-B, SQuAD, and an encoder; all made up."""
  (folder / "text").mkdir()
  half = ARTICLES // 2
  first, second = ("".join(map(article, range(start, start + half))) for start in (0, half))
  (folder / "text" / "a.txt.gz").write_bytes(gzip.compress(first.encode()))
  (folder / "text" / "b.txt").write_text(second)
  rng = np.random.default_rng(0)
  for name in ("glue/CoLA", "glue/MRPC", "glue/STS-B", "squad"):
    (folder / name).mkdir(parents=True)
  for part, number in (("train", 90), ("dev", 41)):
    lines = []
    for _ in range(number):
      words = list(rng.choice(WORDS, rng.integers(3, 12)))
      in_order = rng.random() < 0.5
      lines.append(f"a\t{in_order:d}\t\t{' '.join(sorted(words) if in_order else words)}")
    (folder / "glue" / "CoLA" / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    lines = [f"{i % 2}\t{WORDS[i % 9]}\t{WORDS[i % 7]}" for i in range(number)]
    text = "\n".join(["Quality\t#1 String\t#2 String", *lines]) + "\n"
    (folder / "glue" / "MRPC" / f"{part}.tsv").write_text(text)
    lines = [
      f"{WORDS[i % 9]}\t{WORDS[i % 7]} {WORDS[i]}\t{i % 6}" for i in range(number // 2)
    ]
    text = "\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n"
    (folder / "glue" / "STS-B" / f"{part}.tsv").write_text(text)
    articles = []
    for n in range(4):
      context = " ".join(rng.choice(WORDS, 40))
      answers = [{"text": context.split()[0], "answer_start": 0}]
      questions = [
        {"id": f"{part}-{n}-{i}", "question": WORDS[i], "answers": answers}
        for i in range(5)
      ]
      paragraphs = [{"context": context, "qas": questions}]
      articles.append({"title": str(n), "paragraphs": paragraphs})
    content = json.dumps({"version": "1.1", "data": articles}).encode()
    (folder / "squad" / f"{part}-v1.1.json.gz").write_bytes(gzip.compress(content))
  sizes = {"max_position_embeddings": 512, "layer_norm_epsilon": 1e-5, "num_layers": 1}
  write(folder / "minilm-l6-h384", [".", *WORDS], **sizes)
