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
import tokenizers

from model import BertConfig, hf, weights
from model.__main__ import main
from model.hf.names import current_name, kind_of
from model.hf.tokenizer import describe_fast
from model.weights import Vocabulary, WeightsError
from pipeline.tokenizer import word_piece_tokenizer
from tests import packs
from tests.model import ours
from training.mesh import make_mesh
from training.step import ModelProgram

GOLDEN = pathlib.Path(__file__).parent / "golden"
ARCHITECTURES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
PRETRAINING = GOLDEN / "BertForPreTraining"
CLASSES = GOLDEN / "BertForSequenceClassification"
TAGS, GPT2 = "BertForTokenClassification", "GPT2LMHeadModel"
MODERN = [name for name in ARCHITECTURES if name.startswith("Modern")]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def imported(folder):
  stored = hf.open_model(folder)
  return stored.config, stored.load()


def tensors_of(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


def config_of(folder) -> dict:
  return json.loads((folder / "config.json").read_text())


def expected_of(architecture):
  """What transformers computed, by parts; `tests.model.make_golden` wrote it."""
  files = {GPT2: "gpt2", **dict.fromkeys(MODERN, "modern_bert")}
  with np.load(GOLDEN / f"{files.get(architecture, 'expected')}.npz") as file:
    arrays = {k if "/" in k else f"{GPT2}/{k}": x for k, x in file.items()}
  parts: dict = {name.partition("/")[0]: {} for name in arrays}
  for name, x in arrays.items():
    part, _, rest = name.partition("/")
    parts[part][rest] = x
  return parts


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_logits_and_losses_are_those_of_transformers(architecture):
  config, params = imported(GOLDEN / architecture)
  expected = expected_of(architecture)
  theirs, batch = expected[architecture], expected["batch"]
  logits = {name: x for name, x in theirs.items() if name.endswith("_logits")}
  found = ours.run(config, hf.head_of(params), params, batch)
  ours.assert_equal(found, (logits, theirs["loss"]), batch)


@pytest.mark.parametrize("architecture", [PRETRAINING.name, MODERN[0], GPT2])
def test_gradients_of_the_token_loss_are_those_of_transformers(architecture):
  config, params = imported(GOLDEN / architecture)
  expected, head = expected_of(architecture), hf.head_of(params)
  found = ours.loss_and_gradients(config, head, params, expected["batch"])
  loss = float(expected[GPT2]["token_loss"])
  theirs = loss, expected["gradient"]
  ours.assert_equal_gradients(found, theirs, config, head)


# ---- round trip ------------------------------------------------------------------------

# Copies and buffers that old files hold besides, and are not written.
COPIES = {
  PRETRAINING.name: {
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
  },
  GPT2: {f"transformer.h.{layer}.attn.bias" for layer in (0, 1)},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_commands_import_and_export_the_same_bits(tmp_path, capsys, architecture):
  """Also from old names, and with a vocabulary that is padded on the way."""
  original, folder, out = (tmp_path / name for name in ("original", "ours", "out"))
  shutil.copytree(GOLDEN / architecture, original)
  if architecture not in (GPT2, *MODERN):
    (original / "vocab.txt").write_text("\n".join((*SPECIAL, "##\u2028b")) + "\n")
  arguments = ["import", str(original), "--out", str(folder)]
  assert main([*arguments, "--json"]) == 0
  told = json.loads(capsys.readouterr().out)
  assert told["architecture"] == architecture.replace(GPT2, "Gpt2")
  is_bert = architecture not in (GPT2, *MODERN)
  assert (told["vocab_size"], told["tokenizer"] != "none") == (29, is_bert)
  stored = weights.open_folder(folder)
  assert main(["export", str(folder), "--out", str(out)]) == 0
  assert told["architecture"] in capsys.readouterr().out

  before, after = tensors_of(original), tensors_of(out)
  kind = kind_of(stored.config, stored.head)
  before = {current_name(name, kind): x for name, x in before.items()}
  assert before.keys() - after.keys() == COPIES.get(architecture, set())
  for name, tensor in after.items():
    assert before[name].dtype == tensor.dtype
    assert before[name].tobytes() == tensor.tobytes(), name
  given, written = config_of(original), config_of(out)
  assert {k: v for k, v in written.items() if given.get(k, v) != v} == {}
  assert hf.open_model(out).vocabulary == hf.open_model(original).vocabulary
  assert imported(out)[0] == imported(original)[0]
  jax.tree.map(np.testing.assert_array_equal, imported(out)[1], imported(original)[1])


def test_all_files_of_a_tokenizer_come_back(tmp_path):
  original, folder, out = (tmp_path / name for name in ("original", "ours", "out"))
  shutil.copytree(GOLDEN / "BertForPreTraining", original)
  files = {
    "tokenizer.json": fast_tokenizer(added_tokens=[NEW]),
    "vocab.txt": "\n".join((*SPECIAL, "a")),
    "added_tokens.json": '{"new": 6}',
    "tokenizer_config.json": '{"do_lower_case": true, "model_max_length": 9}',
    "special_tokens_map.json": '{"pad_token": "[PAD]"}',
  }
  for name, content in files.items():
    (original / name).write_text(content)
  assert main(["import", str(original), "--out", str(folder)]) == 0
  assert main(["export", str(folder), "--out", str(out)]) == 0
  assert {name: (out / name).read_text() for name in files} == files
  assert hf.open_model(out).vocabulary == hf.open_model(original).vocabulary


def run_folder(folder, config, vocabulary, head="pretraining"):
  """As training leaves it, with random parameters."""
  folder.mkdir()
  weights.describe(folder, config, head=head, vocabulary=vocabulary)
  weights.save(folder, packs.random_params(config, head=head)[1])
  return folder


WORD_PIECES = Vocabulary((*SPECIAL, "a", "b", "##c", *(f"w{i}" for i in range(21))))
LEARNED_GPT2 = packs.small_gpt2(positions="learned")


@pytest.mark.parametrize(
  ("config", "head"),
  [
    (packs.small_config(), "pretraining"),
    (packs.small_modern_bert(), "pretraining"),
    (LEARNED_GPT2, "causal"),
  ],
)
def test_word_pieces_are_exported_with_every_model(tmp_path, capsys, config, head):
  folder = run_folder(tmp_path / "ours", config, WORD_PIECES, head)
  out, again = tmp_path / "out", tmp_path / "again"
  assert main(["export", str(folder), "--out", str(out), "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["tokenizer"] == "WordPiece"
  assert hf.open_model(out).vocabulary == WORD_PIECES
  if head == "causal" or config.FAMILY == "modern_bert":  # what AutoTokenizer opens
    fast = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    pieces = ["a", "b", "##c"]  # a GPT-2 is trained on texts without [CLS]
    in_training = pieces if head == "causal" else ["[CLS]", *pieces, "[SEP]"]
    assert fast.encode("A bc").tokens == in_training
    (out / "vocab.txt").unlink()  # as transformers saves it now
    assert hf.open_model(out).vocabulary == WORD_PIECES
  if head == "causal":  # training ends each text with it
    assert config_of(out)["eos_token_id"] == WORD_PIECES.tokens.index("[SEP]")
  assert main(["import", str(out), "--out", str(again), "--json"]) == 0
  assert weights.open_folder(again).vocabulary == WORD_PIECES
  assert not (again / "tokenizer.json").exists()


BYTES = Vocabulary((*SPECIAL, *"abcdefghijklmnopqrstuvwx"), lowercase=False, by_json=True)


def byte_level(vocabulary) -> dict:
  ids = {token: number for number, token in enumerate(vocabulary.tokens)}
  return {"model": {"type": "BPE", "vocab": ids, "merges": []}}


def test_a_bert_of_bytes_goes_out_and_in(tmp_path, capsys):
  folder = run_folder(tmp_path / "ours", packs.small_config(), BYTES)
  assert main(["export", str(folder), "--out", str(tmp_path / "mute"), "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["tokenizer"] == "none"
  (folder / "tokenizer.json").write_text(json.dumps(byte_level(BYTES)))
  out, again = tmp_path / "out", tmp_path / "again"
  assert main(["export", str(folder), "--out", str(out)]) == 0
  assert hf.open_model(out).vocabulary == BYTES
  assert main(["import", str(out), "--out", str(again)]) == 0
  assert weights.open_folder(again).vocabulary == BYTES
  assert (again / "tokenizer.json").exists()


def test_the_merges_of_a_vocab_json_are_imported_too(tmp_path):
  original, folder = tmp_path / "original", tmp_path / "ours"
  shutil.copytree(GOLDEN / GPT2, original)
  (original / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(29)}))
  (original / "merges.txt").write_text("#version: 0.2\nt 1\n")
  assert main(["import", str(original), "--out", str(folder)]) == 0
  for name in ("vocab.json", "merges.txt"):
    assert (folder / name).read_text() == (original / name).read_text()


def test_a_vocabulary_with_another_token_for_padding_is_exported(tmp_path):
  config, params = imported(PRETRAINING)
  tokens = ("<pad>", *BYTES.tokens[1:])
  vocabulary = Vocabulary(tokens, lowercase=False, by_json=True)
  hf.export_model(config, params, tmp_path / "out", vocabulary=vocabulary)
  assert config_of(tmp_path / "out")["pad_token_id"] is None


def test_names_of_classes_go_in_and_out(tmp_path):
  stored = hf.open_model(CLASSES)
  assert stored.labels == ()  # LABEL_0 and so on are none
  names = tuple("xyzuvw"[: stored.config_as(BertConfig).num_labels])
  hf.export_model(stored.config, stored.load(), tmp_path / "named", labels=names)
  written = config_of(tmp_path / "named")
  assert written["id2label"] == {str(i): name for i, name in enumerate(names)}
  assert written["label2id"] == {name: i for i, name in enumerate(names)}
  assert hf.open_model(tmp_path / "named").labels == names


@pytest.mark.parametrize(
  "labels",
  [
    {"0": "a", "1": "b", "3": "c"},
    {"0": "a", "1": "b", "2": "a"},
  ],
)
def test_names_of_classes_with_gaps_are_refused(altered, labels):
  """Only where they are used: other heads may have any."""
  assert hf.open_model(altered(PRETRAINING.name, id2label=labels)).labels == ()
  named = altered(CLASSES.name, id2label=dict(zip("012", "xyz", strict=True)))
  assert hf.open_model(named).labels == ("x", "y", "z")
  with pytest.raises(WeightsError, match=r"id2label is .*; expected 3 names, from 0"):
    hf.open_model(altered(CLASSES.name, id2label=labels))


def test_masked_lm_alone_and_regression_keep_their_kind(tmp_path):
  config, params = imported(PRETRAINING)
  alone = {name: x for name, x in params.items() if name not in ("pooler", "nsp")}
  config = dataclasses.replace(config, next_sentence=False)
  hf.export_model(config, alone, tmp_path / "mlm")
  assert config_of(tmp_path / "mlm")["architectures"] == ["BertForMaskedLM"]
  assert imported(tmp_path / "mlm")[0] == config

  config, params = imported(CLASSES)
  config = dataclasses.replace(config, num_labels=1)
  one = {"kernel": params["classifier"]["kernel"][:, :1], "bias": jnp.zeros(1)}
  hf.export_model(config, params | {"classifier": one}, tmp_path / "number")
  assert config_of(tmp_path / "number")["problem_type"] == "regression"
  assert imported(tmp_path / "number")[0].num_labels == 1


# ---- what older and larger files look like -----------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_becomes_float32(altered, dtype):
  full = imported(GOLDEN / TAGS)[1]
  folder = altered(TAGS, lambda ts: ts.update({k: v.astype(dtype) for k, v in ts.items()}))
  half = imported(folder)[1]
  assert {x.dtype for x in jax.tree.leaves(half)} == {np.dtype("float32")}
  rounded = jax.tree.map(lambda x: np.asarray(x).astype(dtype).astype("float32"), full)
  jax.tree.map(np.testing.assert_array_equal, half, rounded)


def test_a_pooler_that_the_head_does_not_read_is_ignored(altered):
  pooler = {"weight": np.zeros((14, 14)), "bias": np.zeros(14)}
  more = {f"bert.pooler.dense.{name}": x for name, x in pooler.items()}
  assert "pooler" not in imported(altered(TAGS, lambda ts: ts.update(more)))[1]


def test_a_masked_lm_file_with_both_heads_keeps_both(altered):
  """As that of the original bert-base-uncased."""
  folder = altered(PRETRAINING.name, architectures=["BertForMaskedLM"])
  config, params = imported(folder)
  assert config.next_sentence
  assert {"pooler", "nsp"} <= params.keys()


# ---- mistakes ---------------------------------------------------------------------------

CONFIGS = [
  (
    TAGS,
    {"model_type": "deberta-v2"},
    r"model_type deberta-v2; .* bert, roberta.* cannot pack it",
  ),
  (
    TAGS,
    {"model_type": "llama"},
    r"model_type llama; .* packing\.torch\.PackedCollator\.for_m",
  ),
  (TAGS, {"model_type": ["bert"]}, r"model_type \['bert'\]; this model supports bert"),
  (TAGS, {"model_type": "roberta"}, r'architectures is \["BertFor.*"RobertaForMaskedLM"'),
  (TAGS, {"hidden_act": "relu"}, 'hidden_act is "relu".*supports "gelu"'),
  (TAGS, {"problem_type": "regression"}, "num_labels is 5"),
  (TAGS, {"architectures": ["BertForMultipleChoice"]}, "architectures is.*BertForQuest"),
  (TAGS, {"hidden_size": 14.0}, "hidden_size is 14.0; expected a whole number"),
  (TAGS, {"hidden_size": 16}, r"LayerNorm\.\w+ of shape \(14,\) instead of \(16,\)"),
  (TAGS, {"vocab_size": 2**70}, r"vocab_size is 1180\d+; expected a whole number from 1"),
  (TAGS, {"layer_norm_eps": 10**400}, r"epsilon is 10+\.\.\.; expected a number between"),
  (TAGS, {"num_hidden_layers": 300_000}, "has 39 arrays for 300,000 layers"),
  (TAGS, {"num_hidden_layers": 3}, r"missing bert\.encoder\.layer\.2\..* more"),
  (GPT2, {"activation_function": "gelu"}, 'activation_function is "gelu".*"gelu_new"'),
  (GPT2, {"n_embd": None}, "hidden_size is None; expected a whole number"),
  (
    MODERN[0],
    {"layer_types": ["full_attention", "sliding_attention"]},
    "layer_types has 2 layers, but num_hidden_layers is 3",
  ),
]


@pytest.mark.parametrize(("architecture", "fields", "message"), CONFIGS)
def test_a_config_that_is_not_supported_is_refused_by_name(
  altered, architecture, fields, message
):
  with pytest.raises(WeightsError, match=message):
    hf.open_model(altered(architecture, **fields))


def test_a_file_that_is_nested_too_deeply_is_refused(altered):
  folder = altered(TAGS)
  (folder / "config.json").write_text("[" * 200_000)
  with pytest.raises(WeightsError, match="nested too deeply"):
    hf.open_model(folder)


def test_a_tokenizer_on_which_the_library_panics_is_refused(tmp_path):
  content = json.loads(word_piece_tokenizer(SPECIAL).to_str())
  content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  with pytest.raises(WeightsError, match=r"cannot be used: Precompiled"):
    describe_fast(tmp_path, max_length=17)


def rename(before, after):
  return lambda tensors: tensors.update({after: tensors.pop(before)})


def copied(before, after, change=lambda x: x):
  return lambda tensors: tensors.update({after: change(tensors[before])})


WORDS = "bert.embeddings.word_embeddings.weight"
NORM = "bert.embeddings.LayerNorm"
DECODER = "cls.predictions.decoder.weight"
HEAD = "lm_head.weight"
WRONG = [
  (TAGS, rename("classifier.bias", "more"), r"missing classifier\.bias; unexpected more"),
  (TAGS, copied(WORDS, WORDS, lambda x: x[1:]), r"shape \(28, 14\) instead of \(29, 14"),
  (TAGS, copied(f"{NORM}.weight", f"{NORM}.gamma"), "weight twice, also as"),
  (PRETRAINING.name, copied(DECODER, DECODER, lambda x: x + 1), "weight is not a copy of"),
  (GPT2, copied("wte.weight", HEAD, lambda x: x + 1), "is not a copy of transformer"),
]


@pytest.mark.parametrize(("architecture", "change", "message"), WRONG)
def test_tensors_that_do_not_fit_are_named(altered, architecture, change, message):
  with pytest.raises(WeightsError, match=message):
    imported(altered(architecture, change))


def test_a_head_that_is_a_copy_is_read(altered):
  imported(altered(GPT2, copied("wte.weight", HEAD)))


SPECIAL_IDS = [("[CLS]", 2), ("[SEP]", 3)]
ROBERTAS = tokenizers.processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
XLMRS = tokenizers.processors.TemplateProcessing(
  single="[CLS] $A [SEP]",
  pair="[CLS] $A [SEP] [SEP] $B [SEP]",
  special_tokens=SPECIAL_IDS,
)
BERTS = tokenizers.processors.TemplateProcessing(
  single="[CLS] $A [SEP]",
  pair="[CLS] $A [SEP] $B:1 [SEP]:1",
  special_tokens=SPECIAL_IDS,
)


@pytest.mark.parametrize(
  ("processor", "inputs", "gives"),
  [
    (ROBERTAS, None, False),
    (XLMRS, None, False),
    (BERTS, None, True),
    (tokenizers.processors.ByteLevel(), None, True),
    (None, None, True),
    (BERTS, ["input_ids", "token_type_ids"], True),
    (BERTS, ["input_ids"], False),
  ],
)
def test_a_bert_whose_tokenizer_gives_pairs_one_type_does_not_tell_them(
  altered, tmp_path, processor, inputs, gives
):
  folder, out = altered("BertForSequenceClassification"), tmp_path / "out"
  words = tuple(map(str, range(config_of(folder)["vocab_size"] - len(SPECIAL))))
  tokenizer = word_piece_tokenizer((*SPECIAL, *words))
  if processor:
    tokenizer.post_processor = processor
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps({"model_input_names": inputs}))
  stored = hf.open_model(folder)
  assert isinstance(stored.config, BertConfig)
  assert (stored.config.pair_types, stored.config.tells_types) == (gives, gives)
  batch = packs.lay_out(packs.random_sequences())
  batch["input_ids"] %= stored.config.vocab_size
  alike = batch | {"token_type_ids": np.zeros_like(batch["token_type_ids"])}
  assert batch["token_type_ids"].any()
  mesh = make_mesh(1)
  apply = ModelProgram(stored.config, mesh=mesh, head=stored.head).apply
  ours, zeros = (
    jax.jit(apply)(stored.load(), x)["sequence_logits"] for x in (batch, alike)
  )
  assert np.array_equal(ours, zeros) != gives
  # It stays so through import and export.
  assert main(["import", str(folder), "--out", str(tmp_path / "ours")]) == 0
  assert main(["export", str(tmp_path / "ours"), "--out", str(out)]) == 0
  for place in (tmp_path / "ours", out):
    assert hf.open_model(place).config == stored.config


def test_pickles_and_parts_are_not_opened(altered):
  folder = altered(TAGS)
  (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
  with pytest.raises(WeightsError, match=r"has pytorch_model\.bin .*save_pretrained"):
    imported(folder)
  (folder / "pytorch_model.bin").rename(folder / "model-00001-of-00002.safetensors")
  with pytest.raises(WeightsError, match=r"weights but no model\..*save_pretrained"):
    imported(folder)


def test_export_refuses_what_it_cannot_write(tmp_path):
  config, params = imported(PRETRAINING)
  out, full = tmp_path / "out", tmp_path / "full"
  full.mkdir()
  (full / "file").write_text("mine")
  for place in (full, full / "file"):
    with pytest.raises(FileExistsError, match="is not a new or empty folder"):
      hf.export_model(config, params, place)
  assert (full / "file").read_text() == "mine"
  long = Vocabulary(tuple(map(str, range(30))))
  with pytest.raises(WeightsError, match="has 30 tokens, more than 29"):
    hf.export_model(config, params, out, vocabulary=long)
  for fields, message in (
    ({"attention_mask": "token_type"}, "Cannot export attention_mask=token_type"),
    ({"intermediate_size": 12}, "BertForPreTraining has other parameters"),
  ):
    with pytest.raises(WeightsError, match=message):
      hf.export_model(dataclasses.replace(config, **fields), params, out)
  alibi = packs.small_gpt2()
  with pytest.raises(WeightsError, match="Cannot export positions=alibi"):
    hf.export_model(alibi, packs.random_params(alibi, head="causal")[1], out)
  assert [path.name for path in tmp_path.iterdir()] == ["full"]


KILLED = """
import os, signal
from model import hf
hf.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
stored = hf.open_model({!r})
hf.export_model(stored.config, stored.load(), {!r})
"""


def test_an_export_that_fails_or_is_killed_leaves_nothing_under_its_name(
  tmp_path, monkeypatch
):
  config, params = imported(PRETRAINING)
  with monkeypatch.context() as patched:  # an error after the tensors are written
    patched.setattr(hf, "bert_json", lambda *_: {"epsilon": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
      hf.export_model(config, params, tmp_path / "out")
  assert list(tmp_path.iterdir()) == []

  script = KILLED.format(str(PRETRAINING), str(tmp_path / "out"))
  environment = os.environ | {"PYTHONPATH": "."}
  killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
  assert killed.returncode == -signal.SIGKILL
  assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
  hf.export_model(config, params, tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---- vocabulary -------------------------------------------------------------------------


def test_the_tokenizer_here_gives_the_ids_of_the_one_in_transformers():
  golden = json.loads((GOLDEN / "tokenizer.json").read_text())
  tokenizer = word_piece_tokenizer(golden["tokens"])
  for text, ids in zip(golden["texts"], golden["ids"], strict=True):
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids


def fast_tokenizer(**changes) -> str:
  """A tokenizer.json of BERT's word pieces with some parts changed."""
  return json.dumps(json.loads(word_piece_tokenizer((*SPECIAL, "a")).to_str()) | changes)


FLAGS = "single_word", "lstrip", "rstrip", "normalized", "special"
NEW = dict.fromkeys(FLAGS, False) | {"content": "new", "id": 6}


def test_the_vocabulary_is_found_in_old_and_new_directories(altered):
  folder = altered(TAGS)
  assert hf.open_model(folder).vocabulary is None
  (folder / "vocab.txt").write_text("\n".join(SPECIAL) + "\na\u2028b\n", encoding="utf-8")
  assert hf.open_model(folder).vocabulary == Vocabulary((*SPECIAL, "a\u2028b"))
  settings, fast = folder / "tokenizer_config.json", folder / "tokenizer.json"
  settings.write_text('{"do_lower_case": false}')
  assert not getattr(hf.open_model(folder).vocabulary, "lowercase", True)
  fast.write_text(fast_tokenizer())
  with pytest.raises(WeightsError, match=r"do_lower_case is False .*, True in"):
    hf.open_model(folder)
  settings.unlink()
  assert hf.open_model(folder).vocabulary == Vocabulary((*SPECIAL, "a"))
  for changes in ({"added_tokens": [NEW]}, {"pre_tokenizer": {"type": "WhitespaceSplit"}}):
    fast.write_text(fast_tokenizer(**changes))
    tokens = (*SPECIAL, "a", *(["new"] if "added_tokens" in changes else []))
    found = hf.open_model(folder).vocabulary
    assert found == Vocabulary(tokens, lowercase=False, by_json=True)


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("config.json", '{"architectures": ["BertForMaskedLM"]}', "missing .*vocab_size"),
    ("config.json", None, "expected a model's folder"),
    ("model.safetensors", "no tensors", r"model\.safetensors cannot be read: .*Download"),
    ("vocab.txt", "\n".join((*SPECIAL, "a", "a")), "a token occurs twice"),
    ("vocab.txt", "\n".join((*SPECIAL, *map(str, range(25)))), "has 30 tokens"),
    ("tokenizer_config.json", '{"strip_accents": false}', "strip_accents is False"),
    ("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "Japanese"),
    ("added_tokens.json", '{"new": 6}', "the added token 'new' has the id 6"),
    ("tokenizer.json", "{}", "tokenizer in .* cannot be used: "),
  ],
)
def test_files_of_another_kind_are_refused(altered, name, content, message):
  folder = altered(TAGS)
  if name in ("tokenizer_config.json", "added_tokens.json"):
    (folder / "vocab.txt").write_text("\n".join(SPECIAL))
  path = folder / name
  path.unlink() if content is None else path.write_text(content)
  with pytest.raises(WeightsError, match=message):
    hf.open_model(folder)
