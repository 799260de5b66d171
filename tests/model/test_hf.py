"""Hugging Face directories in and out, without transformers installed."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from model import hf
from model.hf.config import _label_names
from model.weights import Vocabulary, WeightsError, resize_vocabulary
from pipeline.tokenizer import word_piece_tokenizer
from tests import packs
from tests.model import ours

GOLDEN = pathlib.Path(__file__).parent / "golden"
HEADS = sorted(path.name for path in GOLDEN.glob("Bert*"))
PRETRAINING = GOLDEN / "BertForPreTraining"


@pytest.fixture(scope="module")
def expected():
  """What transformers computed; `tests.model.make_golden` wrote it."""
  with np.load(GOLDEN / "expected.npz") as arrays:
    return dict(arrays)


def part(expected, name):
  start = f"{name}/"
  found = {k.removeprefix(start): v for k, v in expected.items() if k.startswith(start)}
  assert found
  return found


@pytest.mark.parametrize("architecture", HEADS)
def test_packed_logits_and_losses_are_those_of_transformers(expected, architecture):
  config, params = hf.import_bert(GOLDEN / architecture)
  batch, theirs = part(expected, "batch"), part(expected, architecture)
  found = ours.run(config, hf.head_of(params), params, batch)
  ours.assert_equal(found, (theirs, theirs.pop("loss")), batch)


def test_gradients_of_the_token_loss_are_those_of_transformers(expected):
  config, params = hf.import_bert(PRETRAINING)
  batch = part(expected, "batch")
  loss, found = ours.loss_and_gradients(config, "pretraining", params, batch)
  assert loss == pytest.approx(float(expected["token_loss"]), rel=ours.RELATIVE)
  ours.assert_equal_gradients(found, part(expected, "gradient"))


def test_a_different_weight_is_seen(expected):
  config, params = hf.import_bert(PRETRAINING)
  batch, theirs = part(expected, "batch"), part(expected, PRETRAINING.name)
  query = params["encoder"]["layers"][1]["query"]
  query["kernel"] = query["kernel"].T
  found = ours.run(config, "pretraining", params, batch)
  with pytest.raises(AssertionError):
    ours.assert_equal(found, (theirs, theirs.pop("loss")), batch)


# ---- round trip ------------------------------------------------------------------------


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("architecture", HEADS)
def test_import_and_export_give_the_same_tensors(tmp_path, architecture):
  config, params = hf.import_bert(GOLDEN / architecture, vocab_multiple=8)
  assert config.padded_vocab_size == 32
  assert params["embeddings"]["token"]["embedding"].shape[0] == 32
  hf.export_bert(config, params, tmp_path / "out")
  before, after = tensors_of(GOLDEN / architecture), tensors_of(tmp_path / "out")
  old = {".weight": ".gamma", ".bias": ".beta"} if architecture == PRETRAINING.name else {}
  for name, tensor in after.items():
    there = name
    if "LayerNorm" in name:
      for now, then in old.items():
        there = there.replace(now, then)
    assert before[there].dtype == tensor.dtype
    np.testing.assert_array_equal(before.pop(there), tensor)
  copies = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
  copies |= {"bert.embeddings.position_ids"}
  assert before.keys() == (copies if old else set())
  given = json.loads((GOLDEN / architecture / "config.json").read_text())
  written = json.loads((tmp_path / "out" / "config.json").read_text())
  assert {k: v for k, v in written.items() if given.get(k, v) != v} == {}
  again, same = hf.import_bert(tmp_path / "out", vocab_multiple=8)
  assert again == config
  jax.tree.map(np.testing.assert_array_equal, params, same)


def test_names_of_classes_go_in_and_out(tmp_path):
  folder = GOLDEN / "BertForSequenceClassification"
  stored = hf.open_model(folder)
  assert stored.labels == ()  # LABEL_0 and so on are none
  names = tuple("xyzuvw"[: stored.bert.num_labels])
  hf.export_bert(stored.config, stored.load(), tmp_path / "named", labels=names)
  written = json.loads((tmp_path / "named" / "config.json").read_text())
  assert written["id2label"] == {str(i): name for i, name in enumerate(names)}
  assert written["label2id"] == {name: i for i, name in enumerate(names)}
  assert hf.open_model(tmp_path / "named").labels == names
  assert _label_names({"0": "None", "1": "Some"}) == ("None", "Some")
  for no_classes in ({"0": "similarity"}, {"1": "a", "2": "b"}):
    assert _label_names(no_classes) == ()


def test_masked_lm_alone_and_regression_keep_their_kind(tmp_path):
  config, params = hf.import_bert(PRETRAINING)
  alone = {name: x for name, x in params.items() if name not in ("pooler", "nsp")}
  config = dataclasses.replace(config, next_sentence=False)
  hf.export_bert(config, alone, tmp_path / "mlm")
  written = json.loads((tmp_path / "mlm" / "config.json").read_text())
  assert written["architectures"] == ["BertForMaskedLM"]
  assert hf.import_bert(tmp_path / "mlm")[0] == config

  config, params = hf.import_bert(GOLDEN / "BertForSequenceClassification")
  one = {"kernel": params["classifier"]["kernel"][:, :1], "bias": jnp.zeros(1)}
  hf.export_bert(
    dataclasses.replace(config, num_labels=1), params | {"classifier": one}, tmp_path / "r"
  )
  written = json.loads((tmp_path / "r" / "config.json").read_text())
  assert written["problem_type"] == "regression"
  assert hf.import_bert(tmp_path / "r")[0].num_labels == 1


def test_a_vocabulary_is_padded_with_zeros_and_cut():
  config, params = hf.import_bert(PRETRAINING)
  more, padded = resize_vocabulary(config, params, multiple=16)
  assert (more.vocab_size, more.padded_vocab_size) == (packs.VOCAB_SIZE, 32)
  assert not padded["embeddings"]["token"]["embedding"][packs.VOCAB_SIZE :].any()
  assert not padded["mlm_bias"][packs.VOCAB_SIZE :].any()
  back, cut = resize_vocabulary(more, padded, multiple=1)
  assert back == config
  jax.tree.map(np.testing.assert_array_equal, cut, params)


# ---- what older and larger files look like -----------------------------------------------


@pytest.fixture
def copy(tmp_path):
  """A directory to alter; returns its path and how to."""
  folder = tmp_path / "copy"
  shutil.copytree(GOLDEN / "BertForTokenClassification", folder)

  def alter(change=None, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    if change:
      tensors = tensors_of(folder)
      change(tensors)
      safetensors.numpy.save_file(tensors, folder / "model.safetensors")

  return folder, alter


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_becomes_float32(copy, dtype):
  folder, alter = copy
  full = hf.import_bert(folder)[1]
  alter(lambda tensors: tensors.update({k: v.astype(dtype) for k, v in tensors.items()}))
  half = hf.import_bert(folder)[1]
  assert {x.dtype for x in jax.tree.leaves(half)} == {np.dtype("float32")}
  rounded = jax.tree.map(lambda x: np.asarray(x).astype(dtype).astype("float32"), full)
  jax.tree.map(np.testing.assert_array_equal, half, rounded)


def test_parts_with_an_index_are_read(copy):
  folder, _ = copy
  whole = hf.import_bert(folder)[1]
  tensors = tensors_of(folder)
  (folder / "model.safetensors").unlink()
  names = sorted(tensors)
  parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
  for file, inside in parts.items():
    safetensors.numpy.save_file({n: tensors[n] for n in inside}, folder / file)
  index = {"weight_map": {n: file for file, inside in parts.items() for n in inside}}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  jax.tree.map(np.testing.assert_array_equal, hf.import_bert(folder)[1], whole)
  (folder / "b.safetensors").unlink()
  with pytest.raises(WeightsError, match=r"b\.safetensors cannot be read"):
    hf.import_bert(folder)
  index["weight_map"][names[1]] = "../b.safetensors"
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  with pytest.raises(WeightsError, match="another folder"):
    hf.import_bert(folder)


def test_a_pooler_that_the_head_does_not_read_is_ignored(copy):
  folder, alter = copy
  shapes = {"weight": (14, 14), "bias": (14,)}
  alter(
    lambda tensors: tensors.update(
      {f"bert.pooler.dense.{k}": np.zeros(shape) for k, shape in shapes.items()}
    )
  )
  assert "pooler" not in hf.import_bert(folder)[1]


def test_a_masked_lm_file_with_both_heads_keeps_both(tmp_path):
  """As that of the original bert-base-uncased."""
  shutil.copytree(PRETRAINING, tmp_path / "copy")
  path = tmp_path / "copy" / "config.json"
  value = json.loads(path.read_text()) | {"architectures": ["BertForMaskedLM"]}
  path.write_text(json.dumps(value))
  config, params = hf.import_bert(tmp_path / "copy")
  assert config.next_sentence
  assert {"pooler", "nsp"} <= params.keys()


# ---- mistakes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"model_type": "roberta"}, 'model_type is "roberta".*expected "bert"'),
    ({"hidden_act": "relu"}, 'hidden_act is "relu".*expected "gelu"'),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is"),
    ({"is_decoder": True}, "is_decoder is true.*expected false"),
    ({"add_cross_attention": True}, "add_cross_attention is true"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    ({"quantization_config": {"bits": 8}}, "quantization_config is"),
    ({"problem_type": "multi_label_classification"}, "problem_type is"),
    ({"problem_type": "regression"}, "num_labels is 5"),
    ({"classifier_dropout": 0.3}, "classifier_dropout is 0.3"),
    ({"architectures": ["BertModel"]}, "architectures is.*BertForQuestionAnswering"),
    ({"architectures": None}, "architectures is null"),
    ({"hidden_size": "14"}, "hidden_size is '14'; expected a whole number"),
    ({"layer_norm_eps": None}, "layer_norm_eps is None; expected a number"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_epsilon is nan; expected more than 0"),
    ({"initializer_range": 0.0}, r"initializer_range is 0\.0; expected more than 0"),
    ({"num_attention_heads": 4}, "not divisible by num_heads=4"),
    ({"hidden_size": 16}, r"LayerNorm\.\w+ of shape \(14,\) instead of \(16,\)"),
    ({"num_hidden_layers": 3}, r"missing bert\.encoder\.layer\.2\..* more"),
    ({"num_hidden_layers": 1}, r"foreign bert\.encoder\.layer\.1\..* more"),
    ({"id2label": {"0": "A", "1": "B"}}, r"classifier\.bias of shape \(5,\) instead"),
    ({"architectures": ["BertForMaskedLM"]}, r"missing cls\..*foreign classifier\.bias"),
  ],
)
def test_a_config_that_is_not_supported_is_refused_by_name(copy, fields, message):
  folder, alter = copy
  alter(**fields)
  with pytest.raises(WeightsError, match=message):
    hf.import_bert(folder)


def test_a_config_without_a_size_is_refused(copy):
  folder, _ = copy
  path = folder / "config.json"
  value = json.loads(path.read_text())
  del value["num_hidden_layers"]
  path.write_text(json.dumps(value))
  with pytest.raises(WeightsError, match="has no num_hidden_layers"):
    hf.import_bert(folder)
  path.write_text("[]")
  with pytest.raises(WeightsError, match="not the config of a model"):
    hf.import_bert(folder)
  path.write_text("{")
  with pytest.raises(WeightsError, match="not the config of a model"):
    hf.import_bert(folder)
  path.unlink()
  with pytest.raises(WeightsError, match="Expected a Hugging Face directory with"):
    hf.import_bert(folder)


def rename(before, after):
  return lambda tensors: tensors.update({after: tensors.pop(before)})


WORDS = "bert.embeddings.word_embeddings.weight"
NORM = "bert.embeddings.LayerNorm"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (rename("classifier.bias", "extra"), r"missing classifier\.bias; foreign extra"),
    (lambda t: t.update({WORDS: t[WORDS][1:]}), r"of shape \(28, 14\) instead of \(29, 14"),
    (lambda t: t.update({WORDS: t[WORDS].astype(np.int32)}), "of type I32 instead of F32"),
    (lambda t: t.update({f"{NORM}.gamma": t[f"{NORM}.weight"]}), r"weight twice, as"),
  ],
)
def test_tensors_that_do_not_fit_are_named(copy, change, message):
  folder, alter = copy
  alter(change)
  with pytest.raises(WeightsError, match=message):
    hf.import_bert(folder)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_decoder_of_its_own_is_refused(tmp_path, name):
  shutil.copytree(PRETRAINING, tmp_path / "copy")
  path = tmp_path / "copy" / "model.safetensors"
  tensors = tensors_of(path.parent)
  tensors[f"cls.predictions.decoder.{name}"][-1] += 1
  safetensors.numpy.save_file(tensors, path)
  with pytest.raises(WeightsError, match=rf"decoder\.{name} differs from"):
    hf.import_bert(path.parent)


def test_pickles_are_not_opened(copy):
  folder, _ = copy
  (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
  with pytest.raises(WeightsError, match=r"found pytorch_model\.bin.*save_pretrained"):
    hf.import_bert(folder)
  (folder / "pytorch_model.bin").unlink()
  with pytest.raises(WeightsError, match=r"Expected model\.safetensors"):
    hf.import_bert(folder)
  (folder / "model.safetensors").write_bytes(b"no tensors")
  with pytest.raises(WeightsError, match="cannot be read as safetensors"):
    hf.import_bert(folder)


def test_export_refuses_what_it_cannot_write(tmp_path):
  config, params = hf.import_bert(PRETRAINING)
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "file").write_text("mine")
  with pytest.raises(FileExistsError, match="Expected a new or empty folder"):
    hf.export_bert(config, params, tmp_path / "full")
  with pytest.raises(FileExistsError, match="Expected a new or empty folder"):
    hf.export_bert(config, params, tmp_path / "full" / "file")
  assert (tmp_path / "full" / "file").read_text() == "mine"
  other = dataclasses.replace(config, attention_mask="token_type")
  with pytest.raises(WeightsError, match="attention_mask is 'token_type'"):
    hf.export_bert(other, params, tmp_path / "out")
  wider = dataclasses.replace(config, intermediate_size=12)
  with pytest.raises(WeightsError, match="not those of a BertForPreTraining"):
    hf.export_bert(wider, params, tmp_path / "out")
  long = Vocabulary(tuple(map(str, range(30))))
  with pytest.raises(WeightsError, match="at most vocab_size=29 tokens, found 30"):
    hf.export_bert(config, params, tmp_path / "out", vocabulary=long)
  assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_export_that_fails_or_is_killed_leaves_nothing_under_its_name(tmp_path):
  config, params = hf.import_bert(PRETRAINING)
  no_padding = Vocabulary(("a",))  # an error after the tensors are written
  with pytest.raises(ValueError, match="not in tuple"):
    hf.export_bert(config, params, tmp_path / "out", vocabulary=no_padding)
  assert list(tmp_path.iterdir()) == []

  script = "import os, signal; from model import hf; config, params = "
  script += f"hf.import_bert({str(PRETRAINING)!r}); "
  script += "hf.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
  script += f"hf.export_bert(config, params, {str(tmp_path / 'out')!r})"
  killed = subprocess.run(
    [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": "."}, check=False
  )
  assert killed.returncode == -signal.SIGKILL
  assert [path.name[:13] for path in tmp_path.iterdir()] == [".out.partial-"]
  hf.export_bert(config, params, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---- vocabulary -------------------------------------------------------------------------


def test_the_tokenizer_here_gives_the_ids_of_the_one_in_transformers():
  golden = json.loads((GOLDEN / "tokenizer.json").read_text())
  tokenizer = word_piece_tokenizer(golden["tokens"])
  for text, ids in zip(golden["texts"], golden["ids"], strict=True):
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAST = {
  "normalizer": {
    "lowercase": False,
    "strip_accents": None,
    "handle_chinese_chars": True,
  },
  "added_tokens": [{"content": "new", "id": 6}],
  "model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate((*SPECIAL, "a"))}},
}


def test_the_vocabulary_is_found_in_old_and_new_directories(copy):
  folder, _ = copy
  assert hf.open_model(folder).vocabulary is None
  (folder / "vocab.txt").write_text("\n".join(SPECIAL) + "\na\u2028b\n", encoding="utf-8")
  assert hf.open_model(folder).vocabulary == Vocabulary((*SPECIAL, "a\u2028b"))
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
  assert not getattr(hf.open_model(folder).vocabulary, "lowercase", True)
  (folder / "vocab.txt").unlink()
  (folder / "tokenizer.json").write_text(json.dumps(FAST))
  found = hf.open_model(folder).vocabulary
  assert found == Vocabulary((*SPECIAL, "a", "new"), lowercase=False)


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("vocab.txt", "a\nb\n", r"there is no pad_token \[PAD\]"),
    ("vocab.txt", "\n".join((*SPECIAL, "a", "a")), "a token occurs twice"),
    ("vocab.txt", "\n".join((*SPECIAL, *map(str, range(25)))), "has 30 tokens"),
    ("tokenizer_config.json", '{"strip_accents": false}', "strip_accents is False"),
    ("tokenizer_config.json", '{"tokenize_chinese_chars": false}', "handle_chinese_chars"),
    ("tokenizer.json", FAST | {"model": {"type": "BPE"}}, "is BPE"),
    ("tokenizer.json", FAST | {"added_tokens": [{"content": "x", "id": 9}]}, "not 0 to 6"),
  ],
)
def test_a_tokenizer_of_another_kind_is_refused(copy, name, value, message):
  folder, _ = copy
  if name == "tokenizer_config.json":
    (folder / "vocab.txt").write_text("\n".join(SPECIAL))
  (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
  with pytest.raises(WeightsError, match=message):
    hf.open_model(folder)
