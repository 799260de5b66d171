"""A config file that returns the config of a run: `--config=THIS_FILE:WORKDIR`."""

from __future__ import annotations

import pathlib

import ml_collections
from flax.traverse_util import flatten_dict

from training.config import base_config
from training.errors import ConfigError
from training.record import workdir

FILE = pathlib.Path(__file__)


def get_config(folder: str) -> ml_collections.ConfigDict:
  """The config of the run in a folder.

  Raises:
    ConfigError: there is no run, or its `config.json` is damaged or has other fields.
  """
  config, stored = base_config().lock(), workdir.read_config(folder)
  try:
    config.update(stored)
    for name in flatten_dict(config.to_dict(), sep="."):
      if name not in flatten_dict(stored, sep="."):
        raise KeyError(f"there is no {name}")
  except (KeyError, TypeError, AttributeError) as error:
    reason = str(error.args[0] if error.args else error).splitlines()[0]
    raise ConfigError(
      f"{pathlib.Path(folder) / 'config.json'} is damaged, or has other fields: "
      f"{reason}. Restore it; eval.py also takes another config, by --config=..."
    ) from error
  return config
