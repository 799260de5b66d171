import dataclasses
import functools
import importlib
import inspect
import pathlib
import re

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import pipeline
from configs import glue
from launch.data import make_loader
from launch.door import read_settings, settings_of
from launch.machine import check_machine
from launch.recipe import adjustment
from launch.recipe.adjustment import make_optimizer, make_schedule
from launch.settings import OPTIONS, RunSettings
from pipeline.tasks import glue as glue_tasks
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import packs
from tests.test_packed_equals_unpacked import make_store
from tests.training.test_optimizer import numpy_lamb, updated
from training.errors import ConfigError
from training.optimizer import OPTIMIZERS

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
GIVEN = packs.small_config()


def get_config(name="base", **groups):
  """A config of the folder, with other values in some groups of fields."""
  config = importlib.import_module(f"configs.{name}").get_config()
  config.update(groups)
  return config


def check(config, num_devices=1) -> RunSettings:
  run = settings_of(config)
  check_machine(run, num_devices=num_devices)
  return run


def resolve(config, **options):
  run = settings_of(config)
  return adjustment.resolve(run.train, run.optimizer, **options)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_valid_and_can_be_made(name, tmp_path):
  config = get_config(name)
  if config.model.size == "given":
    with pytest.raises(ConfigError, match="init_from is ''; expected the folder of a run"):
      check(config)
    (tmp_path / "vocab.txt").touch()
    config.model.init_from = str(tmp_path)
    assert config.data.vocab_file == str(tmp_path / "vocab.txt")
  run = check(config)
  made = run.model.of(vocab_size=97, sizes=GIVEN)
  assert made.vocab_size == 97
  same = made.intermediate_size == GIVEN.intermediate_size
  assert same == (config.model.size == "given")
  assert_all_factors_can_be(config)
  make_optimizer(run.optimizer, resolve(config, packing_factor=1.5, num_sequences=9973)[1])


def assert_all_factors_can_be(config):
  """Its micro-batch is small enough to reduce the rows."""
  for p in (1.0, 1.2, 1.5, 1.7, 2.0, 2.5, 3.0):
    resolve(config, packing_factor=p, num_sequences=10**9)


@pytest.mark.parametrize("name", ["classification", "glue", "squad"])
def test_a_run_that_fine_tunes_does_not_time_the_packing(name):
  assert get_config(name).train.throughput_rounds == 0


def test_fields_that_a_file_misspells_or_leaves_out_are_refused():
  config = get_config()
  config.train.checkpoint_evry = 7
  with pytest.raises(ConfigError, match=r"'train\.checkpoint_evry' .*did you"):
    check(config)
  config = get_config()
  del config.train.steps
  with pytest.raises(ConfigError, match=r"no field 'train\.steps'\. Begin"):
    check(config)


