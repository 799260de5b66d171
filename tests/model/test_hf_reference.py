"""Our models against Hugging Face's, with weights that went through `model.hf`."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tokenizers

from model import hf
from model.hf.tokenizer import describe_fast
from model.weights import Vocabulary
from pipeline.tokenizer import (
  SPECIAL_TOKENS,
  Tokenizer,
  train_bpe,
  word_piece_tokenizer,
)
from tests.model import ours, reference
from tests.model.reference import (
  GPT2,
  GPT2_SIZES,
  HEADS,
  MODERN_HEADS,
  MODERN_SIZES,
  SIZES,
  VARIANT_HEADS,
  VARIANTS,
)

pytestmark = pytest.mark.extra("torch", "transformers")
GOLDEN = pathlib.Path(__file__).parent / "golden"


def imported(model, folder):
  model.save_pretrained(folder)
  stored = hf.open_model(folder)
  return stored.config, stored.head, stored.load()


def compare(model, batch, config, head, params):
  found = ours.run(config, head, params, batch)
  ours.assert_equal(found, reference.run(model, batch), batch)


WITH_TYPES = {"type_vocab_size": 2, "num_labels": 5}


@pytest.mark.parametrize(
  ("architecture", "fields"),
  [(name, size | HEADS[name]) for name in HEADS for size in SIZES.values()]
  + [
    (name, size | MODERN_HEADS[name])
    for name in MODERN_HEADS
    for size in MODERN_SIZES.values()
  ]
  + [(GPT2, size) for size in GPT2_SIZES.values()]
  + [(name, SIZES["odd"] | VARIANT_HEADS[name]) for name in VARIANT_HEADS]
  + [(f"{name}ForMaskedLM", SIZES["wide"]) for name in VARIANTS]
  # Whose tokenizer gives no types even so.
  + [("RobertaForTokenClassification", SIZES["odd"] | WITH_TYPES)],
)
def test_a_packed_row_gives_what_the_reference_gives_for_each_sequence_alone(
  tmp_path, architecture, fields
):
  model = reference.make(architecture, **fields)
  config, head, params = imported(model, tmp_path)
  if architecture in HEADS:
    assert config.next_sentence == (architecture != "BertForMaskedLM")
  compare(model, without_padding(model, reference.make_batch()), config, head, params)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_reference(tmp_path, variant):
  model = reference.make(f"{variant}ForMaskedLM", **SIZES["odd"])
  batch = without_padding(model, reference.make_batch())
  config, head, params = imported(model, tmp_path)
  found = ours.loss_and_gradients(config, head, params, batch)
  ours.assert_equal_gradients(found, reference.gradients(model, batch), config, head)


def without_padding(model, batch):
  """With other tokens for that of padding, from which RoBERTa would count positions."""
  if reference.variant_of(type(model).__name__):
    ids = batch["input_ids"]
    ids[ids == model.config.pad_token_id] = 3
  return batch


def test_regression_gives_what_the_reference_gives(tmp_path):
  model = reference.make("BertForSequenceClassification", num_labels=1, **SIZES["odd"])
  compare(model, reference.make_batch(regression=True), *imported(model, tmp_path))


@pytest.mark.parametrize(("family", "sizes"), [("", SIZES), ("Modern", MODERN_SIZES)])
def test_several_classes_keep_their_kind_and_loss(tmp_path, family, sizes):
  kind = {"num_labels": 5, "problem_type": "multi_label_classification"}
  model = reference.make(f"{family}BertForSequenceClassification", **sizes["odd"], **kind)
  batch = reference.make_batch()
  marks = np.random.default_rng(0).random((*batch["sequence_mask"].shape, 5)) < 0.3
  batch["sequence_labels"] = marks
  assert {0, 1, 2} <= set(marks[batch["sequence_mask"]].sum(axis=1))
  config, head, params = imported(model, tmp_path / "theirs")
  compare(model, batch, config, head, params)
  hf.export_model(config, params, tmp_path / "ours")
  opened = type(model).from_pretrained(tmp_path / "ours")
  assert opened.config.problem_type == model.config.problem_type
  assert hf.open_model(tmp_path / "ours").config == config


@pytest.mark.parametrize(
  ("variant", "pooler"),
  [(name, False) for name in VARIANTS]
  + [(name, True) for name in VARIANTS if name.endswith(("Roberta", "bert"))],
)
def test_an_encoder_gives_what_the_reference_gives(tmp_path, variant, pooler):
  """Also back: transformers opens what is exported."""
  model = reference.make(f"{variant}Model", **SIZES["odd"])
  if not pooler:
    model.pooler = None
  config, head, params = imported(model, tmp_path / "theirs")
  assert (head, config.pooler) == ("encoder", pooler)
  batch = without_padding(model, reference.make_batch())
  outputs = ours.outputs(config, head, params, batch)
  for row, slot in np.argwhere(batch["sequence_mask"]).tolist():
    result = reference.alone(model, batch, row, slot)
    hidden = reference.fetch(result.last_hidden_state)[0]
    expected = {"sequence_mean": hidden.mean(0), "sequence_cls": hidden[0]}
    if config.pooler:
      expected["sequence_pooled"] = reference.fetch(result.pooler_output)[0]
    assert expected.keys() == outputs.keys()
    for name, theirs in expected.items():
      np.testing.assert_allclose(outputs[name][row, slot], theirs, atol=1e-5)
  hf.export_model(config, params, tmp_path / "ours")
  opened, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert {x for x in report["missing_keys"] if not x.startswith("pooler.")} == set()
  for name, tensor in model.state_dict().items():
    np.testing.assert_array_equal(reference.fetch(opened.state_dict()[name]), tensor)
  assert hf.open_model(tmp_path / "ours").config == config


def test_the_discriminator_of_electra_is_an_encoder(tmp_path):
  model = reference.make("ElectraForPreTraining", **SIZES["odd"])
  config, head, params = imported(model, tmp_path)
  assert (head, config.variant, config.embedding_size) == ("encoder", "electra", 5)
  alone = imported(reference.make("ElectraModel", **SIZES["odd"]), tmp_path / "alone")
  assert config == alone[0]
  np.testing.assert_array_equal(
    params["embeddings"]["token"]["embedding"],
    reference.fetch(model.electra.embeddings.word_embeddings.weight),
  )


@pytest.mark.parametrize("architecture", [*HEADS, *MODERN_HEADS, GPT2, *VARIANT_HEADS])
def test_transformers_opens_what_is_exported_with_its_tokenizer(tmp_path, architecture):
  golden = json.loads((GOLDEN / "tokenizer.json").read_text())
  tokens = tuple(golden["tokens"])
  sizes = GPT2_SIZES if architecture == GPT2 else SIZES
  sizes = MODERN_SIZES if architecture in MODERN_HEADS else sizes
  fields = sizes["odd"] | {"vocab_size": len(tokens)}
  fields |= (HEADS | MODERN_HEADS | VARIANT_HEADS).get(architecture, {})
  model = reference.make(architecture, **fields)
  config, _, params = imported(model, tmp_path / "theirs")
  hf.export_model(config, params, tmp_path / "ours", vocabulary=Vocabulary(tokens))
  opened, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert opened.config.architectures == [architecture]
  assert not any(report.values())
  for name, tensor in model.state_dict().items():
    np.testing.assert_array_equal(reference.fetch(opened.state_dict()[name]), tensor)
  tokenizer = reference.transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
  longest = config.max_position_embeddings
  assert (tokenizer.model_max_length, tokenizer.mask_token_id) == (longest, 4)
  ours_too = word_piece_tokenizer(tokens)
  for text in (*golden["texts"], "packing a " * 7):
    ids = ours_too.encode(text, add_special_tokens=False).ids
    in_training = ids if architecture == GPT2 else [2, *ids, 3]
    assert tokenizer(text)["input_ids"] == in_training
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("processes", [False, True])
def test_transformers_splits_text_by_the_tokenizer_json_as_we_do(tmp_path, processes):
  """A ModernBERT of ours has no other file of its tokenizer, until it is exported.

  A post-processor may add no tokens, as that of ByteLevelBPETokenizer.
  """
  texts = json.loads((GOLDEN / "tokenizer.json").read_text())["texts"]
  shutil.copy(GOLDEN / "ModernBertForMaskedLM" / "config.json", tmp_path)
  path = tmp_path / "tokenizer.json"
  made = tokenizers.Tokenizer.from_str(
    train_bpe(texts, vocab_size=300, special_tokens=SPECIAL_TOKENS)
  )
  if processes:
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
  made.save(str(path))
  theirs = reference.transformers.AutoTokenizer.from_pretrained(tmp_path)
  expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
  assert Tokenizer(path).encode(texts) == expected
  assert max(max(ids, default=0) for ids in expected) >= 5 + 256, "no merge is used"
  describe_fast(tmp_path, max_length=17)
  theirs = reference.transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert (theirs.model_max_length, theirs.mask_token_id, theirs.pad_token_id) == (17, 4, 0)
  assert [theirs(text)["input_ids"] for text in texts] == [[2, *x, 3] for x in expected]
  assert theirs(texts[0], texts[1])["input_ids"] == [2, *expected[0], 3, *expected[1], 3]
  assert Tokenizer(path).encode(texts) == expected  # read back, it is the same
  before = path.read_bytes()
  describe_fast(tmp_path, max_length=23)  # what is described stays
  assert path.read_bytes() == before
