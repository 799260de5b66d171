"""Answers from outputs, and in the formats of the benchmarks' servers."""

import json

import numpy as np
import pytest

import pipeline
from packing import InputError
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
  names = ("no", "so", "yes")
  found = list(pipeline.answer("glue/mnli", examples(2), logits, label_names=names))
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
    ("glue/cola", [[np.zeros(3)]], "ab", "Example 0: the output is .*; expected 2 finite"),
    ("glue/cola", [[np.array([0, np.nan])]], "ab", "expected 2 finite numbers"),
    ("glue/cola", [[]], "ab", "Expected 1 outputs for example 0"),
    ("glue/cola", [[np.zeros(2)]], "", "names of at least two classes"),
    ("regression", [[np.zeros(2)]], "", "expected 1 finite numbers"),
    ("regression", [], "", "shorter|longer"),
    ("text", [[np.zeros(2)]], "", "'text' has no answers"),
  ],
)
def test_invalid_outputs_are_refused(task, outputs, names, message):
  with pytest.raises(ValueError, match=message):
    list(pipeline.answer(task, examples(1), outputs, label_names=tuple(names)))


@pytest.mark.extra
def test_answers_to_real_questions_have_the_score_of_the_store(tmp_path):
  """With random logits, the file for the server has the score that `score` gives."""
  path = shared_data.needed("squad/xquad.en.json")
  whole = json.loads(path.read_text())["data"]
  part = [{"paragraphs": article["paragraphs"][:1]} for article in whole[:7]]
  expected = {
    question["id"]: [answer["text"] for answer in question["answers"]]
    for article in part
    for question in article["paragraphs"][0]["qas"]
  }
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
  places = zip(outputs, store.answer_starts, store.answer_ends, strict=True)
  for output, start, end in places:
    if end and rng.random() < 0.5:
      output[[start, end], [0, 1]] += 9
  left = iter(outputs)
  of_examples = [[next(left) for _ in example.sequences] for example in found]
  assert next(left, None) is None
  answers = list(pipeline.answer("squad", found, of_examples))
  empty = [answer for answer in answers if answer["id"] == "none"]
  assert empty == [{"id": "none", "answer": "", "probability": 0.0, "n_best": []}]
  files = pipeline.write_submission(tmp_path / "out", "squad", answers)
  assert [file.name for file in files] == ["predictions.json", "nbest_predictions.json"]
  predictions, n_best = (json.loads(file.read_text()) for file in files)
  assert predictions.keys() == n_best.keys() == expected.keys() | {"none"}
  scored = pipeline.score("squad", store, outputs)
  for name, measure in (("f1", scores.answer_f1), ("exact_match", scores.exact_match)):
    values = [measure(predictions[number], expected[number]) for number in expected]
    assert scored[name] == pytest.approx(np.mean(values)), name
  assert 0.1 < scored["exact_match"] < scored["f1"] < 0.9
  for number in expected:
    assert n_best[number][0]["text"] == predictions[number]
    assert sum(best["probability"] for best in n_best[number]) == pytest.approx(1)


def test_a_start_with_more_context_in_another_window_is_skipped():
  """If the likeliest start of a window is not usable, the next one gives the score."""
  tokens, places = [2, 9, 3, 5, 6, 7, 3], ([0, 2, 4], [1, 3, 5])
  windows = [
    squad.Window(tokens, 3, 0, 0, 0, "q", "a b c", *places, start, ["c"])
    for start in (0, 2)
  ]
  store = SequenceStore.from_sequences(windows, TASKS["squad"].schema)
  outputs = [np.zeros((7, 2)), np.zeros((7, 2))]
  outputs[1][3, 0] = 9  # token 2 is the first window's, which comes first
  outputs[0][4] = 3  # "b"
  outputs[1][5] = 4  # "c", by the window that is left
  assert pipeline.score("squad", store, outputs)["exact_match"] == 1


# ---- submissions -----------------------------------------------------------------------


def classes(*labels):
  return [{"id": str(n), "label": label} for n, label in enumerate(labels)]


SIMILARITIES = [{"id": str(n), "value": v} for n, v in enumerate((-1.0, 2.34567, 7.0))]
FILES = {
  "cola": (classes("acceptable", "unacceptable"), "CoLA", "1 0"),
  "sst2": (classes("negative"), "SST-2", "0"),
  "mrpc": (classes("equivalent"), "MRPC", "1"),
  "qqp": (classes("not_duplicate"), "QQP", "0"),
  "wnli": (classes("entailment"), "WNLI", "1"),
  "rte": (classes("entailment", "not_entailment"), "RTE", "entailment not_entailment"),
  "qnli": (classes("not_entailment"), "QNLI", "not_entailment"),
  "mnli": (classes("neutral", "entailment"), "MNLI-m", "neutral entailment"),
  "stsb": (SIMILARITIES, "STS-B", "0.0000 2.3457 5.0000"),
}


@pytest.mark.parametrize("task", [name for name in TASKS if name.startswith("glue/")])
def test_each_task_of_glue_has_its_file_in_the_order_of_the_index(tmp_path, task):
  answers, name, values = FILES[task.removeprefix("glue/")]
  folder = tmp_path / "a" / "b"
  (file,) = pipeline.write_submission(folder, task, iter(answers[::-1]))
  assert file == folder / f"{name}.tsv"
  rows = [f"{index}\t{value}" for index, value in enumerate(values.split())]
  assert file.read_text().splitlines() == ["index\tprediction", *rows]
  assert [path.name for path in folder.iterdir()] == [file.name]


def test_the_index_is_a_number_and_a_file_may_have_another_name(tmp_path):
  answers = classes(*["neutral", "entailment"] * 6)
  (file,) = pipeline.write_submission(tmp_path, "glue/mnli", answers, genres="mismatched")
  assert file.name == "MNLI-mm.tsv"
  found = [line.split("\t")[0] for line in file.read_text().splitlines()[1:]]
  assert found == [str(number) for number in range(12)]
  (file,) = pipeline.write_submission(tmp_path / "AX.tsv", "glue/mnli", answers)
  assert file == tmp_path / "AX.tsv"


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
def test_invalid_submissions_leave_the_old_file(tmp_path, task, answers, message):
  before = {"CoLA.tsv": "old", "STS-B.tsv": "old", "predictions.json": "old"}
  for name, text in before.items():
    (tmp_path / name).write_text(text)
  with pytest.raises(InputError, match=message):
    pipeline.write_submission(tmp_path, task, answers)
  assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_only_mnli_has_genres_and_a_file_is_no_folder(tmp_path):
  (tmp_path / "file").write_text("old")
  for path, task, genres, message in (
    (tmp_path, "glue/cola", "mismatched", "genres is 'mismatched' for glue/cola"),
    (tmp_path, "glue/mnli", "both", "genres is 'both' for glue/mnli"),
    (tmp_path / "file", "glue/cola", "matched", r"Cannot write to .*file"),
  ):
    with pytest.raises(InputError, match=message):
      pipeline.write_submission(path, task, [ACCEPTABLE], genres=genres)
