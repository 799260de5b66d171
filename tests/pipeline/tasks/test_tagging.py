"""Words with tags: windows, sources, classes, scores, compared with plain loops."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import packing
import pipeline
from packing import InputError
from pipeline.batches.audit import AuditError, audit
from pipeline.batches.loader import PackedLoader
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source
from pipeline.tasks import tagging
from pipeline.tokenizer import SPECIAL_TOKENS, train_bpe
from tests.pipeline.tasks.making import CLS, ID, SEP

NAMES = ["B-LOC", "B-PER", "I-PER", "O"]
SENTENCES = [
  (["a", "bcd", "e", "yes"], ["B-PER", "I-PER", "O", "O"]),
  (["no", "abc"], ["O", "B-LOC"]),
  (["f"], ["O"]),
]
ROWS = [{"tokens": words, "tags": tags} for words, tags in SENTENCES]
COLUMNS = "".join(
  "".join(f"{word} X {tag}\n" for word, tag in zip(*one, strict=True)) + "\n"
  for one in SENTENCES
)


def records(dataset):
  return list(dataset.train.records())


def test_the_first_piece_of_a_word_carries_its_tag(make):
  dataset = make("tagging", ROWS)
  first, second, _ = records(dataset)
  pieces = ["[CLS]", "a", "b", "##c", "##d", "e", "yes", "[SEP]"]
  assert first["input_ids"] == [ID[piece] for piece in pieces]
  assert first["token_labels"] == [-1, 1, 2, -1, -1, 3, 3, -1]
  assert second["token_labels"] == [-1, 3, 0, -1, -1, -1]
  assert first["words"] == ["a", "bcd", "e", "yes"]
  assert first["first_type_length"] == 8
  assert dataset.labels == tuple(NAMES)


def context(piece, start, count, room):
  """How many neighbours of a piece a window shows on the side that it cuts."""
  left = piece - start if start else count
  right = start + room - 1 - piece if start + room < count else count
  return min(left, right)


@pytest.mark.parametrize("length", [5, 6, 9, 16])
def test_windows_lose_no_word_and_score_each_once_where_it_has_most_context(make, length):
  rng = np.random.default_rng(length)
  rows = []
  for count in (1, 2, 7, 40, 41):
    words = ["".join(rng.choice([*"abcdefghij"], rng.integers(1, 5))) for _ in range(count)]
    rows.append({"tokens": words, "tags": rng.choice([*"xyz"], count).tolist()})
  dataset = make("tagging", rows, max_sequence_length=length, labels="x,y,z")
  found, room = records(dataset), length - 2
  starts = [i for i, one in enumerate(found) if one["window_start"] == 0] + [len(found)]
  assert len(starts) == len(rows) + 1
  for row, first, end in zip(rows, starts, starts[1:], strict=False):
    windows = found[first:end]
    assert [word for one in windows for word in one["words"]] == row["tokens"]
    labels = [x for one in windows for x in one["token_labels"] if x >= 0]
    assert labels == ["xyz".index(tag) for tag in row["tags"]]
    pieces = sum(map(len, row["tokens"]))  # one for each letter
    for one in windows:
      start, ids = one["window_start"], one["input_ids"]
      assert (ids[0], ids[-1]) == (CLS, SEP)
      assert len(ids) == len(one["token_labels"]) == min(pieces - start, room) + 2
      for place, label in enumerate(one["token_labels"]):
        if label < 0:
          continue
        piece = start + place - 1
        assert context(piece, start, pieces, room) == max(
          context(piece, other["window_start"], pieces, room) for other in windows
        )


def test_no_window_is_without_a_label(make):
  rows = [{"tokens": ["a", "b" * 30, "c"], "tags": ["x", "y", "x"]}]
  found = records(make("tagging", rows, max_sequence_length=8))
  assert [one["words"] for one in found] == [rows[0]["tokens"][:2], ["c"]]
  assert found[0]["window_start"] == 0 < found[1]["window_start"]
  labels = [x for one in found for x in one["token_labels"] if x >= 0]
  assert labels == [0, 1, 0]


def with_class_names(table, *, old=False):
  numbers = [[NAMES.index(tag) for tag in tags] for _, tags in SENTENCES]
  table = table.set_column(1, "tags", pa.array(numbers))
  item = {"names": NAMES, "_type": "ClassLabel"}
  kind = [item] if old else {"feature": item, "_type": "List"}
  features = json.dumps({"info": {"features": {"tags": kind}}})
  return table.replace_schema_metadata({"huggingface": features})


def test_every_source_gives_the_same_records(tmp_path, vocab_file):
  for name, old in (("a.parquet", False), ("old.parquet", True)):
    table = with_class_names(pa.Table.from_pylist(ROWS), old=old)
    pa.parquet.write_table(table, tmp_path / name)
  for name, text in {
    "a.jsonl": "\n".join(map(json.dumps, ROWS)),
    "a.conll": f"-DOCSTART- X O\n\n{COLUMNS}",
    "crlf.conll": COLUMNS.replace("\n", "\r\n").rstrip(),
    "tabs.conll": COLUMNS.replace(" ", "\t").replace("\n\n", "\n\n\n"),
    "spaces.conll": COLUMNS.replace(" ", " \t").replace("\n", " \n"),
  }.items():
    (tmp_path / name).write_text(text, newline="")
  columns = {"moved.conll": "tokens=1,tags=0"}
  moved = [" ".join(line.split()[::-2]) for line in COLUMNS.splitlines()]
  (tmp_path / "moved.conll").write_text("\n".join(moved))
  found = {}
  for path in sorted(tmp_path.glob("*.[jcptr]*")):
    if path.name == "vocab.txt":
      continue
    chosen = DatasetSettings(
      str(path),
      16,
      task="tagging",
      vocab_file=vocab_file,
      columns=columns.get(path.name, ""),
    )
    dataset = prepare(tmp_path / f"out-{path.name}", chosen)
    found[path.name] = records(dataset), dataset.labels
  assert len(found) == 8
  for name, one in found.items():
    assert one == found["a.jsonl"], name


@pytest.mark.extra("datasets")
def test_a_folder_of_hugging_face_is_read_with_its_class_names(tmp_path, make, vocab_file):
  import datasets

  features = datasets.Features(
    tokens=datasets.List(datasets.Value("string")),
    ner_tags=datasets.List(datasets.ClassLabel(names=NAMES)),
  )
  rows = [{"tokens": row["tokens"], "ner_tags": row["tags"]} for row in ROWS]
  datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved")
  chosen = DatasetSettings(
    str(tmp_path / "saved"),
    16,
    task="tagging",
    vocab_file=vocab_file,
    columns="tags=ner_tags",
  )
  dataset = prepare(tmp_path / "out", chosen)
  expected = make("tagging", ROWS)
  assert (records(dataset), dataset.labels) == (records(expected), expected.labels)


@pytest.mark.parametrize(
  ("tags", "expected"),
  [
    (["b", "a", "b"], ("a", "b")),
    ([10, 9, 9], ("9", "10")),
    ([10.0, 9.0, 9.0], ("9.0", "10.0")),
    ([",", ".", ","], (",", ".")),
  ],
)
def test_classes_are_found_in_the_data_and_printed(make, capsys, tags, expected):
  rows = [{"tokens": ["a", "b", "c"], "tags": tags}]
  dataset = make("tagging", rows)
  assert dataset.labels == expected
  assert (
    f"2 classes in {dataset.manifest['settings']['source']}: " in capsys.readouterr().err
  )
  labels = [expected.index(str(tag)) for tag in tags]
  assert records(dataset)[0]["token_labels"] == [-1, *labels, -1]
  again, other = (
    DatasetSettings(**dataset.manifest["settings"] | {"labels": labels})
    for labels in ("", "a,z")
  )
  assert prepare(dataset.directory, again).labels == expected  # nothing differs
  with pytest.raises(InputError, match="has other settings"):
    prepare(dataset.directory, other)


def test_classes_of_sentences_are_found_too(make):
  rows = [{"sentence": "a", "label": label} for label in ("ham", "spam", "ham")]
  dataset = make("classification", rows)
  assert dataset.labels == ("ham", "spam")
  assert dataset.train.sequence_labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
  ("row", "fields", "message"),
  [
    ({"tags": ["O"]}, {}, r"rows.jsonl, line 2 has 1 tags for 2 tokens"),
    ({"tags": "O O"}, {}, r"line 2 has tags 'O O' for 2 tokens"),
    ({"tokens": 7}, {}, r"line 2: tokens is 7; expected a list of words"),
    ({"tokens": ["a", 7]}, {}, r"line 2: tokens is .* expected a list of words"),
    ({"tokens": ["a", "\u200b"]}, {}, r"line 2: the word .*200b' has no tokens"),
    ({"tags": ["O", None]}, {}, r"line 2: tags is .* expected names of classes"),
    (
      {"tags": ["O", -100]},
      {},
      r"line 2: tags -100 marks what has no class. Leave it out with its word",
    ),
    ({"tags": ["O", "Z"]}, {"labels": "O,B-LOC,B-PER,I-PER"}, r"line 2: tag is 'Z'"),
    ({}, {"too_long": "error", "max_sequence_length": 5}, r"The sentence has 6 tokens"),
    ({}, {"too_long": "truncate"}, r"too_long is 'truncate'; tagging takes split or error"),
  ],
)
def test_bad_input_is_refused_in_a_line(make, row, fields, message):
  good = {"tokens": ["a", "b"], "tags": ["O", "O"]}
  with pytest.raises(InputError, match=message) as error:
    make("tagging", [ROWS[0], good | row], **fields)
  assert "\n" not in str(error.value)


def test_a_tag_that_only_held_out_data_has_is_refused(make, tmp_path):
  held_out = tmp_path / "held_out.jsonl"
  held_out.write_text(json.dumps({"tokens": ["a"], "tags": ["B-ORG"]}))
  with pytest.raises(InputError, match=r"held_out.jsonl, line 1: tag is 'B-ORG'"):
    make("tagging", ROWS, held_out_source=str(held_out))


CONLL_U = """# newdoc id = weblog
# sent_id = weblog-1
# text = a\tbc
1-2\ta'd\t_\t_\t_
1\ta\tx\tDET\t_
2\tbc\tx\tNOUN\t_
2.1\tx\tx\tVERB\t_

