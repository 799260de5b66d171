"""Which weights a run may start from, and with what model."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import packing
from configs import base
from model import MODELS, BertConfig, Gpt2Config, hf, weights
from model.__main__ import main as model_command
from model.weights import Vocabulary
from tests import packs
from training import init_from
from training.config import ConfigError, validate
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

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


def write(folder, config=TINY, *, head="pretraining", tokens=TOKENS, lowercase=True):
  vocabulary = tokens and Vocabulary(tokens, lowercase=lowercase)
  hf.export_bert(config, random_params(config, head), folder, vocabulary=vocabulary)
  return folder


def config_for(folder, *, vocab_file=True):
  config = base.get_config()
  config.model.size = "tiny"
  config.model.init_from = str(folder)
  config.data.max_sequence_length = 19
  config.data.directory = str(folder / "no-dataset-yet")
  config.data.vocab_file = str(folder / "vocab.txt") if vocab_file else ""
  return config


def test_shapes_come_from_the_weights_and_the_rest_from_the_config(tmp_path):
  folder = write(tmp_path / "hf", dataclasses.replace(TINY, layer_norm_epsilon=1e-6))
  config = config_for(folder)
  config.model.vocab_multiple = 8
  config.model.dropout_rate = 0.25
  given = init_from.open_weights(config)
  init_from.check_vocabulary(given, list(TOKENS))
  made = init_from.run_model_config(
    config, workdir=tmp_path / "run", vocab_size=len(TOKENS), stored=given
  )
  assert isinstance(made, BertConfig)
  assert (made.vocab_size, made.padded_vocab_size) == (13, 16)  # 13 in the weights
  assert (made.max_position_embeddings, made.type_vocab_size) == (23, 3)
  assert (made.layer_norm_epsilon, made.dropout_rate) == (1e-6, 0.25)
  params = init_from.initial_params(given, made)
  program = TrainingProgram(made, lamb(0.01), mesh=make_mesh(2), seed=0)
  state = program.init(params)
  abstract = program.abstract_state()
  jax.tree.map(_assert_same_kind, state, abstract)
  expected = random_params(TINY)["embeddings"]["token"]["embedding"]
  found = state["params"]["embeddings"]["token"]["embedding"]
  np.testing.assert_array_equal(found[:13], expected)
  assert not np.asarray(found[13:]).any()
  assert int(state["step"]) == 0


def _assert_same_kind(x, y):
  assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)


def test_longer_sequences_get_positions_of_their_own(tmp_path, capsys):
  """Phase 2 of BERT's pretraining: old rows the same bits, new ones drawn and told."""
  config = config_for(write(tmp_path / "hf"))
  config.data.max_sequence_length = 41
  given = init_from.open_weights(config)

  def made(seed):
    as_config = init_from.run_model_config(
      config, workdir=tmp_path / "run", vocab_size=13, stored=given
    )
    return as_config, init_from.initial_params(given, as_config, seed=seed)

  longer, params = made(5)
  assert "has 23 positions, the run 41: drawing the last 18" in capsys.readouterr().out
  assert longer.max_position_embeddings == 41
  abstract = weights.abstract_params(longer, "pretraining")
  jax.tree.map(
    lambda x, y: np.testing.assert_equal((x.shape, x.dtype), (y.shape, y.dtype)),
    params,
    abstract,
  )

  old = random_params(TINY)
  found = np.asarray(params["embeddings"]["position"]["embedding"])
  np.testing.assert_array_equal(found[:23], old["embeddings"]["position"]["embedding"])
  assert (
    0.8 * config.model.initializer_range
    < found[23:].std()
    < 1.2 * (config.model.initializer_range)
  )
  again, other = (made(seed)[1]["embeddings"]["position"]["embedding"] for seed in (5, 6))
  np.testing.assert_array_equal(found, again)
  assert (found[23:] != other[23:]).all()
  for parts in (params, old):
    parts["embeddings"].pop("position")
  jax.tree.map(np.testing.assert_array_equal, params, old)

  batch = packs.lay_out(packs.random_sequences())
  batch["input_ids"] %= TINY.vocab_size
  _, params = made(5)
  short, long = (
    jax.jit(TrainingProgram(c, lamb(0.01), mesh=make_mesh(1), seed=0).apply)(p, batch)
    for c, p in ((TINY, random_params(TINY)), (longer, params))
  )
  jax.tree.map(np.testing.assert_array_equal, short, long)


