import ast
import functools
import importlib
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import packing
import pipeline
from configs import glue
from model import Gpt2Config, hf, weights
from pipeline.tasks import glue as glue_tasks
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs
from tests.pipeline.batches.test_batches import random_store
from tests.training.test_optimizer import numpy_lamb
from training import init_from
from training.config import (
  ConfigError,
  make_optimizer,
  make_schedule,
  model_config,
  validate,
)
from training.optimizer import OPTIMIZERS
from training.recipe import resolve

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
GIVEN = packs.small_config()


def get_config(name):
  return importlib.import_module(f"configs.{name}").get_config()


def check(config, num_devices=1, typed=()):
  validate(
    config,
    algorithms=list(packing.ALGORITHMS),
    tasks=pipeline.TASK_HEADS,
    num_devices=num_devices,
    typed=typed,
  )


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_valid_and_can_be_made(name, tmp_path):
  config = get_config(name)
  if config.model.size == "given":
    with pytest.raises(ConfigError, match="init_from is ''; expected the folder of a mod"):
      check(config)
    (tmp_path / "vocab.txt").touch()
    config.model.init_from = str(tmp_path)
    assert config.data.vocab_file == str(tmp_path / "vocab.txt")
  check(config)
  made = model_config(config, vocab_size=97, sizes=GIVEN)
  assert made.vocab_size == 97
  same = made.intermediate_size == GIVEN.intermediate_size
  assert same == (config.model.size == "given")
  make_optimizer(config, resolve(config, packing_factor=1.5, num_sequences=9973)[1])


@pytest.mark.parametrize("name", ["bert_base_phase2", "bert_large_phase2"])
def test_the_second_phase_has_rows_of_384_or_512(name):
  module = importlib.import_module(f"configs.{name}")
  for length in ("384", "512"):
    config = module.get_config(length)
    check(config)
    assert config.data.max_sequence_length == int(length)
    assert config.data.directory.endswith(length)
    assert config.model.init_from == f"runs/{name.replace('2', '1')}"
    assert config.model.size in name
  with pytest.raises(LookupError, match=r":384 or :512, found :128"):
    module.get_config("128")


def test_there_is_a_config_for_each_task_of_glue():
  for name in glue_tasks.TASKS:
    config = glue.get_config(name)
    assert (config.data.task, config.data.source) == (f"glue/{name}", f"tfds:glue/{name}")
    assert config.data.task in pipeline.TASK_HEADS
    assert bool(config.data.mismatched_source) == (name == "mnli")
    steps = 3 * glue.TASKS[name] / config.train.batch_size
    assert 11 <= steps / config.train.eval_every <= 20
    assert config.train.eval_every % config.train.log_every == 0
  assert glue.TASKS.keys() == glue_tasks.TASKS.keys()
  with pytest.raises(LookupError, match=r"TASK of cola, .*, wnli; found :squad"):
    glue.get_config("squad")


def leaves(config, prefix=""):
  for name, value in config.items():
    if hasattr(value, "items"):
      yield from leaves(value, f"{prefix}{name}.")
    else:
      yield prefix + name


