"""benchmarks.pairs on a small encoder."""

import importlib.util
import json

import pytest

from benchmarks import pairs
from pipeline import DatasetSettings, prepare
from tests.model.test_encoder import make_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwx"]


@pytest.mark.slow
def test_all_ways_learn_from_the_same_records(tmp_path, capsys):
  folder = make_folder(tmp_path / "encoder")
  (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  rows = [{"anchor": f"{x} {y}", "positive": y} for x in WORDS[5:] for y in WORDS[5:9]]
  for split in ("train", "dev"):
    (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
  sources = [str(tmp_path / f"{split}.jsonl") for split in ("train", "dev")]
  settings = DatasetSettings(
    sources[0],
    9,
    task="pairs",
    vocab_file=str(folder / "vocab.txt"),
    held_out_source=sources[1],
  )
  prepare(tmp_path / "data", settings, num_workers=1)
  words = [str(folder), "--data", str(tmp_path / "data"), "--steps", "2"]
  words += ["--records", "6", "--held-out", "11"]
  pairs.main([*words, "--json", str(tmp_path / "out.json")])
  found = json.loads((tmp_path / "out.json").read_text())
  peers = 0
  if importlib.util.find_spec("sentence_transformers"):
    peers = 2 + pairs.splits_by_tokens()
  assert len(found["rates"]) == 3 + peers
  assert found["rows"]["row_length"] <= 24  # the longest record has 9 tokens
  packed = found["before"][pairs.PACKED]
  for name, before in found["before"].items():
    same = name != pairs.UNMASKED
    assert (before["loss"] == pytest.approx(packed["loss"], rel=1e-4)) == same, name
    assert not same or before["mrr"] == pytest.approx(packed["mrr"]), name
    assert found["after"][name]["loss"] != before["loss"]
    assert (len(found["rates"][name]), before["sequences"]) == (2, 11)
  assert "packed is faster" in capsys.readouterr().out
