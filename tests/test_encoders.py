"""RoBERTa, DistilBERT and ELECTRA as whole programs, beside transformers.

Random weights and tokenizers of their own kinds stand for published ones.
"""

import json
import shutil

import numpy as np
import pytest
import tokenizers

import predict
from model import hf, weights
from model.__main__ import main as model_command
from pipeline.tokenizer import SPECIAL_TOKENS, train_bpe, train_word_pieces
from tests import programs
from tests.model.reference import make, variant_of
from tests.programs import lines_of, summary_of

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.slow, pytest.mark.extra("torch", "transformers")]
TEXTS = [
  "The tower of the town was built of red bricks.",
  "A storm took its roof away, and nobody saw it fall.",
  "They say that rain fell for seven days; then the town was silent.",
  "Red bricks lay in the river",
]
PAIRS = [(a, b) for a in TEXTS for b in TEXTS]
FIELDS = programs.settings(
  "data.max_sequence_length=64 train.batch_size=8 train.micro_batch_size=0 train.steps=6 "
  "optimizer.learning_rate=2e-2 optimizer.warmup_steps=1 "
  "train.log_every=3 train.eval_every=3 train.checkpoint_every=3 model.dtype=float32"
)
SIZES = {
  "hidden_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}
ROBERTAS = "<s>", "<pad>", "</s>", "<unk>", "<mask>"


def make_tokenizer(variant):
  """A tokenizer of transformers, as the folders of this kind have."""
  if variant != "Roberta":
    tokens = train_word_pieces(TEXTS, vocab_size=200)
    return transformers.BertTokenizer(vocab={x: i for i, x in enumerate(tokens)}), len(
      tokens
    )
  trained = json.loads(train_bpe(TEXTS, vocab_size=400, special_tokens=ROBERTAS))
  ids, merges = trained["model"]["vocab"], trained["model"]["merges"]
  return transformers.RobertaTokenizer(vocab=ids, merges=[tuple(x) for x in merges]), len(
    ids
  )


@pytest.fixture(scope="module", params=["Roberta", "DistilBert", "Electra"])
def folder(request, tmp_path_factory):
  """With `theirs`, a masked language model (ELECTRA's: a discriminator), and data."""
  folder, variant = tmp_path_factory.mktemp(request.param), request.param
  tokenizer, size = make_tokenizer(variant)
  end = "ForPreTraining" if variant == "Electra" else "ForMaskedLM"
  make(f"{variant}{end}", **SIZES, vocab_size=size).save_pretrained(folder / "theirs")
  tokenizer.save_pretrained(folder / "theirs")
  for name in ("train", "dev"):
    rows = [{"sentence1": a, "sentence2": b, "label": int(a == b)} for a, b in PAIRS]
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in rows))
  return folder


def vocabulary_of(folder):
  """The file that splits text."""
  return folder / "theirs" / "tokenizer.json"


@pytest.fixture(scope="module")
def trained(folder):
  values = FIELDS | {
    "model.init_from": folder / "theirs",
    "data.source": folder / "train.jsonl",
    "data.held_out_source": folder / "dev.jsonl",
    "data.directory": folder / "data",
    "data.vocab_file": vocabulary_of(folder),
  }
  words = programs.words("train.py", "glue.py:mrpc", folder / "run", values)
  told = programs.succeeded(programs.complete(words, folder)).stdout
  assert "initialising classifier_transform, classifier at random" in told
  return folder / "run"


def compare(folder, stored):
  """Asserts that predict.py answers as transformers does, by the tokenizer of a folder.

  Args:
    folder: that of the model for transformers.
    stored: that of the model for predict.py.

  Returns:
    The probabilities of each pair.
  """
  (folder / "pairs.jsonl").write_text(
    "".join(f"{json.dumps({'sentence1': a, 'sentence2': b})}\n" for a, b in PAIRS)
  )
  answers = folder / "answers.jsonl"
  words = [
    "--input",
    str(folder / "pairs.jsonl"),
    "--out",
    str(answers),
    "--task",
    "glue/mrpc",
  ]
  assert predict.main([str(stored), *words]) == 0
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  with torch.no_grad():
    theirs = [
      model(**tokenizer(a, b, return_tensors="pt")).logits.softmax(-1)[0].tolist()
      for a, b in PAIRS
    ]
  ours = [list(line["probabilities"].values()) for line in lines_of(answers)]
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert variant_of(type(model).__name__) == variant_of(stored.parent.name)
  return ours