# global comment
1\t#\tx\tDET\t_
"""


@pytest.mark.parametrize(
  ("text", "columns"),
  [
    (CONLL_U, "tokens=1,tags=3"),
    ("# id 7\tdomain=train\na _ _ DET\nbc _ _ NOUN\n\n# _ _ DET\n", ""),
    ("# sent_id = 1\na DET\nbc NOUN\n\n# DET\n", ""),
  ],
)
def test_what_is_no_word_of_conll_is_left_out(tmp_path, text, columns):
  (tmp_path / "a.conll").write_text(text)
  pairs = [pair.split("=") for pair in columns.split(",") if pair]
  fields = DocumentFields(("tokens", "tags"), columns=tuple(map(tuple, pairs)))
  (part,) = open_source(str(tmp_path / "a.conll"), fields)
  found = [document.fields for document in part.read()]
  assert found == [
    {"tokens": ["a", "bc"], "tags": ["DET", "NOUN"]},
    {"tokens": ["#"], "tags": ["DET"]},
  ]


def test_classes_equal_as_numbers_have_the_same_order_in_every_process(make):
  rows = [{"sentence": "a", "label": label} for label in ("7", "007", "10", "07")]
  dataset = make("classification", rows)
  assert dataset.labels == ("007", "07", "7", "10")
  assert dataset.train.sequence_labels.tolist() == [2, 0, 3, 1]


def declaring(path, names, numbers):
  """A table whose labels are of classes that it declares, as Hugging Face's datasets do."""
  table = pa.table({"sentence": ["a"] * len(numbers), "label": numbers})
  kind = {"names": names, "_type": "ClassLabel"}
  features = json.dumps({"info": {"features": {"label": kind}}})
  pa.parquet.write_table(table.replace_schema_metadata({"huggingface": features}), path)


