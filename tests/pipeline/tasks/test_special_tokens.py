"""Sequences with the special tokens of a tokenizer.json, compared with what it encodes."""

import itertools

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import packing
from packing import InputError
from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import Masking
from pipeline.tasks import squad
from pipeline.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.pipeline.tasks.making import sequences

TEXTS = [
  "The first tower of the town was built in 1871, of red bricks.",
  "A storm took its roof away",
  "In the town they say that nobody saw it fall.",
  "Rain fell on the red roof and on the tower for seven days; then the town was silent.",
]
ROBERTAS = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
KINDS = "roberta", "xlm_roberta", "bert"


def byte_level():
  """RoBERTa's: a BPE of bytes."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=list(ROBERTAS),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(TEXTS, trainer)
  tokenizer.post_processor = processors.RobertaProcessing(
    ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
  )
  return tokenizer


def unigram():
  """XLM-R's: a Unigram whose pieces begin with the space before a word."""
  tokenizer = tokenizers.Tokenizer(models.Unigram())
  tokenizer.normalizer = normalizers.NFKC()
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=60,
    special_tokens=list(ROBERTAS),
    unk_token="<unk>",
    show_progress=False,
  )
  tokenizer.train_from_iterator(TEXTS, trainer)
  tokenizer.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>",
    pair="<s> $A </s> </s> $B </s>",
    special_tokens=[("<s>", 0), ("</s>", 2)],
  )
  return tokenizer


def word_pieces():
  """BERT's, but with its capitals."""
  tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  trainer = trainers.WordPieceTrainer(
    vocab_size=90, special_tokens=list(SPECIAL_TOKENS), show_progress=False
  )
  tokenizer.train_from_iterator(TEXTS, trainer)
  tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
  return tokenizer


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder, found = tmp_path_factory.mktemp("tokenizers"), {}
  for kind, train in zip(KINDS, (byte_level, unigram, word_pieces), strict=True):
    found[kind] = folder / kind / "tokenizer.json"
    found[kind].parent.mkdir()
    train().save(str(found[kind]))
  return found


@pytest.fixture(params=KINDS)
def path(request, files):
  return str(files[request.param])


@pytest.fixture
def theirs(path):
  return tokenizers.Tokenizer.from_file(path)


def separators(path):
  return 1 if "/bert/" in path else 2


def test_single_texts_are_as_encoded(make, path, theirs):
  rows = [{"sentence": text, "label": i % 2} for i, text in enumerate(TEXTS)]
  found = make("classification", rows, vocab_file=path, max_sequence_length=99).train
  assert sequences(found) == [theirs.encode(text).ids for text in TEXTS]
  assert found.first_type_lengths.tolist() == found.lengths.tolist()


def test_pairs_are_as_encoded_with_their_separators(make, path, theirs):
  pairs = list(itertools.permutations(TEXTS, 2))
  rows = [{"sentence1": a, "sentence2": b, "label": 0} for a, b in pairs]
  found = make("glue/mrpc", rows, vocab_file=path, max_sequence_length=199).train
  assert sequences(found) == [theirs.encode(a, b).ids for a, b in pairs]
  alone = [len(theirs.encode(a).ids) for a, _ in pairs]  # with one separator
  expected = [length + separators(path) - 1 for length in alone]
  assert found.first_type_lengths.tolist() == expected


def test_pairs_that_are_too_long_are_cut_as_by_the_tokenizer(make, path, theirs):
  """Where halves are even: of an odd token, run_classifier.py and transformers differ."""
  pairs = [(TEXTS[3], "red"), ("red", TEXTS[3]), (TEXTS[0], TEXTS[3])]
  limit = 2 + separators(path) + 14
  rows = [{"sentence1": a, "sentence2": b, "label": 0} for a, b in pairs]
  dataset = make("glue/mrpc", rows, vocab_file=path, max_sequence_length=limit)
  theirs.enable_truncation(limit)
  assert sequences(dataset.train) == [theirs.encode(a, b).ids for a, b in pairs]
  assert dataset.train.lengths.tolist() == [limit] * 3
  assert dataset.manifest["counts"]["train"]["too_long"] == 3


ANSWERS = "The", "red bricks", "1871", "silent", "roof and on"


