"""Answers from outputs, and in the formats of the benchmarks' servers."""

import json

import numpy as np
import pytest

import pipeline
from packing import InputError
from pipeline.prediction import submission
from pipeline.prediction.examples import Example, read_examples
from pipeline.settings import DatasetSettings
from pipeline.store import SequenceStore, StoredSequence
from pipeline.tasks import scores, squad
from pipeline.tasks.table import TASKS
from pipeline.tokenizer import Tokenizer
from tests import shared_data


def examples(count):
  row = StoredSequence([2, 3], 2, 0)
  return [Example(str(n), [row], f"line {n + 1}") for n in range(count)]


def test_classes_have_names_and_probabilities():
  logits = [[np.log([1.0, 2.0, 5.0])], [np.float32([1e4, -1e4, 0])]]
  found = list(
    pipeline.answer("glue/mnli", examples(2), logits, label_names=("no", "so", "yes"))
  )
  assert found[0] == {
    "id": "0",
    "label": "yes",
    "probabilities": pytest.approx({"no": 0.125, "so": 0.25, "yes": 0.625}),
  }
  assert found[1]["probabilities"] == {"no": 1, "so": 0, "yes": 0}
  assert json.loads(json.dumps(found)) == found


def test_a_regression_answers_a_number():
  found = list(pipeline.answer("glue/stsb", examples(1), [[np.array([2.5], np.float32)]]))
  assert found == [{"id": "0", "value": 2.5}]
  assert type(found[0]["value"]) is float


@pytest.mark.parametrize(
  ("task", "outputs", "names", "message"),
  [
    (
      "glue/cola",
      [[np.zeros(3)]],
      ("a", "b"),
      "Example 0: the output is .*; expected 2 finite",
    ),
    ("glue/cola", [[np.array([0, np.nan])]], ("a", "b"), "expected 2 finite numbers"),
    ("glue/cola", [[]], ("a", "b"), "Expected 1 outputs for example 0"),
    ("glue/cola", [[np.zeros(2)]], (), "names of at least two classes"),
    ("regression", [[np.zeros(2)]], (), "expected 1 finite numbers"),
    ("regression", [], (), "shorter|longer"),
    ("text", [[np.zeros(2)]], (), "'text' has no answers"),
  ],
)
def test_invalid_outputs_are_refused(task, outputs, names, message):
  with pytest.raises(ValueError, match=message):
    list(pipeline.answer(task, examples(1), outputs, label_names=names))


@pytest.mark.extra
def test_answers_to_real_questions_have_the_score_of_the_store(tmp_path):
  """With random logits, the file for the server has the score that `score` gives."""
  path = shared_data.needed("squad/xquad.en.json")
  whole = json.loads(path.read_text())["data"]
  part = [{"paragraphs": article["paragraphs"][:1]} for article in whole[:7]]
  part[0]["paragraphs"].append({"context": "", "qas": [{"id": "none", "question": "?"}]})
  source = tmp_path / "part.json"
  source.write_text(json.dumps({"data": part}))
  vocab_file = shared_data.needed("bert-base-uncased-vocab.txt")
  fields = {"task": "squad", "vocab_file": str(vocab_file), "doc_stride": 31}
  settings = DatasetSettings(str(source), 101, **fields)
  store = pipeline.prepare(tmp_path / "d", settings).train
  found = list(read_examples(str(source), settings, Tokenizer(vocab_file)))
  rng = np.random.default_rng(0)
  outputs = [rng.standard_normal((length, 2)) for length in store.lengths]
  for output, start, end in zip(
    outputs, store.answer_starts, store.answer_ends, strict=True
  ):
    if end and rng.random() < 0.5:
      output[start, 0] += 9
      output[end, 1] += 9
  left = iter(outputs)
  answers = list(
    pipeline.answer("squad", found, [[next(left) for _ in e.sequences] for e in found])
  )
  assert next(left, None) is None
  empty = [answer for answer in answers if answer["id"] == "none"]
  assert empty == [{"id": "none", "answer": "", "probability": 0.0, "n_best": []}]
  files = pipeline.write_submission(tmp_path / "out", "squad", answers)
  assert [file.name for file in files] == ["predictions.json", "nbest_predictions.json"]
  predictions = json.loads(files[0].read_text())
  n_best = json.loads(files[1].read_text())
  expected = {
    question["id"]: [answer["text"] for answer in question["answers"]]
    for article in part
    for paragraph in article["paragraphs"]
    for question in paragraph["qas"]
    if question["id"] != "none"
  }
  assert predictions.keys() == n_best.keys() == expected.keys() | {"none"}
  f1 = [scores.answer_f1(predictions[name], expected[name]) for name in expected]
  exact = [scores.exact_match(predictions[name], expected[name]) for name in expected]
  scored = pipeline.score("squad", store, outputs)
  assert scored["f1"] == pytest.approx(np.mean(f1))
  assert scored["exact_match"] == pytest.approx(np.mean(exact))
  assert 0.1 < scored["exact_match"] < scored["f1"] < 0.9
  for name in expected:
    assert n_best[name][0]["text"] == predictions[name]
    assert sum(best["probability"] for best in n_best[name]) == pytest.approx(1)


