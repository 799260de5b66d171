"""Sequences of each task, held against plain loops and the numbers of the data folder."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import packing
import pipeline
from packing import InputError
from pipeline import __main__ as command
from pipeline.batches.loader import PackedLoader
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import DocumentShard
from pipeline.tasks import glue, squad
from pipeline.tasks.encoder import Encoder
from pipeline.tasks.table import TASKS, find_task
from pipeline.tokenizer import Tokenizer
from tests import shared_data

WORDS = [*"abcdefghij", *(f"##{c}" for c in "abcdefghij"), "yes", "no", "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
ID = {token: number for number, token in enumerate(VOCABULARY)}
CLS, SEP = ID["[CLS]"], ID["[SEP]"]


@pytest.fixture
def vocab_file(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(VOCABULARY) + "\n")
  return str(path)


def make(tmp_path, vocab_file, task, rows, **settings):
  """Prepares rows given as JSON lines."""
  (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
  chosen = {"max_sequence_length": 16, "vocab_file": vocab_file, "seed": 3} | settings
  source = str(tmp_path / "rows.jsonl")
  return prepare(tmp_path / "out", DatasetSettings(source=source, task=task, **chosen))


def sequences(store):
  return [store.gather(np.array([i])).tolist() for i in range(len(store))]


def tokens(store):
  return [[VOCABULARY[t] for t in ids] for ids in sequences(store)]


# ---- GLUE ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", glue.TASKS)
def test_each_glue_task_has_its_sentences_and_labels(tmp_path, vocab_file, name):
  fields, labels = glue.TASKS[name]
  values = [1.5, 0.0, 5.0] if not labels else [len(labels) - 1, 0, labels[0]]
  rows = [
    {fields[0]: "a b c", "label": value} | dict.fromkeys(fields[1:], "d e")
    for value in values
  ]
  dataset = make(tmp_path, vocab_file, f"glue/{name}", rows)
  one, two = ["[CLS]", "a", "b", "c", "[SEP]"], ["d", "e", "[SEP]"]
  expected = one + two if len(fields) == 2 else one
  assert tokens(dataset.train) == [expected] * 3
  assert dataset.train.first_type_lengths.tolist() == [5] * 3
  found = dataset.train.sequence_labels
  assert found.tolist() == ([1.5, 0.0, 5.0] if not labels else [len(labels) - 1, 0, 0])
  assert found.dtype == (np.int32 if labels else np.float32)
  assert dataset.manifest["labels"] == {
    "dtype": "int32" if labels else "float",
    "names": list(labels),
  }


def test_labels_of_regression_come_through_batches_as_they_are(tmp_path, vocab_file):
  """STS-B's are numbers such as 3.8, which no integer and no half precision holds."""
  values = [0.0, 3.8, 4.2, 2.6666667, 5.0, 0.001]
  rows = [
    {"sentence1": "a b", "sentence2": "c " * n, "label": str(value) if n % 2 else value}
    for n, value in enumerate(values, 1)
  ]
  store = make(tmp_path, vocab_file, "glue/stsb", rows).train
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=16)
  plan = packing.pack(histogram, row_length=32)
  assert plan.packing_depth > 1
  loader = PackedLoader(store, plan, batch_size=2, masking=None, seed=0)
  found: dict = {}
  for batch in (*loader.evaluation_batches(), loader[0]):
    labels = batch["sequence_labels"]
    assert labels.dtype == np.float32
    assert (labels[batch["sequence_ids"] < 0] == 0).all()
    found |= dict(zip(batch["sequence_ids"].ravel(), labels.ravel(), strict=True))
  assert [found[n] for n in range(6)] == [np.float32(value) for value in values]


def test_there_are_all_nine_with_their_numbers_of_classes():
  classes = {name: len(labels) for name, (_, labels) in glue.TASKS.items()}
  assert len(classes) == 9
  assert classes.pop("stsb") == 0
  assert classes.pop("mnli") == 3
  assert set(classes.values()) == {2}
  assert {f"glue/{name}" for name in glue.TASKS} <= set(TASKS)


