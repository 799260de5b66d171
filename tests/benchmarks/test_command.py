"""Mistakes on the command line of benchmarks are told in one line, before any work."""

import pytest

from benchmarks import command, growth, speedup, training

MISTAKES = [
  (growth, "--rounds=0", "expected a whole number of at least 1, found 0"),
  (growth, "--only=depth,rwos", "there is no 'rwos'"),
  (growth, "--json=/dev/null/a/growth.json", "cannot write /dev/null/a/growth.json"),
  (growth, "--picture=growth.txt", "expected .png, .svg or .pdf"),
  (speedup, "--rounds=-1", "expected a whole number of at least 1, found -1"),
  (speedup, "--tokens=0", "expected a whole number of at least 1, found 0"),
  (speedup, "--tokens=511", "--tokens is 511; expected at least a row, 512"),
  (speedup, "--depth=0", "expected a whole number of at least 1, found 0"),
  (speedup, "--size=huge", "invalid choice: 'huge'"),
  (speedup, "--row-lengths=128,129", "there is no '129'"),
  (training, "--rounds=0", "expected a whole number of at least 1, found 0"),
  (training, "--batch-size=0", "expected a whole number of at least 1, found 0"),
  (training, "--batch-size=2", "expected an even number above 3"),
  (training, "--sequences=63", "63 sequences do not fill batches of 8"),
  (training, "--attention=flash", "invalid choice: 'flash'"),
  (training, "--ways=packed,other", "there is no 'other'"),
]


@pytest.mark.parametrize(("benchmark", "argument", "told"), MISTAKES)
def test_a_mistake_is_one_line(benchmark, argument, told, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as stopped:
    benchmark.main([argument])
  assert stopped.value.code == 2
  printed = capsys.readouterr()
  assert printed.out == ""
  assert printed.err.count("\n") == 1
  assert told in printed.err


def test_a_file_to_write_is_checked_and_not_made(tmp_path):
  wanted, kept = tmp_path / "new" / "a.json", tmp_path / "kept.json"
  kept.write_text("{}")
  assert command.output_file(str(wanted)) == str(wanted)
  assert wanted.parent.is_dir()
  assert not wanted.exists()
  command.output_file(str(kept))
  assert kept.read_text() == "{}"


def test_ctrl_c_is_one_line(capsys):
  def stopped():
    raise KeyboardInterrupt

  assert command.run(stopped) == 130
  assert capsys.readouterr().err == "Stopped before the end.\n"
