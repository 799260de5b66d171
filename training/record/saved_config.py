"""A config file that returns the config of a run: `--config=THIS_FILE:WORKDIR`.

Fields that are newer than the run have their defaults from `configs/base.py`.
"""

from __future__ import annotations

import pathlib

import ml_collections

from training.config import base_config
from training.errors import ConfigError
from training.record import workdir

FILE = pathlib.Path(__file__)


def get_config(folder: str) -> ml_collections.ConfigDict:
  """The config of the run in a folder.

  Raises:
    ConfigError: there is no run, or its `config.json` is damaged or from another version.
  """
  config = base_config().lock()
  try:
    config.update(workdir.read_config(folder))
  except (KeyError, TypeError, AttributeError) as error:
    reason = str(error.args[0] if error.args else error).splitlines()[0]
    raise ConfigError(
      f"{pathlib.Path(folder) / 'config.json'} is damaged, or from another version: "
      f"{reason}. Restore it; eval.py also takes another config, by --config=..."
    ) from error
  return config
