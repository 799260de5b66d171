"""predict.py: the same answers as without packing, in the order of the input."""

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import flax.nnx as nnx
import hypothesis
import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.special
import scipy.stats
from hypothesis import strategies as st

import pipeline
import predict
from configs import base
from launch.record.compilations import CompilationCounter
from model import hf, weights
from model.__main__ import main as model_command
from model.models import abstract_model
from packing import InputError
from packing.testing import layout
from pipeline.prediction.answers import answer_examples
from pipeline.prediction.chunks import BatchShape
from pipeline.prediction.embeddings import POOLINGS
from pipeline.tokenizer import Tokenizer
from tests import packs, programs, shared_data
from training import evaluation
from training.mesh import make_mesh
from training.step import ModelProgram

TOKENS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?", ".", *"abcdefghij"
VOCABULARY = weights.Vocabulary(TOKENS)
LABELS = "bad", "so", "good"
ROW = 23
HEADS = {
  "classification": "sequence_classification",
  "multi_label": "sequence_classification",
  "regression": "sequence_classification",
  "squad": "question_answering",
  "tagging": "token_classification",
  "pretraining": "pretraining",
}
NAMED = "classification", "multi_label", "tagging"  # their classes have names


def make_folder(folder, task, *, steps=(0,), scale=1.0, **fields):
  """As python -m model import writes one; each step has different weights."""
  labels = LABELS if task in NAMED else ()
  fields |= {"num_labels": 3 if labels else {"regression": 1}.get(task, 2)}
  fields |= {"multi_label": task == "multi_label"}
  config = packs.small_config(num_layers=1, max_position_embeddings=ROW, **fields)
  for step in steps:
    _, params = packs.random_params(config, seed=step, head=HEADS[task])
    weights.save(folder, jax.tree.map(lambda x: x * scale, params), step=step)
  weights.describe(folder, config, head=HEADS[task], vocabulary=VOCABULARY, labels=labels)
  return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  for task in HEADS:
    make_folder(folder / task, task)
  return folder


@pytest.fixture
def answer(capsys, monkeypatch):
  """Runs predict.py in this process: exit status, answers, standard error."""

  def run(*arguments, typed=""):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    try:
      status = predict.main([str(argument) for argument in arguments])
    except SystemExit as error:
      status = error.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    return status, [json.loads(line) for line in printed.out.splitlines()], printed.err

  return run


