"""A GPT-2 as whole programs, on rows of atoms: trained, stopped, gone on, evaluated."""

import json
import sys

import pytest

from tests.programs import (
  READ_ONLY_CACHE,
  ROOT,
  complete,
  flags_of_two_processes,
  lines_of,
  start,
  summary_of,
  wait_for,
)

pytestmark = pytest.mark.slow
STEPS = 12


def command(folder, workdir, *options, program="train.py"):
  fields = {
    "data.source": f"stdlib:{folder / 'library'}",
    "data.held_out_source": "",
    "data.held_out_fraction": 0.1,
    "data.directory": folder / "text",
    "data.vocab_size": 400,
    "data.max_sequence_length": 32,
    "data.layout": "padding",
    "data.atom_size": 64,
    "model.size": "tiny",
    "optimizer.warmup": "2 steps",
    "train.batch_size": 4,
    "train.duration": f"{STEPS} steps",
    "train.log_every": 2,
    "train.eval_every": 6,
    "train.checkpoint_every": 4,
    "train.throughput_rounds": 0,
    "train.peak_flops": 1e9,
  }
  return [
    *(sys.executable, str(ROOT / program)),
    f"--config={ROOT / 'configs' / 'gpt2_atoms.py'}",
    f"--workdir={folder / workdir}",
    *(f"--config.{name}={value}" for name, value in fields.items()),
    *options,
  ]


def run(folder, workdir, *options, program="train.py"):
  return complete(command(folder, workdir, *options, program=program), folder)


@pytest.fixture(scope="module")
def whole(folder):
  result = run(folder, "causal")
  assert result.returncode == 0, result.stderr
  return folder / "causal", result.stdout


def test_it_learns_and_says_how_well(whole):
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


def test_it_goes_on_where_it_was_stopped(folder, whole):
  workdir = folder / "stopped"
  process = start(command(folder, "stopped"), folder, **READ_ONLY_CACHE)
  wait_for(process, (workdir / "checkpoints" / "4").exists)
  process.kill()
  process.communicate()
  result = run(folder, "stopped")
  assert result.returncode == 0, result.stderr
  assert "resuming from step" in result.stdout
  ours, expected = summary_of(workdir), summary_of(whole[0])
  assert ours["parameters_digest"] == expected["parameters_digest"]
  assert ours["eval_perplexity"] == expected["eval_perplexity"]


def test_it_is_evaluated_as_it_was(folder, whole):
  result = run(folder, "causal", "--json", program="eval.py")
  assert result.returncode == 0, result.stderr
  told = json.loads(result.stdout)
  summary = summary_of(whole[0])
  assert told["perplexity"] == pytest.approx(summary["eval_perplexity"])
  assert told["tokens"] == summary["eval_tokens"]


def test_two_processes_train_and_evaluate_as_one(folder, whole, request):
  both = [
    start(command(folder, "pair_of_causal", *flags), folder, JAX_NUM_CPU_DEVICES="2")
    for flags in flags_of_two_processes()
  ]
  for process in both:  # if one fails, none is left to wait for it
    request.addfinalizer(process.kill)
  for process in both:
    _, errors = process.communicate()
    assert process.returncode == 0, errors
  ours, expected = summary_of(folder / "pair_of_causal"), summary_of(whole[0])
  assert (ours["processes"], ours["eval_tokens"]) == (2, expected["eval_tokens"])
  assert ours["eval_perplexity"] == pytest.approx(expected["eval_perplexity"], rel=1e-3)
