import ctypes
import mmap
import os
import pathlib
import pickle
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from packing import InputError
from pipeline.store import (
  REGRESSION_SCHEMA,
  SCHEMA,
  SequenceStore,
  StoredSequence,
  with_small_tokens,
  write_sequences,
)


@pytest.mark.parametrize("count", [0, 1, 23])
@pytest.mark.parametrize(
  "schema", [None, SCHEMA, REGRESSION_SCHEMA, with_small_tokens(SCHEMA, 2**16)]
)
def test_what_is_written_to_disk_or_memory_is_read_back(tmp_path, count, schema):
  rows = [StoredSequence(list(range(n, 2 * n)), n // 2, n % 2) for n in range(1, 24)]
  rows = rows[:count]
  if schema:
    store = SequenceStore.from_sequences(rows, schema)
    assert store.schema == schema
  else:  # a file has at least one batch
    rows = rows or [StoredSequence([1], 1, 0)]
    write_sequences(tmp_path / "s.arrow", iter(rows), batch_size=5)
    store = SequenceStore(tmp_path / "s.arrow")
  for found in (store, pickle.loads(pickle.dumps(store))):
    assert list(found.records()) == [row._asdict() for row in rows]
    assert found.lengths.tolist() == [len(row.input_ids) for row in rows]
    assert found.first_type_lengths.tolist() == [row.first_type_length for row in rows]
    assert found.sequence_labels.tolist() == [row.sequence_label for row in rows]
    for ids in ([], [0], [22, 3, 3, 11], [*range(len(rows))]):
      ids = [number for number in ids if number < len(rows)]
      expected = [token for number in ids for token in rows[number].input_ids]
      gathered = found.gather(np.array(ids, int))
      assert (gathered.dtype, gathered.tolist()) == (np.int32, expected)


def test_tokens_stay_on_disk(tmp_path):
  rows = [StoredSequence([7] * 1000, 1, 0)] * 2000
  write_sequences(tmp_path / "s.arrow", rows)
  before = pa.total_allocated_bytes()
  tracemalloc.start()
  store = SequenceStore(tmp_path / "s.arrow")
  assert store.gather(np.array([1999])).tolist() == [7] * 1000
  of_arrow, (of_numpy, _) = pa.total_allocated_bytes(), tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert of_arrow - before + of_numpy < 300_000  # the tokens are 8 MB


@pytest.mark.parametrize("content", [None, b"", b"no arrow file" * 100, "table"])
def test_a_file_that_is_not_a_store_is_refused(tmp_path, content):
  path, message = tmp_path / "s.arrow", "Expected an Arrow file of sequences"
  if content == "table":
    message = r"has columns \['text'\]; expected \['input_ids'"
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_file(path, table.schema) as writer:
      writer.write_table(table)
  elif content is not None:
    path.write_bytes(content)
  with pytest.raises(InputError, match=message):
    SequenceStore(path)


def test_sequences_are_read_ahead_into_memory(tmp_path):
  """Of 2,000 sequences that fill a page each, only those that were asked for."""
  path = tmp_path / "s.arrow"
  write_sequences(path, [StoredSequence([7] * 1024, 1, 0)] * 2000, batch_size=100)
  store = SequenceStore(path, reads_ahead=True)
  with path.open("rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
  wanted, other = np.arange(3, 2000, 500), np.arange(250, 2000, 500)
  if in_memory(store, other).any():
    pytest.skip("this file system keeps the file in memory")
  store.read_ahead(wanted)
  deadline = time.monotonic() + 60
  while not in_memory(store, wanted).all():
    assert time.monotonic() < deadline
    time.sleep(0.01)
  assert not in_memory(store, other).any()


def in_memory(store, ids) -> np.ndarray:
  """Whether the page with the middle of each sequence is in memory."""
  found = []
  for number in ids:
    tokens = store._tokens[number // 100]
    middle = tokens.ctypes.data + (number % 100 * 1024 + 512) * tokens.itemsize
    page, told = int(middle) // mmap.PAGESIZE * mmap.PAGESIZE, ctypes.c_ubyte()
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(told))
    assert done == 0, os.strerror(ctypes.get_errno())
    found.append(told.value & 1)
  return np.array(found, bool)


def test_a_store_can_be_read_until_the_process_ends(tmp_path):
  """Threads that read may outlive the main thread."""
  write_sequences(tmp_path / "s.arrow", [StoredSequence([7] * 1000, 1, 0)] * 2000)
  program = """
import atexit, sys
import numpy as np
store = None
atexit.register(lambda: print(store.gather(np.arange(2000)).sum()))
from pipeline.store import SequenceStore
store = SequenceStore(sys.argv[1], reads_ahead=True)
"""
  words = [sys.executable, "-c", program, tmp_path / "s.arrow"]
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(words, cwd=root, capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, "14000000\n"), done.stderr


def test_an_empty_file_is_told(tmp_path):
  (tmp_path / "s.arrow").touch()
  with pytest.raises(InputError, match="the file is empty"):
    SequenceStore(tmp_path / "s.arrow", reads_ahead=True)
