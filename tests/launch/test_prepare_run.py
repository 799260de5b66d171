import pathlib
import types
from typing import Any

import pytest

from launch.prepare_run import TrainingRun
from training.errors import Stopped, Terminated


@pytest.mark.parametrize(
  ("stream", "asked", "kind", "message"),
  [
    (
      "hf:news",
      False,
      Stopped,
      "hf:news ended: saved step 3 of 9 in runs/a. Give fewer steps, or a longer stream, "
      "in another --workdir.",
    ),
    # Another process heard the signal.
    ("hf:news", True, Terminated, "Asked to stop: saved step 3 of 9 in runs/a. Run the"),
    ("", False, Terminated, "Asked to stop: saved step 3 of 9 in runs/a. Run the"),
  ],
)
def test_a_run_that_ends_early_says_why(stream, asked, kind, message):
  run: Any = types.SimpleNamespace(
    recipe=types.SimpleNamespace(steps=9),
    folder=pathlib.Path("runs/a"),
    settings=types.SimpleNamespace(data=types.SimpleNamespace(stream=stream)),
  )
  error = TrainingRun.interrupted(run, 3, asked=asked)
  assert type(error) is kind
  assert str(error).startswith(message)