def test_glue_pairs_lose_tokens_at_the_end_of_the_longer(tmp_path, vocab_file):
  rows = [
    {"sentence1": "a b c d e f g h i j", "sentence2": "a b c", "label": 1},
    {"sentence1": "a b", "sentence2": "j i h g f e d c b a", "label": 0},
  ]
  dataset = make(tmp_path, vocab_file, "glue/mrpc", rows, max_sequence_length=11)
  assert tokens(dataset.train) == [
    ["[CLS]", *"abcde", "[SEP]", *"abc", "[SEP]"],
    ["[CLS]", *"ab", "[SEP]", *"jihgfe", "[SEP]"],
  ]
  assert dataset.manifest["counts"]["train"]["too_long"] == 2
  with pytest.raises(InputError, match=r"line 1: The example has 16 tokens; expected at"):
    prepare(
      tmp_path / "strict",
      DatasetSettings(**{**dataset.manifest["settings"], "too_long": "error"}),
    )
  with pytest.raises(InputError, match=r"expected truncate or error for glue/mrpc"):
    prepare(
      tmp_path / "split",
      DatasetSettings(**{**dataset.manifest["settings"], "too_long": "split"}),
    )


def test_of_two_even_sentences_the_second_loses_a_token():
  parts = [[1, 2, 3], [4, 5, 6]]
  glue.shorten(parts, 5)
  assert parts == [[1, 2, 3], [4, 5]]
  glue.shorten(parts, 3)
  assert parts == [[1, 2], [4]]


@pytest.mark.parametrize(
  ("task", "label", "message"),
  [
    ("glue/cola", 2, r"label is 2; expected 0 to 1 or one of unacceptable, acceptable"),
    ("glue/cola", -1, r"Test splits hide their labels"),
    ("glue/cola", "maybe", r"label is 'maybe'"),
    ("glue/cola", None, r"label is None"),
    ("glue/stsb", "high", r"label is 'high'; expected a number"),
    ("glue/stsb", "nan", r"expected a number"),
    ("glue/stsb", 1e39, r"label is 1e\+39; expected a number"),
    ("glue/stsb", "-1e39", r"label is '-1e39'; expected a number"),
    pytest.param(
      "glue/stsb", 10**400, r"label is 10+\.\.\.; expected a number", id="stsb-huge"
    ),
    pytest.param(
      "glue/cola", 10**400, r"label is 10+\.\.\.; expected 0 to 1", id="cola-huge"
    ),
  ],
)
def test_a_label_that_is_none_is_refused(tmp_path, vocab_file, task, label, message):
  fields = glue.TASKS[task.removeprefix("glue/")][0]
  rows = [{"label": label} | dict.fromkeys(fields, "a b.")]
  with pytest.raises(InputError, match=message):
    make(tmp_path, vocab_file, task, rows)
  assert not (tmp_path / "out").exists()


# ---- SQuAD -----------------------------------------------------------------------------

CONTEXT = "A bc, d efg. H (ij) abc d; ef gh i j."


def question(answer, *, start=None, context=CONTEXT, asked="yes no?"):
  start = context.index(answer) if start is None else start
  answers = {"text": [answer], "answer_start": [start]}
  return {"id": answer, "question": asked, "context": context, "answers": answers}


def windows_of(dataset):
  names = dataset.train.columns
  columns = [dataset.train.column(name).to_pylist() for name in names]
  return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


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
def test_the_windows_of_the_real_questions_are_those_counted_elsewhere(tmp_path):
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
  """All spans of all windows, a token started only where it has the most context."""
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


def test_a_window_that_is_much_longer_wins_over_a_token_more_of_context():
  spans = [(0, 300), (278, 100)]  # as BERT has it, 200 tokens count as 2 of context
  assert squad._widest(spans, 289) == 0  # 10 to its end; 11 after the second's start
  assert squad._widest(spans, 290) == 1  # 9 and 12


@pytest.mark.parametrize("seed", range(7))
def test_the_n_best_are_those_of_all_spans(tmp_path, vocab_file, seed):
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
def test_a_question_that_is_none_is_refused(tmp_path, vocab_file, row, message):
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


# ---- one's own -------------------------------------------------------------------------


