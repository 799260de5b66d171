"""train.py on a dataset that `python -m pipeline prepare` made."""

import json
import os

import pytest

from pipeline.dataset import open_dataset
from tests import forked
from tests.prepared import ROOT, command, contents
from tests.programs import AS_USERS
from tests.stdlib_corpus import make_library


@pytest.mark.slow
def test_a_prepared_dataset_is_trained_on_as_it_is(tmp_path):
  data = tmp_path / "data"
  made = command(
    "prepare",
    f"--source=stdlib:{make_library(tmp_path / 'library')}",
    "--max-sequence-length=64",
    "--vocab-size=300",
    "--held-out-fraction=0.1",
    f"--out={data}",
  )
  assert made.returncode == 0, made.stderr
  before = contents(data)
  settings = {
    "data.source": "prepared",
    "data.directory": data,
    "data.max_sequence_length": 64,
    "model.size": "tiny",
    "train.batch_size": 8,
    "train.steps": 4,
    "train.log_every": 2,
    "train.eval_every": 4,
    "train.checkpoint_every": 4,
    "train.throughput_rounds": 0,
    "train.peak_flops": 1e9,
    "optimizer.warmup_steps": 2,
  }
  result = forked.run(
    [
      ROOT / "train.py",
      f"--config={ROOT / 'configs' / 'quickstart.py'}",
      f"--workdir={tmp_path / 'run'}",
      *(f"--config.{name}={value}" for name, value in settings.items()),
    ],
    cwd=tmp_path,
    env=os.environ | AS_USERS,
  )
  assert result.returncode == 0, result.stderr
  summary = json.loads((tmp_path / "run" / "summary.json").read_text())
  assert (summary["steps"], summary["compilations"]) == (4, 1)
  dataset = open_dataset(data)
  vocabulary = (tmp_path / "run" / "vocab.txt").read_text().splitlines()
  assert vocabulary == dataset.vocabulary
  assert contents(data) == before
