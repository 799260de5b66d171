"""The benchmark of preparation runs both ways, and kills a worker."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import prepare


@pytest.mark.slow
@pytest.mark.extra("apache_beam", "distributed")
def test_both_ways_give_the_same_bytes(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(prepare, "DOCUMENTS_A_FILE", 4000)
  words = ["--documents", "10000", "--folder", str(tmp_path)]
  prepare.main([*words, "--json", str(tmp_path / "prepare.json")])
  row = capsys.readouterr().out.splitlines()[-1]
  assert row.split("|")[1].strip() == "10,000"
  (found,) = json.loads((tmp_path / "prepare.json").read_text())["measured"]
  assert found["plain"]["digest"] == found["dask"]["digest"]
  assert min(found["dask"]["memory"].values()) > 0
  assert [path.name for path in tmp_path.iterdir()] == ["prepare.json"]


def test_a_process_that_has_ended_has_no_memory():
  """Also between its end and the time when somebody waits for it."""
  words = [sys.executable, "-c", "input()"]
  with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
    assert prepare.private_memory(process.pid) > 0
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert prepare.private_memory(process.pid) == 0
  assert prepare.private_memory(process.pid) == 0


def test_a_disk_that_is_too_small_is_told_before_any_work(capsys):
  with pytest.raises(SystemExit):
    prepare.main(["--documents", "10000000000000"])
  assert "GB of disk are needed" in capsys.readouterr().err