def write_lines(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


texts = st.integers(0, 61).map(lambda n: " ".join(("abcdefghij?." * 6)[:n]))
TASKS = {  # the fields of an example, and how many there are at most
  "classification": (["sentence"], 23),
  "multi_label": (["sentence"], 13),
  "regression": (["sentence", "sentence2"], 13),
  "squad": (["question", "context"], 11),
  "tagging": (["tokens"], 13),
}


def close(one, other):
  """Checks equality up to rounding; equal answers may change their order."""
  assert one.keys() == other.keys()
  assert one["id"] == other["id"]
  for name in one.keys() & {"value", "probability", "probabilities"}:
    assert one[name] == pytest.approx(other[name], abs=1e-5)
  if "n_best" in one:
    ours, theirs = ({a["text"]: a["score"] for a in x["n_best"]} for x in (one, other))
    assert ours == pytest.approx(theirs, abs=1e-4)
    score = pytest.approx(theirs.get(other["answer"]), abs=1e-4)
    assert theirs.get(one["answer"]) == score
  for name in one.keys() & {"tokens", "tags"}:
    assert one[name] == other[name]


@pytest.mark.parametrize("task", TASKS)
def test_packed_answers_equal_those_of_single_sequences(folders, tmp_path, task):
  fields, most = TASKS[task]
  stored, path = hf.open_model(folders / task), tmp_path / "rows.jsonl"
  config = evaluation.prediction_config(stored.config)
  program = ModelProgram(config, mesh=make_mesh(2), head=stored.head)
  run = functools.partial(evaluation.predict, program, stored.load())
  labels = LABELS if task in NAMED else ()
  settings = pipeline.DatasetSettings("-", ROW, task=task, labels=",".join(labels))
  tokenizer = Tokenizer(folders / task / "vocab.txt")
  counter = CompilationCounter()

  def answers(algorithm, chunk_size):
    examples = pipeline.read_examples(str(path), settings, tokenizer)
    shape = BatchShape(ROW, 4, algorithm=algorithm, row_multiple=ROW - 8, batch_multiple=2)
    options = {"labels": labels, "chunk_size": chunk_size}
    return list(answer_examples(run, examples, task=task, shape=shape, **options))

  @hypothesis.settings(max_examples=17, deadline=None, database=None)
  @hypothesis.seed(0)
  @hypothesis.given(
    rows=st.lists(st.fixed_dictionaries(dict.fromkeys(fields, texts)), max_size=most),
    chunk_size=st.sampled_from([1, 5, 4096]),
  )
  @hypothesis.example([dict.fromkeys(fields, "a b c")] * 29, 7)
  def check(rows, chunk_size):
    write_lines(path, ({"id": f"n{n}"} | row for n, row in enumerate(rows)))
    packed = answers("optimal", chunk_size)
    alone = answers("none", 4096)
    assert [one["id"] for one in packed] == [f"n{n}" for n in range(len(rows))]
    for one, other in zip(packed, alone, strict=True):
      close(one, other)

  check()
  assert (
    counter.count("_eval_step") == 4
  )  # rows of two lengths, packed and not; many chunks


def test_lines_of_standard_input_are_answered_in_their_order(folders, answer):
  folder, lines = folders / "classification", ["a b c", "", "d ?", "e . f g", "a " * 90]
  status, found, errors = answer(folder, typed="\n".join(lines))
  assert (status, [one["id"] for one in found]) == (0, ["0", "1", "2", "3", "4"])
  assert errors.endswith(f"truncated 1 example: longer than --max-sequence-length {ROW}\n")
  lines[-1] = "a " * (ROW - 2)
  head = packs.random_model(hf.open_model(folder).config, head="sequence_classification")
  for one, line in zip(found, lines, strict=True):  # each alone, without predict.py
    ids = [TOKENS.index(word) for word in ("[CLS]", *line.split(), "[SEP]")]
    logits = head(layout.lay_out([[{"input_ids": ids}]], row_length=ROW))
    expected = scipy.special.softmax(np.asarray(logits["sequence_logits"])[0, 0])
    assert [*one["probabilities"].values()] == pytest.approx(expected, abs=1e-5)
    assert one["label"] == LABELS[expected.argmax()]
  assert "truncated" not in answer(folder, typed=lines[-1])[2]
  status, found, errors = answer(folder, typed="")
  assert (status, found, "answered 0 examples" in errors) == (0, [], True)


def test_several_classes_are_answered_as_by_the_model_alone(folders, answer):
  folder, lines = folders / "multi_label", ["a b c", "d ?"]
  status, found, _ = answer(folder, typed="\n".join(lines))
  assert status == 0
  head = packs.random_model(hf.open_model(folder).config, head="sequence_classification")
  for one, line in zip(found, lines, strict=True):
    ids = [TOKENS.index(word) for word in ("[CLS]", *line.split(), "[SEP]")]
    logits = head(layout.lay_out([[{"input_ids": ids}]], row_length=ROW))
    expected = scipy.special.expit(np.asarray(logits["sequence_logits"])[0, 0])
    assert [*one["probabilities"].values()] == pytest.approx(expected, abs=1e-5)
    assert one["labels"] == [LABELS[n] for n in np.flatnonzero(expected > 0.5)]


def test_windows_make_one_answer_and_an_empty_context_an_empty_one(folders, answer):
  rows = [
    {"id": "long", "question": "a ?", "context": "b c d e f g h i j " * 5},
    {"id": "none", "question": "a b c d e ?", "context": " "},  # asked in 6 tokens
  ]
  typed = "\n\n".join(map(json.dumps, rows))
  options = "--max-answer-length", "1"
  _, (long, none), errors = answer(folders / "squad", *options, typed=typed)
  assert long["id"] == "long"
  assert all(len(best["text"].split()) == 1 for best in long["n_best"])
  assert (none["id"], none["answer"], none["n_best"]) == ("none", "", [])
  assert errors.endswith("truncated 1 questions: longer than 3 tokens\n")


def test_each_word_gets_a_tag_from_text_and_from_lists(folders, answer, tmp_path):
  folder, words = folders / "tagging", [*"ab.cd?efghij"] * 5
  status, (long, none), errors = answer(folder, typed=" ".join(words) + "\n\n")
  assert (status, long["id"], long["tokens"]) == (0, "0", words)
  assert none == {"id": "1", "tokens": [], "tags": [], "probabilities": []}
  assert len(long["tags"]) == len(long["probabilities"]) == 60
  assert set(long["tags"]) <= set(LABELS)
  assert "truncated" not in errors  # it was cut in windows
  (listed,) = answer(folder, typed=json.dumps({"id": "x", "tokens": words}))[1]
  assert listed == long | {"id": "x"}
  (tmp_path / "words.conll").write_text("\n".join(words))
  assert answer(folder, "--input", tmp_path / "words.conll")[1] == [long]
  head = packs.random_model(hf.open_model(folder).config, head="token_classification")
  ids = [2, *map(TOKENS.index, words[:9]), 3]  # alone, without predict.py
  logits = head(layout.lay_out([[{"input_ids": ids}]], row_length=ROW))["token_logits"]
  expected = scipy.special.softmax(np.asarray(logits)[0, 1:10], axis=-1)
  (short,) = answer(folder, typed=" ".join(words[:9]))[1]
  assert short["probabilities"] == pytest.approx(expected.max(-1), abs=1e-5)
  assert short["tags"] == [LABELS[n] for n in expected.argmax(-1)]


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("family", ["bert", "modern_bert"])
def test_tags_are_those_of_transformers_for_each_sentence_alone(family, answer, tmp_path):
  import torch
  import transformers

  fields = {"num_labels": 3, "max_position_embeddings": 41, "vocab_size": len(TOKENS)}
  make = packs.small_config if family == "bert" else packs.small_modern_bert
  config = make(**fields)
  _, params = packs.random_params(config, head="token_classification")
  about = {"vocabulary": VOCABULARY, "labels": LABELS}
  hf.export_model(config, params, tmp_path / "model", **about)
  model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "model")
  split = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
  rng = np.random.default_rng(0)
  sentences = [rng.choice(TOKENS[5:], n).tolist() for n in rng.integers(1, 30, 23)]
  typed = "\n".join(json.dumps({"tokens": words}) for words in sentences)
  status, found, _ = answer(tmp_path / "model", typed=typed)
  assert status == 0
  for words, one in zip(sentences, found, strict=True):
    batch = split(words, is_split_into_words=True, return_tensors="pt")
    firsts = [batch.word_ids().index(number) for number in range(len(words))]
    with torch.no_grad():
      scores = model(**batch).logits[0, firsts].softmax(-1)
    assert one["probabilities"] == pytest.approx(scores.max(-1).values.tolist(), abs=1e-5)
    assert one["tags"] == [model.config.id2label[n] for n in scores.argmax(-1).tolist()]