def test_a_run_that_goes_on_has_the_sizes_of_its_checkpoints(tmp_path):
  folder = write(tmp_path / "hf")
  config = config_for(folder)
  given = init_from.open_weights(config)
  weights.describe(tmp_path, TINY, head="pretraining", vocabulary=Vocabulary(TOKENS))
  fresh = init_from.run_model_config(config, workdir=tmp_path, vocab_size=97, stored=given)
  assert fresh.max_position_embeddings == 23
  weights.save(tmp_path, {"any": np.zeros(3)}, step=5)
  config.model.dropout_rate = 0.25  # told otherwise: what is no size
  made = init_from.run_model_config(config, workdir=tmp_path, vocab_size=97, stored=None)
  sizes = ("vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size")
  for name in (*sizes, "layer_norm_epsilon"):
    assert getattr(made, name) == getattr(TINY, name)
  assert made.dropout_rate == 0.25
  config.model.size = "mini"
  with pytest.raises(ConfigError, match="a model with num_layers 2; the config has 4"):
    init_from.run_model_config(config, workdir=tmp_path, vocab_size=97, stored=None)


def test_without_the_field_the_config_alone_counts(tmp_path):
  config = config_for(tmp_path)
  config.model.init_from = ""
  assert init_from.open_weights(config) is None
  made = init_from.run_model_config(config, workdir=tmp_path, vocab_size=97, stored=None)
  assert (made.vocab_size, made.max_position_embeddings) == (97, 19)


def test_heads_that_a_run_does_without_are_left_out(tmp_path):
  config = config_for(write(tmp_path / "hf"))
  config.model.next_sentence = False
  given = init_from.open_weights(config)
  made = init_from.run_model_config(config, workdir=tmp_path, vocab_size=11, stored=given)
  params = init_from.initial_params(given, made)
  assert {"nsp", "pooler"} & params.keys() == set()
  abstract = weights.abstract_params(made, "pretraining")
  assert {k: v.keys() for k, v in params.items() if k != "mlm_bias"} == {
    k: v.keys() for k, v in abstract.items() if k != "mlm_bias"
  }
  assert params.keys() == abstract.keys()


def test_a_runs_folder_can_be_given(tmp_path):
  params = random_params(TINY)
  weights.describe(tmp_path, TINY, head="pretraining", vocabulary=Vocabulary(TOKENS))
  weights.save(tmp_path, params, step=3)
  given = init_from.open_weights(config_for(tmp_path))
  assert given is not None
  assert given.step == 3
  jax.tree.map(np.testing.assert_array_equal, given.load(), params)


def size(value):
  return lambda config: setattr(config.model, "size", value)


@pytest.mark.parametrize(
  ("kind", "change", "message"),
  [
    ({}, size("mini"), r"num_layers is 2 there and 4 here.*--config\.model\.size"),
    ({"tokens": None}, None, r"has no vocabulary; expected vocab\.txt"),
    ({"lowercase": False}, None, "is cased; expected an uncased model"),
    ({"head": "question_answering"}, None, "BertForQuestionAnswering.*head is missing"),
    (
      {"config": dataclasses.replace(TINY, next_sentence=False)},
      None,
      r"no next-sentence head.*--config\.model\.next_sentence=False",
    ),
    ({"config": dataclasses.replace(TINY, type_vocab_size=1)}, None, "type_vocab_size=1"),
  ],
)
def test_weights_that_do_not_fit_are_refused_before_any_work(
  tmp_path, kind, change, message
):
  config = config_for(write(tmp_path / "hf", **kind), vocab_file=False)
  if change:
    change(config)
  with pytest.raises(ConfigError, match=message):
    init_from.open_weights(config)


