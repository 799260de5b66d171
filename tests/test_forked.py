"""Programs in processes that have imported their libraries: what is left of them."""

import functools
import subprocess
import sys
import tempfile
import types

from tests import forked


def test_a_command_leaves_no_folder(tmp_path, monkeypatch):
  """Its output is in its log, and nobody asks for the rest."""
  make = functools.partial(tempfile.mkdtemp, dir=tmp_path)
  monkeypatch.setattr(forked, "tempfile", types.SimpleNamespace(mkdtemp=make))
  with (tmp_path / "log").open("ab") as log:
    command = forked.Command(
      [sys.executable, "-m", "this"],
      stdin=subprocess.PIPE,
      stdout=log,
      stderr=subprocess.STDOUT,
      env=None,
      start_new_session=True,
    )
  command.stdin.close()
  command.wait()
  assert "Beautiful is better" in (tmp_path / "log").read_text()
  assert [path.name for path in tmp_path.iterdir()] == ["log"]
