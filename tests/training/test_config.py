import importlib
import pathlib
import re

import pytest

import packing
from training.config import ConfigError, bert_config, make_optimizer, validate

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def get_config(name):
  return importlib.import_module(f"configs.{name}").get_config()


def check(config, num_devices=1):
  validate(config, algorithms=list(packing.ALGORITHMS), num_devices=num_devices)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_valid_and_can_be_made(name):
  config = get_config(name)
  check(config)
  assert bert_config(config, vocab_size=97).vocab_size == 97
  make_optimizer(config, packing_factor=1.5)


def leaves(config, prefix=""):
  for name, value in config.items():
    if hasattr(value, "items"):
      yield from leaves(value, f"{prefix}{name}.")
    else:
      yield prefix + name


def test_every_field_is_read_somewhere_outside_validation():
  """`data` goes as keywords into Settings, whose fields are then what is read."""
  sources = [ROOT / "train.py", ROOT / "eval.py"]
  for package in ("pipeline", "training"):
    sources += (ROOT / package).glob("*.py")
  text = "\n".join(path.read_text() for path in sources)
  text = re.sub(r"def validate\(.*?\n\ndef ", "def ", text, flags=re.DOTALL)
  unread = [
    field
    for field in leaves(get_config("base"))
    if not re.search(rf"\w\.{field.split('.')[-1]}\b", text)
  ]
  assert unread == []


@pytest.mark.parametrize(
  ("field", "value", "expected"),
  [
    ("seed", -1, "0 to"),
    ("data.max_sequence_length", 4, "5 to 65535"),
    ("data.vocab_size", 5, "at least 64"),
    ("data.vocab_file", "no/such/file", "a vocabulary file"),
    ("data.min_sentences", 0, "at least 1"),
    ("data.held_out_fraction", 0.0, "a fraction in"),
    ("data.mask_rate", 1.0, "a fraction in"),
    ("data.short_sequence_probability", 1.5, "a fraction in"),
    ("packing.algorithm", "magic", "none, .*spfhp"),
    ("packing.max_sequences_per_pack", 0, "at least 1"),
    ("model.size", "huge", "tiny, mini"),
    ("model.dropout_rate", 1.0, "a fraction in"),
    ("model.attention_mask", "causal", "segment, none"),
    ("model.dtype", "float16", "float32, bfloat16"),
    ("optimizer.learning_rate", 0.0, "more than 0"),
    ("optimizer.warmup_steps", 10**9, "0 to train.steps - 1"),
    ("optimizer.b1", 1.0, "a fraction in"),
    ("optimizer.weight_decay", -0.1, "0 or more"),
    ("train.batch_size", 31, "a multiple of the 2 devices"),
    ("train.steps", 0, "at least 1"),
    ("train.eval_every", 33, "a multiple of train.log_every=20"),
    ("train.throughput_rounds", -1, "0 or more"),
  ],
)
def test_bad_values_are_refused(field, value, expected):
  config = get_config("base")
  group, _, name = field.rpartition(".")
  (config[group] if group else config)[name] = value
  pattern = rf"config\.{field} is {value!r}; expected .*{expected}".replace(".py", r"\.py")
  with pytest.raises(ConfigError, match=pattern):
    check(config, num_devices=2)
