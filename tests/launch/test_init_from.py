"""Which weights a run may start from, and with what model."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from tokenizers import normalizers, processors

from configs import base, classification
from launch import init_from
from launch.door import settings_of
from launch.machine import check_machine
from launch.prepare_run import prepare_run
from model import MODELS, BertConfig, Gpt2Config, hf, weights
from model.__main__ import main as model_command
from model.hf.pooling import Pooling, write_pooling
from model.weights import Vocabulary
from pipeline.tokenizer import Tokenizer, word_piece_tokenizer
from tests import packs
from training.errors import ConfigError
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

CLASSIFIER = "sequence_classification"
TASKS = {
  "causal": "text",
  "encoder": "pairs",
  "question_answering": "squad",
  CLASSIFIER: "classification",
}
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(6)))
TINY = BertConfig.from_size(
  "tiny", vocab_size=13, max_position_embeddings=23, type_vocab_size=3
)


def random_params(config, head="pretraining"):
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: rng.standard_normal(x.shape).astype(np.float32),
    weights.abstract_params(config, head),
  )


def write(folder, *, head="pretraining", tokens=TOKENS, lowercase=True, **fields):
  """A model of Hugging Face's; `fields` of its config."""
  config = dataclasses.replace(TINY, **fields)
  vocabulary = tokens and Vocabulary(tokens, lowercase=lowercase)
  hf.export_model(config, random_params(config, head), folder, vocabulary=vocabulary)
  return folder


def config_for(folder, *, vocab_file=True):
  config = base.get_config()
  config.model.size = "tiny"
  config.model.init_from = str(folder)
  config.data.max_sequence_length = 19
  config.data.directory = f"{folder}/no-dataset-yet"
  config.data.vocab_file = f"{folder}/vocab.txt" if vocab_file else ""
  return config


def for_head(config, head):
  """The settings of a run that trains a head."""
  config = config.copy_and_resolve_references()
  config.data.task = TASKS.get(head, config.data.task)
  return settings_of(config)


def start(config, head="pretraining", *, labels=(), vocab_size=11, seed=5):
  """The model of a run and the parameters that it starts from."""
  run = for_head(config, head)
  given = init_from.open_weights(run)
  made = init_from.run_model_config(run, vocab_size=vocab_size, stored=given, labels=labels)
  params = init_from.initial_params(given, made, head=head, labels=labels, seed=seed)
  abstract = weights.abstract_params(made, head)
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, abstract)
  return made, params


