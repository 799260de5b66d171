"""A model on disk: its description, its vocabulary, and its parameters.

A folder of this project, a run's or an imported one, holds `model.json`, `vocab.txt` and
`checkpoints/STEP/params`. The parameters can be loaded without the rest of a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import tensorstore
from orbax.checkpoint import v1 as ocp

from model.blocks import Transformer
from model.config import BertConfig, ModelConfig
from model.models import CONFIGS, MODELS, abstract_model, model_of, name_of
from packing.files import parse_json, write_json, write_text

Params = dict[str, Any]
MODEL, VOCABULARY, CHECKPOINTS = "model.json", "vocab.txt", "checkpoints"
PARAMS = "params"  # the part of a checkpoint that holds the parameters
METADATA = "_CHECKPOINT_METADATA"  # Orbax's file of a checkpoint, written last
BEST = "best"  # a value of --step, and the field of that step in the metadata
_EMBEDDING_PADDING = 128  # published embeddings are padded to multiples of at most this
# A checkpoint's files are at most this many times smaller than its arrays.
_MOST_COMPRESSED = 1000
# What Orbax and TensorStore raise for damaged files.
_UNREADABLE = ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError

_Config = TypeVar("_Config", bound=ModelConfig)


class WeightsError(ValueError):
  """A folder does not hold the expected weights, or they cannot be used."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The tokens of a WordPiece or a byte-level BPE.

  Attributes:
    tokens: the tokens in the order of their ids.
    lowercase: whether WordPiece lowercases text and strips accents before splitting it.
    by_json: whether text is split by a `tokenizer.json` instead of by WordPiece.
  """

  tokens: tuple[str, ...]
  lowercase: bool = True
  by_json: bool = False


@dataclasses.dataclass(frozen=True)
class StoredModel:
  """A model on disk, whose parameters are not read yet.

  Attributes:
    directory: the folder of the model.
    head: a key of `model.MODELS[config.FAMILY]`.
    config: the config of the model.
    vocabulary: the vocabulary; None if the folder has none.
    labels: the names of the classes, in the order of their numbers; () if they have none.
    step: the step of the checkpoint; None in a Hugging Face directory.
    load: reads the parameters, a nested dictionary of arrays.
  """

  directory: pathlib.Path
  head: str
  config: ModelConfig
  vocabulary: Vocabulary | None
  labels: tuple[str, ...]
  step: int | None
  load: Callable[[], Params]

  @property
  def kind(self) -> type[Transformer]:
    """The class of the model."""
    return model_of(self.config, self.head)

  @property
  def name(self) -> str:
    """The name of the model, which tells its variant."""
    return name_of(self.config, self.head)

  def config_as(self, kind: type[_Config]) -> _Config:
    """The config, after checking its class; raises WeightsError for another class."""
    if not isinstance(self.config, kind):
      name = kind.__name__.removesuffix("Config")
      raise WeightsError(f"{self.directory} is a {self.name}; expected a {name}.")
    return self.config


def abstract_params(config: ModelConfig, head: str, *, sharding=None) -> Params:
  """The shapes and types of a model's parameters, as a nested dictionary."""
  sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    _traced_params(config, head),
  )


@functools.lru_cache(maxsize=8)  # tracing a model takes longer than reading a small one
def _traced_params(config: ModelConfig, head: str) -> Params:
  return nnx.to_pure_dict(abstract_model(config, head)[1])


def encoder_of(stored: StoredModel) -> StoredModel:
  """The model without its head; a BERT keeps the pooler, if its head has one."""
  config = stored.config
  if isinstance(config, BertConfig):
    params = abstract_params(config, stored.head)
    config = dataclasses.replace(config, pooler="pooler" in params)
  return dataclasses.replace(_part_of(stored, config, "encoder"), labels=())


def without_next_sentence(stored: StoredModel) -> StoredModel:
  """A model with the head of pretraining, without that of next sentences if it has one."""
  if not isinstance(stored.config, BertConfig):
    return stored
  config = dataclasses.replace(stored.config, next_sentence=False)
  return _part_of(stored, config, stored.head)


