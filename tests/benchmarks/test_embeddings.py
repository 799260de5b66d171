"""benchmarks.embeddings on a small encoder."""

import importlib.util
import json

import pytest

from benchmarks import embeddings
from tests.model.test_encoder import make_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwx"]


@pytest.fixture
def folder(tmp_path):
  made = make_folder(tmp_path / "encoder")
  (made / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  return made


def test_all_ways_give_the_same_embeddings(folder, tmp_path, capsys):
  lines = ["a b c", "d", "e f g h i j k l m n o p q r s t u v w x", "", "x y z"]
  (tmp_path / "texts.txt").write_text("\n".join(lines))
  words = [str(folder), "--input", str(tmp_path / "texts.txt"), "--rounds", "1"]
  words += ["--max-sequence-length", "12", "--batch-size", "2", "--rows", "2"]
  embeddings.main([*words, "--json", str(tmp_path / "out.json")])
  ways = json.loads((tmp_path / "out.json").read_text())["ways"]
  installed = all(map(importlib.util.find_spec, ("torch", "transformers")))
  assert len(ways) == 1 + installed
  for name, way in ways.items():
    assert way["difference"] < 1e-5, name
    assert way["rates"][0] > 0, name
  assert ways["packed"]["compilations"] >= 1
  assert "5 texts of" in capsys.readouterr().out


def test_a_tab_in_a_table_does_not_make_a_second_sentence(tmp_path):
  path = tmp_path / "texts.csv"
  path.write_text('id,sentence\n0,"a\tb\tc"\n1,d\n')
  assert embeddings.read_texts(str(path), "sentence") == ["a b c", "d"]
