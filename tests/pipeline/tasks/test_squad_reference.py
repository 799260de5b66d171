"""Windows and answers of real questions, compared with transformers and BERT's own rule.

`compare_squad` does the same for every question, and for the logits of packed windows.
"""

import numpy as np
import pytest

from pipeline.tokenizer import Tokenizer
from tests import shared_data
from tests.pipeline import compare_squad
from tests.pipeline.squad_reference import FOLDER, SETTINGS

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def data():
  shared_data.needed("bert-base-uncased-vocab.txt")
  return shared_data.needed("squad/xquad.en.json").parents[1]


@pytest.fixture(scope="module")
def compared(data):
  return list(compare_squad.compare(FOLDER, data))


@pytest.fixture(scope="module")
def tokenizer(data):
  return Tokenizer(data / "bert-base-uncased-vocab.txt")


@pytest.fixture(scope="module")
def found(compared, tokenizer):
  """Differences, by the name of the check."""
  return compare_squad.by_check(compared, tokenizer)


def test_the_questions_have_what_may_go_wrong(compared):
  """Several windows, with the answer and without; questions of the greatest length."""
  windows = [window for one in compared for window in one.windows]
  assert sum(len(one.windows) > 1 for one in compared) >= 41
  labels = [window["end_position"] > 0 for window in windows]
  assert min(sum(labels), len(labels) - sum(labels)) > 50
  questions = [one.windows[0]["first_type_length"] - 2 for one in compared]
  assert questions.count(SETTINGS["128"][2]) >= 9


@pytest.mark.parametrize("how", ["fast", "legacy"])
def test_windows_and_labels_are_those_of_transformers(found, how):
  """The fast tokenizer's by run_qa.py, and the port of run_squad.py."""
  assert not found[f"{how} windows"]
  assert not found[f"{how} labels"]


def test_the_n_best_are_those_of_bert(found):
  """Of all 20 the texts and scores by plain loops, and the best score by transformers."""
  assert not found["n best, by BERT's rule"]
  assert not found["best score"]


def test_equal_logits_and_spans_from_the_question_decode_as_in_bert(compared, tokenizer):
  rng = np.random.default_rng(0)
  for one in compared[::7]:
    logits = [rng.standard_normal(both.shape).round(1) for both in one.expected.logits]
    noise = one._replace(expected=one.expected._replace(logits=logits))
    expected = compare_squad.by_bert_rule(noise, tokenizer, alignment="exact")
    best = compare_squad.decode(one.windows, logits)
    assert expected
    assert [(answer.text, answer.score) for answer in best] == expected


def test_answers_differ_from_transformers_only_where_it_loses_them_in_the_text(
  found, compared
):
  """Then it gives whole words; with these its texts, and the scores of all 20, are ours."""
  assert not found["n best, aligned as there"]
  assert len(found["best answer"]) < len(compared) / 10
  for one in compared:
    assert one.best[0].text in one.expected.answers["bert"]["text"]


def test_the_pipeline_follows_from_our_windows_and_its_own_rule(found, compared):
  """It normalises each window by itself and adds up equal texts; so it may differ."""
  assert not found["pipeline, by its rule"]
  assert not found["pipeline, whole words, by its rule"]
  assert 0 < len(found["pipeline"]) < len(compared) / 2