def _part_of(stored: StoredModel, config: ModelConfig, head: str) -> StoredModel:
  """The parameters of a model that a config and a head need."""
  names = abstract_params(config, head).keys()

  def load() -> Params:
    return {name: value for name, value in stored.load().items() if name in names}

  return dataclasses.replace(stored, head=head, config=config, load=load)


def check_vocabulary_size(
  directory: str | pathlib.Path, vocabulary: Vocabulary | None, config: ModelConfig
):
  """Checks that a vocabulary fits the embeddings, which may be padded.

  Raises:
    WeightsError: the vocabulary has more tokens than there are embeddings, or far fewer.
  """
  most = config.vocab_size
  least = max(most - _EMBEDDING_PADDING + 1, 1)
  if vocabulary and not least <= len(vocabulary.tokens) <= most:
    raise WeightsError(
      f"The vocabulary in {directory} has {len(vocabulary.tokens):,} tokens; its "
      f"vocab_size of {most:,} needs {least:,} to {most:,}."
    )


def check_layers(directory: str | pathlib.Path, config: ModelConfig, num_arrays: int):
  """Checks that there is an array for each layer, before the model is built.

  Raises:
    WeightsError: the config has more layers than there are arrays.
  """
  if config.num_layers > num_arrays:
    raise WeightsError(
      f"{directory} has {num_arrays} arrays for {config.num_layers:,} layers."
    )


# ---- folders of this project -----------------------------------------------------------


def describe(
  directory: str | pathlib.Path,
  config: ModelConfig,
  *,
  head: str,
  vocabulary: Vocabulary | None,
  labels: Sequence[str] = (),
):
  """Writes `model.json` and `vocab.txt`, each whole or not at all."""
  directory = pathlib.Path(directory)
  fields = dataclasses.asdict(config)
  for name in ("dtype", "param_dtype"):
    fields[name] = jnp.dtype(fields[name]).name
  value = {
    "family": config.FAMILY,
    "head": head,
    "labels": list(labels),
    "lowercase": vocabulary.lowercase if vocabulary else None,
    "by_json": bool(vocabulary and vocabulary.by_json),
    "config": fields,
  }
  if vocabulary and any({"\n", "\r"} & set(token) for token in vocabulary.tokens):
    value["tokens"] = list(vocabulary.tokens)  # vocab.txt has a token a line
  if vocabulary:
    write_text(directory / VOCABULARY, "\n".join(vocabulary.tokens) + "\n")
  write_json(directory / MODEL, value)


def save(directory: str | pathlib.Path, params: Params, *, step: int = 0):
  """Writes only the parameters, as a checkpoint that can be read like a run's.

  Raises:
    OSError: the checkpoint could not be written.
  """
  path = pathlib.Path(directory).absolute() / CHECKPOINTS / str(step)
  try:
    ocp.save_checkpointables(path, {PARAMS: params})
  except ValueError as error:  # TensorStore reports a full disk as a ValueError
    raise OSError(beginning(error)) from error


def steps(directory: str | pathlib.Path) -> list[int]:
  """The steps of complete checkpoints, those with Orbax's metadata; oldest first.

  Raises:
    WeightsError: a checkpoint does not store its parameters separately.
  """
  complete = (pathlib.Path(directory) / CHECKPOINTS).glob(f"*/{METADATA}")
  folders = [path.parent for path in complete if path.parent.name.isdecimal()]
  for folder in folders:
    if not (folder / PARAMS).is_dir():
      raise WeightsError(f"{folder} holds no {PARAMS}. Another program wrote it: move it.")
  return sorted(int(folder.name) for folder in folders)


class ChosenStep(NamedTuple):
  """The step of a checkpoint, None if there is none; and why this one, in words."""

  step: int | None
  why: str


