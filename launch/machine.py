"""What a run needs of this machine, checked before any work."""

from __future__ import annotations

import importlib.util
import pathlib

from launch import computation
from launch.options import check_option
from launch.parts import A_MODEL, GIVEN, TRACKERS
from launch.recipe.adjustment import check_recipe
from launch.settings import RunSettings
from training.errors import ConfigError


def check_machine(run: RunSettings, *, num_devices: int):
  """Refuses a run that would fail or mislead later on this machine.

  Args:
    run: its settings.
    num_devices: devices that share a batch.

  Raises:
    ConfigError: names the field, its value and what was expected.
  """
  _check_files(run)
  if run.model.size != GIVEN:  # whose sizes are known later
    vocab_size = run.model.config.vocab_size
    computation.check_attention(run, run.model.of(vocab_size=vocab_size))
  for name in run.train.tracker_names:
    if not all(importlib.util.find_spec(module) for module in TRACKERS[name]):
      raise ConfigError(
        f"{name} is not installed. Run pip install -c requirements.lock -e '.[{name}]'."
      )
  check_recipe(run.train, run.optimizer, num_devices=num_devices)


def _check_files(run: RunSettings):
  data, folder = run.data, run.model.init_from
  # A prepared dataset has its own copy of its vocabulary.
  is_needed = data.vocab_file and not pathlib.Path(data.directory).exists()
  if is_needed and not pathlib.Path(data.vocab_file).is_file():
    # If both are missing, the model's folder is reported, not its vocabulary.
    check_option(pathlib.Path(folder or ".").is_dir(), "model.init_from", folder, A_MODEL)
    expected = "a vocabulary file, or an empty string to learn one"
    beside = pathlib.Path(data.vocab_file).with_name("tokenizer.json")
    if beside.is_file():
      expected = f"a vocabulary file, such as {beside}"
    check_option(False, "data.vocab_file", data.vocab_file, expected)
