"""Apache Beam beside this process."""

import sys

import pytest

from pipeline.__main__ import main
from pipeline.preparation import shard_files
from pipeline.preparation.prepare import prepare
from tests.prepared import arguments, contents, needs_beam, settings


@needs_beam
def test_beam_gives_the_same_bytes(corpus, reference, tmp_path):
  from pipeline.preparation.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)


@needs_beam
@pytest.mark.parametrize(
  ("runner", "text", "status", "message"),
  [
    ("DirectRunner", b"a\n\nb\ncaf\xe9\n", 1, "line 4 is not UTF-8"),
    ("NoRunner", b"a.\n\nb.\n", 2, "Beam cannot create the runner 'NoRunner'"),
    ("DirectRunner", b"a.\n\nb.\n", 1, "division by zero"),
  ],
)
def test_what_fails_on_beam_is_reported_in_one_line(
  corpus, tmp_path, capsys, monkeypatch, runner, text, status, message
):
  monkeypatch.setattr(shard_files, "write_shard", lambda work: 1 / 0)
  (tmp_path / "a.txt").write_bytes(text)
  words = arguments(corpus, tmp_path / "d", f"--source={tmp_path}", f"--runner={runner}")
  assert main(words) == status
  error = capsys.readouterr().err.splitlines()[-1]
  assert message in error
  assert status == 2 or "error: The job on DirectRunner failed: " in error
  assert not (tmp_path / "d").exists()


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
