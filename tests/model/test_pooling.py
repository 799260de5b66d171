"""The files of sentence-transformers in a folder; tests/test_predict.py embeds by them."""

import json
import pathlib
import shutil

import pytest

from model import hf
from model.hf.pooling import Pooling, copy_pooling, read_pooling, write_pooling
from model.weights import WeightsError
from pipeline.tokenizer import word_piece_tokenizer

GOLDEN = pathlib.Path(__file__).parent / "golden"
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")


@pytest.fixture
def folder(tmp_path):
  """A Hugging Face directory with modules, but no settings of the transformer."""
  folder = shutil.copytree(GOLDEN / "BertForPreTraining", tmp_path / "model")
  write_pooling(folder, Pooling("mean"), width=14)
  (folder / "sentence_bert_config.json").unlink()
  return folder


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "xlnet"])
def test_settings_are_read_under_each_name_that_sentence_transformers_reads(
  folder, tmp_path, kind
):
  name, out = f"sentence_{kind}_config.json", tmp_path / "out"
  (folder / name).write_text('{"max_seq_length": 9}')
  assert read_pooling(hf.open_model(folder)).max_length == 9
  out.mkdir()
  copy_pooling(folder, out)
  copied = json.loads((out / "sentence_bert_config.json").read_text())
  assert copied == {"max_seq_length": 9}
  (folder / name).write_text('{"do_lower_case": true}')
  with pytest.raises(WeightsError, match=f"{name} has do_lower_case, but its tokenizer"):
    read_pooling(hf.open_model(folder))
  (folder / "modules.json").unlink()
  without = f"has {name} and 1_Pooling, but no modules"
  with pytest.raises(WeightsError, match=without):
    read_pooling(hf.open_model(folder))
  with pytest.raises(WeightsError, match=without):
    copy_pooling(folder, out)


def test_the_first_settings_that_are_not_empty_count(folder):
  for kind, content in (("bert", {}), ("roberta", 9), ("xlnet", 7)):
    text = json.dumps(content and {"max_seq_length": content})
    (folder / f"sentence_{kind}_config.json").write_text(text)
  assert read_pooling(hf.open_model(folder)).max_length == 9


PLAIN = {  # as sentence-transformers 5.7 writes it
  "transformer_task": "feature-extraction",
  "modality_config": {
    "text": {"method": "forward", "method_output_name": "last_hidden_state"}
  },
  "module_output_name": "token_embeddings",
}
POOLED = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
SHORT = {"text": {"max_length": 128}}


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({}, None),
    ({"model_args": {"trust_remote_code": True}, "tokenizer_args": {}}, None),
    ({"config_args": {"trust_remote_code": True}, "processing_kwargs": None}, None),
    ({"processing_kwargs": SHORT}, "has processing_kwargs={'text': .* may change vectors"),
    ({"processor_kwargs": {"model_max_length": 9}}, "has processor_kwargs={'model_max"),
    ({"tokenizer_args": {"model_max_length": 9}}, "has tokenizer_args={'model_max"),
    ({"config_kwargs": {"num_hidden_layers": 1}}, "has config_kwargs={'num_hidden"),
    ({"config_args": {"num_hidden_layers": 1}}, "has config_args={'num_hidden"),
    ({"config_args": [1]}, r"found config_args=\[1\]"),
    ({"modality_config": POOLED}, "takes 'pooler_output' of a text; expected last_h"),
    ({"modality_config": {"text": 1}}, "found modality_config={'text': 1}"),
  ],
)
def test_settings_that_change_vectors_are_refused(folder, settings, message):
  text = json.dumps(PLAIN | settings)
  (folder / "sentence_bert_config.json").write_text(text)
  if not message:
    assert read_pooling(hf.open_model(folder)).mode == "mean"
    return
  with pytest.raises(WeightsError, match=message):
    read_pooling(hf.open_model(folder))


def test_the_choice_of_a_pooling_is_told(folder):
  stored = hf.open_model(folder)
  assert "pooling mean" in read_pooling(stored).description
  assert "not its own" not in read_pooling(stored, instead="mean").description
  assert "by --embed, not its own" in read_pooling(stored, instead="cls").description
  for name in ("modules.json", "1_Pooling/config.json"):
    (folder / name).unlink()
  (folder / "1_Pooling").rmdir()
  told = f"pooling mean, since {folder} has no modules.json"
  assert read_pooling(stored) == Pooling("mean", description=told)
  assert read_pooling(stored, instead="cls") == Pooling("cls")


LOWERCASE = {"type": "Lowercase"}
BERTS = json.loads(word_piece_tokenizer(TOKENS).to_str())["normalizer"]


@pytest.mark.parametrize(
  ("normalizer", "lowercases"),
  [
    (LOWERCASE, True),
    ({"type": "Sequence", "normalizers": [{"type": "NFD"}, LOWERCASE]}, True),
    (BERTS, True),
    (BERTS | {"lowercase": False}, False),
    ({"type": "NFC"}, False),
    (None, False),
  ],
)
def test_a_tokenizer_that_lowercases_in_its_own_way_is_taken(
  folder, normalizer, lowercases
):
  tokenizer = json.loads(word_piece_tokenizer(TOKENS).to_str())
  changes = {"normalizer": normalizer, "pre_tokenizer": {"type": "WhitespaceSplit"}}
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer | changes))
  (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
  stored = hf.open_model(folder)
  assert stored.vocabulary.by_json
  if lowercases:
    assert read_pooling(stored).mode == "mean"
  else:
    with pytest.raises(WeightsError, match="its tokenizer does not lowercase"):
      read_pooling(stored)
