import numpy as np
import pyarrow as pa
import pytest

from packing import InputError
from pipeline.store import SequenceStore, StoredSequence, write_sequences


def test_what_is_written_is_read_back_across_record_batches(tmp_path):
  rows = [StoredSequence(list(range(n, 2 * n)), n // 2, n % 2) for n in range(1, 24)]
  assert write_sequences(tmp_path / "s.arrow", iter(rows), batch_size=5) == 23
  store = SequenceStore(tmp_path / "s.arrow")
  assert len(store) == 23
  assert store.lengths.tolist() == list(range(1, 24))
  assert store.first_type_lengths.tolist() == [n // 2 for n in range(1, 24)]
  assert store.sequence_labels.tolist() == [n % 2 for n in range(1, 24)]
  for ids in ([], [0], [22, 3, 3, 11], list(range(23))):
    expected = [t for i in ids for t in rows[i].input_ids]
    assert store.gather(np.array(ids, int)).tolist() == expected


def test_tokens_stay_on_disk(tmp_path):
  rows = [StoredSequence([7] * 1000, 1, 0)] * 2000
  write_sequences(tmp_path / "s.arrow", rows)
  before = pa.total_allocated_bytes()
  store = SequenceStore(tmp_path / "s.arrow")
  assert store.gather(np.array([1999])).tolist() == [7] * 1000
  assert pa.total_allocated_bytes() - before < 100_000  # the tokens are 8 MB


@pytest.mark.parametrize("content", [None, b"", b"no arrow file" * 100])
def test_a_file_that_is_not_a_store_is_refused(tmp_path, content):
  if content is not None:
    (tmp_path / "s.arrow").write_bytes(content)
  with pytest.raises(InputError, match="Expected an Arrow file of sequences"):
    SequenceStore(tmp_path / "s.arrow")


def test_an_arrow_file_of_something_else_is_refused(tmp_path):
  table = pa.table({"text": ["a"]})
  with pa.ipc.new_file(tmp_path / "s.arrow", table.schema) as writer:
    writer.write_table(table)
  with pytest.raises(InputError, match=r"columns \['input_ids'.*found 1 with \['text'\]"):
    SequenceStore(tmp_path / "s.arrow")
