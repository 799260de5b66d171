"""A GPT-2 as whole programs, on rows of atoms: trained and evaluated."""

import json

import pytest

from tests import programs
from tests.programs import lines_of, summary_of

pytestmark = pytest.mark.slow
STEPS = 12


SETTINGS = programs.settings(
  "data.held_out_source= data.held_out_fraction=0.1 data.vocab_size=400 "
  "data.max_sequence_length=32 data.layout=padding data.atom_size=64 model.size=tiny "
  "train.batch_size=4 train.log_every=2 train.eval_every=6 train.checkpoint_every=4 "
  "train.throughput_rounds=0"
) | {"optimizer.warmup": "2 steps", "train.duration": f"{STEPS} steps"}


def command(folder, workdir, *options, program="train.py"):
  fields = {
    "data.source": f"stdlib:{folder / 'library'}",
    "data.directory": folder / "text",
    **SETTINGS,
  }
  return programs.words(program, "gpt2_atoms.py", folder / workdir, fields, options)


def succeed(folder, workdir, *options, program="train.py"):
  words = command(folder, workdir, *options, program=program)
  return programs.succeeded(programs.complete(words, folder)).stdout


@pytest.fixture(scope="module")
def whole(folder):
  return folder / "causal", succeed(folder, "causal")


def test_it_learns_and_says_how_well_and_is_evaluated_as_it_was(folder, whole):
  workdir, output = whole
  summary = summary_of(workdir)
  assert (summary["steps"], summary["compilations"]) == (STEPS, 1)
  lines = lines_of(workdir / "metrics.jsonl")
  assert lines[-1]["causal_loss"] < lines[0]["causal_loss"]
  # Rows are full of end tokens, of which only the first of an atom is real.
  assert lines[-1]["padding"] > 0.02
  assert summary["unpacked_padding_tokens"] > 0
  (before, last) = lines_of(workdir / "eval.jsonl")
  assert last["perplexity"] < before["perplexity"] < 500
  assert f"perplexity {last['perplexity']:.2f}" in output
  told = json.loads(succeed(folder, "causal", "--json", program="eval.py"))
  assert told["perplexity"] == pytest.approx(summary["eval_perplexity"])
  assert told["tokens"] == summary["eval_tokens"]


def test_two_processes_train_and_evaluate_as_one(folder, whole, request):
  for process in programs.begin_two(command(folder, "pair_of_causal"), folder, request):
    _, errors = process.communicate()
    assert process.returncode == 0, errors
  ours, expected = summary_of(folder / "pair_of_causal"), summary_of(whole[0])
  assert (ours["processes"], ours["eval_tokens"]) == (2, expected["eval_tokens"])
  assert ours["eval_perplexity"] == pytest.approx(expected["eval_perplexity"], rel=1e-3)
