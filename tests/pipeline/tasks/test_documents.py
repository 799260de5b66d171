"""Sequences of text, tokens and sentences, and what is too long."""

import json
import pathlib

import numpy as np
import pytest
import tokenizers

from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import DocumentShard
from pipeline.tasks.encoder import Encoder
from pipeline.tasks.registry import TASKS
from pipeline.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.pipeline.tasks.making import CLS, SEP, sequences, tokens


def test_text_ends_with_its_token_and_long_text_is_split_or_cut(make, tmp_path):
  rows = [{"text": "a b c"}, {"text": "  "}, {"text": "a b c d e f g h i j"}]
  for how, expected in (
    ("split", ["a b c [SEP]", "a b c d e", "f g h i j", "[SEP]"]),
    ("truncate", ["a b c [SEP]", "a b c d [SEP]"]),
  ):
    dataset = make("text", rows, max_sequence_length=5, too_long=how)
    assert tokens(dataset.train) == expected
    counts = dataset.manifest["counts"]
    assert counts["train"]["too_long"] == 1
    assert (counts["documents"], counts["documents_used"]) == (3, 2)
    assert (dataset.train.first_type_lengths == dataset.train.lengths).all()
  with pytest.raises(InputError, match=r"line 3: A sequence has 11 tokens; expected at mo"):
    make("text", rows, max_sequence_length=5, too_long="error")
  assert not (tmp_path / "out2").exists()


def test_tokens_are_not_changed(make):
  rows = [
    {
      "input_ids": [CLS, 5, SEP, 6, SEP],
      "token_type_ids": [0, 0, 0, 1, 1],
      "position_ids": [2, 3, 4, 5, 6],
      "seq_lengths": [5],
    },
    {"input_ids": []},
    *({"input_ids": [5, 6, 7], "label": n} for n in (4, -(2**31), 2**31 - 1, True)),
  ]
  store = make("tokens", rows).train
  assert sequences(store) == [[CLS, 5, SEP, 6, SEP], *[[5, 6, 7]] * 4]
  assert store.first_type_lengths.tolist() == [3] * 5
  assert store.sequence_labels.tolist() == [0, 4, -(2**31), 2**31 - 1, 1]
  rows = [{"input_ids": list(range(5, 18)), "token_type_ids": [0] * 7 + [1] * 6}]
  store = make("tokens", rows, max_sequence_length=5, too_long="split").train
  assert sequences(store) == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17]]
  assert store.first_type_lengths.tolist() == [5, 2, 0]


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"input_ids": [5, 99]}, r"token 1 is 99; the vocabulary has the ids 0 to 28"),
    ({"input_ids": [5, 6, 0]}, r"token 2 is padding. Tokenize with padding=False"),
    ({"input_ids": [5, 6], "attention_mask": [1, 0]}, r"has zeros in attention_mask"),
    ({"input_ids": [5, 0], "attention_mask": [1]}, r"attention_mask is .*; expected 2 one"),
    ({"input_ids": [5, 0.5]}, r"expected a list of integers"),
    ({"input_ids": [5, 6], "token_type_ids": [1, 0]}, r"zeros and then ones"),
    ({"input_ids": [5, 6], "token_type_ids": [0]}, r"expected 2 numbers, zeros and"),
    ({"input_ids": [5, 6], "position_ids": [0, 0]}, r"inside a row, which is packed alrea"),
    ({"input_ids": [5, 6], "position_ids": [[0], 0]}, r"expected a list of integers"),
    (
      {"input_ids": [5, 6], "seq_lengths": [1, 1]},
      r"seq_lengths is \[1, 1\]: the row is p",
    ),
    ({"input_ids": [5] * 17}, r"A sequence has 17 tokens; expected at most 16"),
    ({"input_ids": [5], "label": "x"}, r"label is 'x'; expected a 32-bit int"),
    ({"input_ids": [5], "label": 3_000_000_000}, r"label is 3000000000; expected a 32-b"),
  ],
)
def test_invalid_tokens_are_refused(make, tmp_path, row, message):
  with pytest.raises(InputError, match=rf"line 2: .*{message}"):
    make("tokens", [{"input_ids": [5]}, row])
  assert not list(tmp_path.glob("*out*"))


def test_a_sequence_has_as_many_whole_sentences_as_fit(make):
  rows = [
    {"text": "A b c. D e f. G h. I j a b."},  # 4 + 4, and then 3 + 5, of 9 tokens
    {"text": "J."},
    {"text": "A b c d e f g h i j. B c."},
    {"text": " "},
  ]
  for how, end in (("truncate", "b c . [SEP]"), ("split", "j . b c . [SEP]")):
    dataset = make("sentences", rows, max_sequence_length=11, too_long=how)
    assert tokens(dataset.train) == [
      "[CLS] a b c . d e f . [SEP]",
      "[CLS] g h . i j a b . [SEP]",
      "[CLS] j . [SEP]",
      "[CLS] a b c d e f g h i [SEP]",
      f"[CLS] {end}",
    ]
  store, counts = dataset.train, dataset.manifest["counts"]["train"]
  assert (store.first_type_lengths == store.lengths).all()  # token type 0 throughout
  assert not store.sequence_labels.any()
  expected = {"documents": 3, "sequences": 5, "tokens": store.lengths.sum(), "too_long": 1}
  assert counts == expected
  assert dataset.labels == ()
  with pytest.raises(InputError, match=r"line 3: A sentence has 11 tokens; expected at mo"):
    make("sentences", rows, max_sequence_length=11, too_long="error")