def test_all_classes_that_a_file_declares_are_kept_in_their_order(tmp_path, vocab_file):
  declaring(tmp_path / "a.parquet", ["z", "unused", "a"], [0, 2, 2])
  chosen = {"task": "classification", "vocab_file": vocab_file}
  dataset = prepare(
    tmp_path / "out", DatasetSettings(f"{tmp_path}/a.parquet", 16, **chosen)
  )
  assert dataset.labels == ("z", "unused", "a")
  assert dataset.train.sequence_labels.tolist() == [0, 2, 2]
  declaring(tmp_path / "b.parquet", ["z", "other"], [0, 1])
  with pytest.raises(InputError, match="declares the classes z, other; others are z, unus"):
    prepare(tmp_path / "both", DatasetSettings(f"{tmp_path}/*.parquet", 16, **chosen))


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("x", " x"),
    ("x", "x\xa0"),
    ("x y", "x  y"),
    ("x", "x\u200b"),
    ("caf\xe9", "cafe\u0301"),
  ],
)
def test_classes_that_look_alike_are_refused(make, one, other):
  rows = [{"sentence": "a", "label": label} for label in (one, "z", other)]
  with pytest.raises(InputError, match=r"line 3: label '.*' looks like '.*' before it"):
    make("classification", rows)
  with pytest.raises(InputError, match=r"line 1: tags '.*' looks like '.*' before it"):
    make("tagging", [{"tokens": ["a", "a"], "tags": [one, other]}])
  named = make("classification", rows, labels=json.dumps([one, "z", other]))
  assert named.train.sequence_labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("label", [-1, -1.0, "-1", float("nan"), "NaN", -100])
