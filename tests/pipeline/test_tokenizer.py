"""Word pieces and bytes: learned from a corpus, or read from files; and text prepared."""

import json

import numpy as np
import pytest
import tokenizers

from configs import gpt2_atoms
from launch.data import make_loader, prepare_dataset
from launch.door import settings_of
from launch.plans import make_plan
from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.tokenizer import (
  END,
  SPECIAL_TOKENS,
  Tokenizer,
  train_bpe,
  train_word_pieces,
  word_piece_tokenizer,
)

TEXT = "The bœuf , 3 @.@ 5 kg of it , is <unk> .\n"


@pytest.mark.parametrize("seed", range(5))
def test_equal_corpora_give_one_vocabulary_that_splits_all_words(tmp_path, seed):
  """Words of equally likely letters, so almost every merge is a tie."""
  rng = np.random.default_rng(seed)
  letters = np.array(list("abcdefghijklmnop"))
  texts = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(97)]
  learned = train_word_pieces(texts, vocab_size=120)
  assert len(learned) == 120
  assert learned[:5] == list(SPECIAL_TOKENS)
  for _ in range(5):
    assert train_word_pieces(iter(texts), vocab_size=120) == learned
  (tmp_path / "vocab.txt").write_text("\n".join(learned))
  for text, ids in zip(texts, Tokenizer(tmp_path / "vocab.txt").encode(texts), strict=True):
    assert "".join(learned[token].removeprefix("##") for token in ids) == text