def test_one_s_own_classes_have_names_and_sentences_may_be_pairs(tmp_path, vocab_file):
  rows = [
    {"sentence": "a b", "label": "good"},
    {"sentence": "a b", "sentence2": "c", "label": 0},
    {"sentence": "a b", "sentence2": "", "label": 1.0},
    {"sentence": "a b", "sentence2": None, "label": "bad"},
  ]
  dataset = make(tmp_path, vocab_file, "classification", rows, labels="bad, good")
  one, two = ["[CLS]", "a", "b", "[SEP]"], ["c", "[SEP]"]
  assert tokens(dataset.train) == [one, one + two, one, one]
  assert dataset.train.first_type_lengths.tolist() == [4] * 4
  assert dataset.train.sequence_labels.tolist() == [1, 0, 1, 0]
  assert dataset.manifest["labels"] == {"dtype": "int32", "names": ["bad", "good"]}
  task, _ = find_task(DatasetSettings(**dataset.manifest["settings"]))
  assert task.label_names == ("bad", "good")
  assert TASKS["classification"].label_names == ()


def test_names_that_are_numbers_are_names(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": n} for n in ("1", 5, 3.0, " 3 ", 1)]
  dataset = make(tmp_path, vocab_file, "classification", rows, labels="1,3,5")
  assert dataset.train.sequence_labels.tolist() == [0, 2, 1, 1, 0]
  rows[3]["label"] = 2
  shutil.rmtree(tmp_path / "out")
  with pytest.raises(InputError, match=r"line 4: label is 2; expected one of 1, 3, 5"):
    make(tmp_path, vocab_file, "classification", rows, labels="1,3,5")


def test_one_s_own_numbers(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": 3.5}, {"sentence": "b", "label": "-1e3"}]
  dataset = make(tmp_path, vocab_file, "regression", rows)
  assert dataset.train.sequence_labels.tolist() == [3.5, -1000]
  assert dataset.manifest["labels"] == {"dtype": "float", "names": []}


@pytest.mark.parametrize(
  ("task", "labels", "message"),
  [
    ("classification", "", r"needs the names of its classes.*--labels no,yes"),
    ("classification", "yes", r"labels is 'yes'; expected at least two different names"),
    ("classification", "a,b,a", r"expected at least two different names"),
    ("classification", "a,,b", r"expected at least two different names"),
    ("regression", "a,b", r"labels is 'a,b'; expected none for regression"),
    ("glue/cola", "a,b", r"expected none for glue/cola"),
  ],
)
def test_names_of_classes_are_for_classification(
  tmp_path, vocab_file, task, labels, message
):
  with pytest.raises(InputError, match=message):
    make(tmp_path, vocab_file, task, [{"sentence": "a", "label": 0}], labels=labels)


def test_a_column_that_is_named_has_to_be_there(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": 0}]
  with pytest.raises(InputError, match=r"line 1 has no 'reply'; found sentence, label"):
    make(
      tmp_path,
      vocab_file,
      "classification",
      rows,
      labels="n,y",
      columns="sentence2=reply",
    )


# ---- causal text, tokens, over-long sequences ------------------------------------------


def test_text_ends_with_its_token_and_long_ones_as_asked(tmp_path, vocab_file):
  rows = [{"text": "a b c"}, {"text": "  "}, {"text": "a b c d e f g h i j"}]
  found = {
    how: make(tmp_path / how, vocab_file, "text", rows, max_sequence_length=5, too_long=how)
    for how in ("split", "truncate")
    if not (tmp_path / how).mkdir()
  }
  first = [*"abc", "[SEP]"]
  assert tokens(found["split"].train) == [
    first,
    [*"abcde"],
    [*"fghij"],
    ["[SEP]"],
  ]
  assert tokens(found["truncate"].train) == [first, [*"abcd", "[SEP]"]]
  for dataset in found.values():
    counts = dataset.manifest["counts"]
    assert counts["train"]["too_long"] == 1
    assert (counts["documents"], counts["documents_used"]) == (3, 2)
    store = dataset.train
    assert (store.first_type_lengths == store.lengths).all()
  with pytest.raises(InputError, match=r"line 3: A sequence has 11 tokens; expected at mo"):
    make(tmp_path, vocab_file, "text", rows, max_sequence_length=5, too_long="error")
  assert not (tmp_path / "out").exists()


def test_tokens_are_taken_as_they_are(tmp_path, vocab_file):
  rows = [
    {"input_ids": [CLS, 5, SEP, 6, SEP, 0, 0], "token_type_ids": [0, 0, 0, 1, 1, 0, 0]},
    {"input_ids": [5, 6, 7], "label": 4},
    {"input_ids": []},
  ]
  dataset = make(tmp_path, vocab_file, "tokens", rows)
  assert sequences(dataset.train) == [[CLS, 5, SEP, 6, SEP], [5, 6, 7]]
  assert dataset.train.first_type_lengths.tolist() == [3, 3]
  assert dataset.train.sequence_labels.tolist() == [0, 4]


def test_labels_of_tokens_may_have_32_bits(tmp_path, vocab_file):
  labels = [-(2**31), 2**31 - 1, True]
  rows = [{"input_ids": [5], "label": label} for label in labels]
  dataset = make(tmp_path, vocab_file, "tokens", rows)
  assert dataset.train.sequence_labels.tolist() == labels


def test_tokens_that_are_split_keep_their_types(tmp_path, vocab_file):
  rows = [{"input_ids": list(range(5, 18)), "token_type_ids": [0] * 7 + [1] * 6}]
  dataset = make(
    tmp_path, vocab_file, "tokens", rows, max_sequence_length=5, too_long="split"
  )
  assert sequences(dataset.train) == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17]]
  assert dataset.train.first_type_lengths.tolist() == [5, 2, 0]


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"input_ids": [5, 99]}, r"token 1 is 99; vocab\.txt has the ids 0 to 28"),
    ({"input_ids": [5, -1]}, r"token 1 is -1"),
    ({"input_ids": [5, 0, 6, 0]}, r"token 1 of 3 is 0, which is padding"),
    ({"input_ids": [5, 0.5]}, r"expected a list of integers"),
    ({"input_ids": "abc"}, r"expected a list of integers"),
    ({"input_ids": [5, 6], "token_type_ids": [1, 0]}, r"zeros and then ones"),
    ({"input_ids": [5, 6], "token_type_ids": [0]}, r"expected 2 numbers"),
    ({"input_ids": [5] * 17}, r"A sequence has 17 tokens; expected at most 16"),
    ({"input_ids": [5], "label": "x"}, r"label is 'x'; expected a whole number"),
    ({"input_ids": [5], "label": 3_000_000_000}, r"label is 3000000000; expected a whole"),
    ({"input_ids": [5], "label": -(2**31) - 1}, r"label is -2147483649; expected a whole"),
    ({"input_ids": [5, 6], "token_type_ids": ["a", "b"]}, r"\['a', 'b'\]; expected zeros"),
    ({"input_ids": [5, 6], "token_type_ids": [0, None]}, r"\[0, None\]; expected zeros"),
    ({"input_ids": [5, 6], "token_type_ids": [0, 2]}, r"\[0, 2\]; expected zeros"),
    ({"input_ids": [5, 6], "token_type_ids": [[1], 1]}, r"\[\[1\], 1\]; expected zeros"),
  ],
)
def test_tokens_that_cannot_be_are_refused(tmp_path, vocab_file, row, message):
  with pytest.raises(InputError, match=rf"line 2: .*{message}|{message}"):
    make(tmp_path, vocab_file, "tokens", [{"input_ids": [5]}, row])
  assert not (tmp_path / "out").exists()