def test_what_marks_no_class_becomes_none(make, label):
  rows = [{"sentence": "a", "label": one} for one in (type(label)(1), label)]
  with pytest.raises(InputError, match=r"line 2: label .* marks what has no class"):
    make("classification", rows)
  rows = [{"tokens": ["a"], "tags": [one]} for one in (type(label)(1), label)]
  with pytest.raises(InputError, match=r"line 2: tags .* name all of them with labels"):
    make("tagging", rows)


def test_a_class_of_minus_1_is_one_if_it_is_named(make):
  rows = [{"sentence": "a", "label": one} for one in (-1, 1, 0)]
  dataset = make("classification", rows, labels="-1,0,1")
  assert dataset.train.sequence_labels.tolist() == [0, 2, 1]


def test_classes_may_be_decimals(tmp_path, vocab_file):
  labels = pa.array([1, 0, 1], pa.decimal128(10, 2))
  table = pa.table({"sentence": ["a", "b", "a"], "label": labels})
  pa.parquet.write_table(table, tmp_path / "a.parquet")
  chosen = {"task": "classification", "vocab_file": vocab_file}
  dataset = prepare(
    tmp_path / "out", DatasetSettings(f"{tmp_path}/a.parquet", 16, **chosen)
  )
  assert dataset.labels == ("0.00", "1.00")
  assert dataset.train.sequence_labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
  ("text", "columns", "message"),
  [
    ("a O\nb\n", "", r"a.conll, line 2 lacks a word or tag: 'b'"),
    ("a X O\nb O\n", "tags=2", r"line 2 lacks a word or tag: 'b O'"),
    ("a X O\n\nb O\n", "", r"a.conll, line 3 has 2 columns; expected 3"),
    ("#b\na O\n", "", r"a.conll, line 1 lacks a word or tag: '#b'"),
    (
      "0\ta\tO\n1\tb\tB-X\n",
      "",
      r"line 1: the first column numbers .*--columns tokens=1,tags=2",
    ),
    ("1 a O\n\n1 a O\n1.1 b O\n2 b X\n", "", r"line 3: the first column numbers"),
    (
      "x/y 0 1 a -\nx/y 0 2 b -\nx/y 0 3 c (1\n",
      "",
      r"has 'x/y' for each word. .*tokens=3",
    ),
    ("a O\n", "tags=ner", r"columns has tags='ner'; expected a number"),
  ],
)
def test_columns_that_lack_a_tag_are_refused(tmp_path, vocab_file, text, columns, message):
  path = tmp_path / "a.conll"
  path.write_text(text)
  fields = {"task": "tagging", "vocab_file": vocab_file, "columns": columns}
  with pytest.raises(InputError, match=message):
    prepare(tmp_path / "out", DatasetSettings(str(path), 16, **fields))


def test_batches_hold_the_labels_of_tokens_and_the_audit_checks_them(make):
  store = make("tagging", ROWS * 5).train
  plan = packing.pack(store.lengths, max_sequence_length=16)
  loader = PackedLoader(store, plan, batch_size=2, masking=None, seed=0)
  assert audit(loader, epoch=0)["sequences"] == 15
  batch = loader[0]
  for row, ids in enumerate(batch["sequence_ids"]):
    expected = np.concatenate([store.gather(ids[ids >= 0], labels=True), np.zeros(16)])
    np.testing.assert_array_equal(batch["token_labels"][row], expected[:16])

  class Altered(PackedLoader):
    def __getitem__(self, number):
      batch = super().__getitem__(number)
      batch["token_labels"][0, 1] += 1
      return batch

  with pytest.raises(AuditError, match="token_labels in row 0, column 1"):
    audit(Altered(store, plan, batch_size=2, masking=None, seed=0), epoch=0)


