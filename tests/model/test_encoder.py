"""An encoder without a head: in and out of Hugging Face directories, and its embeddings."""

import dataclasses
import json
import os
import pathlib

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from model import BertConfig, hf
from model.__main__ import main
from model.models import abstract_model
from packing.testing import layout
from tests import packs, shared_data

CLASSES = pathlib.Path(__file__).parent / "golden" / "BertForSequenceClassification"
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
# The limits of differences from PyTorch, which sums in another order.
LIMITS = {"float32": 1e-5, "bfloat16": 3e-2}


def make_folder(folder, *, prefix="", pooler=True):
  """As people have encoders: the golden classifier without its head."""
  config = json.loads((CLASSES / "config.json").read_text())
  golden = safetensors.numpy.load_file(CLASSES / "model.safetensors")
  names = {name: name.removeprefix("bert.") for name in golden if name[:5] == "bert."}
  tensors = {
    prefix + short: golden[name]
    for name, short in names.items()
    if pooler or short not in POOLER
  }
  tensors[f"{prefix}embeddings.position_ids"] = np.arange(17)[None]
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  return folder


@pytest.mark.parametrize("form", [{"prefix": "bert."}, {"pooler": False}], ids=str)
def test_an_encoder_comes_back_with_the_names_and_numbers_it_had(tmp_path, capsys, form):
  folder = make_folder(tmp_path / "theirs", **form)
  assert main(["import", str(folder), "--out", str(tmp_path / "ours"), "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["architecture"] == "BertModel"
  assert main(["export", str(tmp_path / "ours"), "--out", str(tmp_path / "out")]) == 0
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["architectures"] == ["BertModel"]
  given = make_folder(tmp_path / "plain", pooler=form.get("pooler", True))
  expected = safetensors.numpy.load_file(given / "model.safetensors")
  found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
  assert expected.keys() - found.keys() == {"embeddings.position_ids"}  # no weight
  for name, tensor in found.items():
    np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def test_embeddings_are_the_mean_of_a_sequences_tokens_and_its_first():
  model = packs.random_model(packs.small_config(), head="encoder")
  batch = packs.lay_out(packs.random_sequences(seed=3))
  outputs, hidden = model(batch), list(model.hidden_states(batch).values())[-1]
  for row, slot in np.argwhere(batch["sequence_mask"]):
    mine = np.asarray(hidden)[row, batch["segment_ids"][row] == slot + 1]
    np.testing.assert_allclose(outputs["sequence_mean"][row, slot], mine.mean(0), rtol=2e-5)
    np.testing.assert_array_equal(outputs["sequence_cls"][row, slot], mine[0])


def packed_outputs(folder, sequences, dtype):
  """By output, float[sequences, D]."""
  stored = hf.open_model(folder)
  config = dataclasses.replace(stored.config_as(BertConfig), dtype=dtype)
  model = nnx.merge(abstract_model(config, "encoder")[0], stored.load())
  batch = layout.lay_out(
    [[{"input_ids": ids} for ids in part] for part in (sequences[:3], sequences[3:])],
    row_length=64,
  )
  outputs = jax.jit(lambda model: model(batch))(model)
  used = batch["sequence_mask"]
  return {name: np.asarray(x, np.float32)[used] for name, x in outputs.items()}


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("real", [False, True], ids=["golden", "minilm-l6-h384"])
def test_embeddings_and_export_are_those_of_transformers(tmp_path, real, dtype):
  os.environ.setdefault("HF_HUB_OFFLINE", "1")
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  if real:
    folder = shared_data.needed("minilm-l6-h384")
  else:
    folder = make_folder(tmp_path / "theirs")
  stored = hf.open_model(folder)
  hf.export_model(stored.config, stored.load(), tmp_path / "out")
  load = transformers.AutoModel.from_pretrained
  theirs, again = (load(x, dtype=torch.float32) for x in (folder, tmp_path / "out"))
  for name, tensor in theirs.state_dict().items():
    assert torch.equal(again.state_dict()[name], tensor), name

  rng = np.random.default_rng(0)
  longest = min(stored.config.max_position_embeddings, 30)
  lengths = (longest, 11, 2, 1, longest - 4)
  sequences = [rng.integers(stored.config.vocab_size, size=n) for n in lengths]
  found = packed_outputs(folder, sequences, jnp.dtype(dtype))
  for number, ids in enumerate(sequences):
    with torch.no_grad():
      result = theirs(input_ids=torch.tensor(ids[None]))
    expected = {
      "sequence_mean": result.last_hidden_state[0].mean(0),
      "sequence_cls": result.last_hidden_state[0, 0],
      "sequence_pooled": result.pooler_output[0],
    }
    for name, vector in expected.items():
      gap = np.abs(found[name][number] - vector.numpy()).max() / vector.abs().max()
      assert gap <= LIMITS[dtype], (name, number)
