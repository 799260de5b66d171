"""The benchmark of streams reads each document in one process."""

import json

import pytest

from benchmarks import streams


@pytest.mark.slow
@pytest.mark.extra("datasets")
def test_processes_share_the_documents(tmp_path, capsys):
  words = ["--documents", "600", "--rounds", "1", "--processes", "1,2"]
  streams.main([*words, "--batch-size", "4", "--json", str(tmp_path / "streams.json")])
  rows = capsys.readouterr().out.splitlines()[-2:]
  assert [row.split("|")[1].strip() for row in rows] == ["1", "2"]
  one, two = json.loads((tmp_path / "streams.json").read_text())["measured"]
  ((alone,),) = one["rounds"]
  (parts,) = two["rounds"]
  assert 500 < alone["documents"] <= 600
  assert all(250 < part["documents"] <= 300 for part in parts)


def test_numbers_of_processes_that_share_no_files_are_refused(capsys):
  with pytest.raises(SystemExit):
    streams.main(["--processes", "2,3"])
  assert "expected numbers that divide the last one" in capsys.readouterr().err