def set_field(config, field, value):
  group, _, name = field.rpartition(".")
  (config[group] if group else config)[name] = value


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Two libraries of one file each, two vocabularies, and a small store of sequences."""
  folder = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(0)
  letters = [*"abcdefghijklmnopqrst"]
  topics = {}
  for number in range(61):
    words = ["".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(67)]
    words[7 :: 3 + number % 5] = [w + "." for w in words[7 :: 3 + number % 5]]
    topics[f"t{number}"] = " ".join(words).title()
  words = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), "."]
  for name, first in (("given", 0), ("other", 7)):
    (folder / name / "pydoc_data").mkdir(parents=True)
    kept = {key: topics[key] for key in list(topics)[first:]}
    (folder / name / "pydoc_data" / "topics.py").write_text(f"topics = {kept!r}\n")
    (folder / f"{name}.txt").write_text("\n".join(words[: len(words) - first]) + "\n")
  (folder / "texts.txt").write_text("\n\n".join(topics.values()).replace(". ", ".\n"))
  rows = [json.dumps({"text": t, "content": t[9:]}) for t in topics.values()]
  (folder / "texts.jsonl").write_text("\n".join(rows))
  questions = [
    {"id": str(i), "question": t[:41], "context": t, "answers": _answer_in(t)}
    for i, t in enumerate(topics.values())
  ]
  classes = [{"sentence": t[:29], "label": i % 2} for i, t in enumerate(topics.values())]
  for name, examples in (("questions", questions), ("classes", classes)):
    text = "\n".join(json.dumps(example) for example in examples)
    (folder / f"{name}.jsonl").write_text(text)
  lengths = rng.integers(3, 37, 97)
  return folder, random_store(folder / "s.arrow", lengths)[0]


def _answer_in(text):
  word = text.split()[3]
  return {"text": [word], "answer_start": [text.index(word)]}


def small_base(folder):
  config = get_config("base")
  config.data.source = f"stdlib:{folder / 'given'}"
  config.data.directory = str(folder / "data")
  config.data.vocab_file = str(folder / "given.txt")
  config.data.max_sequence_length = 61
  config.train.batch_size = 7
  config.train.steps = 11
  config.optimizer.warmup_steps = 3
  return config


def dataset_of(config, corpus):
  """The digests of what is written."""
  del corpus
  return pipeline.prepare_dataset(config).manifest["sha256"]


def text_dataset_of(config, corpus):
  config.data.source = str(corpus[0] / "texts.txt")
  config.data.min_sentences = 1
  config.data.directory += f"-text/{config.data.documents}"
  return dataset_of(config, corpus)


def json_dataset_of(config, corpus):
  config.data.source = str(corpus[0] / "texts.jsonl")
  config.data.directory += f"-json/{config.data.columns}-"
  return dataset_of(config, corpus)


def questions_of(config, corpus):
  data = config.data
  data.task, data.source = "squad", str(corpus[0] / "questions.jsonl")
  data.doc_stride = min(data.doc_stride, 19)
  data.max_question_length = min(data.max_question_length, 11)
  data.directory += f"-squad/{data.doc_stride}-{data.max_question_length}"
  return dataset_of(config, corpus)


def classes_of(config, corpus):
  data = config.data
  data.task, data.source = "classification", str(corpus[0] / "classes.jsonl")
  data.labels = data.labels or "yes,no"
  data.directory += f"-classes/{data.labels}"
  return pipeline.prepare_dataset(config).labels


def two_held_out_sets_of(config, corpus):
  config.data.held_out_source = config.data.source
  config.data.directory += f"-two/{len(config.data.mismatched_source)}"
  return dataset_of(config, corpus)


def words_of(config, corpus):
  config.data.task, config.data.documents = "text", "line"
  config.data.source = str(corpus[0] / "texts.txt")
  config.data.directory += f"-words/{config.data.min_words}"
  return dataset_of(config, corpus)


def rows_of_text(config, corpus):
  config.data.task = "text"
  return loader_of(config, corpus)


def padded_rows_of(config, corpus):
  config.data.task, config.data.layout = "text", "padding"
  config.data.max_sequence_length = 64
  return loader_of(config, corpus)


def vocabulary_of(config, corpus):
  """The size of a vocabulary that is trained."""
  del corpus
  config.data.vocab_file = ""
  config.data.directory += f"-trained/{config.data.vocab_size}"
  return len(pipeline.prepare_dataset(config).vocabulary)


def folders_of(config, corpus):
  """The datasets there are; all are the same, wherever they are."""
  digests = dataset_of(config, corpus)
  found = sorted(corpus[0].glob("*/manifest.json"))
  assert all(json.loads(path.read_text())["sha256"] == digests for path in found)
  return found


def loader_of(config, corpus):
  vocabulary = [*SPECIAL_TOKENS, *map(str, range(92))]
  loader = pipeline.make_loader(config, corpus[1], vocabulary)
  return {name: field.tolist() for name, field in loader[0].items()}


def second_epoch_of(config, corpus):
  vocabulary = [*SPECIAL_TOKENS, *map(str, range(92))]
  loader = pipeline.make_loader(config, corpus[1], vocabulary)
  assert isinstance(loader, pipeline.PackedLoader)
  return loader.epochs.assignment(1).sequence_ids.tolist()


def workers_of(config, corpus):
  vocabulary = [*SPECIAL_TOKENS, *map(str, range(92))]
  return pipeline.make_loader(config, corpus[1], vocabulary).workers


def model_of(config, corpus):
  del corpus
  return model_config(config, vocab_size=97)


def causal_model_of(config, corpus):
  del corpus
  config.model.size = "tiny"
  return model_config(config, head="causal", vocab_size=97)


def weights_of(config, corpus):
  """The weights that training starts from."""
  config.model.size = "tiny"
  folder = corpus[0] / "given.model"
  if not folder.exists():
    tiny = model_config(config, vocab_size=46)
    drawn = weights.abstract_params(tiny, "pretraining")
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), drawn)
    vocabulary = weights.Vocabulary(weights.read_tokens(corpus[0] / "given.txt"))
    hf.export_bert(tiny, params, folder, vocabulary=vocabulary)
  given = init_from.open_weights(config)
  return given and given.vocabulary


def recipe_of(config, corpus):
  del corpus
  return resolve(config, packing_factor=1.5, num_sequences=97, num_tokens=997)[1]


def optimizer_of(config, corpus):
  recipe = recipe_of(config, corpus)
  optimizer, schedule = make_optimizer(config, recipe), make_schedule(recipe)
  return updated_parameters(optimizer), [float(schedule(t)) for t in range(4)]


def program_of(config, corpus):
  """Fields that training reads where the value is used, not in a message."""
  del corpus
  files = ("train.py", "training/record/recorder.py")
  tree = ast.Module([ast.parse((ROOT / file).read_text()) for file in files], [])  # type: ignore
  told = {
    id(node)
    for text in ast.walk(tree)
    if isinstance(text, ast.JoinedStr)
    for node in ast.walk(text)
  }
  read = {
    ast.unparse(node)
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute) and id(node) not in told
  }
  read |= {text.removeprefix("run.") for text in read}
  return {f: v for f, v in leaves_with_values(config) if f"config.{f}" in read}


def leaves_with_values(config):
  for field in leaves(config):
    value = config
    for name in field.split("."):
      value = value[name]
    yield field, value


# Of each field another value than `small_base`, and what it must change.
CHANGES = {
  "seed": (1, loader_of),
  "data.source": ("stdlib:FOLDER/other", dataset_of),
  "data.held_out_source": ("stdlib:FOLDER/other", dataset_of),
  "data.mismatched_source": ("stdlib:FOLDER/other", two_held_out_sets_of),
  "data.task": ("squad", program_of),
  "data.labels": ("no,yes", classes_of),
  "data.doc_stride": (5, questions_of),
  "data.max_question_length": (3, questions_of),
  "data.columns": ("text=content", json_dataset_of),
  "data.documents": ("line", text_dataset_of),
  "data.directory": ("FOLDER/elsewhere", folders_of),
  "data.max_sequence_length": (37, dataset_of),
  "data.vocab_size": (73, vocabulary_of),
  "data.vocab_file": ("FOLDER/other.txt", dataset_of),
  "data.min_sentences": (12, dataset_of),
  "data.min_words": (4, words_of),
  "data.layout": ("concat", rows_of_text),
  "data.atom_size": (16, padded_rows_of),
  "data.loss_on_padding": (True, padded_rows_of),
  "data.held_out_fraction": (0.3, dataset_of),
  "data.dupe_factor": (2, dataset_of),
  "data.short_sequence_probability": (0.9, dataset_of),
  "data.seed": (1, dataset_of),
  "data.mask_rate": (0.3, loader_of),
  "packing.algorithm": ("none", loader_of),
  "packing.max_sequences_per_pack": (2, loader_of),
  "packing.assignment": ("fixed", second_epoch_of),
  "packing.adjust": ("reduce_batch", recipe_of),
  "model.size": ("mini", model_of),
  "model.dropout_rate": (0.3, model_of),
  "model.initializer_range": (0.1, model_of),
  "model.attention_dropout_rate": (0.3, model_of),
  "model.attention_mask": ("none", model_of),
  "model.attention_impl": ("cudnn", model_of),
  "model.positions": ("learned", causal_model_of),
  "model.next_sentence": (False, model_of),
  "model.remat": ("layers", model_of),
  "model.vocab_multiple": (8, model_of),
  "model.position_reset": (False, model_of),
  "model.dtype": ("bfloat16", model_of),
  "model.init_from": ("FOLDER/given.model", weights_of),
  "optimizer.name": ("adamw", optimizer_of),
  "optimizer.learning_rate": (0.2, optimizer_of),
  "optimizer.warmup_steps": (1, optimizer_of),
  "optimizer.warmup": ("7 sequences", optimizer_of),
  "optimizer.b1": (0.8, optimizer_of),
  "optimizer.b2": (0.9, optimizer_of),
  "optimizer.eps": (0.1, optimizer_of),
  "optimizer.weight_decay": (0.3, optimizer_of),
  "optimizer.clip_norm": (0.2, optimizer_of),
  "optimizer.bias_correction": (False, optimizer_of),
  "optimizer.trust_ratio": ("all", optimizer_of),
  "optimizer.max_weight_norm": (1.5, optimizer_of),
  "train.loss_unit": ("token", program_of),
  "train.batch_size": (5, loader_of),
  "train.micro_batch_size": (1, loader_of),
  "train.loader_workers": (2, workers_of),
  "train.steps": (5, optimizer_of),
  "train.duration": ("1 epoch", optimizer_of),
  "train.log_every": (3, program_of),
  "train.eval_every": (3, program_of),
  "train.checkpoint_every": (3, program_of),
  "train.keep_checkpoints": (5, program_of),
  "train.throughput_rounds": (5, program_of),
  "train.target_mlm_accuracy": (0.5, program_of),
  "train.peak_flops": (1e12, program_of),
  "train.fsdp": (2, program_of),
  "train.skip_bad_steps": (2, program_of),
  "train.keep_every": (2, program_of),
  "train.keep_best": (True, program_of),
  "train.patience": (3, program_of),
  "train.compilation_cache": ("FOLDER/compiled", program_of),
  "profile": (2, program_of),
}


def test_the_table_of_changes_has_every_field():
  assert set(CHANGES) == set(leaves(get_config("base")))


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_what_is_made_of_it(field, corpus, tmp_path):
  value, make = CHANGES[field]
  if isinstance(value, str):
    value = value.replace("FOLDER", str(corpus[0]))
  config = small_base(corpus[0])
  before = make(config, corpus)
  assert make(small_base(corpus[0]), corpus) == before
  changed = small_base(corpus[0])
  if make is dataset_of:
    changed.data.directory = str(tmp_path / "data")
  set_field(changed, field, value)
  assert make(changed, corpus) != before


GRADIENTS = np.random.default_rng(3).standard_normal((5, 7, 3))
START = {"kernel": GRADIENTS.sum(0), "bias": GRADIENTS.sum((0, 1))}


def updated_parameters(optimizer) -> list:
  """A matrix and a bias after an update with each of the gradients."""

  @jax.jit
  def step(x, state, gradient):
    updates, state = optimizer.update(gradient, state, x)
    return jax.tree.map(jnp.add, x, updates), state

  x = jax.tree.map(jnp.asarray, START)
  state = optimizer.init(x)
  for gradient in GRADIENTS:
    x, state = step(x, state, {"kernel": gradient, "bias": gradient[0]})
  return [x["kernel"].tolist(), x["bias"].tolist()]


@pytest.mark.parametrize("packing_factor", [1.0, 1.5, 2.75])
def test_the_optimizer_of_a_config_has_the_betas_and_the_steps_of_its_recipe(
  packing_factor,
):
  config = get_config("base")
  config.optimizer.learning_rate = 0.3
  config.optimizer.warmup_steps = round(2 * packing_factor)
  config.optimizer.b1, config.optimizer.b2 = 0.83, 0.91
  config.optimizer.eps = 0.02
  config.optimizer.weight_decay = 0.17
  config.optimizer.clip_norm = 0.7
  config.train.steps = round(6 * packing_factor)
  _, recipe = resolve(config, packing_factor=packing_factor)
  with jax.enable_x64(True):
    optimizer = make_optimizer(config, recipe)
    schedule = make_schedule(recipe)
    found = updated_parameters(optimizer)
  rates = [0.15, 0.3, 0.24, 0.18, 0.12]  # up to the peak in 2 updates, then down to 0
  np.testing.assert_allclose([schedule(t) for t in range(5)], rates, rtol=1e-6)
  expected = numpy_lamb(
    {"kernel": (START["kernel"], True), "bias": (START["bias"], False)},
    [{"kernel": gradient, "bias": gradient[0]} for gradient in GRADIENTS],
    rates,
    b1=0.83**packing_factor,
    b2=0.91**packing_factor,
    eps=0.02,
    weight_decay=0.17,
    clip_norm=0.7,
  )
  np.testing.assert_allclose(found[0], expected["kernel"], rtol=1e-5)
  np.testing.assert_allclose(found[1], expected["bias"], rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_down(name):
  """From the start towards the gradients' opposite, each in a way of its own."""
  config = get_config("base")
  config.optimizer.name = name
  config.optimizer.warmup_steps = 0
  config.packing.adjust = "none"
  check(config)
  _, recipe = resolve(config, packing_factor=1.5)
  kernel, bias = updated_parameters(make_optimizer(config, recipe))
  moved = START["kernel"] - np.asarray(kernel)
  assert (moved * GRADIENTS.sum(0)).sum() > 0
  assert ((START["bias"] - np.asarray(bias)) * GRADIENTS[:, 0].sum(0)).sum() > 0