def test_long_sentences_of_pretraining_as_asked(tmp_path, vocab_file):
  long = "a b c d e f g h i j a b c d e."
  rows = [{"text": f"{long} B c. D e."}, {"text": "G h. I j. A b c."}]
  by_how = {}
  for how in ("truncate", "split"):
    (tmp_path / how).mkdir()
    dataset = make(
      tmp_path / how,
      vocab_file,
      "pretraining",
      rows,
      too_long=how,
      short_sequence_probability=0.0,
    )
    assert dataset.train.lengths.max() <= 16
    assert dataset.manifest["counts"]["train"]["too_long"] == 1
    by_how[how] = dataset.train.lengths.sum()
  assert by_how["split"] > by_how["truncate"]
  with pytest.raises(InputError, match=r"A sentence has 16 tokens; expected at most 12"):
    make(tmp_path, vocab_file, "pretraining", rows, too_long="error")


@pytest.mark.parametrize(
  ("how", "end"),
  [
    ("truncate", ["[CLS] a b c d e f g h i [SEP]", "[CLS] b c . [SEP]"]),
    ("split", ["[CLS] a b c d e f g h i [SEP]", "[CLS] j . b c . [SEP]"]),
    ("error", r"line 3: A sentence has 11 tokens; expected at most 9"),
  ],
)
@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # reads a config
def test_whole_sentences_of_one_document_as_many_as_fit(
  tmp_path, vocab_file, capsys, how, end
):
  rows = [
    {"text": "A b c. D e f. G h. I j a b."},  # 4 + 4, and then 3 + 5, of 9 tokens
    {"text": "J."},
    {"text": "A b c d e f g h i j. B c."},
    {"text": " "},
  ]
  chosen: dict = {"max_sequence_length": 11, "too_long": how}
  if how == "error":
    with pytest.raises(InputError, match=end):
      make(tmp_path, vocab_file, "sentences", rows, **chosen)
    return
  dataset = make(tmp_path, vocab_file, "sentences", rows, **chosen)
  assert [" ".join(found) for found in tokens(dataset.train)] == [
    "[CLS] a b c . d e f . [SEP]",
    "[CLS] g h . i j a b . [SEP]",
    "[CLS] j . [SEP]",
    *end,
  ]
  store, counts = dataset.train, dataset.manifest["counts"]["train"]
  assert (store.first_type_lengths == store.lengths).all()  # token type 0 throughout
  assert not store.sequence_labels.any()
  expected = {"documents": 3, "sequences": 5, "tokens": store.lengths.sum(), "too_long": 1}
  assert counts == expected
  assert dataset.labels == ()
  config = pathlib.Path(__file__).parents[3] / "configs" / "base.py"
  options = ["--config", str(config), "--config.data.max_sequence_length=11", "--json"]
  assert command.main(["audit", str(tmp_path / "out"), *options]) == 0
  assert json.loads(capsys.readouterr().out)["masked_tokens"] > 0


