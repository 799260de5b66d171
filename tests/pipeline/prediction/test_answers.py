"""Answers from outputs, and in the formats of the benchmarks' servers."""

import json

import numpy as np
import pytest

import pipeline
from packing import InputError
from pipeline.prediction.examples import Example
from pipeline.store import SequenceStore, StoredSequence
from pipeline.tasks import squad
from pipeline.tasks.table import TASKS
from tests.prepared import contents


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


def test_windows_make_one_answer_with_the_score_of_the_store(tmp_path):
  """If the likeliest start of a window is not usable, the next one gives the score."""
  tokens, places = [2, 9, 3, 5, 6, 7, 3], ([0, 2, 4], [1, 3, 5])
  windows = [
    squad.Window(tokens, 3, 0, 0, 0, "q", "a b c", *places, start, ["c"])
    for start in (0, 2)
  ]
  outputs = [np.zeros((7, 2)), np.zeros((7, 2))]
  outputs[1][3, 0] = 9  # token 2 is the first window's, which comes first
  outputs[0][4] = 3  # "b"
  outputs[1][5] = 4  # "c", by the window that is left
  store = SequenceStore.from_sequences(windows, TASKS["squad"].schema)
  assert pipeline.score("squad", store, outputs)["exact_match"] == 1
  asked = [Example("q", windows, ""), Example("none", [], "")]
  answers = list(pipeline.answer("squad", asked, [outputs, []]))
  assert answers[1] == {"id": "none", "answer": "", "probability": 0.0, "n_best": []}
  files = pipeline.write_submission(tmp_path / "out", "squad", answers)
  assert [file.name for file in files] == ["predictions.json", "nbest_predictions.json"]
  predictions, n_best = (json.loads(file.read_text()) for file in files)
  assert predictions == {"q": "c", "none": ""}
  assert n_best["q"][0]["text"] == "c"
  assert sum(best["probability"] for best in n_best["q"]) == pytest.approx(1)


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


def test_the_index_is_a_number_and_files_may_have_other_names(tmp_path):
  answers = classes(*["neutral"] * 12)
  (file,) = pipeline.write_submission(tmp_path, "glue/mnli", answers, genres="mismatched")
  assert file.name == "MNLI-mm.tsv"
  found = [line.split("\t")[0] for line in file.read_text().splitlines()[1:]]
  assert found == [str(number) for number in range(12)]
  named = tmp_path / "AX.tsv"
  assert pipeline.write_submission(named, "glue/mnli", answers) == [named]


ACCEPTABLE = {"id": "0", "label": "acceptable"}


@pytest.mark.parametrize(
  ("task", "answers", "message"),
  [
    ("glue/cola", [], "no answer with the index 0"),
    ("glue/cola", [ACCEPTABLE, ACCEPTABLE | {"id": "2"}], "no answer with the index 1"),
    ("glue/cola", [ACCEPTABLE, ACCEPTABLE], "The index 0 occurs twice"),
    ("glue/cola", [ACCEPTABLE | {"id": "x1"}], "The id 'x1' is not an index of GLUE"),
    ("glue/cola", [ACCEPTABLE | {"id": "01"}], "The id '01' is not an index"),
    ("glue/cola", [ACCEPTABLE | {"id": "1" * 5000}], "is not an index of GLUE"),
    ("glue/cola", [ACCEPTABLE | {"label": "yes"}], "label 'yes'; expected one of unacce"),
    ("glue/stsb", [ACCEPTABLE], "the value None; expected a number"),
    ("squad", [ACCEPTABLE], "expected the answer to a question"),
    ("squad", [], "There are no answers"),
    ("squad", [{"id": "q", "answer": "", "n_best": []}] * 2, "The id q occurs twice"),
    ("classification", [ACCEPTABLE], "'classification' has no evaluation server"),
  ],
)
def test_invalid_submissions_leave_the_old_file(tmp_path, task, answers, message):
  names = {"CoLA.tsv", "STS-B.tsv", "predictions.json"}
  for name in names:
    (tmp_path / name).write_text("old")
  with pytest.raises(InputError, match=message):
    pipeline.write_submission(tmp_path, task, answers)
  assert contents(tmp_path) == dict.fromkeys(names, b"old")


def test_only_mnli_has_genres_and_a_file_is_no_folder(tmp_path):
  (tmp_path / "file").write_text("old")
  for path, task, genres, message in (
    (tmp_path, "glue/cola", "mismatched", "genres is 'mismatched' for glue/cola"),
    (tmp_path, "glue/mnli", "both", "genres is 'both' for glue/mnli"),
    (tmp_path / "file", "glue/cola", "matched", r"Cannot write to .*file"),
  ):
    with pytest.raises(InputError, match=message):
      pipeline.write_submission(path, task, [ACCEPTABLE], genres=genres)
