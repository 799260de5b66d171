"""Mistakes on the command line of benchmarks are reported in one line, before any work."""

import pytest

from benchmarks import inference, pipeline, speedup, training

LEAST = "expected a whole number of at least 1, found"
MISTAKES = [
  (inference, "--rounds=0", f"{LEAST} 0"),
  (speedup, "--json=/dev/null/a/steps.json", "cannot write /dev/null/a/steps.json"),
  (inference, "--histograms=glue_cola_127", "there is no 'glue_cola_127'"),
  (pipeline, "--sequences=31", "--sequences is 31; expected at least a batch, 32"),
  (speedup, "--tokens=511", "--tokens is 511; expected at least a row, 512"),
  (training, "--batch-size=2", "expected an even number above 3"),
  (training, "--sequences=63", "63 sequences do not fill batches of 8"),
]


@pytest.mark.parametrize(("benchmark", "arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line(
  benchmark, arguments, message, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as stopped:
    benchmark.main(arguments.split())
  assert stopped.value.code == 2
  printed = capsys.readouterr()
  assert printed.out == ""
  assert printed.err.count("\n") == 1
  assert message in printed.err
