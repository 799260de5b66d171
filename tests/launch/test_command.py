"""A wrong --config.FIELD=VALUE is told as a sweep tells it."""

import re
import sys

import pytest
from absl import flags
from ml_collections import config_flags

from launch import command


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ("nope.py", "There is no config file 'nope.py'. Try configs/quickstart.py."),
    ("configs", "There is no config file 'configs'."),
    ("README.md", "--config=README.md cannot be used: SyntaxError: "),
    ("configs/base.py:x", "get_config() takes 0 positional arguments but 1 was given"),
    ("configs/glue.py:no", "configs/glue.py:no cannot be used: Expected glue.py:TASK of"),
  ],
)
def test_a_config_that_cannot_be_used_is_told_without_a_traceback(config, message):
  told = command._explain(
    OSError("Configuration is not available"), ["", "--config", config]
  )
  assert message in told
  assert "Traceback" not in told
  assert command._explain(OSError("why"), ["", "--config=configs/glue.py:rte"]) == "why"


@pytest.mark.filterwarnings("ignore:the load_module")  # ml_collections loads files so
@pytest.mark.parametrize(
  ("option", "message"),
  [
    ("train.stepz=5", "there is no field 'train.stepz' .*did you mean 'train.steps'?"),
    ("nothing=1", "there is no field 'nothing' in the config. docs/config.md lists"),
    ("train.steps=1.5", "train.steps is '1.5'; expected int, such as 1000."),
    ("train.keep_best=maybe", "train.keep_best is 'maybe'; expected bool, such as"),
  ],
)
def test_a_wrong_option_is_told_with_what_was_expected(monkeypatch, option, message):
  options = [f"--config.{x}" for x in ("train.log_every=9", option)]
  argv = ["train.py", "--config=configs/base.py", *options]
  monkeypatch.setattr(sys, "argv", argv)
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, lock_config=True)
  with pytest.raises((AttributeError, flags.Error)) as raised:
    values(argv)
  assert re.match(f"--config: {message}", command._explain(raised.value, argv))
