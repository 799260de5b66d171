"""The tokenizer of a model: the file that splits its text, or a clear error."""

import json
import types

import pytest

from packing import InputError
from pipeline.prediction.of_model import open_tokenizer, settings_to_read
from pipeline.settings import DatasetSettings
from pipeline.tokenizer import train_bpe
from tests.pipeline.tasks.making import VOCABULARY


def vocabulary(tokens, *, lowercase=True, by_json=False):
  """As `model.weights.Vocabulary`."""
  return types.SimpleNamespace(tokens=tokens, lowercase=lowercase, by_json=by_json)


def test_a_model_splits_text_by_its_own_file(tmp_path):
  """A vocab.txt does not take its place."""
  definition = train_bpe(["abc abc"], vocab_size=260)
  ids = json.loads(definition)["model"]["vocab"]
  tokens = tuple(sorted(ids, key=ids.__getitem__))
  (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
  (tmp_path / "tokenizer.json").write_text(definition)
  tokenizer = open_tokenizer(tmp_path, vocabulary(tokens, by_json=True))
  assert tokenizer.path.name == "tokenizer.json"
  assert tuple(tokenizer.vocabulary) == tokens
  with pytest.raises(InputError, match="splits text differently"):
    open_tokenizer(tmp_path, vocabulary(tuple(VOCABULARY)))
  (tmp_path / "tokenizer.json").unlink()
  word_pieces = open_tokenizer(tmp_path, vocabulary(tuple(VOCABULARY)))
  assert word_pieces.path.name == "vocab.txt"
  with pytest.raises(InputError, match=r"has no tokenizer\.json. Copy.* with tran"):
    open_tokenizer(tmp_path, vocabulary(tokens, by_json=True))
  lacks = r"has no vocab\.txt or tokenizer\.json\. .* save its tokenizer as tokenizer\.json"
  with pytest.raises(InputError, match=lacks):
    open_tokenizer(tmp_path, None)


def test_a_run_keeps_the_tokenizer_that_its_data_was_made_with(tmp_path):
  definition = train_bpe(["abc abc"], vocab_size=260)
  ids = json.loads(definition)["model"]["vocab"]
  tokens = vocabulary(tuple(sorted(ids, key=ids.__getitem__)), by_json=True)
  run, given = tmp_path / "run", tmp_path / "given.json"
  run.mkdir()
  given.write_text(definition)
  assert open_tokenizer(run, tokens, vocab_file=str(given)).path == given
  given.unlink()  # or on another machine
  own = run / "tokenizer.json"
  own.write_text(definition)
  assert open_tokenizer(run, tokens, vocab_file=str(given)).path == own


def test_columns_are_added_to_those_of_the_run():
  trained_on = DatasetSettings("a.csv", 17, task="regression", columns="sentence=3,label=1")
  options = {"trained_on": trained_on, "task": None, "positions": 17}

  def columns(given):
    changes = {"columns": given}
    head = "sequence_classification"
    return settings_to_read("b.csv", head, changes=changes, **options).columns

  assert columns("id=x") == "sentence=3,label=1,id=x"
  assert columns("sentence=text, id=a=b") == "sentence=text,label=1,id=a=b"
  assert columns(None) == "sentence=3,label=1"


def test_cased_word_pieces_are_refused(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
  with pytest.raises(InputError, match="is cased; text is lower-cased"):
    open_tokenizer(tmp_path, vocabulary(tuple(VOCABULARY), lowercase=False))
