"""Real data beside the repository: a folder that --data or ISOPACK_DATA names.

| in the folder                             | what                                         |
|-------------------------------------------|----------------------------------------------|
| `glue/CoLA/train.tsv`, `.../dev.tsv`, ... | tasks of GLUE, as its archive has them       |
| `squad/train-v1.1*.json*`, `dev-...`      | SQuAD 1.1, also compressed                   |
| `text/*`                                  | articles: a paragraph a line, a blank line   |
|                                           | between two                                  |
| `wikitext-2/test.txt`, `.../valid.txt`    | WikiText-2                                   |
| `minilm-l6-h384`                          | weights of an encoder, with vocab.txt        |
| `bert-base-uncased-vocab.txt`             | BERT's vocabulary                            |
"""

from __future__ import annotations

import os
import pathlib

from packing import InputError

VARIABLE = "ISOPACK_DATA"


def given() -> str | None:
  """The folder that the environment names; None if it names none."""
  return os.environ.get(VARIABLE) or None


def find(folder: str | os.PathLike[str], pattern: str) -> pathlib.Path:
  """The first path in the folder that a pattern fits, such as "squad/dev-v1.1*.json*".

  Raises:
    InputError: there is none.
  """
  folder = pathlib.Path(folder).absolute()
  for path in sorted(folder.glob(pattern)):
    return path
  raise InputError(
    f"{folder} has no {pattern}. --data and {VARIABLE} name a folder with real data; what "
    "it holds is listed in experiments/lab/real_data.py."
  )
