"""Writes tests/model/golden anew: python -m tests.model.make_golden.

Needs the extra `reference`. The folder holds a small model of each head as transformers
saves it, two of them under the names of the original BERT and of the original GPT-2, and
what transformers computes with them; so the comparison runs where neither it nor PyTorch
is installed.
"""

import dataclasses
import json
import pathlib
import shutil
import tempfile

import numpy as np
import safetensors.numpy

from model.hf import export_bert, import_bert
from model.weights import Vocabulary
from tests.model import gpt2_reference, reference

FOLDER = pathlib.Path(__file__).parent / "golden"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENS = (
  *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
  *LETTERS,
  *(f"##{letter}" for letter in LETTERS),
  *"!'(),-./:;?—…«»中文日本語。",
  *("the", "##ing", "pack", "cafe", "naive", "##gst"),
)
TEXTS = (
  "Packing the pack, the café and Ångström.",
  "NAÏVE Café; naïve-cafe (don't!)",
  "中文 pack日本語。the end…",
  "ǅ ß œ É\u0301 \u200b zero\u00a0width\ttab\u2028line",
  "unknown ☃ and 3.14—«quoted»",
  "",
)


def main():
  shutil.rmtree(FOLDER, ignore_errors=True)
  FOLDER.mkdir()
  batch = reference.make_batch()
  expected = {f"batch/{name}": field for name, field in batch.items()}
  for architecture, fields in reference.HEADS.items():
    if architecture == "BertForMaskedLM":
      continue
    model = reference.make(architecture, **reference.SIZES["odd"], **fields)
    folder = FOLDER / architecture
    model.save_pretrained(folder)
    outputs, losses = reference.run(model, batch)
    expected |= {f"{architecture}/{name}": x for name, x in outputs.items()}
    expected[f"{architecture}/loss"] = losses
    if architecture == "BertForPreTraining":
      expected["token_loss"], gradients = reference.gradients(model, batch)
      expected |= {f"gradient/{name}": x for name, x in gradients.items()}
      rename(folder / "model.safetensors")
  np.savez_compressed(FOLDER / "expected.npz", **expected)
  make_gpt2(batch)
  ids = tokenize(FOLDER / "BertForQuestionAnswering")
  value = {"tokens": TOKENS, "texts": TEXTS, "ids": ids}
  (FOLDER / "tokenizer.json").write_text(json.dumps(value) + "\n")


def make_gpt2(batch: dict):
  model = gpt2_reference.make(**gpt2_reference.SIZES["odd"])
  folder = FOLDER / "GPT2LMHeadModel"
  model.save_pretrained(folder)
  (folder / "generation_config.json").unlink()
  path = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(path)
  tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
  positions = model.config.n_positions
  for layer in range(model.config.n_layer):  # the mask, which the original keeps
    mask = np.tri(positions, dtype=np.float32)[None, None]
    tensors[f"h.{layer}.attn.bias"] = mask
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
  outputs, losses = gpt2_reference.run(model, batch)
  loss, gradients = gpt2_reference.gradients(model, batch)
  found = {**outputs, "loss": losses, "token_loss": np.asarray(loss)}
  found |= {f"gradient/{name}": x for name, x in gradients.items()}
  found |= {f"batch/{name}": field for name, field in batch.items()}
  np.savez_compressed(FOLDER / "gpt2.npz", **found)


def rename(path: pathlib.Path):
  """The tensors as the original BERT has them: old names, a copy and a buffer."""
  tensors = safetensors.numpy.load_file(path)
  for name in ("weight", "bias"):
    original = {"weight": "bert.embeddings.word_embeddings.weight"}
    copy = tensors[original.get(name, "cls.predictions.bias")]
    tensors[f"cls.predictions.decoder.{name}"] = copy
  positions = tensors["bert.embeddings.position_embeddings.weight"].shape[0]
  tensors["bert.embeddings.position_ids"] = np.arange(positions)[None]
  old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
  for now, then in old.items():
    tensors = {name.replace(now, then): x for name, x in tensors.items()}
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def tokenize(folder: pathlib.Path) -> list[list[int]]:
  config, params = import_bert(folder)
  config, params = with_vocabulary(config, params)
  with tempfile.TemporaryDirectory() as temporary:
    export_bert(config, params, temporary, vocabulary=Vocabulary(TOKENS))
    tokenizer = reference.transformers.AutoTokenizer.from_pretrained(temporary)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


def with_vocabulary(config, params):
  """A model with as many tokens as there are here, for the sake of its tokenizer."""
  table = np.zeros((len(TOKENS), config.hidden_size), np.float32)
  embeddings = params["embeddings"] | {"token": {"embedding": table}}
  params = params | {"embeddings": embeddings}
  return dataclasses.replace(config, vocab_size=len(TOKENS)), params


if __name__ == "__main__":
  main()
