"""Fine-tuning as whole programs: train.py and eval.py on a task, from given weights."""

import json

import jax
import numpy as np
import pytest

from model import hf, weights
from model.__main__ import main as model_command
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs, programs
from tests.programs import READ_ONLY_CACHE, lines_of, summary_of

WORDS = ("able", "back", "call", "data", "each", "file", "give", "hash", "into", "join")


def write_examples(folder, name, examples):
  path = folder / f"{name}.jsonl"
  path.write_text("\n".join(json.dumps(example) for example in examples))
  return path


@pytest.fixture(scope="session")
def task(tmp_path_factory):
  """Random weights, and a task like CoLA: whether words are in the alphabet's order."""
  folder = tmp_path_factory.mktemp("finetuning")
  rng = np.random.default_rng(0)
  tokens = (*SPECIAL_TOKENS, *WORDS)
  config = packs.small_config(vocab_size=len(tokens), max_position_embeddings=41)
  given, vocabulary = folder / "given", weights.Vocabulary(tokens)
  given.mkdir()
  weights.describe(given, config, head="pretraining", vocabulary=vocabulary)
  weights.save(given, jax.tree.map(np.asarray, packs.random_params(config)[1]))
  for split, number in (("train", 90), ("dev", 41)):
    examples = []
    for _ in range(number):
      words = list(rng.choice(WORDS, rng.integers(3, 12)))
      if rng.random() < 0.5:
        words.sort()
      examples.append({"sentence": " ".join(words), "label": int(words == sorted(words))})
    write_examples(folder, split, examples)
  return folder


SETTINGS = programs.settings(
  "data.max_sequence_length=41 train.batch_size=8 train.duration= train.steps=12 "
  "train.log_every=2 train.eval_every=2 train.checkpoint_every=12 train.keep_checkpoints=1 "
  "train.patience=0 train.throughput_rounds=0 optimizer.warmup= "
  "optimizer.warmup_steps=2 optimizer.learning_rate=1e-3"
)


def command(
  folder, workdir, *options, program="train.py", config="glue.py:cola", fields=()
):
  settings = {
    "model.init_from": folder / "given",
    "data.source": folder / "train.jsonl",
    "data.held_out_source": folder / "dev.jsonl",
    "data.directory": folder / "cola",
    **SETTINGS,
  } | dict(fields)
  return programs.words(program, config, folder / workdir, settings, options)


def succeed(folder, *arguments, **options):
  """What a program prints."""
  words = command(folder, *arguments, **options)
  return programs.succeeded(programs.complete(words, folder)).stdout


# So large a rate that it gets no better soon.
UNTIL_IT_ENDS = {"train.patience": 2, "train.steps": 60, "optimizer.learning_rate": 0.05}


@pytest.fixture(scope="session")
def finetuned(task):
  output = succeed(task, "cola-run", fields=UNTIL_IT_ENDS)
  assert "initialising classifier" in output
  return task / "cola-run"


@pytest.mark.slow
def test_a_run_on_a_task_leaves_its_metrics_and_its_best_checkpoint(finetuned):
  workdir = finetuned
  summary = summary_of(workdir)
  lines = lines_of(workdir / "eval.jsonl")
  last = summary["steps"]
  assert [line["step"] for line in lines] == [*range(2, last + 1, 2)]
  assert summary["best_step"] + 4 == last < 60  # two evaluations that were no better
  scores = [line["score"] for line in lines]
  best = lines[int(np.argmax(scores))]
  assert (summary["best_step"], summary["best_score"]) == (best["step"], best["score"])
  assert summary["eval_matthews"] == lines[-1]["matthews"] == lines[-1]["score"]
  assert (summary["task"], summary["compilations"]) == ("glue/cola", 1)
  kept = {int(path.name) for path in (workdir / "checkpoints").iterdir()}
  assert kept == {best["step"], last}
  described = json.loads((workdir / "model.json").read_text())
  assert described["labels"] == ["unacceptable", "acceptable"]


