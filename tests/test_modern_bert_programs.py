"""A ModernBERT as whole programs: trained on documents, killed, resumed, embedded."""

import json
import sys

import pytest

from tests import programs
from tests.programs import ROOT, lines_of, summary_of

pytestmark = pytest.mark.slow
STEPS = 8
SETTINGS = programs.settings(
  "model.size=tiny model.remat=none model.dtype=float32 "
  "data.held_out_fraction=0.1 data.vocab_size=400 data.max_sequence_length=64 "
  f"train.batch_size=4 train.micro_batch_size=0 train.steps={STEPS} train.log_every=2 "
  "train.eval_every=4 train.checkpoint_every=4 "
  "packing.adjust=reduce_batch optimizer.warmup_steps=2"
)


def command(folder, workdir, *options):
  fields = {
    "data.source": f"stdlib:{folder / 'library'}",
    "data.directory": folder / "documents",
    **SETTINGS,
  }
  path = folder / workdir
  return programs.words("train.py", "modern_bert_base.py", path, fields, options)


def succeed(folder, workdir, *options):
  result = programs.complete(command(folder, workdir, *options), folder)
  return programs.succeeded(result).stdout


@pytest.fixture(scope="module")
def whole(folder):
  succeed(folder, "modern_bert")
  return folder / "modern_bert"


def test_it_learns_whole_documents(whole):
  summary = summary_of(whole)
  assert (summary["steps"], summary["compilations"]) == (STEPS, 1)
  assert summary["packing_factor"] > 1
  lines = lines_of(whole / "metrics.jsonl")
  assert lines[-1]["mlm_loss"] < lines[0]["mlm_loss"]
  described = json.loads((whole / "model.json").read_text())
  assert (described["family"], described["head"]) == ("modern_bert", "pretraining")


def test_a_killed_run_ends_with_the_same_parameters(folder, whole):
  killed = folder / "killed_modern"
  programs.kill_once_saved(command(folder, killed.name), folder, killed)
  succeed(folder, killed.name)
  digests = {summary_of(run)["parameters_digest"] for run in (whole, killed)}
  assert len(digests) == 1


def test_it_embeds_texts_by_its_own_tokenizer(folder, whole):
  """Packed and alone; a text with a space more is another one to a byte-level BPE."""
  texts = ["def f(x): return x", "A sentence.", "A  sentence.", "packing " * 9]
  (folder / "texts.txt").write_text("\n".join(texts) + "\n")
  words = [sys.executable, str(ROOT / "predict.py"), str(whole), "--embed"]
  words += ["--input", str(folder / "texts.txt")]
  packed, alone = (
    [
      json.loads(line)["embedding"]
      for line in programs.succeeded(
        programs.complete([*words, *more], folder)
      ).stdout.splitlines()
    ]
    for more in ((), ("--algorithm", "none"))
  )
  assert len(packed) == len(texts)
  for one, other in zip(packed, alone, strict=True):
    assert one == pytest.approx(other, abs=1e-5)
  assert packed[1] != pytest.approx(packed[2], abs=1e-3)
