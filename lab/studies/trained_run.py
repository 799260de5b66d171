"""One run of a study that trains as a user does, by train.py, in the same process.

Its record has the run's summary. The run's folder is beside the record, under a name that
comes from its config, data and weights, so it continues only a run that has the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import runpy
import sys
from collections.abc import Callable, Mapping
from typing import Any

from lab.studies.identity import weights_digest
from lab.studies.study import Arm, write_record
from launch import workdir
from launch.door import ROOT, read_settings
from launch.settings import RunSettings
from launch.sweep import jobs
from packing import InputError
from pipeline.dataset import MANIFEST

# Returns what a record has besides the summary, from the arm, the run and its folder.
Look = Callable[[Arm, RunSettings, pathlib.Path], Mapping[str, Any]]


def main(look: Look = lambda *_: {}):
  """The command that `Study.job` gives: trains, then writes the record."""
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--config", required=True)
  parser.add_argument("--arm", required=True)
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--end_with_parent", action="store_true")
  given, fields = parser.parse_known_args()
  if given.end_with_parent:
    jobs.end_with_parent()
  try:
    arm, settings = Arm(given.arm, {}), read_settings(given.config, fields)
  except InputError as error:
    parser.error(str(error))
  manifest = pathlib.Path(settings.data.directory, MANIFEST)
  made_from = [
    dict(settings.given),
    manifest.read_text() if manifest.exists() else "",
    weights_digest(settings.model.init_from),
  ]
  name = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:8]
  folder = given.out.with_suffix("") / name
  sys.argv = ["train.py", f"--config={given.config}", *fields, f"--workdir={folder}"]
  try:
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
  except SystemExit as end:
    if end.code:
      raise
  result = {"summary": workdir.read_summary(folder), **look(arm, settings, folder)}
  write_record(given.out, arm, settings, result)


if __name__ == "__main__":
  main()
