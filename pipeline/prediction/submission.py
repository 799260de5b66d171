"""Answers in the formats of the GLUE and SQuAD servers."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable

from packing import InputError
from packing.errors import short_repr
from packing.files import check_writable, write_text
from pipeline.tasks import glue

MATCHED, MISMATCHED = "matched", "mismatched"
_FILES = {
  "cola": "CoLA.tsv",
  "sst2": "SST-2.tsv",
  "mrpc": "MRPC.tsv",
  "stsb": "STS-B.tsv",
  "qqp": "QQP.tsv",
  "mnli": "MNLI-m.tsv",
  "qnli": "QNLI.tsv",
  "rte": "RTE.tsv",
  "wnli": "WNLI.tsv",
}
_WITH_NAMES = "mnli", "qnli", "rte"  # the others take the number of the class
_MAX_SIMILARITY = 5.0  # of STS-B


def write_submission(
  path: str | pathlib.Path, task: str, answers: Iterable[dict], *, genres: str = MATCHED
) -> list[pathlib.Path]:
  """Writes answers in the benchmark's format; files are complete or absent.

  GLUE: `index` and `prediction` separated by a tab, in the order of the index. SQuAD:
  `predictions.json`, texts by id, and beside it `nbest_predictions.json`.

  Args:
    path: a file that ends in .tsv, or .json for squad; or a folder, created if it is
      missing, where the file gets the name that the server expects.
    task: "squad" or "glue/NAME".
    answers: from `pipeline.answer`; for GLUE in any order, such as that of TFDS.
    genres: which of MNLI's test sets, "matched" or "mismatched"; names the file in a
      folder.

  Returns:
    The files that were written.

  Raises:
    InputError: the task has no server; the answers are for another task; the ids are not
      those of a whole test set; or the file cannot be written.

  References:
    Wang et al., https://gluebenchmark.com/faq; Devlin et al., run_squad.py.
  """
  path = pathlib.Path(path)
  name = task.removeprefix("glue/")
  if task != "squad" and (name == task or name not in _FILES):
    known = ", ".join(f"glue/{name}" for name in _FILES)
    raise InputError(
      f"{short_repr(task)} has no evaluation server; expected squad, {known}. Leave "
      "--submission out."
    )
  if genres not in (MATCHED, MISMATCHED) or (genres == MISMATCHED and name != "mnli"):
    raise InputError(
      f"genres is {short_repr(genres)} for {task}; expected {MATCHED}, or for glue/mnli "
      f"{MISMATCHED}."
    )
  if task == "squad":
    first = path if path.suffix == ".json" else _in_folder(path, "predictions.json")
    files = [first, first.with_name(f"nbest_{first.name}")]
  else:
    usual = "MNLI-mm.tsv" if genres == MISMATCHED else _FILES[name]
    files = [path if path.suffix == ".tsv" else _in_folder(path, usual)]
  for file in files:
    check_writable(file)
  texts = _squad(answers) if task == "squad" else [_glue(name, answers)]
  for file, text in zip(files, texts, strict=True):
    write_text(file, text)
  return files


def _in_folder(folder: pathlib.Path, name: str) -> pathlib.Path:
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error
  return folder / name


def _glue(name: str, answers: Iterable[dict]) -> str:
  by_index: dict[int, str] = {}
  for answer in answers:
    index = _index(answer["id"])
    if index in by_index:
      raise InputError(f"The index {index} occurs twice; expected each once.")
    by_index[index] = _prediction(name, answer)
  missing = next((n for n in range(len(by_index)) if n not in by_index), None)
  if missing is not None or not by_index:
    raise InputError(
      f"There is no answer with the index {missing or 0}; expected all from 0 to the last "
      "of the test set. Answer the whole test set."
    )
  lines = [f"{index}\t{by_index[index]}\n" for index in range(len(by_index))]
  return "".join(["index\tprediction\n", *lines])


def _index(text: str) -> int:
  if not re.fullmatch("0|[1-9][0-9]{0,17}", text):
    raise InputError(
      f"The id {short_repr(text)} is not an index of GLUE; expected a whole number from 0. "
      "Leave the ids out of the source to number the examples."
    )
  return int(text)


def _prediction(name: str, answer: dict) -> str:
  labels = glue.TASKS[name].labels
  if not labels:
    value = answer.get("value")
    if not isinstance(value, float):
      raise InputError(
        f"Answer {answer['id']} has the value {short_repr(value)}; expected a number."
      )
    return f"{min(max(value, 0.0), _MAX_SIMILARITY):.4f}"
  label = answer.get("label")
  if label not in labels:
    raise InputError(
      f"Answer {answer['id']} has the label {short_repr(label)}; expected one of "
      f"{', '.join(labels)}."
    )
  return label if name in _WITH_NAMES else str(labels.index(label))


def _squad(answers: Iterable[dict]) -> list[str]:
  texts, n_best = {}, {}
  for answer in answers:
    if "n_best" not in answer:
      raise InputError(
        f"Answer {answer['id']} has no n_best; expected the answer to a question."
      )
    if answer["id"] in texts:
      raise InputError(f"The id {answer['id']} occurs twice; expected each once.")
    texts[answer["id"]] = answer["answer"]
    n_best[answer["id"]] = answer["n_best"]
  if not texts:
    raise InputError("There are no answers; expected one to each question.")
  return [json.dumps(part, indent=1) + "\n" for part in (texts, n_best)]
