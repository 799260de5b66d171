import subprocess

import packing
from launch.record import version


def test_the_commit_says_whether_files_have_changed(tmp_path, monkeypatch):
  monkeypatch.setattr(version, "ROOT", tmp_path)
  monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
  assert version.code_version() == {"version": packing.__version__, "commit": None}

  def git(*arguments):
    identity = "-c", "user.name=a", "-c", "user.email=a@example.org"
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    return done.stdout.strip()

  git("init")
  (tmp_path / "file").write_text("1")
  git("add", "file")
  git("commit", "-m", "one")
  git("tag", "v1")
  commit = git("rev-parse", "HEAD")
  assert version.code_version()["commit"] == commit
  (tmp_path / "file").write_text("2")
  assert version.code_version()["commit"] == f"{commit}-dirty"
  monkeypatch.setenv("PATH", "")
  assert version.code_version()["commit"] is None