def test_a_document_is_cut_dupe_factor_times_each_time_otherwise(tmp_path, vocab_file):
  rng = np.random.default_rng(0)
  rows = [
    {
      "text": " ".join(
        " ".join(rng.choice([*"abcdefghij"], 4)).title() + "." for _ in range(9)
      )
    }
    for _ in range(7)
  ]
  found = {}
  for factor in (1, 3):
    (tmp_path / str(factor)).mkdir()
    found[factor] = make(
      tmp_path / str(factor), vocab_file, "pretraining", rows, dupe_factor=factor
    ).train
  once, thrice = sequences(found[1]), sequences(found[3])
  assert thrice[: len(once)] == once
  assert len(thrice) > 2.5 * len(once)
  assert thrice[len(once) : 2 * len(once)] != once


def test_each_split_partition_and_shard_has_its_own_random_choices(vocab_file):
  text = " ".join(f"{a.title()} {b} {a}." for a in "abcdefghij" for b in "abcdefghij")
  documents = [Document({"text": text})] * 3
  places = [("train", 0, 0), ("held_out", 0, 0), ("train", 1, 0), ("train", 0, 1)]
  settings = DatasetSettings("", 16, vocab_file=vocab_file)
  tokenizer = Tokenizer(pathlib.Path(vocab_file))
  found = []
  for place in places:
    shard = DocumentShard(*place, documents)
    made = TASKS["pretraining"].make_sequences(shard, Encoder(settings, tokenizer))
    found.append([sequence[0] for sequence in made])
  assert all(rows not in found[:i] for i, rows in enumerate(found))


def test_a_tokenizer_json_works_as_a_vocabulary(tmp_path):
  import tokenizers

  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>")
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.enable_padding(length=9)
  tokenizer.enable_truncation(2)
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "a.txt").write_text("b a b z\n\na\n")
  settings = DatasetSettings(
    str(tmp_path / "a.txt"), 9, task="text", vocab_file=str(tmp_path / "tokenizer.json")
  )
  dataset = prepare(tmp_path / "out", settings)
  assert sequences(dataset.train) == [[2, 1, 2, 0, 3], [1, 3]]
  assert dataset.vocabulary == ["<unk>", "a", "b", "</s>"]
  with pytest.raises(InputError, match=r"has no token \[PAD\], which this task needs"):
    prepare(
      tmp_path / "bert", DatasetSettings(settings.source, 9, vocab_file=settings.vocab_file)
    )
