import subprocess

import packing
from launch.record import version


def test_the_commit_says_whether_files_have_changed(tmp_path, monkeypatch):
  folder = tmp_path / "unpacked"
  folder.mkdir()
  subprocess.run(["git", "init", "--quiet", tmp_path], check=True)  # another's
  monkeypatch.setattr(version, "ROOT", folder)
  monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
  assert version.code_version() == {"version": packing.__version__, "commit": None}

  def git(*arguments):
    identity = "-c", "user.name=a", "-c", "user.email=a@example.org"
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()

  monkeypatch.delenv("GIT_DIR")
  git("init")
  (folder / "file").write_text("1")
  git("add", "file")
  git("commit", "-m", "one")
  git("tag", "v1")
  commit = git("rev-parse", "HEAD")
  assert version.code_version()["commit"] == commit
  (folder / "file").write_text("2")
  assert version.code_version()["commit"] == f"{commit}-dirty"
  monkeypatch.setenv("PATH", "")
  assert version.code_version()["commit"] is None