def test_another_vocabulary_is_refused_with_what_to_do(tmp_path):
  folder = write(tmp_path / "hf")
  with pytest.raises(ConfigError, match=r"would be trained.*vocab_file=.*/hf/vocab\.txt"):
    init_from.open_weights(config_for(folder, vocab_file=False))
  config = config_for(folder)
  other = tmp_path / "other.txt"
  other.write_text("\n".join((*TOKENS[:-1], "x")) + "\n")
  config.data.vocab_file = str(other)
  with pytest.raises(ConfigError, match=r"of .*other\.txt \(11 tokens\) is not that of"):
    init_from.open_weights(config)

  config = config_for(folder, vocab_file=False)
  config.data.directory = str(tmp_path)  # there is a dataset; what it holds is seen later
  given = init_from.open_weights(config)
  with pytest.raises(ConfigError, match="The vocabulary of the dataset"):
    init_from.check_vocabulary(given, TOKENS[::-1])

  vocab = {token: i for i, token in enumerate(TOKENS)}
  (folder / "tokenizer.json").write_text(
    json.dumps({"model": {"type": "WordPiece", "vocab": vocab}})
  )
  (folder / "vocab.txt").unlink()
  with pytest.raises(ConfigError, match=r"run python -m model import .* --out FOLDER"):
    init_from.open_weights(config_for(folder, vocab_file=False))


def test_a_folder_without_weights_is_refused(tmp_path):
  with pytest.raises(ConfigError, match="init_from: Expected a Hugging Face directory"):
    init_from.open_weights(config_for(tmp_path))


CLASSIFIER = "sequence_classification"


def finetuned(folder, labels=("ham", "spam")):
  """A classifier as a run leaves it."""
  config = dataclasses.replace(TINY, num_labels=max(len(labels), 1))
  vocabulary = Vocabulary(TOKENS)
  weights.describe(folder, config, head=CLASSIFIER, vocabulary=vocabulary, labels=labels)
  weights.save(folder, random_params(config, CLASSIFIER))
  return folder


def start(config, head, labels=()):
  given = init_from.open_weights(config, head=head)
  made = init_from.run_model_config(
    config, workdir="no-run", vocab_size=11, stored=given, head=head, labels=labels
  )
  return made, init_from.initial_params(given, made, head=head, labels=labels, seed=5)


@pytest.mark.parametrize(
  ("head", "labels", "drawn"),
  [
    (CLASSIFIER, ("a", "b", "c"), "classifier"),
    (CLASSIFIER, (), "classifier"),  # one number
    ("question_answering", (), "answer"),
  ],
)
def test_a_task_starts_from_a_pretrained_encoder(tmp_path, capsys, head, labels, drawn):
  config = config_for(write(tmp_path / "hf"))
  config.model.size = "given"
  made, params = start(config, head, labels)
  told = f"is a BertForPreTraining, the run a {MODELS[head].__name__}: drawing {drawn}"
  assert told in capsys.readouterr().out
  assert made.hidden_size == TINY.hidden_size
  given = random_params(TINY)
  for part in ("embeddings", "encoder", *(["pooler"] if head == CLASSIFIER else [])):
    jax.tree.map(np.testing.assert_array_equal, params[part], given[part])
  expected = weights.abstract_params(made, head)
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, expected)
  if labels:
    assert params["classifier"]["kernel"].shape == (TINY.hidden_size, len(labels))
    spread = np.asarray(params["classifier"]["kernel"]).std()
    assert 0.5 * made.initializer_range < spread < 1.5 * made.initializer_range
    again = start(config, head, labels)[1]["classifier"]["kernel"]
    np.testing.assert_array_equal(again, params["classifier"]["kernel"])