def test_options_that_an_optimizer_has_not_are_refused():
  for name, field, value in (
    ("adamw", "trust_ratio", "all"),
    ("adamw", "max_weight_norm", 2.0),
    ("sgd", "bias_correction", False),
  ):
    config = get_config("base")
    config.optimizer.name = name
    check(config)
    config.optimizer[field] = value
    with pytest.raises(ConfigError, match=rf"{field} is .*with optimizer\.name={name}"):
      check(config)


def test_betas_that_an_optimizer_has_not_cannot_be_adjusted():
  config = get_config("base")
  config.optimizer.name = "adafactor"
  with pytest.raises(
    ConfigError, match=r"expected another one with .*=adafactor, which has"
  ):
    check(config)
  config.packing.algorithm = "none"  # there is nothing to adjust
  check(config)
  config.packing.algorithm, config.packing.adjust = "optimal", "lr_sqrt"
  check(config)


def test_epochs_are_checked_once_the_data_are_known():
  config = get_config("base")
  config.train.duration, config.optimizer.warmup = "2 epochs", "3 epochs"
  check(config)
  typed = ["optimizer.warmup"]
  check(config, typed=typed)
  with pytest.raises(ConfigError, match="warmup_steps comes to 9; expected 0 to 5"):
    resolve(config, packing_factor=1.0, num_sequences=97, typed=typed)


