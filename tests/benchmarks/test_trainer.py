"""benchmarks.trainer on a small encoder and some sentences."""

import json

import numpy as np
import pytest

from benchmarks import trainer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijkl"]


@pytest.fixture
def folder(tmp_path):
  """A folder of real data: a small encoder, and sentences that say their label."""
  transformers = pytest.importorskip("transformers")
  pytest.importorskip("torch")
  pytest.importorskip("accelerate")
  sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
  sizes |= {"intermediate_size": 16, "max_position_embeddings": 32}
  config = transformers.BertConfig(vocab_size=len(WORDS), initializer_range=0.5, **sizes)
  transformers.set_seed(0)
  transformers.BertModel(config).save_pretrained(tmp_path / "minilm-l6-h384")
  (tmp_path / "minilm-l6-h384" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
  glue, rng = tmp_path / "glue" / "SST-2", np.random.default_rng(0)
  glue.mkdir(parents=True)
  for split, number in (("train", 40), ("dev", 21)):
    rows = ["sentence\tlabel"]
    for _ in range(number):
      words = rng.choice(WORDS[5:], rng.integers(1, 9))
      rows.append(f"{' '.join(words)}\t{int(words[0] > 'f')}")
    (glue / f"{split}.tsv").write_text("\n".join(rows) + "\n")
  return tmp_path


@pytest.mark.slow
def test_all_arms_take_as_many_sequences_a_step(folder, capsys):
  words = [
    "--data",
    str(folder),
    "--seeds",
    "2",
    "--examples",
    "36",
    "--batch",
    "9",
    "--layers",
    "2",
  ]
  trainer.main([*words, "--json", str(folder / "out.json")])
  found = json.loads((folder / "out.json").read_text())
  assert found["runs"].keys() == {*trainer.ARMS}
  assert found["sizes"]["rows"] < found["sizes"]["batch"] == 9
  for arm, runs in found["runs"].items():
    assert len(runs) == 2, arm
    assert all(abs(run["steps"] - 4) <= 1 for run in runs), arm
    for run in runs:  # a number of right answers of 21
      assert run["accuracy"] * 21 / 100 == pytest.approx(round(run["accuracy"] * 0.21))
  text = capsys.readouterr().out
  assert "sequences a second" in text
  assert found["claim"]["outcome"] in text


def test_without_a_mask_each_token_sees_its_row(folder):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  from packing.torch import PackedCollator, packed_heads

  path = str(folder / "minilm-l6-h384")
  model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
  packed_heads(model)
  collator = PackedCollator.for_model(model.config, row_length=8, answers="sequence")

  def first(second):
    """The answer for a sequence beside another."""
    pack = [{"input_ids": ids, "label": 0} for ids in ([2, 5, 3], second)]
    with torch.no_grad():
      return model(**collator([pack])).logits[0, 0]

  torch.testing.assert_close(first([2, 6, 3]), first([2, 7, 8, 3]))
  trainer.see_whole_row(model)
  assert not torch.allclose(first([2, 6, 3]), first([2, 7, 8, 3]), atol=1e-5)