def choose_step(directory: str | pathlib.Path, wanted: str | None = None) -> ChosenStep:
  """Chooses a checkpoint: the best if the run keeps it, otherwise the newest.

  Args:
    directory: the folder of a run or of an imported model.
    wanted: the user's --step: a number, or "best" for the best by the held-out metric; None
      for the rule.

  Raises:
    WeightsError: `wanted` is something else, the run keeps no best checkpoint, or the
      newest is damaged.
  """
  folder = pathlib.Path(directory).absolute() / CHECKPOINTS
  if wanted not in (None, BEST):
    if not wanted.isdecimal():
      raise WeightsError(f"--step is {wanted!r}; expected a number, or {BEST}.")
    return ChosenStep(int(wanted), "by --step")
  saved = steps(directory)
  newest = max(saved, default=None)
  best = None if newest is None else _saved_with(folder / str(newest), BEST)
  if best in saved:
    return ChosenStep(best, f"the best; the newest is {newest}")
  if wanted is None:
    return ChosenStep(newest, "the newest")
  raise WeightsError(f"{directory} keeps no best step, only {saved}. Choose with --step.")


def _saved_with(path: pathlib.Path, name: str, default: int | None = None) -> Any:
  """What a run has written into a checkpoint's metadata; an import has nothing."""
  with _explained(path):
    saved = parse_json((path / METADATA).read_text())["custom_metadata"] or {}
    return saved.get(name, default)


@contextlib.contextmanager
def _explained(path: pathlib.Path) -> Iterator[None]:
  """Reports what damaged files of a checkpoint raise as WeightsError."""
  try:
    yield
  except _UNREADABLE as error:
    raise WeightsError(
      f"{path} is damaged, or another model's: {beginning(error)} Restore it, or name "
      "another checkpoint or folder."
    ) from error


def open_folder(
  directory: str | pathlib.Path, *, step: int | None = None, sharding=None
) -> StoredModel:
  """Opens a run's folder or an imported one.

  Args:
    directory: the folder.
    step: the step of the checkpoint; by default the newest.
    sharding: the sharding of the parameters; by default the first device.

  Raises:
    WeightsError: the folder holds no model of this project, no such checkpoint, or a
      vocabulary that does not fit the embeddings.
  """
  directory = pathlib.Path(directory)
  head, config, vocabulary, labels = read_description(directory)
  # The one in the file is for the device of the run.
  config = dataclasses.replace(config, attention_impl="auto")
  check_vocabulary_size(directory, vocabulary, config)
  saved = steps(directory)
  if not saved:
    raise WeightsError(
      f"{directory} has no checkpoint. Train it until train.py saves one, or name another "
      "folder."
    )
  if step is None:
    step = max(saved)
  if step not in saved:
    raise WeightsError(
      f"{directory} has no checkpoint of step {step}; there are "
      f"{', '.join(map(str, saved))}. Choose one with --step."
    )
  path = directory.absolute() / CHECKPOINTS / str(step)

  def load() -> Params:
    abstract = abstract_params(config, head, sharding=sharding)
    with _explained(path):
      _check_bytes(path / PARAMS, abstract)
      read_through(path / PARAMS, abstract)
      return ocp.load_checkpointables(path, {PARAMS: abstract})[PARAMS]

  saved_as = _saved_with(path, "step", step)
  with _explained(path):
    if saved_as != step:
      raise ValueError(f"it was saved as step {saved_as}.")
    num_arrays = len(_array_names(path / PARAMS))
  check_layers(path, config, num_arrays)
  return StoredModel(directory, head, config, vocabulary, labels, step, load)


def _check_bytes(path: pathlib.Path, expected: Any):
  """Raises ValueError if the files are too small for these arrays."""
  needed = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(expected))
  found = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
  if needed > _MOST_COMPRESSED * found:
    raise ValueError(f"its arrays have {needed:,} bytes, but its files only {found:,}.")


class OtherArrays(ValueError):
  """A checkpoint has arrays of other names or shapes than expected."""