# Prints what lives when the two ways are compared.
LOOK = """
import pathlib, runpy, sys
root = pathlib.Path(sys.argv[1]).parent
sys.path.insert(0, str(root))
import jax
from launch.record import throughput
measure = throughput.packed_against_unpacked
def look(*arguments, **options):
  print("live bytes:", sum(x.nbytes for x in jax.live_arrays()))
  return measure(*arguments, **options)
throughput.packed_against_unpacked = look
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_neither_given_weights_nor_the_last_state_stay_once_they_are_not_needed(task):
  """Where the throughput is measured, on a state of its own."""
  (task / "look.py").write_text(LOOK)
  words = command(task, "measured", fields={"train.throughput_rounds": 1})
  words.insert(1, task / "look.py")
  output = programs.succeeded(programs.complete(words, task)).stdout
  assert "initialising classifier" in output
  assert "live bytes: 0\n" in output


def evaluate(task, *arguments, **options):
  return json.loads(succeed(task, *arguments, "--json", program="eval.py", **options))


def assert_same_unpacked_and_exported(task, name, packed, *, fields=(), **options):
  """Whether NAME-run, exported to NAME-hf, has the scores that it has on packs."""
  step, out = f"--step={packed['step']}", str(task / f"{name}-hf")
  assert model_command(["export", str(task / f"{name}-run"), step, "--out", out]) == 0
  fields = dict(fields) | {"packing.algorithm": "none"}
  unpacked = evaluate(task, f"{name}-hf", fields=fields, **options)
  expected = packed | {"loss": pytest.approx(packed["loss"], rel=1e-5), "step": None}
  assert unpacked == expected


@pytest.mark.slow
def test_evaluation_is_the_same_packed_or_not_and_after_export(finetuned):
  workdir, folder = finetuned, finetuned.parent
  last = lines_of(workdir / "eval.jsonl")[-1]
  step = f"--step={last['step']}"
  packed = evaluate(folder, "cola-run", step)
  trained = {"seconds", "sequences_trained"}
  assert packed == {k: v for k, v in last.items() if k not in trained}
  assert_same_unpacked_and_exported(folder, "cola", packed)
  best = evaluate(folder, "cola-run")
  assert best == evaluate(folder, "cola-run", "--step=best")
  summary = summary_of(workdir)
  assert (best["step"], best["score"]) == (summary["best_step"], summary["best_score"])


def test_an_imported_model_is_evaluated_only_where_it_fits(task):
  given = weights.open_folder(task / "given")
  params = packs.random_params(given.config, head="sequence_classification")[1]
  folder = task / "classifier"
  hf.export_model(given.config, params, folder, vocabulary=given.vocabulary)
  for options, fields, message in (
    (["--step=best"], {}, "--step is 'best', but"),
    ([], {"data.max_sequence_length": 43}, "expected at most the 41 positions"),
    ([], {"model.attention_mask": "none"}, "attention_mask is 'none'; expected 'segment'"),
    (
      [],
      {"model.attention_impl": "cudnn"},
      "only on NVIDIA GPUs since Ampere; this is a CPU",
    ),
  ):
    words = command(task, "classifier", *options, program="eval.py", fields=fields)
    result = programs.complete(words, task, JAX_PLATFORMS="cpu")
    assert result.returncode == 2, message
    assert message in result.stderr


@pytest.mark.slow
def test_an_attention_that_the_device_lacks_is_refused_in_a_line(finetuned):
  words = ["", programs.ROOT / "eval.py", finetuned, "--config.model.attention_impl=cudnn"]
  result = programs.complete(words, finetuned.parent, JAX_PLATFORMS="cpu")
  assert result.returncode == 2
  (told,) = result.stderr.splitlines()
  assert "eval.py: attention_impl=cudnn runs only on NVIDIA GPUs since Ampere" in told


@pytest.mark.slow
def test_a_killed_run_ends_where_patience_ends_it(task, finetuned):
  """With the same parameters and the same best step as the one that was left alone."""
  expected = summary_of(finetuned)
  words = command(task, "killed", fields=UNTIL_IT_ENDS)
  process = programs.start(words, task, **READ_ONLY_CACHE)
  lines = task / "killed" / "eval.jsonl"
  programs.wait_for(process, lambda: lines.exists() and lines.read_text().count("\n") >= 2)
  programs.kill(process)
  succeed(task, "killed", fields=UNTIL_IT_ENDS)
  found = summary_of(task / "killed")
  for name in ("steps", "best_step", "best_score", "parameters_digest"):
    assert found[name] == expected[name]


@pytest.mark.slow
def test_questions_are_trained_on_and_scored(task):
  rng = np.random.default_rng(1)
  questions = []
  for number in range(31):
    words = rng.choice(WORDS, rng.integers(8, 50))
    answer = {"text": [words[3]], "answer_start": [len(" ".join(words[:3])) + 1]}
    question = {"id": f"q{number}", "question": str(words[2]), "answers": answer}
    questions.append(question | {"context": " ".join(words)})
  source = write_examples(task, "questions", questions)
  fields = {"data.source": source, "data.held_out_source": source, "train.steps": 4}
  fields |= {"data.directory": task / "squad"}
  succeed(task, "squad-run", config="squad.py", fields=fields)
  summary = summary_of(task / "squad-run")
  assert summary["sequences"] > 31  # several windows of a question
  assert (
    0 <= summary["eval_exact_match"] <= summary["eval_f1"] == summary["eval_score"] <= 1
  )
  evaluated = lines_of(task / "squad-run" / "eval.jsonl")[-1]
  assert evaluated["sequences"] == summary["sequences"]


@pytest.mark.slow
def test_tags_are_trained_on_resumed_and_scored_packed_and_not(task):
  """Stopped at half of its steps, a run ends with the same parameters."""
  rng = np.random.default_rng(3)
  rows = []
  for number in rng.integers(1, 60, 61):
    words = rng.choice(WORDS, number).tolist()
    tags = [f"B-{word}" if word < "data" else "O" for word in words]
    rows.append({"tokens": words, "tags": tags})
  source = write_examples(task, "tags", rows)
  fields = {"data.source": source, "data.held_out_source": source, "train.steps": 8}
  fields |= {"data.directory": task / "tags", "train.checkpoint_every": 4}
  options = {"config": "tagging.py", "fields": fields}
  output = succeed(task, "tags-run", **options)
  assert "initialising classifier" in output
  summary = summary_of(task / "tags-run")
  assert summary["sequences"] > 61  # several windows of a sentence
  assert summary["eval_score"] == summary["eval_f1"]
  description = json.loads((task / "tags-run" / "model.json").read_text())
  assert description["labels"] == ["B-able", "B-back", "B-call", "O"]

  words = command(task, "tags-halved", **options)
  programs.kill_once_saved(words, task, task / "tags-halved")
  succeed(task, "tags-halved", **options)
  halved = summary_of(task / "tags-halved")
  assert halved["parameters_digest"] == summary["parameters_digest"]

  packed = evaluate(task, "tags-run", "--step=8", **options)
  assert_same_unpacked_and_exported(task, "tags", packed, **options)


@pytest.mark.slow
def test_several_classes_are_trained_on_and_scored_packed_and_not(task):
  rows = [{"sentence": " ".join(WORDS[:n]), "label": WORDS[: n % 4]} for n in range(1, 11)]
  source = write_examples(task, "several", rows * 6)
  fields = {"data.source": source, "data.held_out_source": source, "train.steps": 8}
  fields |= {"data.directory": task / "several", "data.task": "multi_label"}
  options = {"config": "classification.py", "fields": fields}
  succeed(task, "several-run", **options)
  packed = evaluate(task, "several-run", **options)
  assert 0 <= packed["micro_f1"] == packed["score"] <= 1
  assert_same_unpacked_and_exported(task, "several", packed, **options)
  options["fields"] = fields | {"data.task": "classification"}
  refused = command(task, "several-hf", program="eval.py", **options)
  told = programs.complete(refused, task).stderr
  assert "config.data.task is 'classification'; expected 'multi_label', since" in told
  assert "was trained to give an example several classes" in told


@pytest.mark.slow
def test_mnli_is_scored_on_matched_and_mismatched_genres(task):
  rng = np.random.default_rng(2)
  fields = {"data.directory": task / "mnli", "train.steps": 4}
  for name, number in (("source", 61), ("held_out_source", 23), ("mismatched_source", 19)):
    premises, hypotheses = (
      [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(number)]
      for _ in range(2)
    )
    labels = rng.choice(["entailment", "neutral", "contradiction"], number).tolist()
    examples = [
      {"premise": premise, "hypothesis": hypothesis, "label": label}
      for premise, hypothesis, label in zip(premises, hypotheses, labels, strict=True)
    ]
    fields[f"data.{name}"] = write_examples(task, f"mnli-{name}", examples)
  succeed(task, "mnli-run", config="glue.py:mnli", fields=fields)
  line = lines_of(task / "mnli-run" / "eval.jsonl")[-1]
  assert (line["sequences"], line["mismatched_sequences"]) == (23, 19)
  for prefix, number in (("", 23), ("mismatched_", 19)):
    right = line[f"{prefix}accuracy"] * number
    assert right == pytest.approx(round(right))
  assert line["score"] == line["accuracy"]