def test_an_exported_directory_gives_the_same_answers(folders, answer, tmp_path):
  stored = hf.open_model(folders / "classification")
  path = write_lines(tmp_path / "rows.jsonl", [{"text": "a b", "key": "x"}])
  options = "--input", path, "--columns", "sentence=text,id=key"
  (ours,) = answer(stored.directory, *options)[1]
  assert ours["id"] == "x"
  about = {"vocabulary": VOCABULARY, "labels": ()}
  hf.export_model(stored.config, stored.load(), tmp_path / "exported", **about)
  modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "exported").iterdir()}
  assert len(modes) == 1  # others may read the weights as they may the config
  (found,) = answer(tmp_path / "exported", *options)[1]
  assert [*found["probabilities"]] == ["LABEL_0", "LABEL_1", "LABEL_2"]
  assert [*found["probabilities"].values()] == [*ours["probabilities"].values()]


def test_a_run_answers_with_its_best_checkpoint_and_its_own_task(answer, tmp_path):
  """A run as train.py leaves it; the first of two checkpoints is the best."""
  run = make_folder(tmp_path / "run", "classification", steps=(5, 7))
  config = base.get_config()
  config.data.task, config.data.labels = "classification", ",".join(LABELS)
  config.data.source, config.data.max_sequence_length = "gone.jsonl", 11
  (run / "config.json").write_text(json.dumps(config.to_dict()))
  (run / "dataset.json").write_text("{}")
  newest = run / "checkpoints" / "7" / "_CHECKPOINT_METADATA"
  saved = json.loads(newest.read_text())
  newest.write_text(json.dumps(saved | {"custom_metadata": {"best": 5, "step": 7}}))

  _, best, errors = answer(run, typed="a " * 20)
  assert f"predict.py: step 5 of {run} (the best; the newest is 7)\n" in errors
  five, last = (answer(run, "--step", n, typed="a " * 9)[1] for n in ("5", "7"))
  assert best == five != last  # cut to 11 tokens, as in training
  newest.write_text(json.dumps(saved))
  assert answer(run, typed="a " * 9)[1] == last
  (run / "config.json").write_text('{"train": 3}')
  status, _, errors = answer(run, typed="a")
  assert (status, "config.json is damaged" in errors) == (2, True)