def assert_equal(found, expected):
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_shapes_come_from_the_weights_and_the_rest_from_the_config(tmp_path):
  folder = write(tmp_path / "hf", layer_norm_epsilon=1e-6)
  config = config_for(folder)
  config.model.dropout_rate = 0.25
  made, params = start(config)
  assert isinstance(made, BertConfig)
  assert made.vocab_size == 13
  assert (made.max_position_embeddings, made.type_vocab_size) == (23, 3)
  assert (made.layer_norm_epsilon, made.dropout_rate) == (1e-6, 0.25)
  program = TrainingProgram(made, lamb(0.01), mesh=make_mesh(2), seed=0)
  state = program.init(params)

  def kinds(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

  assert kinds(state) == kinds(program.abstract_state())
  found = state["params"]["embeddings"]["token"]["embedding"]
  assert_equal(found, random_params(TINY)["embeddings"]["token"]["embedding"])
  assert int(state["step"]) == 0


ROBERTA = {
  "variant": "roberta",
  "type_vocab_size": 1,
  "position_offset": 2,
  "next_sentence": False,
}


def test_a_run_from_a_roberta_is_a_roberta(tmp_path, capsys):
  """It keeps where positions begin, and its own pooler is no layer of a classifier."""
  folder = write(tmp_path / "hf", head="encoder", **ROBERTA)
  assert "pooler" in hf.open_model(folder).load()
  config = config_for(folder)
  config.data.max_sequence_length = 31
  made, params = start(config, CLASSIFIER, labels=("a", "b"))
  assert isinstance(made, BertConfig)
  assert {name: getattr(made, name) for name in ROBERTA} == ROBERTA
  told = capsys.readouterr().out
  assert "has 23 positions, the run has 31: initialising the last 8 at random" in told
  assert "is a RobertaModel, the run trains a RobertaForSequenceClassification: ini" in told
  assert "initialising classifier_transform, classifier at random" in told
  table = params["embeddings"]["position"]["embedding"]
  assert table.shape[0] == 2 + 31
  given = dataclasses.replace(TINY, **ROBERTA)
  expected = random_params(given, "encoder")["embeddings"]["position"]["embedding"]
  np.testing.assert_array_equal(table[:25], expected)


def test_a_roberta_without_a_tokenizer_is_told_which_file_it_lacks(tmp_path):
  folder = write(tmp_path / "hf", tokens=None, head="encoder", **ROBERTA)
  with pytest.raises(ConfigError, match=r"Copy its own tokenizer\.json, which transf"):
    start(config_for(folder), CLASSIFIER, labels=("a", "b"))


def test_a_roberta_does_not_tell_token_types(tmp_path):
  folder = write(tmp_path / "hf", head="encoder", **ROBERTA)
  config = config_for(folder)
  config.model.attention_mask = "token_type"
  with pytest.raises(ConfigError, match=r"model\.attention_mask is 'token_type'; expected"):
    start(config, CLASSIFIER, labels=("a", "b"))


def test_a_run_from_a_bert_whose_pairs_have_one_type_keeps_it(tmp_path):
  folder = write(tmp_path / "hf", head="encoder")
  settings = json.loads((folder / "tokenizer_config.json").read_text())
  settings["model_input_names"] = ["input_ids", "attention_mask"]
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  config = config_for(folder)
  assert not start(config, CLASSIFIER, labels=("a", "b"))[0].pair_types
  config.model.attention_mask = "token_type"
  with pytest.raises(ConfigError, match=r"hf does not tell sentence A from B"):
    start(config, CLASSIFIER, labels=("a", "b"))


def test_a_model_without_next_sentences_has_the_other_parameters(tmp_path):
  """As eval.py takes it for a task of single texts."""
  stored = hf.open_model(write(tmp_path / "hf"))
  other = weights.without_next_sentence(stored)
  shapes = jax.tree.map(np.shape, weights.abstract_params(other.config, "pretraining"))
  assert jax.tree.map(np.shape, other.load()) == shapes
  assert stored.load().keys() - other.load().keys() == {"nsp", "pooler"}
  assert other.config == dataclasses.replace(TINY, next_sentence=False)


def test_a_roberta_predicts_no_next_sentence(tmp_path):
  folder = write(tmp_path / "hf", **ROBERTA)
  with pytest.raises(ConfigError, match=r"model\.next_sentence is True; expected False"):
    start(config_for(folder))
  config = config_for(folder)
  config.data.task, config.model.next_sentence = "documents", False
  made, params = start(config)
  assert made.variant == "roberta"
  given = dataclasses.replace(TINY, **ROBERTA)
  assert_equal(params, random_params(given))


def test_longer_sequences_get_positions_of_their_own(tmp_path, capsys):
  """Phase 2 of BERT's pretraining: old rows the same bits, new ones drawn and told."""
  config = config_for(write(tmp_path / "hf"))
  config.data.max_sequence_length = 41
  longer, params = start(config)
  told = capsys.readouterr().out
  assert "has 23 positions, the run has 41: initialising the last 18 at random" in told
  assert longer.max_position_embeddings == 41
  batch = packs.lay_out(packs.random_sequences())
  batch["input_ids"] %= TINY.vocab_size
  short, long = (
    jax.jit(TrainingProgram(c, lamb(0.01), mesh=make_mesh(1), seed=0).apply)(p, batch)
    for c, p in ((TINY, random_params(TINY)), (longer, params))
  )
  assert_equal(short, long)

  old, again, other = random_params(TINY), start(config)[1], start(config, seed=6)[1]
  parts = (old, params, again, other)
  before, found, same, drawn = (
    np.asarray(x["embeddings"].pop("position")["embedding"]) for x in parts
  )
  assert_equal(params, old)
  assert_equal(found[:23], before)
  assert_equal(found, same)
  assert (found[23:] != drawn[23:]).all()
  assert found[23:].std() == pytest.approx(0.02, rel=0.2)


def test_a_run_that_goes_on_has_the_sizes_of_its_checkpoints(tmp_path):
  folder = write(tmp_path / "hf")
  config = config_for(folder)
  run = settings_of(config)
  given = init_from.open_weights(run)
  fresh = init_from.run_model_config(run, vocab_size=97, stored=given)
  assert fresh.max_position_embeddings == 23
  # Told otherwise: what is no size.
  run = run.changed({"model.dropout_rate": 0.25})
  made = init_from.run_model_config(run, vocab_size=97, stored=None, begun=TINY)
  sizes = ("vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size")
  for name in (*sizes, "layer_norm_epsilon"):
    assert getattr(made, name) == getattr(TINY, name)
  assert made.dropout_rate == 0.25


@pytest.mark.parametrize(
  ("kind", "size", "message"),
  [
    ({}, "mini", r"expected given, .* num_layers 2, not 4.*--config\.model\.size"),
    ({"tokens": None}, "tiny", r"has no vocabulary\. Copy its own vocab\.txt"),
    ({"lowercase": False}, "tiny", "is cased, but text is lowercased"),
    ({"type_vocab_size": 1}, "tiny", "type_vocab_size of at least 2, not 1"),
    (None, "tiny", "expected a model's folder"),
  ],
)
def test_weights_that_do_not_fit_are_refused_before_any_work(tmp_path, kind, size, message):
  if kind is not None:
    write(tmp_path, **kind)
  config = config_for(tmp_path, vocab_file=False)
  config.model.size = size
  with pytest.raises(ConfigError, match=message):
    init_from.open_weights(settings_of(config))


def test_another_vocabulary_is_refused_with_what_to_do(tmp_path):
  folder = write(tmp_path / "hf")
  with pytest.raises(ConfigError, match=r"not a new one.*vocab_file=.*/hf/vocab\.txt"):
    init_from.open_weights(settings_of(config_for(folder, vocab_file=False)))
  config = config_for(folder)
  other = tmp_path / "other.txt"
  other.write_text("\n".join((*TOKENS[:-1], "x")) + "\n")
  config.data.vocab_file = str(other)
  with pytest.raises(ConfigError, match=r"of .*other\.txt \(11 tokens\) differs"):
    init_from.open_weights(settings_of(config))
  other.write_bytes(b"[PAD]\n\xff\n")
  with pytest.raises(ConfigError, match=r"other\.txt: .*utf-8"):
    init_from.open_weights(settings_of(config))

  config = config_for(folder, vocab_file=False)
  config.data.directory = str(tmp_path)  # there is a dataset; what it holds is seen later
  given = init_from.open_weights(settings_of(config))
  config.data.vocab_file = str(tmp_path / "gone")
  init_from.open_weights(settings_of(config))
  with pytest.raises(ConfigError, match="The vocabulary of the dataset"):
    init_from.check_vocabulary(given, TOKENS[::-1])

  word_piece_tokenizer(TOKENS).save(str(folder / "tokenizer.json"))
  (folder / "vocab.txt").unlink()
  with pytest.raises(ConfigError, match=r"run python -m model import .* --out FOLDER"):
    init_from.open_weights(settings_of(config_for(folder, vocab_file=False)))


MODERN = packs.small_modern_bert(hidden_size=128, num_heads=2, num_layers=4)
MODERN = dataclasses.replace(MODERN, intermediate_size=192, local_base=50.0, pooling="mean")


def modern_config(folder, **fields):
  """Of a run that starts from a ModernBERT with a tokenizer.json."""
  weights.describe(
    folder, MODERN, head="pretraining", vocabulary=Vocabulary(TOKENS, by_json=True)
  )
  weights.save(folder, random_params(MODERN))
  vocab = {token: i for i, token in enumerate(TOKENS)}
  tokenizer = {"model": {"type": "BPE", "vocab": vocab, "merges": []}}
  (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
  config = config_for(folder, vocab_file=False)
  config.data.vocab_file = str(folder / "tokenizer.json")
  of_weights = {"family": "modern_bert"}
  for name, value in (of_weights | {"next_sentence": False} | fields).items():
    config.model[name] = value
  return config


def test_a_modern_bert_goes_on_with_its_layers(tmp_path):
  made, params = start(modern_config(tmp_path, global_base=99.0))
  assert (made.global_base, made.local_base, made.local_window) == (99.0, 50.0, 4)
  assert_equal(params, random_params(MODERN))


def test_a_modern_bert_is_fine_tuned_with_its_head(tmp_path, capsys):
  config = modern_config(tmp_path, size="given")
  made, params = start(config, CLASSIFIER, labels=("a", "b"))
  assert made.pooling == "mean"
  told = "ModernBertForMaskedLM, the run trains a ModernBertForSequenceClassification"
  assert f"{told}: initialising classifier at random" in capsys.readouterr().out
  given = random_params(MODERN)
  for part in ("embeddings", "encoder", "head", "final_layer_norm"):
    assert_equal(params[part], given[part])


@pytest.mark.parametrize(
  ("head", "fields", "message"),
  [
    (CLASSIFIER, {"global_base": 99.0}, r"global_base is 99\.0; expected 160000\.0, as in"),
    ("pretraining", {"family": "bert"}, r"model\.family is 'bert'; expected 'modern_bert'"),
  ],
)
def test_a_modern_bert_of_other_layers_is_refused(tmp_path, head, fields, message):
  config = modern_config(tmp_path, **fields)
  with pytest.raises(ConfigError, match=message):
    init_from.open_weights(for_head(config, head))


def test_a_tokenizer_that_is_not_word_piece_is_not_read_as_one(tmp_path):
  config = modern_config(tmp_path)
  remedy = rf"Set --config\.data\.vocab_file={tmp_path}/tokenizer\.json"
  config.data.vocab_file = str(tmp_path / "vocab.txt")
  with pytest.raises(ConfigError, match=rf"splits text as BERT does, unlike .*{remedy}"):
    init_from.open_weights(settings_of(config))
  config.data.vocab_file = ""
  with pytest.raises(ConfigError, match=rf"not a new one.*{remedy}"):
    init_from.open_weights(settings_of(config))


def test_data_split_as_berts_are_refused_if_the_weights_have_another_tokenizer(tmp_path):
  """A cased BERT's vocab.txt has its tokens, but its text was lower-cased."""
  folder, prepared = write(tmp_path / "hf"), tmp_path / "prepared"
  prepared.mkdir()
  shutil.copyfile(folder / "vocab.txt", prepared / "vocab.txt")
  by_words = word_piece_tokenizer(TOKENS)
  by_words.save(str(folder / "tokenizer.json"))  # which says the same
  by_words.save(str(tmp_path / "uncased.json"))
  given, data = hf.open_model(folder), Tokenizer(prepared / "vocab.txt")
  init_from.check_splitting(given, data)
  by_words.normalizer = normalizers.BertNormalizer(lowercase=False)
  (folder / "tokenizer_config.json").unlink()
  by_words.save(str(folder / "tokenizer.json"))
  cased = hf.open_model(folder)
  init_from.check_vocabulary(cased, data.vocabulary)
  message = rf"was lower-cased .* unlike by .* Set .*vocab_file={folder}/tokenizer\.json"
  with pytest.raises(ConfigError, match=message):
    init_from.check_splitting(cased, data)
  own = Tokenizer(folder / "tokenizer.json")
  init_from.check_splitting(cased, own)
  init_from.check_splitting(given, own)  # an uncased BERT may have any tokenizer.json
  run = dataclasses.replace(given, vocabulary=Vocabulary(TOKENS, by_json=True))
  with pytest.raises(ConfigError, match=message):
    init_from.check_splitting(run, data)
  shutil.copyfile(tmp_path / "uncased.json", folder / "tokenizer.json")
  init_from.check_splitting(run, data)  # a run's tokenizer.json may be an uncased BERT's


@pytest.mark.parametrize("tells", [True, False])
def test_a_new_bert_has_the_token_types_that_its_exported_tokenizer_gives(tmp_path, tells):
  tokenizer = word_piece_tokenizer(TOKENS)
  around = ("[SEP]", 3), ("[CLS]", 2)
  process = processors.BertProcessing if tells else processors.RobertaProcessing
  tokenizer.post_processor = process(*around)
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  rows = [{"sentence": "1", "sentence2": "2 3", "label": x} for x in "ab" * 32]
  (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
  config = classification.get_config()
  config.model.size = "tiny"
  config.data.max_sequence_length = 19
  config.data.source = config.data.held_out_source = str(tmp_path / "a.jsonl")
  config.data.vocab_file = str(tmp_path / "tokenizer.json")
  config.data.directory = str(tmp_path / "data")
  (tmp_path / "run").mkdir()
  run = prepare_run(settings_of(config), tmp_path / "run")
  made = run.model
  assert isinstance(made, BertConfig)
  assert made.pair_types == tells
  out, vocabulary = tmp_path / "hf", Vocabulary(TOKENS, by_json=True)
  params, own = random_params(made, CLASSIFIER), run.dataset.tokenizer.path.parent
  hf.export_model(made, params, out, vocabulary=vocabulary, tokenizer=own, labels="ab")
  opened = hf.open_model(out).config
  assert opened == dataclasses.replace(made, attention_impl=opened.attention_impl)
  if not tells:
    config.model.attention_mask = "token_type"
    with pytest.raises(ConfigError, match=r"tokenizer gives both texts of a pair type 0"):
      prepare_run(settings_of(config), tmp_path / "run")


def finetuned(folder, labels):
  """A classifier as a run leaves it."""
  config = dataclasses.replace(TINY, num_labels=max(len(labels), 1))
  vocabulary = Vocabulary(TOKENS)
  weights.describe(folder, config, head=CLASSIFIER, vocabulary=vocabulary, labels=labels)
  weights.save(folder, random_params(config, CLASSIFIER))
  return folder


PRETRAINING = ("mlm_transform", "mlm_layer_norm", "mlm_bias", "pooler", "nsp")


@pytest.mark.parametrize(
  ("there", "head", "drawn"),
  [
    ({"next_sentence": False}, CLASSIFIER, ("pooler", "classifier")),
    ({}, "question_answering", ("answer",)),
    ({"head": "encoder", "pooler": False}, "pretraining", PRETRAINING),
    ({"head": "encoder"}, CLASSIFIER, ("classifier",)),
    ({"next_sentence": False}, "pretraining", ("pooler", "nsp")),
  ],
)
def test_parts_that_weights_lack_are_drawn_and_named(tmp_path, capsys, there, head, drawn):
  config = config_for(write(tmp_path / "hf", **there))
  _, params = start(config, head, labels=("a", "b"))
  ours = f"the run trains a {MODELS['bert'][head].__name__}"
  assert f"{ours}: initialising {', '.join(drawn)} at random\n" in capsys.readouterr().out
  given = hf.open_model(tmp_path / "hf").load()
  for name in params.keys() - set(drawn):
    assert_equal(params[name], given[name])


@pytest.mark.parametrize(
  ("there", "here", "kept"),
  [
    (("ham", "spam"), ("ham", "spam"), True),
    ((), (), True),  # a regression
    (("ham", "spam"), ("spam", "ham"), False),
    (("ham", "spam"), ("ham", "spam", "eggs"), False),
    ((), ("ham", "spam"), False),
  ],
)
def test_a_classifier_is_kept_for_the_same_classes_alone(
  tmp_path, capsys, there, here, kept
):
  folder = finetuned(tmp_path, there)
  _, params = start(config_for(folder), CLASSIFIER, labels=here)
  told = capsys.readouterr().out
  assert ("initialising classifier" in told) != kept
  stored = weights.open_folder(folder)
  if kept:
    assert_equal(params["classifier"], stored.load()["classifier"])
    init_from.check_labels(stored, here)
    return
  if there:  # why: they are of one kind
    assert f"classes {', '.join(there)}, the run trains a BertForS" in told
    assert f"classes {', '.join(here)}: initialising" in told
  with pytest.raises(ConfigError, match=r"has \d classes .*, but the dataset has"):
    init_from.check_labels(stored, here)


def test_only_a_classifier_is_asked_for_its_classes(tmp_path):
  folder = write(tmp_path, num_labels=3, head="question_answering")  # 3 of another task
  init_from.check_labels(hf.open_model(folder), ())


GPT2 = Gpt2Config.from_size(
  "tiny", vocab_size=11, max_position_embeddings=23, positions="learned"
)
LETTERS = (*"abcdefghij", "<|endoftext|>")


def write_gpt2(folder, tokens=LETTERS):
  hf.export_model(GPT2, random_params(GPT2, "causal"), folder)
  if tokens:
    ids = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids))
  return folder


def config_for_gpt2(folder, **fields):
  config = config_for(folder, vocab_file=False)
  config.data.task = "text"
  config.data.vocab_file = str(folder / "vocab.json")
  config.model.update({"size": "given", "positions": "learned"} | fields)
  config.model.attention_dropout_rate = 0.0
  return config


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_gpt2_goes_on_from_given_weights(tmp_path, is_imported):
  folder = theirs = write_gpt2(tmp_path / "hf")
  if is_imported:
    folder = tmp_path / "imported"
    assert model_command(["import", str(theirs), "--out", str(folder)]) == 0
  config = config_for_gpt2(theirs, init_from=str(folder))
  check_machine(settings_of(config), num_devices=1)
  made, params = start(config, "causal")
  assert isinstance(made, Gpt2Config)
  assert (made.num_layers, made.hidden_size, made.positions) == (2, 128, "learned")
  assert made.max_position_embeddings == 23
  expected = random_params(GPT2, "causal")
  for name in ("decoder", "final_layer_norm"):
    assert_equal(params[name], expected[name])


@pytest.mark.parametrize(
  ("fields", "length", "tokens", "message"),
  [
    ({"positions": "alibi"}, 19, LETTERS, "is 'alibi'; expected 'learned', as in"),
    ({}, 24, LETTERS, "max_sequence_length is 24; expected at most the 23 positions"),
    ({}, 19, (), r"no vocabulary\. .* tokenizer\.json or vocab\.json"),
    ({}, 19, LETTERS[::-1], r"differs from .*Save its tokenizer as tok"),
  ],
)
def test_a_gpt2_that_cannot_be_gone_on_from_is_refused(
  tmp_path, fields, length, tokens, message
):
  folder = write_gpt2(tmp_path / "hf", tokens)
  config = config_for_gpt2(folder, **fields)
  config.data.max_sequence_length = length
  if tokens == LETTERS[::-1]:
    config.data.vocab_file = str(write_gpt2(tmp_path / "other") / "vocab.json")
  with pytest.raises(ConfigError, match=message):
    init_from.open_weights(for_head(config, "causal"))


def test_a_pooling_by_name_leaves_what_the_folder_asks_for(tmp_path):
  folder = write(tmp_path / "encoder", head="encoder")
  write_pooling(folder, Pooling("cls"), width=TINY.hidden_size)
  config, stored = config_for(folder), hf.open_model(folder)
  assert init_from.pooling_of(for_head(config, "encoder"), stored).mode == "cls"
  config.pairs.pooling = "mean"
  assert init_from.pooling_of(for_head(config, "encoder"), stored).mode == "mean"
  prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
  (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
  with pytest.raises(weights.WeightsError, match="puts 'query: ' before each text"):
    init_from.pooling_of(for_head(config, "encoder"), stored)


def test_each_kind_of_model_goes_on_from_its_own(tmp_path):
  bert, gpt2 = write(tmp_path / "bert"), write_gpt2(tmp_path / "gpt2")
  with pytest.raises(ConfigError, match="BertForPreTraining; expected a Gpt2"):
    init_from.open_weights(settings_of(config_for_gpt2(bert)))
  with pytest.raises(ConfigError, match="is a Gpt2; expected a Bert"):
    init_from.open_weights(settings_of(config_for(gpt2)))