def logits_for(store, wrong=()):
  """Outputs that predict every label, but class 3 for words with these numbers."""
  outputs, number = [], 0
  for record in store.records():
    labels = np.array(record["token_labels"])
    for place in np.flatnonzero(labels >= 0):
      labels[place] = 3 if number in wrong else labels[place]
      number += 1
    outputs.append(np.eye(4)[labels])
  return outputs


def test_entities_are_scored_and_other_tags_by_accuracy(make):
  store = make("tagging", ROWS, max_sequence_length=6).train
  assert len(store) > len(ROWS)  # one sentence has several windows
  assert pipeline.score("tagging", store, logits_for(store), labels=NAMES)["score"] == 1
  found = pipeline.score("tagging", store, logits_for(store, wrong={1}), labels=NAMES)
  # "a" alone is said to be a person, and is not one; the place is right.
  half = {"score": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5}
  assert found == half | {"strict_f1": 0.5, "accuracy": pytest.approx(6 / 7)}
  found = pipeline.score("tagging", store, logits_for(store, wrong={1}), labels=[*"abcd"])
  assert found == {"score": pytest.approx(6 / 7), "accuracy": pytest.approx(6 / 7)}
  broken = logits_for(store)
  broken[1] = broken[1][:-1]
  with pytest.raises(ValueError, match="expected finite logits of"):
    pipeline.score("tagging", store, broken, labels=NAMES)
  with pytest.raises(InputError, match=r"labels is \(\); expected the names of the tags"):
    pipeline.score("tagging", store, logits_for(store))


@pytest.mark.extra("seqeval")
@settings(deadline=None)  # it is imported
@given(
  st.lists(st.sampled_from(["O", *(f"{x}-{y}" for x in "BIES" for y in "AB")]), max_size=9),
  st.lists(st.sampled_from(["O", "B", "I", "E", "S"]), max_size=9),
)
def test_entities_are_those_of_seqeval(tags, without_kinds):
  get_entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
  for one in (tags, without_kinds):
    expected = {(kind, start, end + 1) for kind, start, end in get_entities(one)}
    found = {(kind or "_", start, end) for kind, start, end in tagging.entities(one)}
    assert found == expected


@pytest.mark.extra("seqeval")
@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU"])
@settings(deadline=None)
@given(st.data())
def test_strict_entities_are_those_of_seqeval(scheme, data):
  theirs = pytest.importorskip("seqeval.scheme")
  letters = set(scheme) & set("IOBESLU")
  every = ["O", *(f"{x}-{y}" for x in sorted(letters - {"O"}) for y in "AB")]
  tags = data.draw(st.lists(st.sampled_from(every), max_size=9))
  pairs = itertools.pairwise(tags)
  # In IOB1, seqeval drops an entity "B" before a "B" of another kind, which is no IOB1.
  assume(scheme != "IOB1" or not any(a[0] == b[0] == "B" and a != b for a, b in pairs))
  found = theirs.Tokens(tags, getattr(theirs, scheme)).entities
  expected = {(entity.tag, entity.start, entity.end) for entity in found}
  ours = scheme if scheme in tagging.SCHEMES else "BIOES"
  assert tagging.strict_entities(tags, ours) == expected


@pytest.mark.parametrize(
  ("scheme", "tags", "expected"),  # by seqeval 1.2.2, strict
  [
    ("IOB1", "I-A I-A B-A I-B O B-A", [("A", 0, 2), ("A", 2, 3), ("B", 3, 4)]),
    ("IOB2", "I-A B-A I-A I-B B-B B-B", [("A", 1, 3), ("B", 4, 5), ("B", 5, 6)]),
    ("IOE1", "I-A E-A I-A O E-B I-B", [("A", 0, 2), ("A", 2, 3), ("B", 5, 6)]),
    ("IOE2", "I-A E-A I-A O E-B I-B", [("A", 0, 2), ("B", 4, 5)]),
    ("BIOES", "B-A E-A B-A I-A S-B E-B", [("A", 0, 2), ("B", 4, 5)]),
    ("BIOES", "B-A L-A B-A I-A U-B L-B", [("A", 0, 2), ("B", 4, 5)]),
    ("BIOS", "B-A I-A S-A I-A B-B", [("A", 0, 2), ("A", 2, 3), ("B", 4, 5)]),
  ],
)
def test_strict_entities_of_each_scheme(scheme, tags, expected):
  found = tagging.strict_entities(tags.split(), scheme)
  assert sorted(found, key=lambda one: one[1]) == expected


