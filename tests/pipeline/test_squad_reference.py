"""Windows and answers of real questions, held against transformers and BERT's own rule.

`compare_squad` does the same for every question, and for the logits of packed windows.
"""

import collections

import pytest

from pipeline.tokenizer import Tokenizer
from tests import shared_data
from tests.pipeline import compare_squad
from tests.pipeline.squad_reference import FOLDER


@pytest.fixture(scope="module")
def data():
  shared_data.needed("bert-base-uncased-vocab.txt")
  return shared_data.needed("squad/xquad.en.json").parents[1]


@pytest.fixture(scope="module")
def compared(data):
  return list(compare_squad.compare(FOLDER, data))


@pytest.fixture(scope="module")
def found(compared, data):
  """What is not equal, by the name of the check."""
  tokenizer = Tokenizer(data / "bert-base-uncased-vocab.txt")
  found = collections.defaultdict(list)
  for one in compared:
    for name, text in compare_squad.differences(one, tokenizer):
      found[name].append(text)
  assert found.keys() <= set(compare_squad.CHECKS)
  return found


def test_the_questions_have_several_windows_with_and_without_their_answers(compared):
  assert all(len(one.windows) > 1 for one in compared)
  labels = [window["end_position"] > 0 for one in compared for window in one.windows]
  assert len(compared) >= 45
  assert min(sum(labels), len(labels) - sum(labels)) > 50


@pytest.mark.parametrize("how", ["fast", "legacy"])
def test_windows_and_labels_are_those_of_transformers(found, how):
  """The fast tokenizer's by run_qa.py, and the port of run_squad.py."""
  assert not found[f"{how} windows"]
  assert not found[f"{how} labels"]


def test_the_n_best_are_those_of_bert(found):
  """Of all 20 the texts and scores by plain loops, and the best score by transformers."""
  assert not found["n best, by BERT's rule"]
  assert not found["best score"]


def test_answers_differ_from_transformers_only_where_it_loses_them_in_the_text(found):
  """Texts as they are aligned there, and the scores of all 20, are equal."""
  assert not found["n best, aligned as there"]
  assert len(found["best answer"]) <= 1


def test_the_pipeline_follows_from_our_windows_and_its_own_rule(found, compared):
  """It normalises each window by itself and adds up equal texts; so it may differ."""
  assert not found["pipeline, by its rule"]
  assert not found["pipeline, whole words, by its rule"]
  assert 0 < len(found["pipeline"]) < len(compared) / 2