def test_embeddings_are_those_of_each_text_alone_in_every_form(folders, answer, tmp_path):
  lines = ["a b c", "", "d ?\tf g", "e . f g", "a " * 90]
  (tmp_path / "texts.txt").write_text("\n".join(lines))
  options = "--input", tmp_path / "texts.txt", "--embed"
  status, found, errors = answer(folders / "classification", *options)
  assert (status, [one["id"] for one in found]) == (0, ["0", "1", "2", "3", "4"])
  assert errors.endswith(f"truncated 1 example: longer than --max-sequence-length {ROW}\n")
  assert f"pooling mean, since {folders / 'classification'} has no modules.json\n" in errors
  vectors = np.array([one["embedding"] for one in found], np.float32)

  stored = weights.encoder_of(hf.open_model(folders / "classification"))
  model = nnx.merge(abstract_model(stored.config, "encoder")[0], stored.load())
  lines[-1] = "a " * (ROW - 2)
  for pooling in POOLINGS:
    alone = []
    for line in lines:
      parts = [part.split() for part in line.split("\t")]
      ids = [2, *(n for part in parts for n in [*map(TOKENS.index, part), 3])]
      types = np.arange(len(ids)) > len(parts[0]) + 1
      batch = layout.lay_out(
        [[{"input_ids": ids, "token_type_ids": types}]], row_length=ROW
      )
      alone.append(np.asarray(model(batch)[f"sequence_{pooling}"])[0, 0])
    path = tmp_path / f"{pooling}.npy"
    answer(folders / "classification", *options, pooling, "--out", path)
    np.testing.assert_allclose(np.load(path), alone, atol=1e-5, err_msg=pooling)

  np.testing.assert_array_equal(np.load(tmp_path / "mean.npy"), vectors)
  answer(folders / "classification", *options, "--out", tmp_path / "out.parquet")
  table = pq.read_table(tmp_path / "out.parquet")
  assert table["id"].to_pylist() == ["0", "1", "2", "3", "4"]
  np.testing.assert_array_equal(table["embedding"].to_pylist(), vectors)
  embedded = predict.embed(folders / "classification", lines)
  np.testing.assert_allclose(embedded, vectors, atol=1e-5)
  with pytest.raises(InputError, match="pooling is 'max'; expected one of mean, cls"):
    predict.embed(folders / "classification", lines, pooling="max")
  assert predict.embed(folders / "classification", []).shape == (0, vectors.shape[1])