@pytest.mark.parametrize(
  ("scheme", "sentences"),
  [
    ("IOB1", ["I-A I-A B-A", "I-B O"]),
    ("IOB2", ["B-A I-A B-A", "B-B O", "O I-A"]),  # one mistake
    ("IOE1", ["I-A E-A I-A", "I-B O"]),
    ("IOE2", ["I-A E-A", "E-B O"]),
    ("BIOES", ["B-A E-A", "S-B"]),
    ("BIOES", ["B-A I-A L-A", "O O"]),
  ],
)
def test_the_scheme_is_that_of_most_sentences(scheme, sentences):
  sentences = [tags.split() for tags in sentences]
  names = sorted({*itertools.chain(*sentences)})
  assert tagging.find_scheme(sentences, names) == scheme


@pytest.mark.parametrize(
  ("tags", "expected"),  # by seqeval 1.2.2, get_entities
  [
    ("B-A E-A O O S-A", [("A", 0, 2), ("A", 4, 5)]),
    ("B-A I-A E-A O S-B S-B", [("A", 0, 3), ("B", 4, 5), ("B", 5, 6)]),
    ("B-A L-A U-A I-A L-A", [("A", 0, 2), ("A", 2, 3), ("A", 3, 5)]),
    ("I-A I-A E-A I-A E-B E-B", [("A", 0, 3), ("A", 3, 4), ("B", 4, 5), ("B", 5, 6)]),
    ("I-A I-A B-A I-B O E-B", [("A", 0, 2), ("A", 2, 3), ("B", 3, 4), ("B", 5, 6)]),
  ],
)
def test_entities_of_each_scheme(tags, expected):
  assert sorted(tagging.entities(tags.split()), key=lambda one: one[1]) == expected
  assert tagging.mark_entities(tags.split())


@pytest.mark.parametrize("tags", ["O O", "DET NOUN", "B-A M-A O", "B-A L-A E-A", "E-A L-A"])
def test_other_tags_mark_no_entities(tags):
  assert not tagging.mark_entities(tags.split())


def test_a_line_says_when_the_score_is_accuracy(make, capsys):
  make("tagging", [{"tokens": ["a", "b"], "tags": ["DET", "NOUN"]}])
  assert "`score` is the accuracy of words" in capsys.readouterr().err
  make("tagging", [{"tokens": ["a", "b"], "tags": ["S-A", "O"]}], seed=1)
  assert "accuracy" not in capsys.readouterr().err


def test_pieces_that_begin_with_a_space_belong_to_the_next_word(tmp_path):
  """Byte-level BPE, as ModernBERT's: the words are split as the text that they make."""
  path = tmp_path / "tokenizer.json"
  path.write_text(train_bpe(["ab abc"] * 9, vocab_size=290, special_tokens=SPECIAL_TOKENS))
  words = ["ab", "abc", "é", "b a", "-", "abc"]
  source = tmp_path / "rows.jsonl"
  source.write_text(json.dumps({"tokens": words, "tags": [*"xyxyxy"]}))
  chosen = DatasetSettings(str(source), 32, task="tagging", vocab_file=str(path))
  dataset = prepare(tmp_path / "out", chosen)
  (record,) = records(dataset)
  pieces = [dataset.vocabulary[number] for number in record["input_ids"]]
  labels = record["token_labels"]
  assert dataset.tokenizer.encode([" ".join(words)]) == [record["input_ids"][1:-1]]
  firsts = [pieces[place] for place, label in enumerate(labels) if label >= 0]
  assert firsts == ["ab", "Ġabc", "Ġ", "Ġ", "Ġ", "Ġabc"]  # as transformers' `word_ids`
  assert len(pieces) > len(words) + 2