def test_a_token_may_hold_what_only_unicode_calls_a_line_end(tmp_path):
  tokens = [*SPECIAL_TOKENS, "a", "##\u2028b", "\x85", "c"]
  (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
  assert Tokenizer(tmp_path / "vocab.txt").vocabulary == tokens


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (None, r": No such file"),
    (b"\xff\xfe", r" is not a vocabulary of one token a line"),
    (b"[PAD]\n[SEP]\n", r" lacks \[UNK\], \[CLS\], \[MASK\]\. Give BERT's"),
    ("\n".join([*SPECIAL_TOKENS, *"abca"]).encode(), r" has 'a' on 2 lines; expected each"),
  ],
)
def test_an_invalid_vocabulary_is_refused(tmp_path, content, message):
  if content is not None:
    (tmp_path / "vocab.txt").write_bytes(content)
  with pytest.raises(InputError, match=rf"vocab\.txt{message}"):
    Tokenizer(tmp_path / "vocab.txt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A tokenizer.json, and beside it GPT-2's two files of the same tokenizer."""
  folder = tmp_path_factory.mktemp("bpe")
  texts = [TEXT * 7, "a b c\n", "It is 3 kg ."]
  learned = train_bpe(texts, vocab_size=280)
  assert train_bpe(iter(texts), vocab_size=280) == learned
  (folder / "tokenizer.json").write_text(learned)
  return folder


def changed(trained, path, **fields):
  content = json.loads((trained / "tokenizer.json").read_text())
  path.write_text(json.dumps(content | fields))
  return path


def test_ids_may_have_gaps(trained, tmp_path):
  model = json.loads((trained / "tokenizer.json").read_text())["model"]
  given = {"model": model | {"vocab": model["vocab"] | {"last": 300}}}
  path = changed(trained, tmp_path / "300.json", **given)
  assert Tokenizer(path).vocabulary[-2:] == ["[unused 299]", "last"]


def test_a_panic_of_the_library_is_an_error_of_the_file(trained, tmp_path):
  """When it is read, and when text takes a regular expression too long."""
  path = tmp_path / "tokenizer.json"
  normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
  with pytest.raises(InputError, match=r"tokenizer\.json: Precompiled"):
    Tokenizer(changed(trained, path, normalizer=normalizer))
  split = {"type": "Split", "pattern": {"Regex": "((a+)+)+$"}, "behavior": "Isolated"}
  tokenizer = Tokenizer(changed(trained, path, pre_tokenizer=split | {"invert": False}))
  text = "a" * 40 + "b"
  with pytest.raises(InputError, match=r"json cannot split a text: Onig: Regex search"):
    tokenizer.encode([text])
  with pytest.raises(InputError, match=r"json cannot split a text: Onig: Regex search"):
    tokenizer.encode_with_offsets(text)


def test_any_text_decodes_to_itself_and_only_documents_end(trained):
  tokenizer = Tokenizer(trained / "tokenizer.json")
  assert (len(tokenizer.vocabulary), tokenizer.end_id) == (280, 0)
  texts = [TEXT, " \n", "<|endoftext|> 日本", "\x00\t x"]
  found = tokenizer.encode(texts)
  plain = tokenizers.Tokenizer.from_file(str(trained / "tokenizer.json"))
  assert [plain.decode(ids) for ids in found] == texts
  assert all(tokenizer.end_id not in ids for ids in found)


def test_text_is_whole_in_every_layout_without_short_documents(tmp_path):
  """With the config for WikiText-103: of its lines those with 50 words."""
  rng = np.random.default_rng(0)
  lines = ["".join(rng.choice(TEXT.split(), n) + " \t") for n in rng.integers(40, 99, 197)]
  lines = [line + "\n" for line in (*lines, "a " * 49, "  " + "a " * 50, "")]
  for name in ("train.txt", "valid.txt"):
    (tmp_path / name).write_text("".join(lines))
  config = gpt2_atoms.get_config()
  config.data.source = str(tmp_path / "train.txt")
  config.data.held_out_source = str(tmp_path / "valid.txt")
  config.data.directory = str(tmp_path / "data")
  config.data.vocab_size = 300
  config.train.batch_size = 8
  dataset = prepare_dataset(settings_of(config).data)

  kept = [line for line in lines if len(line.split()) >= 50]
  counts = dataset.manifest["counts"]["train"]
  assert counts["documents"] == len(kept) > 99
  assert counts["too_short"] == sum(bool(line.strip()) for line in lines) - len(kept)
  plain = tokenizers.Tokenizer.from_file(str(dataset.directory / "tokenizer.json"))
  tokens = dataset.train.gather(np.arange(len(dataset.train)))
  text = plain.decode(tokens.tolist(), skip_special_tokens=False)
  assert text == "".join(line + END for line in kept)

  rows = {}
  for layout in ("packed", "concat", "padding"):
    config.data.layout = layout
    run = settings_of(config)
    loader = make_loader(run, dataset.train, dataset.vocabulary)
    rows[layout] = make_plan(run.rows, dataset.train, seed=0).num_packs
    assert rows[layout] == loader.num_rows
    real = sum(int((b["segment_ids"] > 0).sum()) for b in loader.evaluation_batches())
    assert layout == "padding" or real == tokens.size
  assert rows["concat"] == -(-tokens.size // 64) <= rows["packed"] < rows["padding"]


def _word_pieces(folder, change=lambda definition: None):
  """BERT's tokenizer.json and vocab.txt of a few tokens, changed."""
  tokens = [*SPECIAL_TOKENS, "a", "b", "##b", "co", "##vid", "[", "e", "]"]
  (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
  definition = json.loads(word_piece_tokenizer(tokens).to_str())
  change(definition)
  (folder / "tokenizer.json").write_text(json.dumps(definition))
  return tokens


def test_added_tokens_are_tokens_and_special_ones_are_text(tmp_path):
  def add(definition):
    shared = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, content, special in (
      (4, "[MASK]", True),
      (13, "[E]", True),
      (14, "covid", False),
    ):
      token = {"id": number, "content": content, "special": special}
      definition["added_tokens"].append(token | shared)

  _word_pieces(tmp_path, add)
  tokenizer = Tokenizer(tmp_path / "tokenizer.json")
  assert tokenizer.vocabulary[13:] == ["[E]", "covid"]
  assert tokenizer.encode(["a [E] covid", "[MASK]"]) == [[5, 13, 14], [10, 1, 12]]
  with pytest.raises(
    InputError, match=r"tokenizer\.json splits text differently.*Give it inst"
  ):
    Tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
  ("part", "value"),
  [
    ("pre_tokenizer", {"type": "WhitespaceSplit"}),
    ("model", {"continuing_subword_prefix": "@@"}),
    ("normalizer", {"lowercase": False}),
  ],
)
def test_a_vocabulary_beside_a_tokenizer_that_splits_otherwise_is_refused(
  tmp_path, part, value
):
  _word_pieces(tmp_path)
  assert Tokenizer(tmp_path / "vocab.txt").encode(["ab"]) == [[5, 7]]
  _word_pieces(tmp_path, lambda definition: definition[part].update(value))
  with pytest.raises(InputError, match="splits text differently"):
    Tokenizer(tmp_path / "vocab.txt")


def test_a_cased_vocabulary_is_told(tmp_path, capsys):
  (tmp_path / "a.txt").write_text("The London")
  (tmp_path / "vocab.txt").write_text(
    "\n".join([*SPECIAL_TOKENS, "london", "London", "the"])
  )
  fields = {"task": "documents", "vocab_file": str(tmp_path / "vocab.txt")}
  prepare(tmp_path / "out", DatasetSettings(str(tmp_path / "a.txt"), 16, **fields))
  assert "has capitals, but text is lower-cased" in capsys.readouterr().err


@pytest.mark.parametrize("number", [3000, 10**8])
def test_an_id_beyond_what_the_file_can_hold_is_refused(tmp_path, number):
  path = tmp_path / "tokenizer.json"
  model = {"type": "WordLevel", "vocab": {"a": 0, "b": number}, "unk_token": "a"}
  path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
  with pytest.raises(InputError, match=rf"id {number:,}; a file of \d+ bytes cannot"):
    Tokenizer(path)


CONTROL = ["[UNK]", "</s>", "[SEP]", "<pad>"]
IDS = {name: number for number, name in enumerate([*CONTROL, *"ab</s>", "</"])}
MERGES = [("<", "/"), ("s", ">"), ("</", "s>")]


@pytest.mark.parametrize(
  "kind",
  [
    tokenizers.models.WordLevel(IDS, unk_token="[UNK]"),
    tokenizers.models.WordPiece(IDS, unk_token="[UNK]"),
    tokenizers.models.BPE(IDS | {"s>": 11}, MERGES, unk_token="[UNK]"),
    tokenizers.models.BPE(IDS, [], unk_token="[UNK]", ignore_merges=True),
  ],
)
@pytest.mark.parametrize("added", [[], CONTROL])
def test_a_control_token_that_is_a_word_of_a_text_is_text(tmp_path, kind, added):
  plain = tokenizers.Tokenizer(kind)
  plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  plain.add_special_tokens(added)
  plain.save(str(tmp_path / "tokenizer.json"))
  tokenizer = Tokenizer(tmp_path / "tokenizer.json")
  typed, other = tokenizer.encode(["a </s> [SEP] <pad> b [UNK]", "a b </ ~"])
  assert not {1, 2, 3} & set(typed)
  if not isinstance(kind, tokenizers.models.BPE):
    assert typed == [4, 0, 0, 0, 5, 0]
  assert other == [4, 5, 10, 0]
  assert tokenizer.vocabulary[:4] == CONTROL
  assert (tokenizer.sep_id, tokenizer.padding_id) == (2, 3)


def _with_both(folder, post_processor=None):
  """A tokenizer.json with BERT's special tokens and RoBERTa's."""
  names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *SPECIAL_TOKENS, "a"]
  ids = {name: number for number, name in enumerate(names)}
  tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
  if post_processor:
    tokenizer.post_processor = post_processor
  path = folder / "tokenizer.json"
  tokenizer.save(str(path))
  return path


def _template(single, pair, *, end=2):
  """A post-processor; `end` is the id of </s>."""
  return tokenizers.processors.TemplateProcessing(
    single=single, pair=pair, special_tokens=[("<s>", 0), ("</s>", end)]
  )


def _ids(tokenizer):
  return tokenizer.padding_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id


def test_of_two_kinds_of_special_tokens_berts_are_used(tmp_path):
  """As in a tokenizer that puts nothing around texts, whatever its post-processor does."""
  for post_processor in (None, tokenizers.processors.ByteLevel()):
    tokenizer = Tokenizer(_with_both(tmp_path, post_processor))
    assert _ids(tokenizer) == (5, 7, 8, 9)
    assert tokenizer.separators == (8,)


def test_a_tokenizer_json_says_what_stands_around_texts(tmp_path):
  both = _template("<s> $A </s>", "<s> $A </s> </s> $B </s>")
  tokenizer = Tokenizer(_with_both(tmp_path, both))
  assert _ids(tokenizer) == (5, 0, 2, 9)
  assert tokenizer.separators == (2, 2)
  t5 = _template("$A </s>", "$A </s> $B </s>")
  tokenizer = Tokenizer(_with_both(tmp_path, t5))
  assert _ids(tokenizer) == (5, 7, 2, 9)
  assert tokenizer.separators == (2,)
  llama = _template("<s> $A", "<s> $A $B")
  tokenizer = Tokenizer(_with_both(tmp_path, llama))
  assert _ids(tokenizer) == (5, 0, 8, 9)
  assert tokenizer.separators == (8,)


def test_a_tokenizer_json_that_no_task_can_follow_is_refused(tmp_path):
  several = Tokenizer(_with_both(tmp_path, _template("$A </s> <s>", "$A </s> $B </s> <s>")))
  with pytest.raises(InputError, match=r"json puts </s> <s> after a text; expected one"):
    several.ids_of(SPECIAL_TOKENS)
  assert several.mask_id == 9
  unknown = _template("<s> $A </s>", "<s> $A </s> $B </s>", end=11)
  with pytest.raises(InputError, match=r"json puts the ids 0, 11, 11 around texts; its"):
    _ = Tokenizer(_with_both(tmp_path, unknown)).separators


def test_missing_special_tokens_are_told_by_both_names(trained):
  tokenizer = Tokenizer(trained / "tokenizer.json")
  assert tokenizer.padding_id is None
  with pytest.raises(
    InputError, match=r"json has no token \[CLS\] or <s>, no \[MASK\] or <"
  ):
    tokenizer.ids_of(["[CLS]", "[MASK]"])
  for name, message in (
    ("cls_id", r"no token \[CLS\] or <s>\. Give another vocabulary"),
    ("sep_id", r"no token \[SEP\] or </s>\. "),
    ("mask_id", r"no token \[MASK\] or <mask>\. "),
    ("separators", r"no token \[SEP\] or </s>\. "),
  ):
    with pytest.raises(InputError, match=message):
      getattr(tokenizer, name)