def test_weights_without_a_pooler_get_one(tmp_path, capsys):
  folder = write(tmp_path / "hf", dataclasses.replace(TINY, next_sentence=False))
  _, params = start(config_for(folder), CLASSIFIER, ("a", "b"))
  assert "drawing pooler, classifier" in capsys.readouterr().out
  assert params["pooler"]["kernel"].shape == (TINY.hidden_size, TINY.hidden_size)


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
  _, params = start(config_for(folder), CLASSIFIER, here)
  told = capsys.readouterr().out
  assert ("drawing classifier" in told) != kept
  if not kept and there:  # why: they are of one kind
    assert f"of {', '.join(there)}, the run a BertForS" in told
    assert f"of {', '.join(here)}: drawing" in told
  if kept:
    given = weights.open_folder(folder).load()["classifier"]
    jax.tree.map(np.testing.assert_array_equal, params["classifier"], given)
  stored = weights.open_folder(folder)
  if kept:
    init_from.check_labels(stored, here)
  else:
    with pytest.raises(ConfigError, match=r"has \d classes .*, the dataset has"):
      init_from.check_labels(stored, here)


def test_only_a_classifier_is_asked_for_its_classes(tmp_path):
  config = dataclasses.replace(TINY, num_labels=3)  # as left over from another task
  folder = write(tmp_path / "hf", config, head="question_answering")
  init_from.check_labels(hf.open_model(folder), ())


def test_a_classifier_cannot_go_on_with_masked_text(tmp_path):
  with pytest.raises(ConfigError, match=r"BertForSequenceClassification; .*head is miss"):
    init_from.open_weights(config_for(finetuned(tmp_path)))


GPT2 = Gpt2Config.from_size(
  "tiny", vocab_size=11, max_position_embeddings=23, positions="learned"
)
LETTERS = (*"abcdefghij", "<|endoftext|>")


def write_gpt2(folder, tokens=LETTERS):
  hf.export_gpt2(GPT2, random_params(GPT2, "causal"), folder)
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
  config = config_for_gpt2(theirs, init_from=str(folder), vocab_multiple=8)
  tasks = {"text": "causal"}
  validate(config, algorithms=list(packing.ALGORITHMS), tasks=tasks, num_devices=1)
  given = init_from.open_weights(config, head="causal")
  init_from.check_vocabulary(given, list(LETTERS))
  made = init_from.run_model_config(
    config, workdir=tmp_path / "run", vocab_size=11, stored=given, head="causal"
  )
  assert isinstance(made, Gpt2Config)
  assert (made.num_layers, made.hidden_size, made.positions) == (2, 128, "learned")
  assert (made.padded_vocab_size, made.max_position_embeddings) == (16, 23)
  params = init_from.initial_params(given, made, head="causal")
  shapes = jax.tree.map(np.shape, weights.abstract_params(made, "causal"))
  assert jax.tree.map(np.shape, params) == shapes
  expected = random_params(GPT2, "causal")
  for name in ("decoder", "final_layer_norm"):
    jax.tree.map(np.testing.assert_array_equal, params[name], expected[name])


@pytest.mark.parametrize(
  ("fields", "length", "tokens", "message"),
  [
    ({"positions": "alibi"}, 19, LETTERS, r"learned positions.*--config.model.positions=l"),
    ({}, 24, LETTERS, "has 23 positions, config.data.max_sequence_length is 24"),
    ({"size": "mini"}, 19, LETTERS, "num_layers is 2 there and 4 here.*tiny, mini, small"),
    ({}, 19, (), r"no vocabulary; expected tokenizer\.json or vocab\.json"),
    ({}, 19, LETTERS[::-1], r"is not that of .*Set --config.data.vocab_file to the tok"),
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
    init_from.open_weights(config, head="causal")


def test_each_kind_of_model_goes_on_from_its_own(tmp_path):
  bert, gpt2 = write(tmp_path / "bert"), write_gpt2(tmp_path / "gpt2")
  with pytest.raises(ConfigError, match="BertForPreTraining; expected a GPT-2"):
    init_from.open_weights(config_for_gpt2(bert), head="causal")
  with pytest.raises(ConfigError, match="holds a Gpt2; expected a BERT"):
    init_from.open_weights(config_for(gpt2))