def write_modules(folder, *modules, pooling, **files):
  """What sentence-transformers writes besides the model and the tokenizer."""
  places = {"Transformer": "", "Pooling": "1_Pooling"}
  listed = [
    {
      "idx": n,
      "path": places.get(x, f"{n}_{x}"),
      "type": f"sentence_transformers.models.{x}",
    }
    for n, x in enumerate(modules)
  ]
  (folder / "modules.json").write_text(json.dumps(listed))
  (folder / "1_Pooling").mkdir(exist_ok=True)
  modes = {f"pooling_mode_{mode}": mode in pooling for mode in MODES}
  about = {"word_embedding_dimension": 14, **modes, "include_prompt": True}
  (folder / "1_Pooling" / "config.json").write_text(json.dumps(about))
  for name, content in files.items():
    (folder / f"{name}.json").write_text(json.dumps(content))


MODES = "cls_token", "mean_tokens", "max_tokens", "lasttoken"
SENTENCE = ["Transformer", "Pooling", "Normalize"]
LIMIT = {"sentence_bert_config": {"max_seq_length": 11, "do_lower_case": False}}


@pytest.fixture
def encoder(folders, tmp_path):
  """A Hugging Face directory of an encoder, without files of sentence-transformers."""
  stored = weights.encoder_of(hf.open_model(folders / "classification"))
  folder = tmp_path / "encoder"
  hf.export_model(stored.config, stored.load(), folder, vocabulary=VOCABULARY)
  return folder


def test_a_folder_of_sentence_transformers_says_how_to_embed(
  encoder, answer, tmp_path, capsys
):
  """Also through import and export; a text is cut to 11 tokens."""
  lines = ["a b c", "d ? f g h i j " * 2]
  cut = [lines[0], "d ? f g h i j d ?"]
  plain = {pooling: predict.embed(encoder, cut, pooling=pooling) for pooling in POOLINGS}
  for mode, pooling in (("cls_token", "cls"), ("mean_tokens", "mean")):
    write_modules(encoder, *SENTENCE, pooling=[mode], **LIMIT)
    vectors = plain[pooling] / np.linalg.norm(plain[pooling], axis=1, keepdims=True)
    ours, theirs = tmp_path / f"ours-{mode}", tmp_path / f"theirs-{mode}"
    assert model_command(["import", str(encoder), "--out", str(ours)]) == 0
    assert model_command(["export", str(ours), "--out", str(theirs)]) == 0
    for folder in (encoder, ours, theirs):
      np.testing.assert_allclose(predict.embed(folder, lines), vectors, atol=1e-5)
  capsys.readouterr()
  _, found, errors = answer(encoder, "--embed", typed="\n".join(lines))
  assert "says: pooling mean, at most 11 tokens a text, vectors of length 1\n" in errors
  assert "instead" not in errors
  np.testing.assert_allclose([one["embedding"] for one in found], vectors, atol=1e-5)
  _, found, errors = answer(encoder, "--embed", "cls", typed="\n".join(lines))
  assert "pooling cls, by --embed, not its own, at most 11 tokens" in errors
  cls = plain["cls"] / np.linalg.norm(plain["cls"], axis=1, keepdims=True)
  np.testing.assert_allclose([one["embedding"] for one in found], cls, atol=1e-5)
  write_modules(encoder, *SENTENCE[:2], pooling=["cls_token"], sentence_bert_config={})
  (encoder / "tokenizer_config.json").write_text('{"model_max_length": 11}')
  np.testing.assert_allclose(predict.embed(encoder, lines), plain["cls"], atol=1e-5)


