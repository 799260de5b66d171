"""GPT-2 from and to Hugging Face directories, without transformers installed."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from model import Gpt2Config, hf, weights
from model.__main__ import main
from model.weights import WeightsError
from tests import packs
from tests.model import ours

GOLDEN = pathlib.Path(__file__).parent / "golden"
FOLDER = GOLDEN / "GPT2LMHeadModel"


def test_packed_logits_losses_and_gradients_are_those_of_transformers():
  """What it computed `tests.model.make_golden` wrote down."""
  config, params = hf.import_gpt2(FOLDER)
  assert config.positions == "learned"
  batch, theirs = part("batch/"), part("")
  found = ours.whole(config, "causal", params, batch)
  logits = {"causal_logits": theirs["causal_logits"]}
  ours.assert_equal(found, (logits, theirs["loss"]), batch)
  loss, gradients = ours.loss_and_gradients(config, "causal", params, batch)
  assert loss == pytest.approx(float(theirs["token_loss"]), rel=ours.RELATIVE)
  ours.assert_equal_gradients(gradients, part("gradient/"), "causal")


def part(start):
  with np.load(GOLDEN / "gpt2.npz") as arrays:
    return {k.removeprefix(start): arrays[k] for k in arrays if k.startswith(start)}


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


def test_import_and_export_give_the_same_bits(tmp_path, capsys):
  """By the commands, with a vocabulary that is padded on the way."""
  folder, out = tmp_path / "ours", tmp_path / "out"
  arguments = ["import", str(FOLDER), "--out", str(folder), "--vocab-multiple", "8"]
  assert main([*arguments, "--json"]) == 0
  told = json.loads(capsys.readouterr().out)
  assert (told["architecture"], told["tokenizer"]) == ("Gpt2", "none")
  stored = weights.open_folder(folder)
  assert isinstance(stored.config, Gpt2Config)
  assert (stored.head, stored.config.padded_vocab_size) == ("causal", 32)
  assert main(["export", str(folder), "--out", str(out)]) == 0
  before, after = tensors_of(FOLDER), tensors_of(out)
  for name, tensor in after.items():
    np.testing.assert_array_equal(before.pop(name.removeprefix("transformer.")), tensor)
  assert before.keys() == {"h.0.attn.bias", "h.1.attn.bias"}
  given = json.loads((FOLDER / "config.json").read_text())
  written = json.loads((out / "config.json").read_text())
  assert {k: v for k, v in written.items() if given.get(k, v) != v} == {}
  config, params = hf.import_gpt2(out)
  again, same = hf.import_gpt2(FOLDER)
  assert config == again
  jax.tree.map(np.testing.assert_array_equal, params, same)


def test_models_of_another_kind_are_refused(tmp_path):
  with pytest.raises(WeightsError, match="holds a Gpt2; expected a BERT"):
    hf.import_bert(FOLDER)
  with pytest.raises(WeightsError, match="BertForPreTraining; expected a GPT-2"):
    hf.import_gpt2(GOLDEN / "BertForPreTraining")
  config = packs.small_gpt2()
  _, params = packs.random_params(config, head="causal")
  with pytest.raises(WeightsError, match=r"positions is 'alibi'.*cannot be exported"):
    hf.export_gpt2(config, params, tmp_path / "out")


def test_a_model_with_alibi_is_read_as_it_was_written(tmp_path):
  config = packs.small_gpt2()
  _, params = packs.random_params(config, head="causal")
  weights.describe(tmp_path, config, head="causal", vocabulary=None)
  weights.save(tmp_path, params)
  stored = weights.open_folder(tmp_path)
  assert stored.config == config
  jax.tree.map(np.testing.assert_array_equal, params, stored.load())


@pytest.fixture
def copy(tmp_path):
  folder = tmp_path / "copy"
  shutil.copytree(FOLDER, folder)

  def alter(change=None, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    if change:
      tensors = tensors_of(folder)
      change(tensors)
      safetensors.numpy.save_file(tensors, folder / "model.safetensors")

  return folder, alter


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"activation_function": "gelu"}, 'activation_function is "gelu".*"gelu_new"'),
    ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is true"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings is false"),
    ({"embd_pdrop": 0.3}, "embd_pdrop is 0.3"),
    ({"architectures": ["GPT2Model"]}, "architectures is.*GPT2LMHeadModel"),
    ({"n_head": 4}, "not divisible by num_heads=4"),
    ({"n_inner": None}, r"mlp\.c_fc\.weight of shape \(15, 11\) instead of \(15, 60\)"),
    ({"n_layer": 3}, r"missing transformer\.h\.2\..* more"),
  ],
)
def test_a_config_that_is_not_supported_is_refused_by_name(copy, fields, message):
  folder, alter = copy
  alter(**fields)
  with pytest.raises(WeightsError, match=message):
    hf.import_gpt2(folder)


def test_a_head_of_its_own_is_refused(copy):
  folder, alter = copy
  alter(lambda tensors: tensors.update({"lm_head.weight": tensors["wte.weight"]}))
  hf.import_gpt2(folder)
  alter(lambda tensors: tensors.update({"lm_head.weight": tensors["wte.weight"] + 1}))
  with pytest.raises(WeightsError, match=r"lm_head\.weight differs from transformer\.wte"):
    hf.import_gpt2(folder)
