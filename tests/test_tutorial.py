"""The commands of docs/tutorial.md, one after the other, with few steps."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import markdown
from tests.markdown import ROOT
from tests.programs import lines_of, summary_of

PAGE = ROOT / "docs" / "tutorial.md"
NEEDED = ("train.py", "eval.py", "predict.py", "configs", "experiments")
NEEDED += ("model", "packing", "pipeline", "training")  # type: ignore[assignment]
FEW = ["train.throughput_rounds=0", "train.duration='3 steps'", "train.log_every=1"]
FEW += ["train.eval_every=3", "train.checkpoint_every=3", "optimizer.warmup='1 steps'"]
FEW += ["train.peak_flops=1e9", "model.dropout_rate=0.0"]
FEW += ["model.attention_dropout_rate=0.0"]  # compiling takes longest
LESS = {
  "*t.topics.values(),": "*[*t.topics.values()][:9],",
  "local_tasks.write(": "local_tasks.LARGEST.update(train=300, dev=30); local_tasks.write(",
}


def script(page: str) -> str:
  """All commands, on less text; what trains or evaluates, a few steps."""
  lines = "".join(markdown.blocks(page, "bash"))
  for much, less in LESS.items():
    assert much in lines
    lines = lines.replace(much, less)
  few = " ".join(f"--config.{option}" for option in FEW)
  return re.sub(
    r"^(python (?:train|eval)\.py (?:[^\n]*\\\n)*[^\n]*)$", rf"\1 {few}", lines, flags=re.M
  )


@pytest.mark.slow
def test_the_tutorial(tmp_path):
  for name in NEEDED:
    (tmp_path / name).symlink_to(ROOT / name)
  path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
  result = subprocess.run(
    ["bash", "-euo", "pipefail", "-c", script(PAGE.read_text())],
    cwd=tmp_path,
    env=os.environ | {"PATH": path},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr[-3000:]
  summary = summary_of(tmp_path / "runs" / "text")
  assert summary["packing_factor"] > 1.5
  assert summary["compilations"] == 1
  assert lines_of(tmp_path / "runs" / "task" / "eval.jsonl")[-1]["step"] == 3
  assert (tmp_path / "bert" / "model.safetensors").exists()
  answers = [line for line in result.stdout.splitlines() if line.startswith("{")]
  assert {json.loads(line)["label"] for line in answers} <= {"shuffled", "ordered"}
  assert len(answers) == 2
