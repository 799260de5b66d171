"""Real data, which is not in the repository: a folder that --data or ISOPACK_DATA names.

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

import contextlib
import os
import pathlib

from packing import InputError, files
from pipeline.sources import compressed

TEXT = "text/*"
VARIABLE = "ISOPACK_DATA"


def find(folder: str | os.PathLike[str], pattern: str) -> pathlib.Path:
  """The first path in the folder that matches a pattern, such as "squad/dev-v1.1*.json*".

  Raises:
    InputError: no path matches.
  """
  folder = pathlib.Path(folder).absolute()
  for path in sorted(folder.glob(pattern)):
    return path
  raise InputError(
    f"{folder} has no {pattern}. --data and {VARIABLE} name a folder with real data; "
    "lab/real_data.py lists what it has to hold."
  )


def write_articles(
  folder: str | os.PathLike[str], path: pathlib.Path, *, at_least: int
) -> pathlib.Path:
  """Writes the first articles of `TEXT`, whole: `at_least` bytes or more, or all of them.

  Returns `path`.

  Raises:
    InputError: the text is missing; or the file exists with other articles, from which
      results may have been made.
  """
  found, size = [], 0
  for source in sorted(find(folder, TEXT).parent.iterdir()):
    with contextlib.closing(compressed.open_binary(source)) as file:
      for line in file:
        if size >= at_least and not line.strip():
          break  # the end of an article
        found.append(line.removesuffix(b"\n") + b"\n")  # the last one may lack it
        size += len(line)
    found.append(b"\n")  # the next file begins another article
    if size >= at_least:
      break
  text = b"".join(found)
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, text)
  elif path.read_bytes() != text:
    raise InputError(
      f"{path} has other articles than {folder}. Give another --workdir, or delete "
      f"{path.parent}, with its results."
    )
  return path