@pytest.mark.parametrize(
  ("field", "value", "expected"),
  [
    ("seed", -1, "0 to"),
    ("data.max_sequence_length", 4, "5 to 65535"),
    ("data.vocab_size", 5, "at least 64"),
    ("data.vocab_file", "no/such/file", "a vocabulary file"),
    ("data.min_sentences", 0, "at least 1"),
    ("data.dupe_factor", 0, "at least 1"),
    ("data.min_words", 3, "0 or more for data.task=text, 0 for others"),
    ("data.layout", "concat", "packed"),
    (
      "data.atom_size",
      3,
      "at least 2 and a divisor or multiple of data.max_sequence_length=128",
    ),
    ("data.atom_size", 64, "0 with data.layout=packed"),
    ("data.loss_on_padding", True, "False with data.layout=packed"),
    ("data.held_out_fraction", 0.0, "a fraction in"),
    ("data.mask_rate", 1.0, "a fraction in"),
    ("data.short_sequence_probability", 1.5, "a fraction in"),
    ("packing.algorithm", "magic", "none, .*spfhp"),
    ("packing.max_sequences_per_pack", -1, "0 or more"),
    ("packing.assignment", "new", "fresh, fixed"),
    ("model.size", "huge", "tiny, mini"),
    ("model.dropout_rate", 1.0, "a fraction in"),
    ("model.attention_mask", "causal", "segment, token_type, none"),
    (
      "model.positions",
      "learned",
      "'alibi' with data.task=pretraining",
    ),
    ("model.attention_impl", "flash", "xla, cudnn"),
    ("model.attention_impl", "splash_interpret", "xla on 2 devices; splash runs on one"),
    ("model.dtype", "float16", "float32, bfloat16"),
    ("model.remat", "all", "none, layers"),
    ("model.vocab_multiple", 0, "at least 1"),
    ("model.vocab_multiple", 10**11, "at most 65536"),
    ("train.loss_unit", "word", "sequence, token, pack"),
    ("optimizer.learning_rate", 0.0, "more than 0"),
    ("optimizer.name", "lion", "lamb, adamw, sgd, adafactor"),
    ("optimizer.trust_ratio", "none", "weights, all"),
    ("optimizer.max_weight_norm", -1.0, "0 or more"),
    ("optimizer.clip_norm", -1.0, "0 or more"),
    ("optimizer.warmup", "3 fortnights", "a number of steps, sequences or epochs"),
    ("train.duration", "-1 steps", "a number of steps, sequences or epochs"),
    ("train.micro_batch_size", 7, "a multiple of the 2 devices"),
    ("train.micro_batch_size", 6, "a divisor of train.batch_size=32"),
    ("packing.adjust", "magic", "reduce_batch, lamb_betas, lr_linear, lr_sqrt, none"),
    ("optimizer.b1", 1.0, "a fraction in"),
    ("optimizer.weight_decay", -0.1, "0 or more"),
    ("train.batch_size", 31, "a multiple of the 2 devices"),
    ("train.steps", 0, "at least 1"),
    ("train.eval_every", 33, "a multiple of train.log_every=20"),
    ("train.throughput_rounds", -1, "0 or more"),
    ("train.target_mlm_accuracy", 19.2, "a fraction"),
    ("train.peak_flops", -1.0, "0 or more"),
    ("train.loader_workers", -1, "0 or more"),
  ],
)
def test_bad_values_are_refused(field, value, expected):
  config = get_config("base")
  set_field(config, field, value)
  pattern = rf"config\.{field} is {value!r}; expected .*{expected}".replace(".py", r"\.py")
  with pytest.raises(ConfigError, match=pattern):
    check(config, num_devices=2)


