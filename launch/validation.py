"""The rules that a config's values must follow, checked before any work."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Collection

from ml_collections import ConfigDict

import model
from launch.data import config_settings
from launch.fields import (
  CHOSEN,
  TRACKERS,
  base_config,
  check,
  field_value,
  flat,
  tracker_names,
)
from launch.model_config import (
  FAMILIES,
  GIVEN,
  check_attention,
  family_of,
  model_config,
)
from launch.plans import ALGORITHMS
from launch.recipe.adjustment import check_recipe
from pipeline.batches import atoms
from pipeline.batches.plans import ONLINE
from pipeline.tasks.registry import TASK_HEADS, is_masked
from training import optimizer
from training.errors import ConfigError

# Ranges in words, with a test of a value, and the fields that share them.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
  "at least 1": (
    lambda x: x >= 1,
    "train.steps train.log_every train.eval_every train.checkpoint_every "
    "train.keep_checkpoints train.fsdp",
  ),
  "0 or more": (
    lambda x: x >= 0,
    "packing.max_sequences_per_pack train.throughput_rounds train.patience",
  ),
  "a fraction in [0, 1)": (lambda x: 0 <= x < 1, "train.target_mlm_accuracy"),
  "a fraction in [0, 1]": (lambda x: 0 <= x <= 1, "optimizer.decay_share"),
  "a fraction in (0, 1)": (
    lambda x: 0 < x < 1,
    "data.mask_rate optimizer.b1 optimizer.b2",
  ),
  "more than 0, and finite": (
    lambda x: 0 < x < float("inf"),
    "optimizer.learning_rate optimizer.eps pairs.temperature",
  ),
  "0 or more, and finite": (
    lambda x: 0 <= x < float("inf"),
    "optimizer.weight_decay optimizer.clip_norm optimizer.clip_update",
  ),
  "0 to 2^32 - 1": (lambda x: 0 <= x < 2**32, "seed"),
  "-1, 0, or 5 to 65535 tokens": (
    lambda x: x in (CHOSEN, 0) or 5 <= x <= 65535,
    "packing.row_length",
  ),
}
# The allowed values of fields that have only a few.
_CHOICES: dict[str, Collection[str]] = {
  "data.task": TASK_HEADS,
  "packing.algorithm": ALGORITHMS,
  "packing.balance": ("none", "devices"),
  "model.family": FAMILIES,
  "model.attention_impl": ("auto", *model.IMPLEMENTATIONS),
  "model.dtype": ("auto", "float32", "bfloat16"),
  "pairs.pooling": ("auto", "mean", "cls"),
  "optimizer.decay": optimizer.DECAYS,
  "optimizer.name": optimizer.OPTIMIZERS,
  "train.loss_unit": model.LOSS_UNITS,
}


def check_fields(config: ConfigDict):
  """Refuses a config that has other fields than `configs/base.py`.

  Raises:
    ConfigError: names the first field that is unknown or missing.
  """
  base = base_config()
  given, known = flat(config).keys(), flat(base).keys()
  for name in sorted(given - known):
    field_value(base, name, where="The config's file")  # raises
  for name in sorted(known - given):
    raise ConfigError(
      f"The config has no field {name!r}. Begin its file with configs.base.get_config()."
    )


def validate(config: ConfigDict, *, num_devices: int):
  """Refuses values that would fail or mislead later.

  Args:
    config: a config with the fields of `configs/base.py`.
    num_devices: devices that share a batch.

  Raises:
    ConfigError: names the field, its value and what was expected.
  """
  check_fields(config)
  rules = _Rules(config)
  for expected, (is_in_range, fields) in _RANGES.items():
    for field in fields.split():
      rules.require(is_in_range(rules.values[field]), field, expected)
  for field, known in _CHOICES.items():
    rules.require(rules.values[field] in known, field, ", ".join(known))
  config_settings(config.data)
  rules.check_model()
  rules.check_data()
  rules.check_packing()
  rules.check_training(num_devices)
  check_recipe(config, num_devices=num_devices)


class _Rules:
  """Rules that a config's values must follow together; each raises ConfigError."""

  def __init__(self, config: ConfigDict):
    self.config, self.values = config, flat(config)
    self.defaults = flat(base_config())
    self.head = TASK_HEADS.get(config.data.task, "")
    self.family = family_of(config, self.head)

  def require(self, holds: bool, field: str, expected: str):
    """A rule of one field."""
    check(holds, field, self.values[field], expected)

  def only(self, value, field: str, why: str):
    """A field with only one value for such a run; often it has no effect there."""
    found, remedy = self.values[field], f"Set --config.{field}={value}"
    if value == self.defaults[field]:
      remedy = f"Leave it out, or set --config.{field}={value}"
    check(found == value, field, found, f"{value!r} {why}", remedy=f"{remedy}.")

  def check_model(self):
    """The fields of `model`, and the model's own rules."""
    config, family, task = self.config, self.family, self.config.data.task
    kind, given = model.CONFIGS[family], config.model.init_from
    self.require(
      config.model.size in (*kind.SIZES, GIVEN),
      "model.size",
      ", ".join((*kind.SIZES, GIVEN)),
    )
    folder = "the folder of a run or an imported model to start from"
    if config.model.size == GIVEN:
      why = f"{folder}, since model.size is {GIVEN!r}"
      self.require(bool(given), "model.init_from", why)
    # A prepared dataset has its own copy of its vocabulary.
    vocabulary, directory = map(
      pathlib.Path, (config.data.vocab_file, config.data.directory)
    )
    if config.data.vocab_file and not vocabulary.is_file() and not directory.exists():
      # If both are missing, the model's folder is reported, not its vocabulary.
      self.require(pathlib.Path(given or ".").is_dir(), "model.init_from", folder)
      expected = "a vocabulary file, or an empty string to learn one"
      self.require(False, "data.vocab_file", expected)
    if family == "gpt2":
      why = f"with data.task={task}, which trains a GPT-2"
      self.only(FAMILIES[0], "model.family", why)
      self.only(True, "model.position_reset", f"{why}: it counts within sequences")
    else:
      positions = config.model.positions
      if positions != self.defaults["model.positions"]:
        raise ConfigError(
          f"config.model.positions is {positions!r}, which has no effect with "
          f"data.task={task}: only a GPT-2 has a choice. Leave it out."
        )
    lacks = f"another one with data.task={task}, which needs a head that {family} lacks"
    self.require(self.head in model.MODELS[family], "model.family", lacks)
    why = "with model.family=modern_bert"
    if family == "modern_bert":
      self.only(True, "model.position_reset", f"{why}: only distances matter")
      self.only(False, "model.next_sentence", f"{why}, which has no such head")
    else:
      usual = model.ModernBertConfig.global_base
      self.only(usual, "model.global_base", "unless model.family=modern_bert")
    if task in ("sentences", "documents"):
      why = f"with data.task={task}, which has no next sentence"
      self.only(False, "model.next_sentence", why)
    try:  # with `GIVEN`, the sizes of layers are known later
      some = {"vocab_size": 1, "max_position_embeddings": 1, "dtype": "float32"}
      sizes = kind.from_size(next(iter(kind.SIZES)), **some)
      size = config.data.vocab_size
      made = model_config(config, head=self.head, vocab_size=size, sizes=sizes)
    except ValueError as error:
      raise ConfigError(f"config.model.{error}") from error
    if config.model.size != GIVEN:
      check_attention(config, made)

  def check_data(self):
    """The layouts of rows."""
    data, task = self.config.data, self.config.data.task
    layouts = ("packed", *(atoms.LAYOUTS if task == "text" else ()))
    across = ""
    if is_masked(task):
      across = "; across documents: data.task=sentences, data.cross_documents=True"
    self.require(data.layout in layouts, "data.layout", ", ".join(layouts) + across)
    size, length = data.atom_size, data.max_sequence_length
    self.require(
      not size or (size > 1 and max(size, length) % min(size, length) == 0),
      "data.atom_size",
      f"0, or at least 2 and a divisor or multiple of data.max_sequence_length={length}",
    )
    why = f"with data.layout={data.layout}"
    if data.layout != "padding":
      self.only(False, "data.loss_on_padding", why)
    if data.layout == "packed":
      self.only(0, "data.atom_size", why)
    else:
      why = f"{why}, whose atoms are shuffled and not packed"
      self.only("none", "packing.balance", why)
      self.only(0, "packing.row_length", why)
      self.only(0, "train.throughput_rounds", why)

  def check_packing(self):
    """Rows, and packing while reading."""
    config, packing = self.config, self.config.packing
    length, stream = config.data.max_sequence_length, config.data.stream
    self.require(
      packing.row_length <= 0 or length <= packing.row_length,
      "packing.row_length",
      f"-1, 0, or at least {length}, the longest sequence",
    )
    self.require(
      config.model.position_reset or 0 <= packing.row_length <= length,
      "packing.row_length",
      f"0 to data.max_sequence_length={length} with model.position_reset=False, since "
      "the model has no more positions",
    )
    if packing.algorithm == ONLINE:
      why = "with packing.algorithm=online, which packs sequences as they are read"
      self.only("packed", "data.layout", why)
      self.only("none", "packing.balance", why)
    if stream:
      why = f"with data.stream={stream}"
      self.only(ONLINE, "packing.algorithm", why)
      self.require(
        packing.row_length != CHOSEN,
        "packing.row_length",
        f"0 or a number of tokens {why}, whose lengths are not known",
      )
      known = [x for x, head in TASK_HEADS.items() if head in model.LANGUAGE_MODELS]
      self.require(
        config.data.task in known, "data.task", f"one of {', '.join(known)} {why}"
      )
      for field in ("train.duration", "optimizer.warmup"):
        expected = f"steps or sequences {why}, which has no epochs"
        self.require("epoch" not in self.values[field], field, expected)

  def check_training(self, num_devices: int):
    """Options of optimizers, trackers, and when a run logs, evaluates and saves."""
    config, train = self.config, self.config.train
    if not is_masked(config.data.task):
      why = f"with data.task={config.data.task}, which masks no tokens"
      self.only(0, "train.target_mlm_accuracy", why)
    why = f"with optimizer.name={config.optimizer.name}, which has no such option"
    if config.optimizer.name == "sgd":
      self.only(True, "optimizer.bias_correction", why)
    if config.optimizer.name != "adamw":
      self.only(0.0, "optimizer.clip_update", why)
    why = f"with data.task={config.data.task}"
    if self.head == "encoder":
      self.only("sequence", "train.loss_unit", f"{why}: the unit is the record")
    if config.data.task != "pairs":
      self.only(0.05, "pairs.temperature", f"{why}, whose loss has no softmax of cosines")
      self.only(False, "pairs.both_directions", why)
      self.only(False, "pairs.omit_equal_texts", why)
    if self.head != "encoder":
      self.only("auto", "pairs.pooling", f"{why}, which makes no vectors of texts")
    names = tracker_names(config)
    self.require(
      len(names) == len({*names} & TRACKERS.keys()),
      "train.trackers",
      f"names from {', '.join(TRACKERS)}, each once, separated by commas",
    )
    for name in names:
      if not all(importlib.util.find_spec(module) for module in TRACKERS[name]):
        raise ConfigError(
          f"{name} is not installed. Run pip install -c requirements.lock -e '.[{name}]'"
        )
    for field in ("train.eval_every", "train.checkpoint_every"):
      expected = f"a multiple of train.log_every={train.log_every}"
      self.require(self.values[field] % train.log_every == 0, field, expected)
    expected = f"a divisor of the {num_devices} devices"
    self.require(num_devices % train.fsdp == 0, "train.fsdp", expected)