@pytest.mark.parametrize("made", ["None", "{'seed': 0}"])
def test_a_file_whose_function_returns_no_config_is_refused(made, tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(f"def get_config():\n  return {made}\n")
  with pytest.raises(ConfigError, match="expected a ConfigDict"):
    read_settings(str(file), ["--config.seed=1"])


def test_steps_on_the_command_line_replace_the_duration_of_a_file():
  def cola(*options):
    return read_settings("configs/glue.py:cola", ["--config.model.size=tiny", *options])

  assert cola().train.duration.endswith("epochs")
  run = cola("--config.train.steps=50", "--config.optimizer.warmup_steps=7")
  assert (run.train.duration, run.train.steps) == ("", 50)
  assert (run.optimizer.warmup, run.optimizer.warmup_steps) == ("", 7)
  assert run.given["train.duration"] == ""  # as the run's config.json says
  both = cola("--config.train.steps=50", "--config.train.duration=2 epochs")
  assert both.train.duration == "2 epochs"


def test_mlperf_trains_as_the_packed_entry():
  """The factor is that of the entry's plan: 156,726,829 sequences in 78,404,631 packs."""
  config = get_config("mlperf_bert")
  factor = 156_726_829 / 78_404_631
  recipe = resolve(config, packing_factor=factor)[1]
  assert (recipe.rows, recipe.accumulation, recipe.steps) == (384, 6, 3680)
  assert (recipe.b1, recipe.b2, recipe.warmup_steps) == (0.60466, 0.85437, 0)
  between = config.train.eval_every * recipe.sequences
  assert between == pytest.approx(150_000, rel=0.005)
  assert config.train.target_mlm_accuracy == 0.72
  assert config.train.loss_unit == "token"
  for typed, beta in ((0.7775, recipe.b1), (0.9243, recipe.b2)):
    assert typed**factor == pytest.approx(beta, abs=1e-4)  # as its file says


@pytest.mark.parametrize(
  ("name", "lengths"),
  [
    ("bert_base_phase2", ("384", "512")),
    ("bert_large_phase2", ("384", "512")),
    ("modern_bert_base", ("1024", "8192")),
  ],
)
def test_a_config_for_long_rows_has_one_of_two_lengths(name, lengths):
  module = importlib.import_module(f"configs.{name}")
  for length in lengths:
    config = module.get_config(length)
    check(config)
    assert_all_factors_can_be(config)
    assert config.data.max_sequence_length == int(length)
    assert config.data.directory.endswith(length)
    if "phase2" in name:
      assert config.model.init_from == f"runs/{name.replace('2', '1')}"
      assert config.model.size in name
  with pytest.raises(LookupError, match=r"found :128"):
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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  lengths = np.random.default_rng(0).integers(3, 37, 97)
  return make_store(tmp_path_factory.mktemp("store") / "s.arrow", lengths)


def small_base(**fields):
  sizes = {"data.max_sequence_length": 61, "train.batch_size": 7, "train.steps": 11}
  config = get_config(optimizer={"warmup_steps": 3})
  for field, value in (sizes | fields).items():
    config.update_from_flattened_dict({field: value})
  return config


def loader_of(config, store):
  return make_loader(settings_of(config), store, VOCABULARY)


def batch_of(config, store):
  return {name: field.tolist() for name, field in loader_of(config, store)[0].items()}


def trackers_of(config, store):
  del store
  return settings_of(config).train.tracker_names


def model_of(config, store):
  del store
  return settings_of(config).model.of(vocab_size=97)


def recipe_of(config, store):
  del store
  return resolve(config, packing_factor=1.5, num_sequences=97, num_tokens=997)[1]


def optimizer_of(config, store):
  recipe = recipe_of(config, store)
  part = settings_of(config).optimizer
  optimizer, schedule = make_optimizer(part, recipe), make_schedule(part, recipe)
  moved = updated(optimizer, START, GRADIENTS)
  rates = [float(schedule(t)) for t in range(4)]
  return {name: x.tolist() for name, x in moved.items()}, rates


def program_of(config, store):
  """Fields that training reads where the value is used, not in a message."""
  del store
  files = ["train", *(f"launch/{x}" for x in ("prepare_run", "summary", "init_from"))]
  text = "".join((ROOT / f"{file}.py").read_text() for file in [*files, "launch/data"])
  text += inspect.getsource(RunSettings.pair_loss)
  read = re.findall(r"(?:data|rows|model|pairs|train|options)\.([a-z_]+)", text)
  return {
    field: value
    for field, value in flatten_dict(config.to_dict(), sep=".").items()
    if OPTIONS[field].attribute in read
  }


VOCABULARY = [*SPECIAL_TOKENS, *map(str, range(92))]
ATOMS = {
  "model.size": "tiny",
  "data.task": "text",
  "data.layout": "padding",
  "data.max_sequence_length": 64,
}
GPT2 = {"model.size": "tiny", "data.task": "text"}
MODERN = {"model.family": "modern_bert", "model.next_sentence": False}
ADAMW = {"optimizer.name": "adamw"}

# Of each field another value than `small_base`, what it must change, and in which setting.
CHANGES: dict[str, tuple] = {
  "seed": (1, batch_of),
  "data.layout": ("concat", batch_of, GPT2),
  "data.atom_size": (16, batch_of, ATOMS),
  "data.loss_on_padding": (True, batch_of, ATOMS),
  "data.mask_rate": (0.3, batch_of),
  "packing.algorithm": ("none", batch_of),
  "packing.max_sequences_per_pack": (2, batch_of),
  "packing.row_length": (97, batch_of),
  "packing.balance": ("devices", batch_of),
  "packing.adjust": ("lamb_betas", recipe_of),
  "model.family": ("modern_bert", model_of, {"model.next_sentence": False}),
  "model.size": ("mini", model_of),
  "model.dropout_rate": (0.3, model_of),
  "model.attention_dropout_rate": (0.3, model_of),
  "model.attention_mask": ("none", model_of),
  "model.attention_impl": ("cudnn", model_of),
  "model.positions": ("learned", model_of, GPT2),
  "model.next_sentence": (False, model_of),
  "model.global_base": (7.0, model_of, MODERN),
  "model.remat": ("layers", model_of),
  "model.position_reset": (False, model_of),
  "model.dtype": ("bfloat16", model_of),
  "optimizer.name": ("adamw", optimizer_of),
  "optimizer.learning_rate": (0.2, optimizer_of),
  "optimizer.warmup_steps": (1, optimizer_of),
  "optimizer.warmup": ("7 sequences", optimizer_of),
  "optimizer.b1": (0.8, optimizer_of),
  "optimizer.b2": (0.9, optimizer_of),
  "optimizer.eps": (0.1, optimizer_of),
  "optimizer.weight_decay": (0.3, optimizer_of),
  "optimizer.clip_norm": (0.2, optimizer_of),
  "optimizer.clip_update": (0.2, optimizer_of, ADAMW),
  "optimizer.decay": ("sqrt", optimizer_of),
  "optimizer.decay_share": (0.3, optimizer_of),
  "optimizer.bias_correction": (False, optimizer_of),
  "train.batch_size": (5, batch_of),
  "train.micro_batch_size": (1, batch_of),
  "train.steps": (5, optimizer_of),
  "train.duration": ("1 epoch", optimizer_of),
  "train.trackers": ("mlflow", trackers_of),
}
USED_BY_PROGRAMS = """
  data.directory data.stream model.init_from
  train.loss_unit train.log_every train.eval_every train.checkpoint_every
  train.keep_checkpoints train.throughput_rounds train.target_mlm_accuracy
  train.fsdp train.keep_best train.patience
  pairs.pooling pairs.temperature pairs.both_directions pairs.omit_equal_texts
"""


DATA: dict = {
  "source": "a",
  "held_out_source": "b",
  "mismatched_source": "c",
  "vocab_file": "d",
}
DATA |= {"task": "sentences", "labels": "no,yes", "columns": "text=x", "documents": "line"}
DATA |= {"max_sequence_length": 37, "seed": 1}
DATA |= {"vocab_size": 73, "min_sentences": 12, "min_words": 4, "cross_documents": True}
DATA |= {"too_long": "split"}
DATA |= {"held_out_fraction": 0.3, "dupe_factor": 2}


def test_the_settings_of_a_dataset_are_those_of_the_config():
  model = {"next_sentence": False}  # the task has none
  run = settings_of(get_config(data=DATA, model=model))
  found = dataclasses.asdict(run.data.dataset)
  assert {name: found[name] for name in DATA} == DATA


OTHERS = [
  field
  for field in flatten_dict(get_config().to_dict(), sep=".")
  if field.removeprefix("data.") not in DATA
]


@pytest.mark.parametrize("field", [*OTHERS, "seed"])
def test_every_field_changes_what_is_made_of_it(field, store):
  if field in USED_BY_PROGRAMS.split():
    now = flatten_dict(get_config().to_dict(), sep=".")[field]
    others = {bool: lambda: not now, str: lambda: f"{now} x"}
    value, make = others.get(type(now), lambda: type(now)(now + 1))(), program_of
    setting = {}
  else:
    value, make, setting = (*CHANGES[field], {})[:3]
  before = unchanged(make, store, *setting.items())
  assert make(small_base(**setting | {field: value}), store) != before


@functools.cache
def unchanged(make, store, *setting):
  """What is made in a setting, each time."""
  found = make(small_base(**dict(setting)), store)
  assert make(small_base(**dict(setting)), store) == found
  return found


NOISE = np.random.default_rng(3).standard_normal((5, 7, 3))
GRADIENTS = [{"kernel": x, "bias": x[0]} for x in NOISE]
START = {"kernel": NOISE.sum(0), "bias": NOISE.sum((0, 1))}


def test_the_optimizer_of_a_config_has_the_betas_and_the_steps_of_its_recipe():
  packing_factor = 2.75
  betas, same = {"b1": 0.83, "b2": 0.91}, {"eps": 0.02, "weight_decay": 0.17}
  same["clip_norm"] = 0.7
  warmup = {"warmup_steps": round(2 * packing_factor), "learning_rate": 0.3}
  steps = {"steps": round(6 * packing_factor)}
  adjust = {"adjust": "lamb_betas"}
  config = get_config(optimizer=betas | same | warmup, train=steps, packing=adjust)
  _, recipe = resolve(config, packing_factor=packing_factor)
  with jax.enable_x64(True):
    part = settings_of(config).optimizer
    optimizer, schedule = make_optimizer(part, recipe), make_schedule(part, recipe)
    found = updated(optimizer, START, GRADIENTS)
  rates = [0.15, 0.3, 0.24, 0.18, 0.12]  # up to the peak in 2 updates, then down to 0
  np.testing.assert_allclose([schedule(t) for t in range(5)], rates, rtol=1e-6)
  expected = numpy_lamb(
    {name: (x, name == "kernel") for name, x in START.items()},
    GRADIENTS,
    rates,
    **{name: beta**packing_factor for name, beta in betas.items()},
    **same,
  )
  for name, x in expected.items():
    np.testing.assert_allclose(found[name], x, rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_down(name):
  """From the start towards the gradients' opposite, each in a way of its own."""
  optimizer = {"name": name, "warmup_steps": 0}
  config = get_config(optimizer=optimizer, packing={"adjust": "none"})
  run = check(config)
  _, recipe = resolve(config, packing_factor=1.5)
  found = updated(make_optimizer(run.optimizer, recipe), START, GRADIENTS)
  for name, x in START.items():
    together = sum(gradients[name] for gradients in GRADIENTS)
    assert ((x - np.asarray(found[name])) * together).sum() > 0


REFUSED = [
  ("seed", -1, "0 to"),
  ("data.max_sequence_length", 4, "at least 5"),
  ("data.vocab_file", "no/such/file", "a vocabulary file"),
  ("model.family", "t5", "bert, modern_bert"),
  ("optimizer.decay_share", 1.5, r"a fraction in \[0, 1\]"),
  ("optimizer.clip_update", 1.0, "no effect with optimizer.name=lamb"),
  ("data.layout", "concat", "packed; across documents: data.task=sentences"),
  ("data.atom_size", 3, "at least 2 and a divisor or multiple of .*=128", "concat"),
  ("data.atom_size", 64, "no effect with data.layout=packed"),
  ("data.loss_on_padding", True, "no effect with data.layout=packed"),
  ("data.mask_rate", 1.0, "a fraction in"),
  ("packing.algorithm", "magic", "none, .*spfhp"),
  ("packing.adjust", "magic", "reduce_batch, lamb_betas, lr_linear, lr_sqrt, none"),
  ("model.dtype", "float16", "auto, float32, bfloat16"),
  ("model.next_sentence", True, "False with data.task=sentences", "sentences"),
  ("model.size", "base", "tiny, mini, small, medium, large, xl, given", "gpt2"),
  ("model.position_reset", False, "no effect with data.task=text", "gpt2"),
  ("model.family", "modern_bert", "no effect with data.task=text", "gpt2"),
  ("model.position_reset", False, "no effect with model.family=modern_bert", "modern_bert"),
  ("model.family", "modern_bert", "which needs a head that .* lacks", "squad"),
  ("packing.balance", "devices", "no effect with data.layout=concat", "concat"),
  ("train.throughput_rounds", 3, "no effect with data.layout=concat", "concat"),
  ("packing.row_length", 127, "-1, 0, or at least 128, the longest sequence"),
  ("packing.row_length", 129, "no more positions", "not reset"),
  ("packing.row_length", -1, "no more positions", "not reset"),
  ("packing.row_length", -1, "whose lengths are not known", "stream"),
  ("packing.row_length", -2, "-1, 0, or 5 to 65535 tokens"),
  ("packing.row_length", 256, "no effect with data.layout=concat", "concat"),
  ("packing.balance", "devices", "no effect with packing.algorithm=online", "online"),
  ("packing.algorithm", "auto", "'online' with data.stream=hf:a", "stream"),
  ("data.task", "squad", "one of pretraining, sentences, documents, text with", "stream"),
  ("train.duration", "2 epochs", "steps or sequences with data.stream=hf:a", "stream"),
  ("pairs.pooling", "cls", "no effect with data.task=pretraining"),
  ("pairs.pooling", "max", "auto, mean, cls", "pairs"),
  ("pairs.temperature", 0.1, "no effect with data.task=scored_pairs", "scored pairs"),
  ("pairs.temperature", 0.0, "more than 0, and finite", "pairs"),
  ("pairs.both_directions", True, "no effect with data.task=scored_pairs", "scored pairs"),
  ("pairs.omit_equal_texts", True, "no effect with data.task=scored_pairs", "scored pairs"),
  ("train.loss_unit", "token", "no effect with data.task=pairs, whose unit is", "pairs"),
  ("optimizer.learning_rate", float("inf"), "more than 0, and finite"),
  ("optimizer.clip_norm", -1.0, "0 or more"),
  ("optimizer.bias_correction", False, "no effect with optimizer.name=sgd", "sgd"),
  ("train.duration", "-1 steps", "a number of steps, sequences or epochs"),
  ("train.micro_batch_size", 1, "a multiple of the 2 devices"),
  ("train.micro_batch_size", 6, "a divisor of train.batch_size=32", "epochs"),
  ("train.steps", 0, "at least 1"),
  ("train.eval_every", 33, "a multiple of train.log_every=20"),
  ("train.target_mlm_accuracy", 19.2, "a fraction"),
]
GPT2_MODEL = {"size": "tiny", "attention_dropout_rate": 0.0}
SETTINGS = {
  "base": get_config(data={"directory": "no/such/folder"}),
  "sentences": get_config(data={"task": "sentences"}, model={"next_sentence": False}),
  "modern_bert": get_config(model={"family": "modern_bert", "next_sentence": False}),
  "squad": get_config(data={"task": "squad"}, model={"next_sentence": False}),
  "pairs": get_config(data={"task": "pairs"}),
  "scored pairs": get_config(data={"task": "scored_pairs"}),
  "gpt2": get_config(data={"task": "text"}, model=GPT2_MODEL),
  "concat": get_config(
    data={"task": "text", "layout": "concat"},
    model=GPT2_MODEL,
    train={"throughput_rounds": 0},
  ),
  "not reset": get_config(model={"position_reset": False}),
  "online": get_config(packing={"algorithm": "online"}),
  "stream": get_config(packing={"algorithm": "online"}, data={"stream": "hf:a"}),
  "epochs": get_config(train={"duration": "2 epochs"}),
  "sgd": get_config(optimizer={"name": "sgd"}),
}


@pytest.mark.parametrize(
  ("field", "value", "expected", "setting"),
  [(*case, "base")[:4] for case in REFUSED],
  ids=lambda x: str(x)[:30],
)
def test_bad_values_are_refused(field, value, expected, setting):
  config = SETTINGS[setting].copy_and_resolve_references()
  check(config, num_devices=2)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ConfigError, match=rf"config\.{field} is {value!r}[;,] .*{expected}"):
    check(config, num_devices=2)


@pytest.mark.parametrize(
  ("field", "value", "message", "setting"),
  [
    (
      "model.positions",
      "learned",
      "no effect with model.family=bert. Leave it out",
      "base",
    ),
    ("data.atom_size", 64, r"Leave it out; its default is 0\.$", "base"),
    ("model.next_sentence", True, r"\. Set --config.model.next_sentence=False\.$", "sent"),
    ("train.steps", 0, r"Set it with --config.train.steps=\.\.\.$", "base"),
    ("train.batch_size", 7, "of the 2 devices, such as 6 or 8. Set it with", "base"),
    ("train.batch_size", 1, "of the 2 devices, such as 2. Set it with", "base"),
  ],
)
def test_a_refusal_says_what_to_do(field, value, message, setting):
  (config,) = (config for name, config in SETTINGS.items() if name.startswith(setting))
  config = config.copy_and_resolve_references()
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ConfigError, match=message):
    check(config, num_devices=2)


def test_the_models_own_rules_are_checked_before_any_work():
  config = get_config(model={"dropout_rate": 1.0, "size": "given", "init_from": "."})
  with pytest.raises(ConfigError, match=r"config\.model\.dropout_rate is 1\.0; expected a"):
    check(config)


@pytest.mark.parametrize(
  ("setting", "implementation", "message"),
  [
    ("base", "cudnn", "needs an attention dropout of 0, found"),
    ("gpt2", "splash", "found ALiBi's"),
    ("gpt2", "cudnn_packed", "needs .*found"),
  ],
)
def test_an_attention_that_cannot_be_is_refused(setting, implementation, message):
  config = SETTINGS[setting].copy_and_resolve_references()
  config.model.attention_impl = implementation
  with pytest.raises(ConfigError, match=message):
    check(config)


def test_a_model_that_is_not_there_is_named_before_its_vocabulary():
  config = get_config("classification", model={"init_from": "no/such/model"})
  with pytest.raises(ConfigError, match=r"config\.model\.init_from is 'no/such/model'"):
    check(config)