def test_answers_of_a_folder_are_those_of_transformers(folder):
  classifier, variant = folder / "classifier", variant_of(folder.name)
  shutil.copytree(folder / "theirs", classifier)
  sizes = SIZES | {
    "vocab_size": json.loads((classifier / "config.json").read_text())["vocab_size"]
  }
  make(f"{variant}ForSequenceClassification", **sizes).save_pretrained(classifier)
  assert np.ptp(compare(classifier, classifier), axis=0).max() > 0.03


def test_a_run_starts_from_the_folder_and_transformers_opens_its_export(folder, trained):
  assert summary_of(trained)["compilations"] == 1
  out = folder / "exported"
  assert model_command(["export", str(trained), "--out", str(out)]) == 0
  compare(out, trained)
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  config = json.loads((out / "config.json").read_text())
  assert tokenizer.model_max_length == 64
  assert config["pad_token_id"] == tokenizer.pad_token_id
  if folder.name.startswith("Roberta"):
    assert config["bos_token_id"] == tokenizer.convert_tokens_to_ids("<s>")
    assert config["eos_token_id"] == tokenizer.convert_tokens_to_ids("</s>")


@pytest.mark.extra("sentence_transformers")
def test_vectors_are_those_of_sentence_transformers(folder):
  """Of the folder as it came, packed."""
  sentence_transformers = pytest.importorskip("sentence_transformers")
  theirs = sentence_transformers.SentenceTransformer(str(folder / "theirs"), device="cpu")
  vectors = predict.embed(folder / "theirs", TEXTS, pooling="mean")
  np.testing.assert_allclose(vectors, theirs.encode(TEXTS), atol=1e-5)


def test_a_masked_language_model_trains_further(folder):
  values = FIELDS | {
    "model.init_from": folder / "theirs",
    "model.size": "given",
    "model.next_sentence": False,
    "data.task": "documents",
    "data.source": folder / "texts.txt",
    "data.directory": folder / "documents",
    "data.held_out_fraction": 0.2,
    "data.vocab_file": vocabulary_of(folder),
  }
  (folder / "texts.txt").write_text("\n\n".join(TEXTS * 5))
  words = programs.words("train.py", "base.py", folder / "further", values)
  programs.succeeded(programs.complete(words, folder))
  out = folder / "further-exported"
  assert model_command(["export", str(folder / "further"), "--out", str(out)]) == 0
  model, report = transformers.AutoModelForMaskedLM.from_pretrained(
    out, output_loading_info=True
  )
  assert not any(report.values())
  assert variant_of(type(model).__name__) == variant_of(folder.name)


def test_an_export_keeps_capitals_and_knows_the_longest_sequence(tmp_path):
  """Of a run, which keeps only tokenizer.json; as a cased DistilBERT's."""
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordPiece(
      {x: i for i, x in enumerate((*SPECIAL_TOKENS, "Tower", "tower"))}, unk_token="[UNK]"
    )
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = tokenizers.processors.BertProcessing(
    ("[SEP]", 3), ("[CLS]", 2)
  )
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  make("DistilBertForMaskedLM", **SIZES, vocab_size=7).save_pretrained(tmp_path / "theirs")
  stored = hf.open_model(tmp_path / "theirs")
  vocabulary = weights.Vocabulary(
    (*SPECIAL_TOKENS, "Tower", "tower"), lowercase=False, by_json=True
  )
  out = tmp_path / "out"
  hf.export_model(
    stored.config, stored.load(), out, vocabulary=vocabulary, tokenizer=tmp_path
  )
  opened = transformers.AutoTokenizer.from_pretrained(out)
  given = opened("Tower tower", "tower")
  assert given["input_ids"] == [2, 5, 6, 3, 6, 3]
  assert "token_type_ids" not in given
  assert (opened.model_max_length, opened.mask_token, opened.cls_token) == (
    64,
    "[MASK]",
    "[CLS]",
  )
