"""Writes tests/model/golden anew: python -m tests.model.make_golden.

Needs the extra `reference`. The folder holds a small model of each head as transformers
saves it, two of them under the names of the original BERT and of the original GPT-2, and
what transformers computes with them; so the comparison runs where neither it nor PyTorch
is installed.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import safetensors.numpy

from model.hf.tokenizer import write_tokenizer
from model.weights import Vocabulary
from tests.model import reference

FOLDER = pathlib.Path(__file__).parent / "golden"
WITH_GRADIENTS = ("BertForPreTraining", "ModernBertForMaskedLM", reference.GPT2)
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


def main(folder: pathlib.Path = FOLDER):
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir()
  batch = reference.make_batch()
  given = {f"batch/{name}": field for name, field in batch.items()}
  families = {
    "expected": (reference.SIZES, reference.HEADS),
    "modern_bert": (reference.MODERN_SIZES, reference.MODERN_HEADS),
    "gpt2": (reference.GPT2_SIZES, {reference.GPT2: {}}),
  }
  for family, (sizes, heads) in families.items():
    expected = dict(given)
    for architecture, fields in heads.items():
      if architecture == "BertForMaskedLM":
        continue
      model = reference.make(architecture, **sizes["odd"], **fields)
      model.save_pretrained(folder / architecture)
      outputs, losses = reference.run(model, batch)
      found = {**outputs, "loss": losses}
      is_alone = len(heads) == 1
      expected |= {k if is_alone else f"{architecture}/{k}": x for k, x in found.items()}
      if architecture in WITH_GRADIENTS:
        loss, gradients = reference.gradients(model, batch)
        expected["token_loss"] = np.asarray(loss)
        expected |= {f"gradient/{name}": x for name, x in gradients.items()}
        if family != "modern_bert":
          rename(folder / architecture / "model.safetensors", family == "expected")
    np.savez_compressed(folder / f"{family}.npz", **expected)
  (folder / reference.GPT2 / "generation_config.json").unlink()
  value = {"tokens": TOKENS, "texts": TEXTS, "ids": tokenize()}
  (folder / "tokenizer.json").write_text(json.dumps(value) + "\n")


def rename(path: pathlib.Path, is_bert: bool):
  """The tensors as the original has them: old names, copies, masks and other buffers."""
  tensors = safetensors.numpy.load_file(path)
  if is_bert:
    words = tensors["bert.embeddings.word_embeddings.weight"]
    positions = tensors["bert.embeddings.position_embeddings.weight"].shape[0]
    tensors["cls.predictions.decoder.weight"] = words
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    tensors["bert.embeddings.position_ids"] = np.arange(positions)[None]
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
  else:
    positions = tensors["transformer.wpe.weight"].shape[0]
    for layer in range(reference.GPT2_SIZES["odd"]["num_hidden_layers"]):
      mask = np.tri(positions, dtype=np.float32)[None, None]
      tensors[f"h.{layer}.attn.bias"] = mask
    old = {"transformer.": ""}
  for now, then in old.items():
    tensors = {name.replace(now, then): x for name, x in tensors.items()}
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def tokenize() -> list[list[int]]:
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    write_tokenizer(folder, Vocabulary(TOKENS), max_length=17)
    tokenizer = reference.transformers.AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


if __name__ == "__main__":
  main()