PROMPTS = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
  ("modules", "pooling", "files", "message"),
  [
    (SENTENCE, ["max_tokens"], {}, "config.json has pooling ['max_tokens']; expected cls"),
    (
      SENTENCE,
      ["cls_token", "mean_tokens"],
      {},
      "has pooling ['cls_token', 'mean_tokens'];",
    ),
    (SENTENCE, [], {}, "has pooling []; expected cls or mean"),
    (
      [*SENTENCE[:2], "Dense"],
      ["cls_token"],
      {},
      "has modules ['Transformer', 'Pooling', 'Dense']",
    ),
    (
      SENTENCE[:1],
      ["cls_token"],
      {},
      "has modules ['Transformer']; expected Transformer, Pool",
    ),
    (
      SENTENCE,
      ["cls_token"],
      {"config_sentence_transformers": PROMPTS},
      "puts 'query: ' b",
    ),
    (SENTENCE, ["cls_token"], {"sentence_bert_config": {"max_seq_length": "9"}}, "th='9'"),
  ],
)
def test_what_a_folder_says_and_we_cannot_do_is_refused(
  encoder, answer, tmp_path, modules, pooling, files, message
):
  write_modules(encoder, *modules, pooling=pooling, **files)
  status, found, errors = answer(encoder, "--embed", typed="a b")
  assert (status, found, errors.count("\n")) == (2, [], 1)
  assert message in errors
  if "modules" in message:  # whose weights an import would lose
    assert model_command(["import", str(encoder), "--out", str(tmp_path / "ours")]) == 2
  if "pooling" in message:
    assert answer(encoder, "--embed", "cls", typed="a b")[0] == 0


@pytest.mark.parametrize("name", ["1_Pooling", "sentence_bert_config.json"])
def test_files_of_sentence_transformers_without_modules_are_named(
  encoder, answer, tmp_path, name
):
  modules = "Transformer", "Pooling"
  write_modules(encoder, *modules, pooling={"pooling_mode_cls_token": True})
  (encoder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
  (encoder / "modules.json").unlink()
  for other in encoder.iterdir():
    if other.name in {"1_Pooling", "sentence_bert_config.json"} - {name}:
      shutil.rmtree(other) if other.is_dir() else other.unlink()
  status, found, errors = answer(encoder, "--embed", typed="a b")
  assert (status, found, errors.count("\n")) == (2, [], 1)
  assert f"has {name}, but no modules.json" in errors
  assert model_command(["import", str(encoder), "--out", str(tmp_path / "ours")]) == 2


@pytest.mark.slow
@pytest.mark.extra
def test_embeddings_of_real_weights_rank_real_pairs_as_in_pytorch():
  """STS-B's dev set by minilm-l6-h384: a Spearman correlation of 0.867."""
  folder = shared_data.needed("minilm-l6-h384")
  lines = shared_data.needed("glue/STS-B/dev.tsv").read_text().splitlines()[1:]
  *sentences, scores = zip(*(line.split("\t")[7:] for line in lines), strict=True)
  vectors = predict.embed(folder, [text for part in sentences for text in part])
  vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
  similarity = (vectors[: len(lines)] * vectors[len(lines) :]).sum(1)
  found = scipy.stats.spearmanr(similarity, np.array(scores, float)).statistic
  assert found == pytest.approx(0.867, abs=5e-4)


def test_a_file_of_answers_is_whole_or_absent(folders, answer, tmp_path):
  rows = [{"id": name, "question": name, "context": f"{name} c"} for name in "ab"]
  source, path = write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
  words = folders / "squad", "--input", source
  printed = answer(*words)[1]
  status, nothing, errors = answer(*words, "--out", path)
  assert (status, nothing) == (0, [])
  assert str(path) in errors.partition("wrote ")[2]
  assert programs.lines_of(path) == printed

  before = sorted(tmp_path.iterdir())
  source.write_text(source.read_text() + '{"sentence": \n')
  status, nothing, errors = answer(*words, "--out", tmp_path / "other.jsonl")
  assert (status, nothing) == (2, [])
  assert f"error: {source}, line 3 is not JSON" in errors
  assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
  ("task", "options", "message"),
  [
    ("pretraining", "", "a BertForPreTraining, which cannot answer examples. Give --embed"),
    ("classification", "--task squad", "task is 'squad'; expected classification or"),
    ("classification", "--task regression", "gives 3 numbers; regression takes one"),
    ("multi_label", "--task classification", "expected multi_label for"),
    (
      "classification",
      "--task multi_label",
      "task is 'multi_label'; expected classification",
    ),
    ("classification", "--task glue/mnli", "the classes bad, so, good; glue/mnli has"),
    (
      "regression",
      "--task classification",
      "gives 1 numbers; classification takes one for",
    ),
    ("classification", "--max-sequence-length 24", "is 24; expected at most 23"),
    ("classification", "--batch-size 0", "batch_size is 0; expected at least 1"),
    ("classification", "--max-sequences-per-pack 0", "expected at least 1"),
    ("classification", "--step best", "--step is 'best'; expected a number"),
    ("classification", "--out /no/such/x", "Cannot write /no/such/x"),
    (
      "classification",
      "--attention-impl cudnn",
      "attention_impl=cudnn runs only on NVIDIA GPUs",
    ),
    ("nowhere", "", "expected a model's folder"),
    ("classification", "--embed --task regression", "exclude each other"),
    ("squad", "--embed pooled", "has no pooler. Give --embed mean or cls"),
  ],
)
def test_a_mistake_is_one_line(folders, answer, task, options, message):
  status, found, errors = answer(folders / task, *options.split(), typed="a b")
  assert (status, found) == (2, [])
  assert message in errors
  assert errors.count("\n") == 1