def test_windows_of_questions_are_as_encoded_and_point_at_answers(
  make, path, theirs, monkeypatch
):
  """At the answers alone: a piece of XLM-R begins with the space before its word."""
  step, limit = 7, 40
  monkeypatch.setattr(squad, "limits", lambda _: (16, step))
  context, asked = f"{TEXTS[0]} {TEXTS[3]}", "Red?"
  rows = [
    {
      "id": answer,
      "question": asked,
      "context": context,
      "answers": {"text": [answer], "answer_start": [context.index(answer)]},
    }
    for answer in ANSWERS
  ]
  dataset = make("squad", rows, vocab_file=path, max_sequence_length=limit)
  prefix = len(theirs.encode(asked).ids) + separators(path) - 1
  overlap = limit - prefix - 1 - step
  theirs.enable_truncation(limit, stride=overlap, strategy="only_second")
  whole = theirs.encode(asked, context)
  expected = [whole.ids, *(window.ids for window in whole.overflowing)]
  assert len(expected) > 2
  windows = list(dataset.train.records())
  shown = set()
  for answer in ANSWERS:
    mine = [window for window in windows if window["example_id"] == answer]
    assert [window["input_ids"] for window in mine] == expected
    for window in mine:
      assert window["first_type_length"] == prefix
      start, end = window["start_position"], window["end_position"]
      if not end:
        continue
      assert prefix <= start <= end < len(window["input_ids"]) - 1
      first, last = window["token_starts"][start - prefix], window["token_ends"]
      assert window["text"][first : last[end - prefix]] == answer
      shown.add(answer)
  assert shown == set(ANSWERS)


def test_a_tag_is_at_the_first_piece_of_its_word(make, path, theirs):
  sentences = [text.strip(".").replace(",", "").replace(";", "").split() for text in TEXTS]
  rows = [{"tokens": words, "tags": [*map(str, range(len(words)))]} for words in sentences]
  names = ",".join(map(str, range(max(map(len, sentences)))))
  fields = {"labels": names, "vocab_file": path, "max_sequence_length": 99}
  for words, record in zip(
    sentences, make("tagging", rows, **fields).train.records(), strict=True
  ):
    expected = theirs.encode(" ".join(words))
    assert record["input_ids"] == expected.ids
    places = [i for i, label in enumerate(record["token_labels"]) if label >= 0]
    assert [record["token_labels"][i] for i in places] == list(range(len(words)))
    of_words = expected.word_ids
    assert places == [of_words.index(number) for number in range(len(words))]


def test_documents_are_split_between_special_tokens(make, path, theirs):
  rows, limit = [{"text": text} for text in TEXTS], 16
  dataset = make("documents", rows, vocab_file=path, max_sequence_length=limit)
  expected = []
  for text in TEXTS:
    first, *ids, last = theirs.encode(text).ids
    room = limit - 2
    pieces = (ids[start : start + room] for start in range(0, len(ids), room))
    expected += [[first, *piece, last] for piece in pieces]
  assert sequences(dataset.train) == expected
  assert len(expected) > len(TEXTS)


def test_masks_hide_texts_and_no_special_token(make, path, theirs):
  rows = [{"text": text} for text in TEXTS]
  dataset = make("documents", rows, vocab_file=path, max_sequence_length=40)
  masking = Masking.for_vocabulary(dataset.vocabulary, rate=0.4, seed=0)
  special = {theirs.token_to_id(name) for name in (*ROBERTAS, *SPECIAL_TOKENS)} - {None}
  unknown = {theirs.token_to_id(name) for name in ("<unk>", "[UNK]")}
  assert {*masking.special_ids} == special - unknown
  mask = theirs.token_to_id("[MASK]" if "/bert/" in path else "<mask>")
  assert masking.mask_id == mask
  assert dataset.manifest["most_frequent_token"] not in masking.special_ids
  plan = packing.pack(dataset.train.lengths, max_sequence_length=40)
  loader = PackedLoader(dataset.train, plan, batch_size=2, masking=masking, seed=0)
  batch = next(iter(loader.evaluation_batches()))
  hidden = batch["mlm_labels"][batch["mlm_segment_ids"] > 0]
  assert hidden.size > 9
  assert not set(hidden.tolist()) & set(masking.special_ids)
  assert (batch["input_ids"] == mask).sum() > hidden.size / 2