def test_a_model_that_is_not_there_is_named_before_its_vocabulary():
  config = get_config("classification")
  config.model.init_from = "no/such/model"
  with pytest.raises(ConfigError, match=r"config\.model\.init_from is 'no/such/model'"):
    check(config)


def test_sentences_are_masked_tokens_without_a_next_sentence():
  config = get_config("base")
  config.data.task, config.train.target_mlm_accuracy = "sentences", 0.5
  expected = "next_sentence is True; expected False with data.task=sentences"
  with pytest.raises(ConfigError, match=expected):
    check(config)
  config.model.next_sentence = False
  check(config)


def test_a_warm_up_past_the_end_is_refused_before_any_work():
  config = get_config("base")
  config.optimizer.warmup_steps = 1000
  with pytest.raises(ConfigError, match="warmup_steps comes to 1000; expected 0 to 999"):
    check(config, typed=["optimizer.warmup_steps"])


def test_an_attention_that_the_device_has_not_is_refused_before_any_work():
  config = get_config("base")
  config.model.attention_impl = "cudnn"
  with pytest.raises(ConfigError, match="needs an attention dropout of 0, found"):
    check(config, num_devices=2)
  config.model.attention_dropout_rate = 0.0
  with pytest.raises(ConfigError, match="needs NVIDIA GPUs since Ampere, found cpu"):
    check(config, num_devices=2)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({}, ""),
    ({"positions": "learned"}, ""),
    (
      {"size": "base"},
      "'base'; expected tiny, mini, small, medium, large, xl, given",
    ),
    ({"size": "given"}, "expected the folder of a model to start from"),
    ({"position_reset": False}, "expected True with data.task=text"),
    ({"positions": "rotary"}, "model.positions is 'rotary'; expected alibi, learned"),
    ({"attention_mask": "token_type"}, "expected segment, none"),
    ({"attention_impl": "splash"}, "found ALiBi's"),
  ],
)
def test_a_causal_model_has_fields_of_its_own(fields, message):
  config = get_config("base")
  config.data.task, config.model.size = "text", "tiny"
  config.model.attention_dropout_rate = 0.0
  config.model.update(fields)
  tasks = {"text": "causal"}
  run = functools.partial(
    validate, config, algorithms=list(packing.ALGORITHMS), tasks=tasks, num_devices=1
  )
  if message:
    with pytest.raises(ConfigError, match=message):
      run()
  else:
    run()
    made = model_config(config, head="causal", vocab_size=97)
    assert isinstance(made, Gpt2Config)
    assert made.positions == config.model.positions
    assert made.num_layers == 2


@pytest.mark.parametrize(
  ("field", "value", "expected"),
  [
    ("packing.assignment", "fixed", "fresh with data.layout=concat"),
    ("train.throughput_rounds", 3, "0 with data.layout=concat"),
  ],
)
def test_what_rows_of_atoms_do_not_read_is_refused(field, value, expected):
  config = get_config("base")
  fields = {"data.task": "text", "data.layout": "concat", "train.throughput_rounds": 0}
  fields |= {"model.size": "tiny", "model.attention_dropout_rate": 0.0}
  config.update_from_flattened_dict(fields)
  options = {"algorithms": list(packing.ALGORITHMS), "tasks": {"text": "causal"}}
  validate(config, num_devices=1, **options)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ConfigError, match=f"config.{field} is .*expected {expected}"):
    validate(config, num_devices=1, **options)