def test_documents_are_whole_as_far_as_they_fit(make):
  rows = [
    {"text": "a b c. D"},
    {"text": "a b c d e f g h i j"},
    {"text": "j"},
    {"text": " "},
  ]
  for how, rest in (("split", ["[CLS] h i j [SEP]"]), ("truncate", [])):
    dataset = make("documents", rows, max_sequence_length=9, too_long=how)
    assert tokens(dataset.train) == [
      "[CLS] a b c . d [SEP]",
      "[CLS] a b c d e f g [SEP]",
      *rest,
      "[CLS] j [SEP]",
    ]
  assert (dataset.train.first_type_lengths == dataset.train.lengths).all()
  assert dataset.manifest["counts"]["train"]["too_long"] == 1
  long = make("documents", rows, min_words=3)
  assert len(long.train) == 2


def test_documents_have_a_byte_level_vocabulary_with_the_special_tokens(make):
  rows = [{"text": "abc abc abc [MASK] [SEP]"}, {"text": "Abc"}]
  dataset = make("documents", rows, vocab_file="", vocab_size=262)
  assert dataset.vocabulary[:5] == [*SPECIAL_TOKENS]
  assert len(dataset.vocabulary) == 262
  assert "ab" in dataset.vocabulary or "bc" in dataset.vocabulary
  for ids in sequences(dataset.train):  # what looks like a special token is text
    assert sum(token < 5 for token in ids) == 2
  with pytest.raises(InputError, match=r"vocab_size is 260; expected at least 261 for"):
    make("documents", rows, vocab_file="", vocab_size=260)


def test_sentences_cross_documents_in_training_alone(make, tmp_path):
  """As RoBERTa's FULL-SENTENCES; [SEP] stands between documents, and never at an end."""
  rows = [
    {"text": "A b c. D e f."},  # 4 + 4, with [SEP] 9: just the row
    {"text": "G h."},  # 3, [SEP], 2 and 3: another row
    {"text": "J. A b."},
    {"text": "C d e f. A b."},
  ]
  held_out = tmp_path / "held_out.jsonl"
  held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
  dataset = make(
    "sentences",
    rows,
    max_sequence_length=11,
    cross_documents=True,
    held_out_source=str(held_out),
  )
  assert tokens(dataset.train) == [
    "[CLS] a b c . d e f . [SEP]",
    "[CLS] g h . [SEP] j . a b . [SEP]",
    "[CLS] c d e f . a b . [SEP]",
  ]
  apart = make("sentences", rows, max_sequence_length=11)
  assert tokens(dataset.held_out) == tokens(apart.train)
  assert len(apart.train) == 4


def test_each_document_is_cut_dupe_factor_times_differently(make):
  letters = np.random.default_rng(0).choice([*"abcdefghij"], (7, 9, 4)).tolist()
  rows = [{"text": " ".join(" ".join(s).title() + "." for s in d)} for d in letters]
  once, thrice = (sequences(make("pretraining", rows, dupe_factor=n).train) for n in (1, 3))
  assert thrice[: len(once)] == once
  assert len(thrice) > 2.5 * len(once)
  assert thrice[len(once) : 2 * len(once)] != once


def test_each_split_partition_and_shard_has_its_own_random_choices(vocab_file):
  text = " ".join(f"{a.title()} {b} {a}." for a in "abcdefghij" for b in "abcdefghij")
  settings = DatasetSettings("", 16, vocab_file=vocab_file)
  encoder = Encoder(settings, Tokenizer(pathlib.Path(vocab_file)))
  found = []
  for place in (("train", 0, 0), ("held_out", 0, 0), ("train", 1, 0), ("train", 0, 1)):
    shard = DocumentShard(*place, [Document({"text": text})] * 3)
    made = TASKS["pretraining"].make_sequences(shard, encoder)
    found.append([sequence[0] for sequence in made])
  assert all(rows not in found[:i] for i, rows in enumerate(found))


def test_a_tokenizer_json_works_as_a_vocabulary(tmp_path):
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>")
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.enable_padding(length=9)
  tokenizer.enable_truncation(2)
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "a.txt").write_text("b a b z\n\na\n")
  given = {"vocab_file": str(tmp_path / "tokenizer.json")}
  settings = DatasetSettings(str(tmp_path / "a.txt"), 9, task="text", **given)
  dataset = prepare(tmp_path / "out", settings)
  assert sequences(dataset.train) == [[2, 1, 2, 0, 3], [1, 3]]
  assert dataset.vocabulary == ["<unk>", "a", "b", "</s>"]
  with pytest.raises(
    InputError, match=r"no token \[PAD\] or <pad>.*, no \[MASK\] or <mask>\. "
  ):
    prepare(tmp_path / "bert", DatasetSettings(settings.source, 9, **given))


def test_a_token_that_elsewhere_is_padding_may_be_real(make):
  rows = [{"input_ids": [7, 8, 0], "attention_mask": [1, 1, 1]}, {"input_ids": [6]}]
  assert sequences(make("tokens", rows).train) == [[7, 8, 0], [6]]


def test_labels_are_of_sequences_and_those_of_tokens_are_counted(make):
  rows = [{"input_ids": [7], "labels": 3}, {"input_ids": [8], "label": 2, "labels": [1]}]
  dataset = make("tokens", rows)
  assert dataset.train.sequence_labels.tolist() == [3, 2]
  assert dataset.manifest["counts"]["train"]["labels_of_tokens_left_out"] == 1


def test_a_document_without_tokens_is_none(make):
  rows = [{"text": text} for text in ("a b", "\u200b", "\ufeff", "c")]
  assert tokens(make("documents", rows).train) == ["[CLS] a b [SEP]", "[CLS] c [SEP]"]
