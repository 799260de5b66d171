import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from packing import InputError
from pipeline.dataset import MANIFEST, open_dataset
from pipeline.index import file_names, make_index, open_index, write_index
from pipeline.store import (
  MULTI_LABEL_SCHEMA,
  REGRESSION_SCHEMA,
  SCHEMA,
  SequenceStore,
  read_batches,
  write_sequences,
)

LABELS = {
  "int32": (SCHEMA, lambda n: n % 5 - 1),
  "float32": (REGRESSION_SCHEMA, lambda n: n / 4),
  "bool": (MULTI_LABEL_SCHEMA, lambda n: [n % 2 == 0, n % 3 == 0, True]),
}


def write(folder, kind="int32", count=57) -> list:
  schema, label = LABELS[kind]
  rows = [([n] * (1 + n * 7 % 11), n % 3, label(n)) for n in range(count)]
  half = count // 2
  write_sequences(folder / "a.arrow", rows[:half], schema=schema, batch_size=10)
  write_sequences(folder / "b.arrow", rows[half:], schema=schema, batch_size=10)
  return rows


def files(folder):
  return [folder / name for name in file_names("train")]


@pytest.mark.parametrize("kind", LABELS)
def test_an_index_says_the_same_from_files_and_in_memory(tmp_path, kind):
  rows = write(tmp_path, kind)
  batches = read_batches([tmp_path / "a.arrow", tmp_path / "b.arrow"])
  write_index(tmp_path, "train", batches)
  mapped, made = open_index(files(tmp_path), batches), make_index(batches)
  for found in mapped, made:
    sequences, lengths = found.sequences, [len(tokens) for tokens, *_ in rows]
    assert sequences["length"].tolist() == lengths
    assert sequences["start"].tolist() == [sum(lengths[:n]) for n in range(len(rows))]
    assert sequences["first_type_length"].tolist() == [first for _, first, _ in rows]
    assert sequences["label"].tolist() == [label for *_, label in rows]
    assert sequences["label"].dtype == kind
    by_length = sorted(range(len(rows)), key=lambda n: (lengths[n], n))
    assert found.by_length.tolist() == by_length
  assert isinstance(mapped.sequences.base, np.memmap)
  assert isinstance(mapped.by_length.base, np.memmap)


def test_an_index_of_other_sequences_or_a_damaged_one_is_refused(tmp_path):
  write(tmp_path)
  first, both = ([tmp_path / f"{x}.arrow" for x in names] for names in ("a", "ab"))
  write_index(tmp_path, "train", read_batches(first))
  with pytest.raises(InputError, match="has 28 records; expected 57"):
    SequenceStore(both, files(tmp_path))
  (other := tmp_path / "other").mkdir()
  write_sequences(other / "a.arrow", [([1], 1, 0)] * 28)
  with pytest.raises(InputError, match=r"index does not belong to .*a\.arrow"):
    SequenceStore(other / "a.arrow", files(tmp_path))
  records = files(tmp_path)[0]
  records.write_bytes(records.read_bytes()[:-1])
  with pytest.raises(InputError, match=r"cannot be read: .* Prepare the dataset again"):
    SequenceStore(first, files(tmp_path))
  records.unlink()
  with pytest.raises(InputError, match=r"cannot be read: .*No such file"):
    SequenceStore(first, files(tmp_path))


def test_a_full_disk_is_an_error_and_no_crash(tmp_path):
  """On a mapped page that cannot be written the system would kill the process."""
  write(tmp_path)
  program = """
import pathlib, resource, sys
from pipeline.index import write_index
from pipeline.store import read_batches
folder = pathlib.Path(sys.argv[1])
batches = read_batches([folder / "a.arrow", folder / "b.arrow"])
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
  write_index(folder, "train", batches)
except OSError as error:
  print(error.strerror)
"""
  words = [sys.executable, "-c", program, tmp_path]
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(words, cwd=root, capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (0, "File too large\n"), done.stderr


def test_a_dataset_maps_its_index_and_one_of_before_needs_none(reference, tmp_path):
  shutil.copytree(reference.directory, tmp_path / "before")
  path = tmp_path / "before" / MANIFEST
  manifest = json.loads(path.read_text())
  for split in "train", "held_out":
    for name in file_names(split):
      del manifest["sha256"][name]
      (tmp_path / "before" / name).unlink()
  path.write_text(json.dumps(manifest))
  now, before = open_dataset(reference.directory), open_dataset(tmp_path / "before")
  for split in "train", "held_out":
    mapped, made = getattr(now, split), getattr(before, split)
    assert isinstance(mapped.by_length.base, np.memmap)
    assert isinstance(mapped.lengths.base.base, np.memmap)
    for name in "by_length", "lengths", "first_type_lengths", "sequence_labels":
      np.testing.assert_array_equal(getattr(mapped, name), getattr(made, name))
    ids = np.array([3, 0, len(mapped) - 1])
    np.testing.assert_array_equal(mapped.gather(ids), made.gather(ids))


def test_one_file_of_two_is_no_index(reference, tmp_path):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  manifest = json.loads((folder / MANIFEST).read_text())
  del manifest["sha256"][file_names("train")[1]]
  (folder / MANIFEST).write_text(json.dumps(manifest))
  np.testing.assert_array_equal(open_dataset(folder).train.lengths, reference.train.lengths)


@pytest.mark.parametrize(
  ("kind", "labels", "message"),
  [
    ("int32", [1, None], "1 sequences have no label"),
    ("bool", [[True, False], [True], [True, False, True]], "different numbers of classes"),
  ],
)
def test_labels_that_would_be_changed_are_refused(kind, labels, message):
  rows = [([1], 1, label) for label in labels]
  with pytest.raises(InputError, match=message):
    SequenceStore.from_sequences(rows, LABELS[kind][0])
