"""Our models against Hugging Face's, with weights that went through `model.hf`."""

import json
import pathlib

import numpy as np
import pytest

from model import hf
from model.weights import Vocabulary, resize_vocabulary
from pipeline.tokenizer import word_piece_tokenizer
from tests import packs
from tests.model import gpt2_reference, ours, reference

pytestmark = pytest.mark.extra("torch", "transformers")
GOLDEN = pathlib.Path(__file__).parent / "golden"


def imported(model, folder):
  model.save_pretrained(folder)
  config, params = hf.import_bert(folder)
  return config, params, hf.head_of(params)


def compare(model, batch, config, params, head):
  found = ours.run(config, head, params, batch)
  ours.assert_equal(found, reference.run(model, batch), batch)


@pytest.mark.parametrize("size", reference.SIZES)
@pytest.mark.parametrize("architecture", reference.HEADS)
def test_a_packed_row_gives_what_the_reference_gives_for_each_sequence_alone(
  tmp_path, architecture, size
):
  fields = reference.SIZES[size] | reference.HEADS[architecture]
  model = reference.make(architecture, **fields)
  config, params, head = imported(model, tmp_path)
  assert config.next_sentence == (architecture != "BertForMaskedLM")
  compare(model, reference.make_batch(), config, params, head)


def test_regression_and_a_padded_vocabulary(tmp_path):
  size = reference.SIZES["odd"]
  model = reference.make("BertForSequenceClassification", num_labels=1, **size)
  config, params, head = imported(model, tmp_path / "regression")
  compare(model, reference.make_batch(regression=True), config, params, head)

  model = reference.make("BertForPreTraining", **size)
  config, params, head = imported(model, tmp_path / "padded")
  config, params = resize_vocabulary(config, params, multiple=8)
  assert config.padded_vocab_size == 32
  batch = reference.make_batch()
  compare(model, batch, config, params, head)
  logits = ours.run(config, head, params, batch)[0]["mlm_logits"]
  assert (logits[..., packs.VOCAB_SIZE :] == np.finfo(np.float32).min).all()


def test_gradients_of_a_packed_batch_are_those_of_the_reference(tmp_path):
  model = reference.make("BertForMaskedLM", **reference.SIZES["odd"])
  config, params, head = imported(model, tmp_path)
  batch = reference.make_batch()
  loss, found = ours.loss_and_gradients(config, head, params, batch)
  expected, tensors = reference.gradients(model, batch)
  assert loss == pytest.approx(expected, rel=ours.RELATIVE)
  ours.assert_equal_gradients(found, tensors)


@pytest.mark.parametrize("size", gpt2_reference.SIZES)
def test_a_packed_gpt2_gives_what_the_reference_gives_for_each_sequence_alone(
  tmp_path, size
):
  model = gpt2_reference.make(**gpt2_reference.SIZES[size])
  model.save_pretrained(tmp_path)
  config, params = hf.import_gpt2(tmp_path)
  batch = reference.make_batch()
  found = ours.whole(config, "causal", params, batch)
  ours.assert_equal(found, gpt2_reference.run(model, batch), batch)
  if size == "odd":
    loss, gradients = ours.loss_and_gradients(config, "causal", params, batch)
    expected, tensors = gpt2_reference.gradients(model, batch)
    assert loss == pytest.approx(expected, rel=ours.RELATIVE)
    ours.assert_equal_gradients(gradients, tensors, "causal")


def test_transformers_opens_the_gpt2_that_is_exported(tmp_path):
  model = gpt2_reference.make(**gpt2_reference.SIZES["odd"])
  model.save_pretrained(tmp_path / "theirs")
  hf.export_gpt2(*hf.import_gpt2(tmp_path / "theirs"), tmp_path / "ours")
  auto = getattr(reference.transformers, "AutoModelForCausalLM")  # noqa: B009
  opened, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert type(opened) is type(model)
  assert not any(report.values())
  for name, tensor in model.state_dict().items():
    np.testing.assert_array_equal(reference.fetch(opened.state_dict()[name]), tensor)


def test_transformers_opens_what_is_exported_with_its_tokenizer(tmp_path):
  golden = json.loads((GOLDEN / "tokenizer.json").read_text())
  tokens = tuple(golden["tokens"])
  fields = reference.SIZES["odd"] | {"vocab_size": len(tokens)}
  for architecture, more in reference.HEADS.items():
    model = reference.make(architecture, **fields, **more)
    config, params, _ = imported(model, tmp_path / architecture)
    folder = tmp_path / f"{architecture}-out"
    hf.export_bert(config, params, folder, vocabulary=Vocabulary(tokens))
    auto = getattr(reference.transformers, architecture.replace("Bert", "AutoModel"))
    opened, report = auto.from_pretrained(folder, output_loading_info=True)
    assert type(opened) is type(model)
    assert not any(report.values())
    for name, tensor in model.state_dict().items():
      np.testing.assert_array_equal(reference.fetch(opened.state_dict()[name]), tensor)
  tokenizer = reference.transformers.AutoTokenizer.from_pretrained(folder)
  assert (tokenizer.model_max_length, tokenizer.mask_token_id) == (17, 4)
  ours_too = word_piece_tokenizer(tokens)
  for text in (*golden["texts"], "packing a " * 7):
    ids = ours_too.encode(text, add_special_tokens=False).ids
    assert tokenizer(text)["input_ids"] == [2, *ids, 3]
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