def test_texts_of_records_are_as_encoded(make, path, theirs):
  rows = [{"anchor": a, "positive": b} for a, b in itertools.pairwise(TEXTS)]
  found = make("pairs", rows, vocab_file=path, max_sequence_length=199).train
  expected = [
    theirs.encode(a).ids + theirs.encode(b).ids for a, b in itertools.pairwise(TEXTS)
  ]
  assert sequences(found) == expected


def test_segments_are_joined_by_all_separators(make, path, theirs):
  rows, limit = [{"text": " ".join(TEXTS)}] * 3, 32
  fields = {"vocab_file": path, "max_sequence_length": limit}
  store = make("pretraining", rows, **fields).train
  cls, *_, sep = theirs.encode("a").ids
  between = separators(path)
  assert store.lengths.max() == limit
  for ids, first in zip(sequences(store), store.first_type_lengths, strict=True):
    places = [place for place, token in enumerate(ids) if token == sep]
    assert places == [*range(first - between, first), len(ids) - 1]
    assert ids[0] == cls
  least = 4 + between
  if least > 5:
    with pytest.raises(InputError, match=rf"length is 5; expected at least {least}, for a"):
      make("pretraining", rows, vocab_file=path, max_sequence_length=5)
  assert make(
    "pretraining", rows, vocab_file=path, max_sequence_length=least
  ).train.lengths[0]


def test_a_vocabulary_without_special_tokens_is_refused(make, tmp_path):
  """By each task with the tokens that it needs."""
  plain = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "<s>": 2}, "<unk>"))
  plain.save(str(tmp_path / "tokenizer.json"))
  rows = [{"sentence": "a", "label": label, "text": "a"} for label in "xy"]
  fields = {"vocab_file": str(tmp_path / "tokenizer.json")}
  with pytest.raises(InputError, match=r"json has no token \[SEP\] or </s>\. Give another"):
    make("classification", rows, **fields)
  missing = r"\[PAD\] or <pad> or <\|pad\|>, no \[SEP\] or </s>, no \[MASK\] or <mask>\. "
  with pytest.raises(InputError, match=f"json has no token {missing}"):
    make("documents", rows, **fields)
  with pytest.raises(InputError, match=f"The vocabulary has no token {missing}"):
    Masking.for_vocabulary(["a", "<unk>", "<s>"], rate=0.2, seed=0)


@pytest.mark.extra("transformers")
def test_transformers_makes_the_same_sequences(make, path):
  transformers = pytest.importorskip("transformers")
  names = SPECIAL_TOKENS if "/bert/" in path else [ROBERTAS[i] for i in (1, 3, 0, 2, 4)]
  roles = "pad_token", "unk_token", "cls_token", "sep_token", "mask_token"
  fast = transformers.PreTrainedTokenizerFast(
    tokenizer_file=path, **dict(zip(roles, names, strict=True))
  )
  ours = Tokenizer(path)
  ids = ours.padding_id, ours.cls_id, ours.sep_id, ours.mask_id
  assert ids == (
    fast.pad_token_id,
    fast.cls_token_id,
    fast.sep_token_id,
    fast.mask_token_id,
  )
  pairs = list(itertools.permutations(TEXTS, 2))
  rows = [{"sentence1": a, "sentence2": b, "label": 0} for a, b in pairs]
  found = sequences(make("glue/mrpc", rows, vocab_file=path, max_sequence_length=199).train)
  assert found == fast([a for a, _ in pairs], [b for _, b in pairs])["input_ids"]


@pytest.mark.parametrize("typed", ["<pad>", "<s>", "</s>", "<mask>", "<unk>"])
def test_a_control_token_that_is_typed_in_a_text_is_text(path, theirs, typed):
  ours = Tokenizer(path)
  control = {theirs.token_to_id(token) for token in (*ROBERTAS, *SPECIAL_TOKENS)} - {None}
  unknown = {theirs.token_to_id(token) for token in ("<unk>", "[UNK]")}
  (found,) = ours.encode([f"the {typed} tower"])
  assert not (control - unknown) & set(found)
  assert found[:1] == ours.encode(["the tower"])[0][:1]
  assert ours.encode_with_offsets(f"the {typed} tower")[0] == found
  assert ours.encode(TEXTS) == [
    theirs.encode(text, add_special_tokens=False).ids for text in TEXTS
  ]
