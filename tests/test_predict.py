"""predict.py: the same answers as without packing, in the order of the input."""

import functools
import io
import json
import os
import signal
import subprocess
import sys

import hypothesis
import jax
import numpy as np
import pytest
import scipy.special
from hypothesis import strategies as st

import pipeline
import predict
from configs import base
from model import hf, layout, weights
from pipeline.prediction.answers import answer_examples
from pipeline.prediction.chunks import BatchShape
from pipeline.store import SCHEMA
from pipeline.tokenizer import Tokenizer
from tests import packs, programs
from training import evaluation
from training.mesh import make_mesh
from training.record.compilations import CompilationCounter

LETTERS = [*"abcdefghij", *(f"##{c}" for c in "abcdefghij"), "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
LABELS = "bad", "so", "good"
ROW = 23
HEADS = {
  "classification": "sequence_classification",
  "regression": "sequence_classification",
  "squad": "question_answering",
  "pretraining": "pretraining",
}
SQUAD = "--max-question-length", "5", "--doc-stride", "7"


def model_of(task, seed=0, **fields):
  config = packs.small_config(
    num_layers=1,
    max_position_embeddings=ROW,
    num_labels={"classification": 3, "regression": 1}.get(task, 2),
    **fields,
  )
  return config, packs.random_params(config, seed=seed, head=HEADS[task])[1]


def make_folder(folder, task, *, labels=(), steps=(0,), **fields):
  """As python -m model import writes one; each step has different weights."""
  for step in steps:
    config, params = model_of(task, seed=step, **fields)
    weights.save(folder, params, step=step)
  vocabulary = weights.Vocabulary(tuple(VOCABULARY))
  weights.describe(folder, config, head=HEADS[task], vocabulary=vocabulary, labels=labels)
  return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  for task in HEADS:
    labels = LABELS if task == "classification" else ()
    make_folder(folder / task, task, labels=labels)
  return folder


@pytest.fixture
def answer(capsys, monkeypatch):
  """Runs predict.py in this process: exit status, answers, standard error."""

  def run(*arguments, typed=None):
    if typed is not None:
      stream = io.TextIOWrapper(io.BytesIO(typed.encode()))
      monkeypatch.setattr(sys, "stdin", stream)
    status = predict.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, [json.loads(line) for line in printed.out.splitlines()], printed.err

  return run


def write_lines(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def probabilities_alone(sentence):
  """The classifier's probabilities for one sentence, computed without predict.py."""
  ids = [VOCABULARY.index(word) for word in ("[CLS]", *sentence.split(), "[SEP]")]
  batch = layout.lay_out([[{"input_ids": ids}]], row_length=ROW)
  config, _ = model_of("classification")
  head = packs.random_model(config, head="sequence_classification")
  logits = np.asarray(head(batch)["sequence_logits"])[0, 0]
  return dict(zip(LABELS, scipy.special.softmax(logits).tolist(), strict=True))


# ---- packed equals unpacked -------------------------------------------------------------


class Programs:
  """A model of each task, compiled once for packs and once for sequences alone."""

  def __init__(self, folders):
    self.counter = CompilationCounter()
    self.found = {}
    mesh = make_mesh(2)
    for task in ("classification", "regression", "squad"):
      stored = hf.open_model(folders / task)
      settings = pipeline.DatasetSettings(
        "-",
        ROW,
        task=task,
        doc_stride=7,
        max_question_length=5,
        labels="a,b,c" if task == "classification" else "",
      )
      program = evaluation.make_program(stored, mesh=mesh)
      tokenizer = Tokenizer(folders / task / "vocab.txt")
      self.found[task] = program, stored.load(), settings, tokenizer

  def answers(self, task, path, algorithm, chunk_size):
    program, params, settings, tokenizer = self.found[task]
    return list(
      answer_examples(
        functools.partial(evaluation.predict, program, params),
        pipeline.read_examples(str(path), settings, tokenizer),
        task=task,
        shape=BatchShape(ROW, batch_size=4, algorithm=algorithm),
        labels=LABELS if task == "classification" else (),
        chunk_size=chunk_size,
      )
    )


@pytest.fixture(scope="module")
def compiled(folders):
  return Programs(folders)


def close(one, other):
  """Checks equality up to rounding; equal answers may change their order."""
  assert one.keys() == other.keys()
  assert one["id"] == other["id"]
  if "n_best" in one:
    assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
    scores = [{a["text"]: a["score"] for a in x["n_best"]} for x in (one, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert scores[1].get(one["answer"]) == pytest.approx(
      scores[1].get(other["answer"]), abs=1e-4
    )
  elif "value" in one:
    assert one["value"] == pytest.approx(other["value"], abs=1e-5)
  else:
    assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


texts = st.integers(0, 61).map(lambda n: " ".join("abcdefghij?."[i % 12] for i in range(n)))
rows_of = {
  "classification": st.lists(st.fixed_dictionaries({"sentence": texts}), max_size=23),
  "regression": st.lists(
    st.fixed_dictionaries({"sentence": texts, "sentence2": texts}), max_size=13
  ),
  "squad": st.lists(
    st.fixed_dictionaries({"question": texts, "context": texts}), max_size=11
  ),
}


@pytest.mark.parametrize("task", rows_of)
def test_packed_answers_equal_those_of_single_sequences(compiled, tmp_path_factory, task):
  path = tmp_path_factory.mktemp("examples") / "rows.jsonl"
  before = compiled.counter.count("_eval_step")

  @hypothesis.settings(max_examples=17, deadline=None, database=None)
  @hypothesis.seed(0)
  @hypothesis.given(rows=rows_of[task], chunk_size=st.sampled_from([1, 5, 4096]))
  @hypothesis.example([{n: "a b c" for n in ("sentence", "question", "context")}] * 29, 7)
  def check(rows, chunk_size):
    write_lines(path, ({"id": f"n{n}"} | row for n, row in enumerate(rows)))
    packed = compiled.answers(task, path, "lpfhp", chunk_size)
    alone = compiled.answers(task, path, "none", 4096)
    assert [found["id"] for found in packed] == [f"n{n}" for n in range(len(rows))]
    for one, other in zip(packed, alone, strict=True):
      close(one, other)

  check()
  assert compiled.counter.count("_eval_step") - before == 2  # one each, many chunks


def test_rows_are_filled(compiled, tmp_path):
  path = write_lines(tmp_path / "rows.jsonl", [{"sentence": "a b c"}] * 31)
  _, _, settings, tokenizer = compiled.found["classification"]
  examples = pipeline.read_examples(str(path), settings, tokenizer)
  shape = BatchShape(ROW, batch_size=4)
  chunks = list(pipeline.pack_examples(examples, SCHEMA, shape=shape, chunk_size=24))
  assert [len(chunk.examples) for chunk in chunks] == [24, 7]
  assert [chunk.num_packs for chunk in chunks] == [6, 2]  # four sentences of 5 tokens a row
  shapes = {b["cls_positions"].shape for chunk in chunks for b in chunk.batches()}
  assert shapes == {(4, ROW // 4)}


# ---- the command ------------------------------------------------------------------------


def test_lines_of_standard_input_are_answered_in_their_order(folders, answer):
  lines = ["a b c", "", "d ?", "e . f g", "a " * 90]
  status, found, errors = answer(folders / "classification", typed="\n".join(lines))
  assert status == 0
  assert [one["id"] for one in found] == ["0", "1", "2", "3", "4"]
  lines[-1] = "a " * (ROW - 2)  # long lines are cut
  for one, line in zip(found, lines, strict=True):
    expected = probabilities_alone(line)
    assert one["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert one["label"] == max(expected, key=expected.get)
  assert "answered 5 examples" in errors
  assert errors.endswith(f"cut 1 of them: longer than --max-sequence-length {ROW}\n")
  assert "cut" not in answer(folders / "classification", typed=lines[-1])[2]


def test_an_empty_input_has_no_answers(folders, answer, tmp_path):
  status, found, errors = answer(folders / "classification", typed="")
  assert (status, found) == (0, [])
  assert "answered 0 examples" in errors


def test_windows_make_one_answer_and_an_empty_context_an_empty_one(folders, answer):
  rows = [
    {"id": "long", "question": "a ?", "context": "b c d e f g h i j " * 5},
    {"id": "none", "question": "a ?", "context": " "},
    {"id": "short", "question": "a b c d e ?", "context": "c"},  # a token too long
  ]
  typed = "\n\n".join(map(json.dumps, rows))
  limit = ("--max-answer-length", "1")
  status, found, errors = answer(folders / "squad", *SQUAD, *limit, typed=typed)
  assert status == 0, errors
  assert [one["id"] for one in found] == ["long", "none", "short"]
  assert all(len(best["text"].split()) == 1 for best in found[0]["n_best"])
  assert (found[1]["answer"], found[1]["n_best"]) == ("", [])
  assert found[2]["answer"] == "c"
  assert errors.endswith("cut 1 of them: longer than --max-question-length 5\n")


def test_an_exported_directory_gives_the_same_answers(folders, answer, tmp_path):
  config, params = model_of("classification")
  vocabulary = weights.Vocabulary(tuple(VOCABULARY))
  for name, labels in (("named", LABELS), ("unnamed", ())):
    hf.export_bert(config, params, tmp_path / name, vocabulary=vocabulary, labels=labels)
  path = write_lines(tmp_path / "rows.jsonl", [{"text": "a b", "key": "x"}])
  options = "--input", path, "--columns", "sentence=text,id=key"
  (ours,) = answer(folders / "classification", *options)[1]
  (named,) = answer(tmp_path / "named", *options)[1]
  assert named == ours | {"id": "x"}
  (unnamed,) = answer(tmp_path / "unnamed", *options)[1]
  assert list(unnamed["probabilities"]) == ["LABEL_0", "LABEL_1", "LABEL_2"]
  assert list(unnamed["probabilities"].values()) == list(ours["probabilities"].values())


def make_run(folder, source):
  """A run as train.py leaves it; the second of three checkpoints is the best."""
  make_folder(folder, "classification", labels=LABELS, steps=(3, 5, 7))
  config = base.get_config()
  config.data.task, config.data.labels = "classification", ",".join(LABELS)
  config.data.source, config.data.max_sequence_length = str(source), 11
  config.train.keep_best = True
  (folder / "config.json").write_text(json.dumps(config.to_dict()))
  (folder / "dataset.json").write_text("{}")
  scores = {3: 0.2, 5: 0.9, 7: 0.5}
  write_lines(
    folder / "eval.jsonl", [{"step": n, "score": score} for n, score in scores.items()]
  )
  return folder


def test_a_run_answers_with_its_best_checkpoint_and_its_own_task(answer, tmp_path):
  run = make_run(tmp_path / "run", tmp_path / "gone.jsonl")
  status, best, errors = answer(run, typed="a " * 20)
  assert status == 0, errors
  assert best == answer(run, "--step", "5", typed="a " * 9)[1]  # 11 tokens, as in training
  assert best == answer(run, "--step", "best", typed="a " * 9)[1]
  assert best != answer(run, "--step", "7", typed="a " * 9)[1]
  (run / "eval.jsonl").unlink()
  assert answer(run, typed="a " * 9)[1] == answer(run, "--step=7", typed="a " * 9)[1]


def test_answers_go_to_a_file_whole_or_not_at_all(folders, answer, tmp_path):
  rows = [{"sentence": "a b"}, {"sentence": "c"}]
  source = write_lines(tmp_path / "rows.jsonl", rows)
  options = folders / "regression", "--input", source
  _, printed, _ = answer(*options)
  status, nothing, errors = answer(*options, "--out", tmp_path / "out.jsonl")
  assert (status, nothing) == (0, [])
  assert f"wrote {tmp_path / 'out.jsonl'}" in errors
  assert programs.lines_of(tmp_path / "out.jsonl") == printed
  source.write_text(source.read_text() + '{"sentence": \n')
  status, nothing, errors = answer(*options, "--out", tmp_path / "other.jsonl")
  assert (status, nothing) == (2, [])
  assert f"error: {source}, line 3 is not JSON" in errors
  assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def test_submissions_have_the_format_of_the_servers(folders, answer, tmp_path):
  rows = [{"sentence1": "a", "sentence2": text} for text in ("b", "c d", "e f g")]
  source = write_lines(tmp_path / "rows.jsonl", rows)
  task = folders / "regression", "--task", "glue/stsb", "--input", source
  _, printed, _ = answer(*task)
  status, nothing, errors = answer(*task, "--submission", tmp_path / "glue")
  assert (status, nothing) == (0, [])
  assert str(tmp_path / "glue" / "STS-B.tsv") in errors
  lines = (tmp_path / "glue" / "STS-B.tsv").read_text().splitlines()
  values = [f"{min(max(one['value'], 0.0), 5.0):.4f}" for one in printed]
  assert lines == ["index\tprediction", *(f"{n}\t{v}" for n, v in enumerate(values))]

  rows = [{"id": "x", "question": "a ?", "context": "b c d"}]
  source = write_lines(tmp_path / "squad.jsonl", rows)
  squad = folders / "squad", *SQUAD, "--input", source
  ((found,), _), path = answer(*squad)[1:], tmp_path / "predictions.json"
  assert answer(*squad, "--submission", path)[0] == 0
  assert json.loads(path.read_text()) == {"x": found["answer"]}


@pytest.mark.parametrize(
  ("task", "options", "message"),
  [
    ("pretraining", (), "holds a BertForPreTraining, which answers nothing. Fine-tune it"),
    ("classification", ("--task", "squad"), "expected one of classification, "),
    ("classification", ("--task", "regression"), "gives 3 numbers a sequence"),
    ("classification", ("--task", "glue/mnli"), "the classes bad, so, good; glue/mnli has"),
    ("regression", ("--task", "classification"), "gives 1 number a sequence"),
    ("classification", ("--max-sequence-length", "24"), "expected at most 23, the positi"),
    ("classification", ("--batch-size", "0"), "batch_size is 0; expected at least 1"),
    ("classification", ("--max-sequences-per-pack", "0"), "expected at least 1"),
    ("classification", ("--step", "best"), "--step is 'best'; expected a number"),
    (
      "classification",
      ("--genres", "mismatched"),
      "mismatched needs --submission",
    ),
    ("classification", ("--submission", "x.tsv"), "'classification' has no server"),
    ("classification", ("--out", "/no/such/x"), "Cannot write '/no/such/x'"),
    ("classification", ("--attention-impl", "cudnn"), "attention_impl=cudnn needs"),
    ("squad", (), "doc_stride is 128"),
    ("nowhere", (), "Expected a Hugging Face directory"),
  ],
)
def test_a_mistake_is_one_line(folders, answer, task, options, message):
  status, found, errors = answer(folders / task, *options, typed="a b")
  assert (status, found) == (2, [])
  assert message in errors
  assert errors.count("\n") == 1


def test_an_unknown_option_is_one_line(folders, capsys):
  for options in (("--algorithm", "best"), ("--out", "a", "--submission", "b"), ("x",)):
    with pytest.raises(SystemExit) as error:
      predict.main([str(folders / "classification"), *options])
    assert error.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_model_without_isolation_needs_one_sequence_a_row(answer, tmp_path):
  make_folder(tmp_path / "m", "regression", attention_mask="none")
  status, _, errors = answer(tmp_path / "m", typed="a")
  assert status == 2
  assert "Give --algorithm none" in errors
  assert len(answer(tmp_path / "m", "--algorithm", "none", typed="a\nb")[1]) == 2


def test_weights_that_are_not_finite_are_reported(answer, tmp_path):
  config, params = model_of("regression")
  weights.save(tmp_path / "m", jax.tree.map(lambda x: x * np.nan, params))
  vocabulary = weights.Vocabulary(tuple(VOCABULARY))
  weights.describe(tmp_path / "m", config, head=HEADS["regression"], vocabulary=vocabulary)
  status, found, errors = answer(tmp_path / "m", typed="a")
  assert (status, found) == (2, [])
  assert "standard input, line 1 or an example after it is not finite" in errors


# ---- as a process -----------------------------------------------------------------------


def start(folders, *options):
  return subprocess.Popen(
    [sys.executable, programs.ROOT / "predict.py", folders / "classification", *options],
    env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"},  # no word of other tests
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_a_reader_may_leave_early(folders, tmp_path):
  path = tmp_path / "many.txt"
  path.write_text("a b c d\n" * 9000)
  with start(folders, "--input", path) as process:
    assert json.loads(process.stdout.readline())["id"] == "0"
    process.stdout.close()
    errors = process.stderr.read()
  assert process.returncode == 1
  assert not any(word in errors for word in ("Traceback", "rror", "Broken"))


def test_an_interrupt_is_one_line(folders):
  with start(folders) as process:
    process.stdin.write("a\n")
    process.stdin.flush()
    process.stderr.read(len("answering"))  # and it waits for more
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
  assert process.returncode == 130
  assert errors.endswith("interrupted\n")
  assert "Traceback" not in errors