def test_a_model_that_cannot_answer_packs_says_so(answer, tmp_path):
  make_folder(tmp_path / "mixes", "regression", attention_mask="none")
  status, found, errors = answer(tmp_path / "mixes", typed="a\nb")
  assert (status, found) == (2, [])
  assert "expected none, since answers of" in errors
  assert len(answer(tmp_path / "mixes", "--algorithm=none", typed="a\nb")[1]) == 2
  make_folder(tmp_path / "nan", "regression", scale=np.nan)
  status, found, errors = answer(tmp_path / "nan", typed="a\nb")
  assert (status, found) == (2, [])
  assert "standard input, line 1 or after is not finite" in errors


def start(folders, *options):
  words = [sys.executable, "predict.py", folders / "classification", *options]
  env = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # no word of other tests
  pipes: dict = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
  return subprocess.Popen(words, cwd=programs.ROOT, env=env, text=True, **pipes)


def test_a_reader_may_leave_early(folders, tmp_path):
  (tmp_path / "many.txt").write_text("a b c d\n" * 9000)
  with start(folders, "--input", tmp_path / "many.txt") as process:
    assert json.loads(process.stdout.readline())["id"] == "0"
    process.stdout.close()
    errors = process.stderr.read()
  assert process.returncode == 1
  assert not any(word in errors for word in ("Traceback", "rror", "Broken"))


def test_an_interrupt_is_one_line(folders):
  with start(folders) as process:
    process.stdin.write("a\n")
    process.stdin.flush()
    process.stderr.read(len("answering"))
    time.sleep(2)  # until it waits for more: Python may lose an interrupt while it imports
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
  assert process.returncode == 130
  assert errors.endswith("Stopped. A file of results is written whole or not at all.\n")
  assert "Traceback" not in errors