def test_a_start_with_more_context_in_another_window_is_skipped():
  """If the likeliest start of a window is not usable, the next one gives the score."""
  windows = [
    squad.Window([2, 9, 3, 5, 6, 7, 3], 3, 0, 0, 0, "q", "a b c", [0, 2, 4], [1, 3, 5],
                 start, ["c"])
    for start in (0, 2)
  ]  # fmt: skip
  store = SequenceStore.from_sequences(windows, TASKS["squad"].schema)
  outputs = [np.zeros((7, 2)), np.zeros((7, 2))]
  outputs[1][3, 0] = 9  # token 2 is the first window's, which comes first
  outputs[0][4] = 3  # "b"
  outputs[1][5] = 4  # "c", by the window that is left
  assert pipeline.score("squad", store, outputs)["exact_match"] == 1


# ---- submissions -----------------------------------------------------------------------


def classes(*labels):
  return [{"id": str(n), "label": label} for n, label in enumerate(labels)]


@pytest.mark.parametrize(
  ("task", "answers", "name", "lines"),
  [
    ("cola", classes("acceptable", "unacceptable"), "CoLA", ["0\t1", "1\t0"]),
    ("sst2", classes("negative"), "SST-2", ["0\t0"]),
    ("mrpc", classes("equivalent"), "MRPC", ["0\t1"]),
    ("qqp", classes("not_duplicate"), "QQP", ["0\t0"]),
    ("wnli", classes("entailment"), "WNLI", ["0\t1"]),
    ("rte", classes("entailment", "not_entailment"), "RTE",
     ["0\tentailment", "1\tnot_entailment"]),
    ("qnli", classes("not_entailment"), "QNLI", ["0\tnot_entailment"]),
    ("mnli", classes("neutral", "contradiction", "entailment"), "MNLI-m",
     ["0\tneutral", "1\tcontradiction", "2\tentailment"]),
    ("stsb", [{"id": str(n), "value": v} for n, v in enumerate((-1.0, 2.34567, 7.0))],
     "STS-B", ["0\t0.0000", "1\t2.3457", "2\t5.0000"]),
  ],
)  # fmt: skip
def test_files_of_glue(tmp_path, task, answers, name, lines):
  (file,) = pipeline.write_submission(tmp_path / "a" / "b", f"glue/{task}", answers)
  assert file == tmp_path / "a" / "b" / f"{name}.tsv"
  assert file.read_text().splitlines() == ["index\tprediction", *lines]
  assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_there_is_a_file_for_every_task_of_glue(tmp_path):
  assert {f"glue/{name}" for name in submission._FILES} == {
    name for name in TASKS if name.startswith("glue/")
  }
  answers = classes("neutral")[::-1]
  (file,) = pipeline.write_submission(tmp_path, "glue/mnli", answers, genres="mismatched")
  assert file.name == "MNLI-mm.tsv"
  (file,) = pipeline.write_submission(tmp_path / "AX.tsv", "glue/mnli", answers)
  assert file == tmp_path / "AX.tsv"


def test_answers_are_written_in_the_order_of_their_index(tmp_path):
  labels = ["acceptable", "unacceptable"] * 6
  answers = classes(*labels)[::-1]
  (file,) = pipeline.write_submission(tmp_path, "glue/cola", iter(answers))
  found = [line.split("\t") for line in file.read_text().splitlines()[1:]]
  assert found == [[str(n), str(1 - n % 2)] for n in range(12)]


ACCEPTABLE = {"id": "0", "label": "acceptable"}


@pytest.mark.parametrize(
  ("task", "answers", "message"),
  [
    ("glue/cola", [], "no answer with the index 0"),
    ("glue/cola", [ACCEPTABLE | {"id": "1"}], "no answer with the index 0"),
    ("glue/cola", [ACCEPTABLE, ACCEPTABLE | {"id": "2"}], "no answer with the index 1"),
    ("glue/cola", [ACCEPTABLE, ACCEPTABLE], "The index 0 comes twice"),
    ("glue/cola", [ACCEPTABLE | {"id": "x1"}], "The id 'x1' is not an index of GLUE"),
    ("glue/cola", [ACCEPTABLE | {"id": "-1"}], "The id '-1' is not an index"),
    ("glue/cola", [ACCEPTABLE | {"id": "01"}], "The id '01' is not an index"),
    ("glue/cola", [ACCEPTABLE | {"label": "yes"}], "label 'yes'; expected one of unacce"),
    ("glue/stsb", [ACCEPTABLE], "the value None; expected a number"),
    ("squad", [ACCEPTABLE], "is not to a question"),
    ("squad", [], "There are no answers"),
    ("squad", [{"id": "q", "answer": "", "n_best": []}] * 2, "The id q comes twice"),
    ("classification", [ACCEPTABLE], "'classification' has no server; expected squad, gl"),
    ("glue/ax", [ACCEPTABLE], "'glue/ax' has no server"),
  ],
)
def test_invalid_submissions_are_refused_and_the_old_file_stays(
  tmp_path, task, answers, message
):
  for name in ("CoLA.tsv", "STS-B.tsv", "predictions.json"):
    (tmp_path / name).write_text("old")
  with pytest.raises(InputError, match=message):
    pipeline.write_submission(tmp_path, task, answers)
  assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}
  assert len(list(tmp_path.iterdir())) == 3


def test_only_mnli_has_genres(tmp_path):
  for task, genres in (("glue/cola", "mismatched"), ("glue/mnli", "both")):
    with pytest.raises(InputError, match=rf"genres is '{genres}' for {task}"):
      pipeline.write_submission(tmp_path, task, [], genres=genres)
  (tmp_path / "file").write_text("old")
  with pytest.raises(InputError, match=r"Cannot write to .*file"):
    pipeline.write_submission(tmp_path / "file", "glue/cola", [ACCEPTABLE])
