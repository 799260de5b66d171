"""The rules that a config's values must follow, checked before any work."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Collection, Mapping

import ml_collections
from flax.traverse_util import flatten_dict

import model
from training import optimizer
from training.config import (
  FAMILIES,
  GIVEN,
  TRACKERS,
  base_config,
  check_attention,
  family_of,
  model_config,
  row_length,
  tracker_names,
)
from training.errors import ConfigError, check, field_value
from training.recipe import check_recipe

MASKED_TASKS = ("pretraining", "sentences", "documents")  # they predict masked tokens
STREAMED_TASKS = (*MASKED_TASKS, "text")

# Whether a rule holds, the field to report if not, and what is expected of the field.
_Rule = tuple[bool, str, str]

# Fields that share a range, a test of a value, and the range in words.
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
  (
    "train.batch_size train.steps train.log_every train.eval_every "
    "train.checkpoint_every train.keep_checkpoints train.fsdp",
    lambda x: x >= 1,
    "at least 1",
  ),
  (
    "packing.max_sequences_per_pack train.throughput_rounds train.skip_bad_steps "
    "train.patience",
    lambda x: x >= 0,
    "0 or more",
  ),
  ("train.target_mlm_accuracy", lambda x: 0 <= x < 1, "a fraction in [0, 1)"),
  ("optimizer.decay_share", lambda x: 0 <= x <= 1, "a fraction in [0, 1]"),
  (
    "data.mask_rate optimizer.b1 optimizer.b2",
    lambda x: 0 < x < 1,
    "a fraction in (0, 1)",
  ),
  (
    "optimizer.learning_rate optimizer.eps",
    lambda x: 0 < x < float("inf"),
    "more than 0, and finite",
  ),
  (
    "optimizer.weight_decay optimizer.clip_norm optimizer.clip_update",
    lambda x: 0 <= x < float("inf"),
    "0 or more, and finite",
  ),
  ("seed", lambda x: 0 <= x < 2**32, "0 to 2^32 - 1"),
  ("packing.row_length", lambda x: x == 0 or 5 <= x <= 65535, "0, or 5 to 65535 tokens"),
  ("data.max_sequence_length", lambda x: 5 <= x <= 65535, "5 to 65535 tokens"),
)
# The allowed values of fields that have only a few.
_CHOICES: dict[str, Collection[str]] = {
  "packing.balance": ("none", "devices"),
  "model.attention_impl": ("auto", *model.IMPLEMENTATIONS),
  "model.dtype": ("auto", "float32", "bfloat16"),
  "optimizer.decay": optimizer.DECAYS,
  "train.loss_unit": model.LOSS_UNITS,
  "optimizer.name": optimizer.OPTIMIZERS,
}


def check_fields(config: ml_collections.ConfigDict):
  """Refuses a config that has other fields than `configs/base.py`.

  Raises:
    ConfigError: names the first field that is unknown or missing.
  """
  base = base_config()
  given, known = (flatten_dict(x.to_dict(), sep=".") for x in (config, base))
  for name in sorted(given.keys() - known.keys()):
    field_value(base, name, where="The config's file")  # raises
  for name in sorted(known.keys() - given.keys()):
    raise ConfigError(
      f"The config has no field {name!r}. Begin its file with configs.base.get_config(), "
      "which has every field, and change some values."
    )


def validate(
  config: ml_collections.ConfigDict,
  *,
  algorithms: Collection[str],
  tasks: Mapping[str, str],
  num_devices: int,
  typed: Collection[str] = (),
):
  """Refuses values that would fail or mislead later.

  Args:
    config: a config with the fields of `configs/base.py`.
    algorithms: names of the packing algorithms.
    tasks: the head that learns each task.
    num_devices: devices that share a batch.
    typed: fields set on the command line or by a sweep.

  Raises:
    ConfigError: names the field, its value and what was expected.
  """
  check_fields(config)
  values = flatten_dict(config.to_dict(), sep=".")
  for fields, is_in_range, expected in _RANGES:
    for field in fields.split():
      check(is_in_range(values[field]), field, values[field], expected)
  given = config.model.family
  check(given in FAMILIES, "model.family", given, ", ".join(FAMILIES))
  head = tasks.get(config.data.task, "")  # a task that is not known is refused below
  family = family_of(config, head)
  kind = model.CONFIGS[family]
  choices = _CHOICES | {
    "data.task": tasks,
    "packing.algorithm": algorithms,
    "model.size": (*kind.SIZES, GIVEN),
  }
  for field, known in choices.items():
    check(values[field] in known, field, values[field], ", ".join(known))
  for holds, field, expected in (
    *_model_rules(config, family, head),
    *_data_rules(config),
    *_packing_rules(config),
    *_training_rules(config, num_devices=num_devices),
  ):
    check(holds, field, values[field], expected)
  try:  # the model's own rules; with `GIVEN`, the sizes of layers are known later
    some = {"vocab_size": 1, "max_position_embeddings": 1, "dtype": "float32"}
    sizes = kind.from_size(next(iter(kind.SIZES)), **some)
    made = model_config(config, head=head, vocab_size=config.data.vocab_size, sizes=sizes)
  except ValueError as error:
    raise ConfigError(f"config.model.{error}") from error
  if config.model.size != GIVEN:
    check_attention(config, made)
  check_recipe(config, num_devices=num_devices, typed=typed)
  for name in tracker_names(config):
    if not all(importlib.util.find_spec(module) for module in TRACKERS[name]):
      raise ConfigError(
        f"config.train.trackers: {name} is not installed. Install it: pip install -c "
        f"requirements.lock -e '.[{name}]'"
      )


def _model_rules(config, family: str, head: str) -> list[_Rule]:
  causal, is_modern = family == "gpt2", family == "modern_bert"
  task, given = config.data.task, config.model.init_from
  usual = model.ModernBertConfig.global_base
  folder = "the folder of a run or an imported model to start from"
  # A prepared dataset has its own copy of its vocabulary.
  has_vocabulary = (
    not config.data.vocab_file
    or pathlib.Path(config.data.vocab_file).is_file()
    or pathlib.Path(config.data.directory).exists()
  )
  return [
    (
      config.model.size != GIVEN or bool(given),
      "model.init_from",
      f"{folder}, since model.size is {GIVEN!r}",
    ),
    (  # if both are missing, the model's folder is reported, not its vocabulary
      has_vocabulary or pathlib.Path(given or ".").is_dir(),
      "model.init_from",
      folder,
    ),
    (
      has_vocabulary,
      "data.vocab_file",
      "a vocabulary file, or an empty string to learn one",
    ),
    (
      causal or config.model.positions == "alibi",
      "model.positions",
      f"'alibi', the default, with data.task={task}: only a GPT-2 has this option",
    ),
    (
      not causal or config.model.position_reset,
      "model.position_reset",
      f"True with data.task={task}: a GPT-2 always counts positions within sequences",
    ),
    (
      not causal or config.model.family == FAMILIES[0],
      "model.family",
      f"{FAMILIES[0]!r} with data.task={task}, which trains a GPT-2",
    ),
    (
      head in model.MODELS[family],
      "model.family",
      f"another one with data.task={task}, which needs a head that {family} lacks",
    ),
    *(
      (not is_modern or config.model[name] == value, f"model.{name}", f"{value} {why}")
      for name, value, why in (
        ("position_reset", True, "with model.family=modern_bert: only distances matter"),
        ("next_sentence", False, "with model.family=modern_bert, which has no such head"),
      )
    ),
    (
      is_modern or config.model.global_base == usual,
      "model.global_base",
      f"{usual} unless model.family=modern_bert",
    ),
    (
      task not in ("sentences", "documents") or not config.model.next_sentence,
      "model.next_sentence",
      f"False with data.task={task}, which has no next sentence",
    ),
  ]


def _data_rules(config) -> list[_Rule]:
  data = config.data
  layouts = ("packed", "concat", "padding") if data.task == "text" else ("packed",)
  across = ""
  if data.task in MASKED_TASKS:
    across = "; for rows across documents: data.task=sentences, data.cross_documents=True"
  atoms, length = data.atom_size, data.max_sequence_length
  by_atoms = data.layout in ("concat", "padding")
  why = f"with data.layout={data.layout}"
  shuffled = f"{why}, whose atoms are shuffled and not packed"
  return [
    (data.layout in layouts, "data.layout", ", ".join(layouts) + across),
    (
      not atoms or (atoms > 1 and max(atoms, length) % min(atoms, length) == 0),
      "data.atom_size",
      f"0, or at least 2 and a divisor or multiple of data.max_sequence_length={length}",
    ),
    (by_atoms or not atoms, "data.atom_size", f"0 {why}"),
    (
      data.layout == "padding" or not data.loss_on_padding,
      "data.loss_on_padding",
      f"False {why}",
    ),
    *(
      (
        not by_atoms or config.packing[name] == default,
        f"packing.{name}",
        f"{default} {shuffled}",
      )
      for name, default in (("balance", "none"), ("row_length", 0))
    ),
    (
      not by_atoms or not config.train.throughput_rounds,
      "train.throughput_rounds",
      f"0 {shuffled}",
    ),
  ]


def _packing_rules(config) -> list[_Rule]:
  data, packing, train = config.data, config.packing, config.train
  length = data.max_sequence_length
  is_online, has_stream = packing.algorithm == "online", bool(data.stream)
  online = "with packing.algorithm=online, which packs sequences as they are read"
  stream = f"with data.stream={data.stream}"
  durations = {
    "train.duration": train.duration,
    "optimizer.warmup": config.optimizer.warmup,
  }
  return [
    (
      not packing.row_length or length <= packing.row_length,
      "packing.row_length",
      f"0, or at least {length}, the longest sequence",
    ),
    (
      config.model.position_reset or row_length(config) <= length,
      "packing.row_length",
      f"at most data.max_sequence_length={length} with model.position_reset=False, since "
      "the model has no more positions",
    ),
    (not is_online or data.layout == "packed", "data.layout", f"packed {online}"),
    (not is_online or packing.balance == "none", "packing.balance", f"none {online}"),
    (is_online or not has_stream, "packing.algorithm", f"online {stream}"),
    (
      not has_stream or data.task in STREAMED_TASKS,
      "data.task",
      f"one of {', '.join(STREAMED_TASKS)} {stream}",
    ),
    *(
      (
        not (has_stream and "epoch" in duration),
        field,
        f"steps or sequences {stream}, which has no epochs",
      )
      for field, duration in durations.items()
    ),
  ]


def _training_rules(config, *, num_devices: int) -> list[_Rule]:
  train, opt, task = config.train, config.optimizer, config.data.task

  def belongs_to(field: str, default, *names: str) -> _Rule:
    expected = f"{default!r} with optimizer.name={opt.name}, which has no such option"
    return opt.name in names or opt[field] == default, f"optimizer.{field}", expected

  multiple = f"a multiple of train.log_every={train.log_every}"
  return [
    (
      task in MASKED_TASKS or not train.target_mlm_accuracy,
      "train.target_mlm_accuracy",
      f"0 with data.task={task}, which masks no tokens",
    ),
    belongs_to("bias_correction", True, "lamb", "adamw"),
    belongs_to("clip_update", 0.0, "adamw"),
    (
      len(given := tracker_names(config)) == len({*given} & TRACKERS.keys()),
      "train.trackers",
      f"names from {', '.join(TRACKERS)}, each once, separated by commas",
    ),
    (train.eval_every % train.log_every == 0, "train.eval_every", multiple),
    (train.checkpoint_every % train.log_every == 0, "train.checkpoint_every", multiple),
    (
      num_devices % train.fsdp == 0,
      "train.fsdp",
      f"a divisor of the {num_devices} devices",
    ),
  ]
