"""Windows of questions and decoded answers, compared with plain loops and counts."""

import numpy as np
import pytest

import pipeline
from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.tasks import squad
from pipeline.tasks.table import TASKS
from tests import shared_data
from tests.pipeline.tasks.making import CLS, ID, SEP, VOCABULARY, make

CONTEXT = "A bc, d efg. H (ij) abc d; ef gh i j."


def question(answer, *, start=None, context=CONTEXT, asked="yes no?"):
  start = context.index(answer) if start is None else start
  answers = {"text": [answer], "answer_start": [start]}
  return {"id": answer, "question": asked, "context": context, "answers": answers}


def windows_of(dataset):
  return list(dataset.train.records())


def test_squad_windows_cover_the_context_and_hold_the_answer(tmp_path, vocab_file):
  answers = ["bc", "efg", "(ij)", "A bc, d efg. H (ij) abc d; ef gh i j.", "ef gh", "j."]
  dataset = make(
    tmp_path,
    vocab_file,
    "squad",
    [question(answer) for answer in answers],
    max_sequence_length=17,
    max_question_length=3,
    doc_stride=5,
  )
  found = windows_of(dataset)
  for answer in answers:
    mine = [window for window in found if window["example_id"] == answer]
    assert [w["window_start"] for w in mine] == list(range(0, 5 * len(mine), 5))
    assert mine[-1]["window_start"] + len(mine[-1]["token_starts"]) == 26
    holding = 0
    for window in mine:
      ids = window["input_ids"]
      assert len(ids) <= 17
      assert ids[:5] == [CLS, ID["yes"], ID["no"], ID["?"], SEP]
      assert ids[-1] == SEP
      assert window["first_type_length"] == 5
      pieces = zip(window["token_starts"], window["token_ends"], strict=True)
      assert [len(window["text"][i:j]) for i, j in pieces] == [
        len(VOCABULARY[t].removeprefix("##")) if t != ID["[UNK]"] else 1 for t in ids[5:-1]
      ]
      start, end = window["start_position"], window["end_position"]
      if end:
        holding += 1
        i, j = window["token_starts"][start - 5], window["token_ends"][end - 5]
        assert window["text"][i:j] == answer
      assert window["answers"] == [answer]
    assert (holding > 0) == (len(answer) < 20)
  assert dataset.manifest["counts"]["train"]["windows_without_answer"] > 0


@pytest.mark.parametrize(
  ("answer", "places"),
  [
    ("e", [(9, 9), (0, 0)]),  # the last token of the first window
    ("d e", [(8, 9), (0, 0)]),
    ("e f", [(0, 0), (0, 0)]),  # on both sides of its end
    ("f", [(0, 0), (5, 5)]),  # the first token after it
    ("j", [(0, 0), (9, 9)]),
  ],
)
def test_an_answer_may_end_with_its_window(tmp_path, vocab_file, answer, places):
  dataset = make(
    tmp_path,
    vocab_file,
    "squad",
    [question(answer, context="a b c d e f g h i j")],
    max_sequence_length=11,
    max_question_length=3,
    doc_stride=5,
  )
  found = windows_of(dataset)
  assert [w["text"] for w in found] == ["a b c d e", "f g h i j"]
  assert [(w["start_position"], w["end_position"]) for w in found] == places


@pytest.mark.extra
def test_windows_of_real_questions_agree_with_an_independent_count(tmp_path):
  """The figures of the data folder's README, for windows that start 128 tokens later."""
  source = shared_data.needed("squad/xquad.en.json")
  vocabulary = shared_data.needed("bert-base-uncased-vocab.txt")
  dataset = prepare(
    tmp_path / "out",
    DatasetSettings(str(source), 384, task="squad", vocab_file=str(vocabulary)),
  )
  store = dataset.train
  assert len(store) == 1232
  assert store.lengths.sum() == 225_824
  assert (store.lengths == 384).sum() == 42
  # Perfect logits decode to the answer, for all questions, through all windows.
  windows: dict = {}
  for window in windows_of(dataset):
    windows.setdefault(window["example_id"], []).append(window)
  assert len(windows) == 1190
  for mine in windows.values():
    logits = []
    for place in ("start_position", "end_position"):
      logits.append([np.zeros(len(w["input_ids"])) for w in mine])
      for window, row in zip(mine, logits[-1], strict=True):
        row[window[place]] = 9.0 * (window[place] > 0)
    best = squad.n_best(mine, *logits, max_answer_length=50)[0]
    expected = mine[0]["answers"][0]
    # An answer may end inside a token, such as "Panther" in "Panthers".
    assert expected in best.text
    assert len(best.text) <= len(expected) + 12


