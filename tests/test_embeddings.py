"""Embeddings by pairs as whole programs: trained, resumed, evaluated, exported."""

import json

import jax
import numpy as np
import pytest

import predict
from model import weights
from model.__main__ import main as model_command
from model.hf.pooling import Pooling, write_pooling
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs, programs
from tests.programs import lines_of, summary_of
from tests.test_finetuning import SETTINGS, WORDS, write_examples

pytestmark = pytest.mark.slow
FIELDS = SETTINGS | programs.settings(
  "data.task=pairs packing.max_sequences_per_pack=4 train.micro_batch_size=1 "
  "train.steps=20 optimizer.learning_rate=5e-3 pairs.both_directions=True"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Random weights whose folder says cls; and words with the same words in other order."""
  folder, rng = tmp_path_factory.mktemp("embeddings"), np.random.default_rng(0)
  tokens = (*SPECIAL_TOKENS, *WORDS)
  config = packs.small_config(vocab_size=len(tokens), max_position_embeddings=41)
  given = folder / "given"
  given.mkdir()
  weights.describe(given, config, head="encoder", vocabulary=weights.Vocabulary(tokens))
  params = packs.random_params(config, head="encoder")[1]
  weights.save(given, jax.tree.map(np.asarray, params))
  write_pooling(given, Pooling("cls"), width=14)
  for split, number in (("train", 90), ("dev", 41)):
    examples = []
    for _ in range(number):
      words = rng.choice(WORDS, rng.integers(2, 6), replace=False).tolist()
      example = {"anchor": " ".join(words), "positive": " ".join(words[::-1])}
      if rng.random() < 0.3:
        example["negative"] = str(rng.choice(WORDS))
      examples.append(example)
    write_examples(folder, split, examples)
  return folder


def words(folder, workdir, *options, program="train.py", **fields):
  places = {"model.init_from": folder / "given", "data.directory": folder / "data"}
  places |= {"data.source": folder / "train.jsonl"}
  places |= {"data.held_out_source": folder / "dev.jsonl"}
  values = places | FIELDS | fields
  return programs.words(program, "embeddings.py", folder / workdir, values, options)


def succeed(folder, *arguments, **fields):
  made = words(folder, *arguments, **fields)
  return programs.succeeded(programs.complete(made, folder)).stdout


@pytest.fixture(scope="module")
def trained(folder):
  succeed(folder, "run")
  return folder / "run"


def test_a_run_learns_to_find_and_is_scored_the_same_packed_or_not(folder, trained):
  lines = lines_of(trained / "eval.jsonl")
  assert lines[-1]["mrr"] == lines[-1]["score"]
  assert min(line["loss"] for line in lines) < lines[0]["loss"]
  assert lines[-1]["sequences"] == 41
  learned = [line["pair_loss"] for line in lines_of(trained / "metrics.jsonl")]
  assert 0 < max(learned[-3:]) < min(learned[:2])
  summary = summary_of(trained)
  assert (summary["sequences"], summary["compilations"]) == (90, 1)
  assert summary["packing_factor"] > 1.5
  step = f"--step={lines[-1]['step']}"
  found = [
    json.loads(succeed(folder, "run", step, "--json", program="eval.py", **fields))
    for fields in ({}, {"packing.algorithm": "none"})
  ]
  for name in ("loss", "mrr", "accuracy_at_1", "accuracy_at_10"):
    assert found[0][name] == lines[-1][name]
    assert found[1][name] == pytest.approx(found[0][name], rel=1e-5)
  before = succeed(folder, "given", "--json", program="eval.py")
  assert json.loads(before)["loss"] > min(line["loss"] for line in lines)


def test_a_killed_run_ends_with_the_same_bits(folder, trained):
  made = words(folder, "killed", **{"train.checkpoint_every": 4})
  programs.kill_once_saved(made, folder, folder / "killed")
  succeed(folder, "killed", **{"train.checkpoint_every": 4})
  for name in ("steps", "parameters_digest", "best_score"):
    assert summary_of(folder / "killed")[name] == summary_of(trained)[name]


TEXTS = ["able back call", "data", "join into hash give each file"]


def test_vectors_are_the_same_after_export(folder, trained):
  out = folder / "exported"
  assert model_command(["export", str(trained), "--out", str(out)]) == 0
  vectors = predict.embed(trained, TEXTS)
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
  np.testing.assert_allclose(predict.embed(out, TEXTS), vectors, atol=1e-6)
  pooled = predict.embed(trained, TEXTS, pooling="cls")
  np.testing.assert_allclose(pooled, vectors, atol=1e-6)
  pytest.importorskip("sentence_transformers")
  from sentence_transformers import SentenceTransformer

  theirs = SentenceTransformer(str(out), device="cpu")
  assert theirs.max_seq_length == 41
  np.testing.assert_allclose(theirs.encode(TEXTS), vectors, atol=1e-6)
