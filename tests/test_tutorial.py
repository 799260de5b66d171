"""The commands of docs/tutorial.md, one after the other, with few steps."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.markdown import ROOT, blocks
from tests.programs import lines_of, link_checkout, summary_of

FEW = (
  "train.throughput_rounds=0 train.duration=3steps train.log_every=1 train.eval_every=3 "
  "train.checkpoint_every=3 optimizer.warmup=1steps "
  "model.dropout_rate=0.0 model.attention_dropout_rate=0.0"  # compiling takes longest
)
LESS = {
  "*t.topics.values(),": "*[*t.topics.values()][:9],",
  "local_tasks.write(": "local_tasks.LARGEST.update(train=300, dev=30); local_tasks.write(",
}


@pytest.mark.slow
def test_the_tutorial(tmp_path):
  """All commands, on less text; what trains or evaluates, a few steps."""
  script = "".join(blocks((ROOT / "docs" / "tutorial.md").read_text(), "bash"))
  for much, less in LESS.items():
    assert much in script
    script = script.replace(much, less)
  few = "".join(f" --config.{field}" for field in FEW.split()).replace("steps", r"\\ steps")
  trains = r"^(python (?:train|eval)\.py (?:[^\n]*\\\n)*[^\n]*)$"
  script = re.sub(trains, rf"\1{few}", script, flags=re.M)
  link_checkout(tmp_path)
  path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
  place = {"cwd": tmp_path, "env": os.environ | {"PATH": path}}
  words = ["bash", "-euo", "pipefail", "-c", script]
  result = subprocess.run(words, **place, capture_output=True, text=True)
  assert result.returncode == 0, result.stderr[-3000:]
  summary = summary_of(tmp_path / "runs" / "text")
  assert summary["packing_factor"] > 1.5
  assert summary["compilations"] == 1
  assert lines_of(tmp_path / "runs" / "task" / "eval.jsonl")[-1]["step"] == 3
  assert (tmp_path / "bert" / "model.safetensors").exists()
  answers = [line for line in result.stdout.splitlines() if line.startswith("{")]
  assert len(answers) == 2
  assert {json.loads(line)["label"] for line in answers} <= {"shuffled", "ordered"}
