"""Windows of questions and decoded answers, compared with plain loops and counts."""

import gzip
import itertools
import json

import numpy as np
import pytest

import pipeline
from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.sources import partitions, textfiles
from pipeline.tasks import registry, squad
from pipeline.tokenizer import Tokenizer
from tests.pipeline.tasks.making import CLS, ID, SEP, VOCABULARY
from tests.pipeline.tasks.test_squad_reference import by_bert_rule

CONTEXT = "A bc, d efg. H (ij) abc d; ef gh i j."


def question(answer, *, start=None, context=CONTEXT, asked="yes no?"):
  start = context.index(answer) if start is None else start
  answers = {"text": [answer], "answer_start": [start]}
  return {"id": answer, "question": asked, "context": context, "answers": answers}


@pytest.fixture
def ask(make, monkeypatch):
  """Prepares questions, with short windows; returns the dataset and the windows."""
  monkeypatch.setattr(squad, "limits", lambda _: (3, 5))

  def ask(*rows, length=17):
    dataset = make("squad", rows, max_sequence_length=length)
    return dataset, list(dataset.train.records())

  return ask


def test_squad_windows_cover_the_context_and_hold_the_answer(ask):
  answers = ["bc", "efg", "(ij)", CONTEXT, "ef gh", "j."]
  dataset, found = ask(*map(question, answers))
  for answer in answers:
    mine = [window for window in found if window["example_id"] == answer]
    assert [w["window_start"] for w in mine] == list(range(0, 5 * len(mine), 5))
    assert mine[-1]["window_start"] + len(mine[-1]["token_starts"]) == 26
    held = set()
    for window in mine:
      ids, text = window["input_ids"], window["text"]
      assert len(ids) <= 17
      assert ids[:5] == [CLS, ID["yes"], ID["no"], ID["?"], SEP]
      assert ids[-1] == SEP
      assert window["first_type_length"] == 5
      places = list(zip(window["token_starts"], window["token_ends"], strict=True))
      assert [j - i for i, j in places] == [
        len(VOCABULARY[t].removeprefix("##")) if t != ID["[UNK]"] else 1 for t in ids[5:-1]
      ]
      if window["end_position"]:
        start, end = window["start_position"] - 5, window["end_position"] - 5
        held.add(text[places[start][0] : places[end][1]])
      assert window["answers"] == [answer]
    assert held == ({answer} if len(answer) < 20 else set())
  assert dataset.manifest["counts"]["train"]["windows_without_answer"] > 0


def test_a_file_that_expands_too_far_is_refused_before_it_is_read_whole(tmp_path):
  path = tmp_path / "bomb.json.gz"
  with gzip.open(path, "wb", compresslevel=9) as file:
    file.write(b'{"data": [')
    for _ in range(110):
      file.write(b" " * 2**20)
    file.write(b"]}")
  assert path.stat().st_size < 2**18
  fields = registry.TASKS["squad"].document_fields(pipeline.DatasetSettings("", 8))
  with pytest.raises(InputError, match=r"holds more than 104,857,600 bytes.*decompress it"):
    list(textfiles.read_squad(path, fields))


def test_no_context_is_in_both_splits_wherever_its_questions_are(
  tmp_path, vocab_file, monkeypatch
):
  monkeypatch.setattr(partitions, "PARTITION_BYTES", 1)  # a partition for each file
  contexts = [" ".join(words) for words in itertools.product("abcd", "efgh", "ij")]
  for number in range(3):
    rows = [question(x[-1], context=x) | {"id": f"{x} {number}"} for x in contexts]
    lines = map(json.dumps, rows if number % 2 else reversed(rows))
    (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
  fields = {"vocab_file": vocab_file, "held_out_fraction": 0.2, "task": "squad"}
  settings = pipeline.DatasetSettings(f"{tmp_path}/*.jsonl", 32, **fields)
  dataset = prepare(tmp_path / "d", settings, num_workers=1)
  train, held_out = (
    [window["text"] for window in store.records()]
    for store in (dataset.train, dataset.held_out)
  )
  assert len(train) + len(held_out) == 3 * len(contexts)
  assert 1 < len(held_out) / 3 < 13  # 6.4 are expected
  assert not set(train) & set(held_out)


def test_a_split_without_contexts_is_explained_by_them(tmp_path, vocab_file):
  rows = [question("bc") | {"id": str(x)} for x in range(40)]
  (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
  fields = {"vocab_file": vocab_file, "held_out_fraction": 0.5, "task": "squad"}
  settings = pipeline.DatasetSettings(f"{tmp_path}/a.jsonl", 32, **fields)
  message = r"expected 1 each\. Questions are held out with their contexts: add contexts"
  with pytest.raises(InputError, match=message):
    prepare(tmp_path / "d", settings, num_workers=1)


def test_a_file_that_hides_its_answers_is_only_predicted(tmp_path, ask):
  values = {"id": "bc", "question": "yes no?"}
  fields = registry.TASKS["squad"].document_fields(pipeline.DatasetSettings("", 8))
  path = tmp_path / "test.json"
  path.write_text(
    json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [values]}]}]})
  )
  with pytest.raises(InputError, match=r"question bc has no answers. Test files hide"):
    list(textfiles.read_squad(path, fields))
  dataset, _ = ask(question("bc"))
  settings = pipeline.DatasetSettings(**dataset.manifest["settings"])
  (example,) = pipeline.read_examples(str(path), settings, dataset.tokenizer)
  assert example.sequences


