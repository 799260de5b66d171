"""Records of finished work, in JSON files and packed into one file."""

import json

import pytest

from lab import plans, records
from packing.files import write_json


@pytest.fixture
def study(tmp_path):
  folder = tmp_path / "results" / "study"
  (folder / "runs").mkdir(parents=True)
  for seed in (1, 2):
    write_json(
      folder / f"runs/packed,seed={seed}.json", {"seed": seed, "nats": [0.1, 1e-9]}
    )
  write_json(folder / "minutes.json", 1.5)
  write_json(folder / "exhibits.json", [])  # no record
  return folder


def test_packed_records_are_what_the_files_were(study, tmp_path):
  packed = tmp_path / "docs" / "study"
  records.pack(study, packed)
  assert [path.name for path in packed.iterdir()] == [records.PACKED]
  every = records.read_all(packed)
  assert [*every] == ["minutes.json", "runs/packed,seed=1.json", "runs/packed,seed=2.json"]
  assert every == records.read_all(study)
  for name, record in every.items():
    text = (study / name).read_text()
    assert json.dumps(records.read(packed / name), indent=1) + "\n" == text
    assert record == json.loads(text)
  assert records.read(packed / "runs/packed,seed=3.json") is None
  assert records.read(packed / "runs/new/deep/a.json") is None


def test_a_file_replaces_a_packed_record_and_others_stay(study, tmp_path):
  packed = tmp_path / "docs" / "study"
  records.pack(study, packed)
  (packed / "runs").mkdir()
  path = packed / "runs/packed,seed=1.json"
  path.write_text('{"seed": 9}')
  assert records.read(path) == records.read_all(packed)["runs/packed,seed=1.json"]
  assert records.read(path) == {"seed": 9}
  path.unlink()
  write_json(study / "runs/packed,seed=2.json", {"seed": 8})
  (study / "minutes.json").unlink()
  records.pack(study, packed)
  assert [
    x if isinstance(x, float) else x["seed"] for x in records.read_all(packed).values()
  ] == [1.5, 1, 8]


def test_nothing_is_written_if_nothing_changed(study, tmp_path):
  packed = tmp_path / "docs" / "study"
  records.pack(study, packed)
  before = (packed / records.PACKED).stat().st_mtime_ns
  records.pack(study, packed)
  records.pack(tmp_path / "nothing", packed)
  assert (packed / records.PACKED).stat().st_mtime_ns == before
  records.pack(tmp_path / "nothing", tmp_path / "none")
  assert not (tmp_path / "none").exists()


def test_what_is_packed_is_not_made_again(study, tmp_path):
  packed = tmp_path / "docs" / "study"
  records.pack(study, packed)
  assert plans.made_once(packed / "runs/packed,seed=1.json", pytest.fail)["seed"] == 1
  assert plans.made_once(packed / "measured/a.json", lambda: [1]) == [1]
  assert plans.made_once(packed / "measured/a.json", pytest.fail) == [1]
