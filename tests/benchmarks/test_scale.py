import json
import os

import numpy as np
import pytest

import packing
from benchmarks import scale
from pipeline.batches.loader import PackedLoader
from pipeline.store import SequenceStore

HISTOGRAM = packing.load_histogram("wikipedia_512")


@pytest.mark.parametrize("sparse", [False, True])
def test_sequences_are_in_the_file_and_their_index(sparse, tmp_path):
  number = 2 * scale.RECORDS + 5
  made = scale.write_dataset(tmp_path, HISTOGRAM, number, sparse=sparse)
  assert made["index_bytes"] == pytest.approx(28, abs=0.1)
  path = tmp_path / scale.TOKENS
  store, alone = scale.open_loader(tmp_path, batch_size=4).store, SequenceStore(path)
  np.testing.assert_array_equal(store.lengths, alone.lengths)
  np.testing.assert_array_equal(store.sequence_labels, store.lengths % 2)
  tokens = store.gather(np.array([0, number - 1]))
  assert tokens.size == store.lengths[[0, -1]].sum()
  assert tokens.any() != sparse
  told = path.stat()
  assert (told.st_blocks * 512 < told.st_size / 5) == sparse


def test_what_batches_take_is_measured(tmp_path):
  scale.write_dataset(tmp_path, HISTOGRAM, 3000, sparse=False)
  measured = scale.measure(tmp_path, batch_size=4, batches=3)
  assert measured["first_batch"] > measured["batch"] > 0
  assert measured["next_epoch"] > 0
  assert len(measured["rates"]) == 4
  assert min(measured["rates"]) > 0
  assert measured["private"] > 0
  options = {"first": 20, "batch_size": 4, "batches": 3}
  for ahead in False, True:
    assert scale.measure_cold(tmp_path, reads_ahead=ahead, **options) > 0


def test_a_sequence_that_occurs_twice_or_not_at_all_is_noticed(tmp_path, monkeypatch):
  scale.write_dataset(tmp_path, HISTOGRAM, 20_000, sparse=True)
  assert scale.exactly_once(tmp_path)["exactly_once"]
  whole = PackedLoader.contents_of_step

  def wrong(loader, step):
    contents = whole(loader, step)
    if step == 1:
      contents[0, 0] = contents[1, 0]
    return contents

  monkeypatch.setattr(PackedLoader, "contents_of_step", wrong)
  assert not scale.exactly_once(tmp_path)["exactly_once"]


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_number_and_writes_all(
  tmp_path, capsys, monkeypatch
):
  assert scale._alone(os.getpid) != os.getpid()
  # Processes of a benchmark import JAX; here only the workers do.
  monkeypatch.setattr(
    scale, "_alone", lambda function, *args, **options: function(*args, **options)
  )
  words = [
    "--sequences",
    "2000,3000",
    "--batches",
    "3",
    "--workers",
    "2",
    "--sparse",
    "--count",
  ]
  words += ["--folder", str(tmp_path), "--json", str(tmp_path / "scale.json")]
  scale.main(words)
  rows = capsys.readouterr().out.splitlines()[-2:]
  assert [row.split("|")[1].strip() for row in rows] == ["2,000", "3,000"]
  found = json.loads((tmp_path / "scale.json").read_text())["measured"]
  assert [one["sequences"] for one in found] == [2000, 3000]
  assert all(one["counted"]["exactly_once"] for one in found)
  assert all(one["workers"].keys() == {"1", "2"} for one in found)
  assert [path.name for path in tmp_path.iterdir()] == ["scale.json"]


def test_a_disk_that_is_too_small_is_told_before_any_work(capsys):
  with pytest.raises(SystemExit):
    scale.main(["--sequences", "10000000000000"])
  assert "GB of disk are needed" in capsys.readouterr().err