def test_an_answer_of_which_no_token_is_left_is_counted(ask):
  context = f"{CONTEXT} \u0301"  # an accent alone, which the tokenizer drops
  dataset, found = ask(question("\u0301", context=context), question("bc"))
  assert dataset.manifest["counts"]["train"]["answers_without_tokens"] == 1
  assert not any(w["end_position"] for w in found if w["example_id"] == "\u0301")


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
def test_an_answer_may_end_with_its_window(ask, answer, places):
  _, found = ask(question(answer, context="a b c d e f g h i j"), length=11)
  assert [w["text"] for w in found] == ["a b c d e", "f g h i j"]
  assert [(w["start_position"], w["end_position"]) for w in found] == places


def test_the_n_best_are_those_of_plain_loops(ask, vocab_file):
  _, windows = ask(question("bc"))
  assert len(windows) > 3
  for seed in range(7):
    rng = np.random.default_rng(seed)
    logits = [rng.standard_normal((len(window["input_ids"]), 2)) for window in windows]
    expected = by_bert_rule(windows, logits, CONTEXT, Tokenizer(vocab_file))
    found = squad.n_best(windows, *squad.start_and_end(windows, logits))
    assert [(answer.text, answer.score) for answer in found] == expected, seed
    chances = np.exp([score for _, score in expected])
    expected_chances = pytest.approx(chances / chances.sum())
    assert [answer.probability for answer in found] == expected_chances, seed


@pytest.mark.parametrize(
  ("row", "message"),
  [
    (question("bc", start=3), r"answer 'bc' is not at 3; found 'c,'"),
    (question("", start=0), r"the answer is ''; expected words"),
    (question("bc", asked=None), r"question is None; expected text"),
    *(
      (question("bc") | {"answers": answers}, r'answers is .*; expected \{"text": \[')
      for answers in (
        "bc",
        {"text": ["bc"], "answer_start": [float("inf")]},
        {"text": "bc", "answer_start": [2]},
      )
    ),
    (
      question("bc") | {"answers": {"text": ["bc", "\ud800"], "answer_start": [2, 2]}},
      r"line 1 holds the unpaired surrogate '.ud800'",
    ),
  ],
)
def test_invalid_questions_are_refused(ask, row, message):
  with pytest.raises(InputError, match=message):
    ask(row)


def test_squad_is_scored_by_the_best_answer_over_all_windows(ask):
  rows = [question("bc"), question("(ij)"), question("d") | {"context": "  "}]
  rows[2]["answers"] = {"text": [], "answer_start": []}
  rows[1]["answers"]["text"].append("efg xyz")  # a second answer
  dataset, windows = ask(*rows)
  counts = dataset.manifest["counts"]["train"]
  assert (counts["empty_contexts"], counts["questions_without_answers"]) == (1, 1)
  outputs = [np.zeros((len(w["input_ids"]), 2), np.float32) for w in windows]
  for window, output in zip(windows, outputs, strict=True):
    if window["example_id"] == "bc":
      output[window["start_position"], 0] = output[window["end_position"], 1] = 5
    elif window["window_start"] == 0:
      first = window["text"].index("efg")
      token = window["token_starts"].index(first) + window["first_type_length"]
      output[token, 0] = output[token + 2, 1] = 7
  found = pipeline.score("squad", dataset.train, outputs)
  # Of two words one is found: 2 / (1 + 2).
  f1 = (1 + 2 / 3) / 2
  assert found == pytest.approx({"score": f1, "exact_match": 0.5, "f1": f1})
  with pytest.raises(ValueError, match=r"question bc has the shape \(17,\)"):
    pipeline.score("squad", dataset.train, [output[:, 0] for output in outputs])
