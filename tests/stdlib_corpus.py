"""A small corpus of real text: part of this Python's standard library."""

import pathlib
import shutil
import sysconfig

NAMES = "argparse", "ast", "collections", "enum", "functools", "heapq", "inspect", "random"


def make_library(folder: pathlib.Path) -> pathlib.Path:
  """Copies a few modules and the help topics."""
  root = pathlib.Path(sysconfig.get_path("stdlib"))
  (folder / "pydoc_data").mkdir(parents=True)
  shutil.copy(root / "pydoc_data" / "topics.py", folder / "pydoc_data")
  for name in NAMES:
    source = root / f"{name}.py"
    if source.exists():
      shutil.copy(source, folder)
    else:
      shutil.copytree(root / name, folder / name)
  return folder
