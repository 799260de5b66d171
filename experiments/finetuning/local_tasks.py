"""Tasks like those of GLUE, made from docstrings: labels are correct by construction.

| file   | a sequence                             | label                                |
|--------|----------------------------------------|--------------------------------------|
| `cola` | a sentence, in half of all examples    | whether the words are in their       |
|        | with shuffled words                    | original order                       |
| `sst2` | a sentence                             | which of two modules it documents    |

The text is the standard library's docstrings. Fields have GLUE's names, so that
`configs/glue.py` accepts the files with `--config.data.source=FILE.jsonl`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from pipeline.sources import stdlib

DEV_FRACTION = 0.2
LARGEST = {"train": 5000, "dev": 1250}  # most examples of a task, drawn at random
_WORDS = 5, 25  # fewest and most words of a sentence

Docstring = list[str]  # sentences
Example = dict[str, object]


def write(folder: str | pathlib.Path) -> dict[str, tuple[str, str]]:
  """Writes `NAME-train.jsonl` and `NAME-dev.jsonl` for each task to a folder.

  No docstring has sentences in both files. The same interpreter writes the same bytes.
  Returns the paths of both files by task.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  modules = docstrings_by_module()
  makers: dict[str, Callable[..., Iterator[Example]]] = {
    "cola": _order,
    "sst2": functools.partial(_module, names=_two_largest(modules)),
  }
  rng = np.random.default_rng(0)
  train: dict[str, list[Docstring]] = {}
  dev: dict[str, list[Docstring]] = {}
  for name, docstrings in modules.items():
    held_out = rng.random(len(docstrings)) < DEV_FRACTION
    for part, wanted in ((train, False), (dev, True)):
      part[name] = [d for d, h in zip(docstrings, held_out, strict=True) if h == wanted]
  paths = {}
  for number, (task, make) in enumerate(makers.items()):
    names = []
    for split, part in (("train", train), ("dev", dev)):
      path = folder / f"{task}-{split}.jsonl"
      draw = np.random.default_rng((0, number, split == "dev"))
      examples = list(make(part, draw))
      kept = draw.permutation(len(examples))[: LARGEST[split]]
      lines = [json.dumps(examples[j] | {"idx": i}) for i, j in enumerate(kept)]
      path.write_text("\n".join(lines) + "\n")
      names.append(str(path))
    paths[task] = names[0], names[1]
  return paths


@functools.cache  # this reads the whole library, and several parts need it
def docstrings_by_module() -> dict[str, list[Docstring]]:
  """Docstrings by top-level module: their sentences of 5 to 25 words, without repeats."""
  files = stdlib.source_files()[1:]
  root = pathlib.Path(stdlib.source_files()[0]).parents[1]
  modules: dict[str, list[Docstring]] = collections.defaultdict(list)
  seen: set[str] = set()
  for path in files:
    name = path.relative_to(root).parts[0].removesuffix(".py")
    for text in stdlib.docstrings(path):
      sentences = []
      for sentence in stdlib.split_sentences(text):
        count = len(sentence.split())
        if _WORDS[0] <= count <= _WORDS[1] and sentence.lower() not in seen:
          seen.add(sentence.lower())
          sentences.append(sentence)
      if sentences:
        modules[name].append(sentences)
  return dict(modules)


def _two_largest(modules: dict[str, list[Docstring]]) -> list[str]:
  """The two modules with the most sentences, in alphabetical order."""
  sizes = {name: sum(map(len, docstrings)) for name, docstrings in modules.items()}
  return sorted(sorted(sizes, key=lambda name: (-sizes[name], name))[:2])


def _order(modules, rng: np.random.Generator) -> Iterator[Example]:
  docstrings = (docstring for name in sorted(modules) for docstring in modules[name])
  for sentence in itertools.chain.from_iterable(docstrings):
    words = sentence.split()
    shuffled = list(rng.permutation(words))
    kept = rng.random() < 0.5 or shuffled == words
    text = sentence if kept else " ".join(shuffled)
    yield {"sentence": text, "label": int(kept)}


def _module(modules, rng: np.random.Generator, *, names: list[str]) -> Iterator[Example]:
  examples = [
    {"sentence": sentence, "label": label}
    for label, name in enumerate(names)
    for docstring in modules[name]
    for sentence in docstring
  ]
  for i in rng.permutation(len(examples)):
    yield examples[i]
