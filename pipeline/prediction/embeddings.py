"""Embeddings of texts, computed on packs and kept in order; and files of them."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packing import InputError
from packing.files import whole_file
from pipeline.batches.packed import PackedBatch
from pipeline.prediction.chunks import BatchShape, pack_examples
from pipeline.prediction.examples import Example
from pipeline.store import SCHEMA

POOLINGS = {
  "mean": "the mean over the tokens",
  "cls": "the vector of [CLS]",
  "pooled": "the vector of [CLS] after the pooler",
}
_WRITTEN = 1024  # vectors written at a time


class Embedding(NamedTuple):
  """The id of an example, and its embedding, float32[D]."""

  id: str
  vector: np.ndarray


def embed_examples(
  run: Callable[[Iterator[PackedBatch]], list[np.ndarray]],
  examples: Iterable[Example],
  *,
  shape: BatchShape,
  normalized: bool = False,
) -> Iterator[Embedding]:
  """Embeddings of examples, in the order of the examples.

  Args:
    run: the model, as a function from batches to the embeddings of all sequences, in the
      order of their numbers; such as `training.evaluation.embed` with a program.
    examples: from `read_examples`; at most one chunk is in memory.
    shape: the shape of the batches.
    normalized: whether each is divided by its length.

  Raises:
    InputError: an example is invalid, or its embedding is not finite.
  """
  for chunk in pack_examples(examples, SCHEMA, shape=shape):
    vectors = chunk.by_example(run(chunk.batches()))
    for example, (vector,) in zip(chunk.examples, vectors, strict=True):
      if not np.isfinite(vector).all():
        raise InputError(f"{example.where}: the vector is not finite. Try --dtype float32.")
      vector = vector.astype(np.float32)
      if normalized:
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
      yield Embedding(example.id, vector)


def as_json(embedding: Embedding) -> str:
  """A line such as {"id": "7", "embedding": [0.5, -0.25]}."""
  return json.dumps({"id": embedding.id, "embedding": embedding.vector.tolist()})


def write_embeddings(
  path: str | pathlib.Path, embeddings: Iterable[Embedding], *, width: int
):
  """Writes embeddings in order; the file is complete or absent.

  Args:
    path: a .npy file gets float32[N, D] without ids, a .parquet file the columns `id` and
      `embedding`, and any other file JSON lines.
    embeddings: as many as the disk can hold.
    width: D.

  Raises:
    InputError: the file cannot be written.
  """
  write = {".npy": _write_npy, ".parquet": _write_parquet}.get(pathlib.Path(path).suffix)
  left = iter(embeddings)
  parts = iter(lambda: list(itertools.islice(left, _WRITTEN)), [])
  with whole_file(path) as file:
    (write or _write_json)(file, parts, width)


def _write_json(file: BinaryIO, parts: Iterator[list[Embedding]], width: int):
  del width
  for embedding in itertools.chain.from_iterable(parts):
    file.write(as_json(embedding).encode() + b"\n")


def _write_npy(file: BinaryIO, parts: Iterator[list[Embedding]], width: int):
  written = 0

  def write_header():
    header = {"descr": "<f4", "fortran_order": False, "shape": (written, width)}
    np.lib.format.write_array_header_1_0(file, header)

  write_header()
  for part in parts:
    file.write(np.stack([vector for _, vector in part]).astype("<f4").tobytes())
    written += len(part)
  file.seek(0)
  write_header()  # NumPy leaves room for the number of rows


def _write_parquet(file: BinaryIO, parts: Iterator[list[Embedding]], width: int):
  schema = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float32(), width)})
  with pq.ParquetWriter(file, schema) as writer:
    for part in parts:
      flat = pa.array(np.concatenate([vector for _, vector in part]))
      columns = [
        pa.array([name for name, _ in part]),
        pa.FixedSizeListArray.from_arrays(flat, width),
      ]
      writer.write_table(pa.table(columns, schema=schema))