def brute_force(windows, starts, ends, max_answer_length):
  """All spans of all windows; a span starts only in the window with the most context."""
  found: dict[str, float] = {}
  for number, window in enumerate(windows):
    count, first = len(window["token_starts"]), window["first_type_length"]
    for i in range(count):
      token = window["window_start"] + i
      context = [
        min(
          token - w["window_start"], w["window_start"] + len(w["token_starts"]) - 1 - token
        )
        + 0.01 * len(w["token_starts"])
        if 0 <= token - w["window_start"] < len(w["token_starts"])
        else -1
        for w in windows
      ]
      if int(np.argmax(context)) != number:
        continue
      for j in range(i, min(count, i + max_answer_length)):
        text = window["text"][window["token_starts"][i] : window["token_ends"][j]]
        score = starts[number][first + i] + ends[number][first + j]
        found[text] = max(score, found.get(text, -np.inf))
  return sorted(found.items(), key=lambda item: -item[1])


def test_a_much_longer_window_outweighs_one_more_token_of_context():
  spans = [(0, 300), (278, 100)]  # as BERT has it, 200 tokens count as 2 of context
  assert squad._widest(spans, 289) == 0  # 10 to its end; 11 after the second's start
  assert squad._widest(spans, 290) == 1  # 9 and 12


@pytest.mark.parametrize("seed", range(7))
def test_the_n_best_are_the_best_of_all_spans(tmp_path, vocab_file, seed):
  dataset = make(
    tmp_path,
    vocab_file,
    "squad",
    [question("bc")],
    max_sequence_length=17,
    max_question_length=3,
    doc_stride=5,
  )
  windows = windows_of(dataset)
  assert len(windows) > 3
  rng = np.random.default_rng(seed)
  starts, ends = (
    [rng.standard_normal(len(w["input_ids"])) for w in windows] for _ in range(2)
  )
  found = squad.n_best(windows, starts, ends, num_answers=100, max_answer_length=4)
  expected = brute_force(windows, starts, ends, 4)
  assert [answer.text for answer in found] == [text for text, _ in expected[:100]]
  assert [a.score for a in found] == pytest.approx([score for _, score in expected[:100]])
  assert sum(a.probability for a in found) == pytest.approx(1)
  ratio = np.exp(found[1].score - found[0].score)
  assert found[1].probability / found[0].probability == pytest.approx(ratio)


@pytest.mark.parametrize(
  ("row", "message"),
  [
    (question("bc", start=3), r"expected the answer 'bc' at character 3.*found 'c,'"),
    (question("", start=0), r"the answer is ''; expected words of the context"),
    (question("bc") | {"answers": "bc"}, r"answers is 'bc'; expected"),
    (question("bc") | {"context": 3}, r"context is 3; expected a text"),
  ],
)
def test_invalid_questions_are_refused(tmp_path, vocab_file, row, message):
  with pytest.raises(InputError, match=message):
    make(tmp_path, vocab_file, "squad", [row], doc_stride=5, max_question_length=3)


def test_windows_that_would_leave_tokens_out_are_refused(tmp_path, vocab_file):
  with pytest.raises(InputError, match=r"doc_stride is 11; a question of 3 tokens leaves"):
    make(
      tmp_path, vocab_file, "squad", [question("bc")], doc_stride=11, max_question_length=3
    )


def test_squad_is_scored_by_the_best_answer_over_all_windows(tmp_path, vocab_file):
  rows = [question("bc"), question("(ij)"), question("d") | {"context": "  "}]
  rows[2]["answers"] = {"text": [], "answer_start": []}
  rows[1]["answers"]["text"].append("the E F G")  # a second answer
  dataset = make(
    tmp_path,
    vocab_file,
    "squad",
    rows,
    max_sequence_length=17,
    max_question_length=3,
    doc_stride=5,
  )
  assert dataset.manifest["counts"]["train"]["empty_contexts"] == 1
  windows = windows_of(dataset)
  outputs = [np.zeros((len(w["input_ids"]), 2), np.float32) for w in windows]
  for window, output in zip(windows, outputs, strict=True):
    if window["example_id"] == "bc":
      output[window["start_position"], 0] = output[window["end_position"], 1] = 5
    elif window["window_start"] == 0:
      first = window["text"].index("efg")  # d and e, f, g: three words and one
      token = window["token_starts"].index(first) + window["first_type_length"]
      output[token, 0] = output[token + 2, 1] = 7
  found = pipeline.score("squad", dataset.train, outputs)
  # The second answer is three words, "efg" is one other.
  assert found == {"score": 0.5, "exact_match": 0.5, "f1": 0.5}
  rows[1]["answers"]["text"][1] = "efg xyz"  # of two words one is found: 2 / (1 + 2)
  store = pipeline.SequenceStore.from_sequences(
    [
      tuple((row | {"answers": ["efg xyz"]}).values())
      for row in windows[len(windows) // 2 :]
    ],
    TASKS["squad"].schema,
  )
  found = pipeline.score("squad", store, outputs[len(windows) // 2 :])
  assert found == pytest.approx({"score": 2 / 3, "exact_match": 0, "f1": 2 / 3})
  with pytest.raises(ValueError, match=r"window of question \(ij\) has the shape \(17,\)"):
    pipeline.score("squad", store, [o[:, 0] for o in outputs[len(windows) // 2 :]])
