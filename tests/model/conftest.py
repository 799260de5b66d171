import json
import pathlib
import shutil

import pytest
import safetensors.numpy

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture
def altered(tmp_path):
  """Copies a golden directory, changes its config and its tensors, and returns the copy."""

  def alter(architecture, change=None, **fields):
    folder = tmp_path / "copy"
    shutil.copytree(GOLDEN / architecture, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    if change:
      path = folder / "model.safetensors"
      tensors = safetensors.numpy.load_file(path)
      change(tensors)
      safetensors.numpy.save_file(tensors, path)
    return folder

  return alter