def test_a_word_without_tokens_gets_no_tag_and_the_others_theirs(folders, answer):
  folder, words = folders / "tagging", [*"ab.cd?efghij"] * 5
  (expected,) = answer(folder, typed=json.dumps({"tokens": words}))[1]
  invisible = "\u0301"  # a bare accent, of which nothing is left without accents
  places = 0, 1, 7, 31, 60, len(words) + 5
  more = list(words)
  for place in places:
    more.insert(place, invisible)
  status, (found,), errors = answer(folder, typed=json.dumps({"tokens": more}))
  assert (status, found["tokens"]) == (0, more)
  for name in ("tags", "probabilities"):
    assert [x for x in found[name] if x is not None] == pytest.approx(expected[name])
    assert [n for n, x in enumerate(found[name]) if x is None] == [*places]
  assert "6 words have no tokens, and so no tag" in errors
  _, _, errors = answer(folder, typed=json.dumps({"tokens": ["[SEP]", "a"]}))
  assert "Texts with special tokens such as [SEP]: 1. isopack splits these" in errors
  (found,) = answer(folder, typed=json.dumps({"tokens": [invisible]}))[1]
  assert found == {
    "id": "0",
    "tokens": [invisible],
    "tags": [None],
    "probabilities": [None],
  }


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    (
      [{"id": "1"}, {}],
      "line 2 has no id, but those before it have. Give every example an id",
    ),
    ([{}, {"idx": 0}], "line 2 is the first with an id. Give every example an id"),
  ],
)
def test_a_number_is_not_mixed_with_ids(folders, answer, rows, message):
  typed = "\n".join(json.dumps({"sentence": "a b"} | row) for row in rows)
  status, found, errors = answer(folders / "classification", typed=typed)
  assert (status, found) == (2, [])
  assert message in errors


@pytest.mark.parametrize(
  "typed",
  ['["a b", "c d"]', '[\n{"sentence": "a"}\n]', '[{"sentence": "a"},', '["a b",\n"c"]'],
)
def test_a_json_array_is_not_a_sentence(folders, answer, typed):
  status, found, errors = answer(folders / "classification", typed=typed)
  assert (status, found) == (2, [])
  assert "standard input holds a JSON array; expected JSON lines" in errors


@pytest.mark.parametrize("typed", ["[a] b c", "[1]", "[ a b", "[]"])
def test_a_sentence_may_begin_with_a_bracket(folders, answer, typed):
  status, found, _ = answer(folders / "classification", typed=typed)
  assert (status, len(found)) == (0, 1)


def test_one_text_instead_of_several_is_refused(folders):
  with pytest.raises(
    InputError, match=r"sentences is 'a b'; .* Put a single text in a list"
  ):
    predict.embed(folders / "classification", "a b")


def test_what_is_read_is_not_written_over(folders, answer, tmp_path):
  path = write_lines(tmp_path / "rows.jsonl", [{"sentence": "a b"}])
  (tmp_path / "link.jsonl").symlink_to(path)
  before = path.read_bytes()
  deep = tmp_path / "p" / "q" / "rows.jsonl"
  deep.parent.mkdir(parents=True)
  shutil.copy(path, deep)
  for source, written in (
    (path, path),
    (tmp_path, path),
    (tmp_path / "*.jsonl", path),
    (tmp_path / "link.jsonl", path),
    (f"{deep},{path}", path),
    (tmp_path / "**" / "*.jsonl", deep),
  ):
    words = folders / "classification", "--input", source, "--out", written
    status, found, errors = answer(*words)
    assert (status, found) == (2, [])
    assert f"expected a file that --input={source} does not read" in errors
    assert written.read_bytes() == before


@pytest.mark.parametrize(
  ("options", "name", "expected"),
  [
    ((), "x.npy", ".jsonl, since answers"),
    ((), "x.csv", ".jsonl, since answers"),
    (("--embed",), "x.NPY", ".npy, .parquet or .jsonl"),
    (("--embed",), "x.csv", ".npy, .parquet or .jsonl"),
  ],
)
def test_a_name_of_another_format_is_refused(
  folders, tmp_path, answer, options, name, expected
):
  out = tmp_path / name
  status, _, errors = answer(folders / "classification", *options, f"--out={out}")
  assert (status, out.exists()) == (2, False)
  assert f"expected a name that ends in {expected}" in errors