def read_through(path: str | pathlib.Path, expected: Any):
  """Reads and decodes every array in a part of a checkpoint, to check that it is whole.

  Names and shapes are compared before any array is read.

  Args:
    path: the folder of the part, such as `checkpoints/100/params`.
    expected: a tree of arrays, or of their shapes.

  Raises:
    OtherArrays: names the first array that differs from those of `expected`.
    ValueError, KeyError, OSError: the part is damaged; the messages are long.
  """
  arrays = {
    name: tensorstore.open(
      {"driver": "zarr3", "kvstore": _store(path) | {"path": f"{name}/"}}, open=True
    ).result()
    for name in _array_names(path)
  }
  _check_shapes({name: array.shape for name, array in arrays.items()}, expected)
  for array in arrays.values():
    array.read().result()


def _store(path: str | pathlib.Path) -> dict[str, Any]:
  return {"driver": "ocdbt", "base": f"file://{pathlib.Path(path).absolute()}/"}


def _array_names(path: str | pathlib.Path) -> list[str]:
  """The names of the arrays in a part of a checkpoint, with dots between the keys.

  Raises:
    ValueError, OSError: the part is damaged.
  """
  keys = tensorstore.KvStore.open(_store(path)).result().list().result()
  parts = [key.decode().rpartition("/") for key in keys]
  names = [name for name, _, part in parts if part == "zarr.json"]
  if not names:  # TensorStore takes a lost file for an empty store
    raise ValueError("manifest.ocdbt is lost, or holds no array.")
  return names


def shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
  """The shape of each array by its name, with dots between the keys."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
    for path, leaf in leaves
  }


def _check_shapes(stored: dict[str, tuple[int, ...]], expected: Any):
  shapes = shapes_of(expected)
  different = [
    f"{name} is {stored.get(name, 'missing')}, expected {shapes.get(name, 'none')}"
    for name in sorted(stored.keys() | shapes.keys())
    if stored.get(name) != shapes.get(name)
  ]
  if different:
    others = f" and {len(different) - 1} more differ" if len(different) > 1 else ""
    raise OtherArrays(f"{different[0]}{others}.")


def beginning(error: Exception) -> str:
  """The beginning of a message; those of Orbax and TensorStore may be pages long."""
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  text = text.partition(" [tensorstore_spec")[0]
  return textwrap.shorten(text, 300, placeholder=" ...")


class Description(NamedTuple):
  """The model of a folder, without its parameters; fields as in `StoredModel`."""

  head: str
  config: ModelConfig
  vocabulary: Vocabulary | None
  labels: tuple[str, ...]


def read_description(directory: str | pathlib.Path) -> Description:
  """Reads what `describe` wrote.

  Raises:
    WeightsError: a file is missing, or was changed.
  """
  directory = pathlib.Path(directory)
  try:
    value = parse_json((directory / MODEL).read_text(encoding="utf-8"))
    fields = value["config"]
    for name in ("dtype", "param_dtype"):
      fields[name] = jnp.dtype(fields[name])
    head = value["head"]
    family = value["family"]
    if family not in MODELS:
      raise ValueError(f"family is {family!r}, expected one of {', '.join(MODELS)}")
    config = CONFIGS[family](**fields)
    model_of(config, head)
    labels = tuple(value["labels"])
    vocabulary = None
    if value["lowercase"] is not None:
      tokens = tuple(value.get("tokens", ())) or read_tokens(directory / VOCABULARY)
      vocabulary = Vocabulary(tokens, value["lowercase"], value["by_json"])
  except FileNotFoundError as error:
    raise WeightsError(
      f"There is no {error.filename}; expected a run's or an imported folder. Import with "
      "python -m model import."
    ) from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise WeightsError(f"{directory / MODEL} cannot be used: {error!r}.") from error
  return Description(head, config, vocabulary, labels)


def read_tokens(path: pathlib.Path) -> tuple[str, ...]:
  """The lines of a vocabulary file; a token may hold any space except a newline."""
  return tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
