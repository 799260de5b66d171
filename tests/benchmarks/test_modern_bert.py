"""Steps of ModernBERT in long rows: what is refused, and a short run."""

import json

import pytest

from benchmarks import modern_bert


def test_rows_are_of_whole_sequences(capsys):
  with pytest.raises(SystemExit):
    modern_bert.main(["--row-lengths=512,700"])
  assert "--row-lengths has 700; expected multiples of 512" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_run_counts_less_work_in_local_layers(tmp_path, capsys, monkeypatch):
  ways = [modern_bert.FIRST, modern_bert.Way("xla", "local", "none")]
  monkeypatch.setattr(modern_bert, "WAYS", ways)
  path = tmp_path / "results.json"
  modern_bert.main(["--row-lengths=1024", "--rounds=1", f"--json={path}"])
  first, local = json.loads(path.read_text())["results"]
  assert (first["layers"], local["layers"], local["remat"]) == ("global", "local", "none")
  assert first["ratio"]["median"] == 1
  assert 0 < local["dot_flops"] < first["dot_flops"]
  assert "| 1,024 | xla | local | none |" in capsys.readouterr().out


def test_rows_of_a_length_are_printed_before_the_next_is_measured(capsys, monkeypatch):
  quartiles = {"median": 1.0, "low": 1.0, "high": 1.0}

  def measure(size, row_length, *, rows, rounds):
    if row_length > 512:
      raise MemoryError
    record = {"row_length": row_length, "bytes": 2**30, **modern_bert.FIRST._asdict()}
    return [record | {"seconds": quartiles, "ratio": quartiles}]

  monkeypatch.setattr(modern_bert, "measure", measure)
  with pytest.raises(MemoryError):
    modern_bert.main(["--row-lengths=512,1024"])
  assert "| 512 | xla | global | none | 1.00 GiB |" in capsys.readouterr().out
