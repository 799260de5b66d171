"""A wrong --config.FIELD=VALUE is told as a sweep tells it."""

import sys

import pytest
from absl import flags
from ml_collections import config_flags

from training import command


@pytest.mark.filterwarnings("ignore:the load_module")  # ml_collections loads files so
@pytest.mark.parametrize(
  ("option", "message"),
  [
    (
      "train.stepz=5",
      "there is no field 'train.stepz' in the config; did you mean 'train.steps'?",
    ),
    (
      "nothing=1",
      "there is no field 'nothing' in the config. configs/base.py lists them.",
    ),
    ("train.steps=1.5", "train.steps is '1.5'; expected int, such as 1000."),
    ("train.keep_best=maybe", "train.keep_best is 'maybe'; expected bool, such as False."),
  ],
)
def test_a_wrong_option_is_told_with_what_was_expected(monkeypatch, option, message):
  argv = ["train.py", "--config=configs/base.py", "--config.train.steps=9"]
  argv.append(f"--config.{option}")
  monkeypatch.setattr(sys, "argv", argv)
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, lock_config=True)
  with pytest.raises((AttributeError, flags.Error)) as raised:
    values(argv)
  assert command._explained(raised.value, argv) == f"--config: {message}"
