"""Which code makes a run."""

from __future__ import annotations

import os
import subprocess

import packing
from launch.door import ROOT


def code_version() -> dict[str, str | None]:
  """The `version` of isopack, and the `commit` of the checkout.

  A commit with changes that are not committed ends with "-dirty". It is None outside a
  checkout, or without git.
  """
  describe = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty"]
  others = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
  above = {"GIT_CEILING_DIRECTORIES": str(ROOT.parent)}  # a repository there is another
  try:
    told = subprocess.run(
      [*describe, "--exclude=*"],
      env=others | above,
      capture_output=True,
      text=True,
      check=True,
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    told = ""
  return {"version": packing.__version__, "commit": told or None}
