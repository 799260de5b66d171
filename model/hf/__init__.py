"""Weights to and from Hugging Face directories: `config.json` and safetensors.

The architecture names there are the class names here, but for GPT2LMHeadModel, the `Gpt2`.
Pickles are never opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from model.config import BertConfig, ModelConfig
from model.files import whole_folder, write_json
from model.gpt2 import Gpt2Config
from model.hf import names
from model.hf.config import CONFIG, WEIGHTS, bert_json, gpt2_json, read_config
from model.hf.tokenizer import (
  BYTE_LEVEL_FILES,
  read_byte_level_tokens,
  read_vocabulary,
  write_tokenizer,
)
from model.models import MODELS
from model.weights import (
  MODEL,
  Params,
  StoredModel,
  Vocabulary,
  WeightsError,
  abstract_params,
  check_vocabulary_size,
  open_folder,
  resize_vocabulary,
)

_INDEX = WEIGHTS + ".index.json"


def head_of(params: Params) -> str:
  """The head that parameters have, a key of `model.MODELS`."""
  if "decoder" in params:
    return "causal"
  if "mlm_transform" in params:
    return "pretraining"
  if "answer" in params:
    return "question_answering"
  return "sequence_classification" if "pooler" in params else "token_classification"


# ---- import --------------------------------------------------------------------------


def import_bert(
  directory: str | pathlib.Path, *, vocab_multiple: int = 1
) -> tuple[BertConfig, Params]:
  """Reads a BERT from a Hugging Face directory.

  Half-precision tensors become float32. Buffers of positions are ignored, and so is the
  pooler that old files keep for a head which does not read it.

  Args:
    directory: with `config.json` and `model.safetensors` (or its parts with an index).
    vocab_multiple: the token embedding gets rows of zeros up to a multiple of this.

  Returns:
    The config, and the parameters of the model that `architectures` names as a nested
    dictionary of float32 arrays. `head_of` tells which it is.

  Raises:
    WeightsError: no such directory, a config that is not supported, or tensors that are
      missing, foreign or of another shape; names them.
  """
  stored = _open(pathlib.Path(directory))
  return resize_vocabulary(stored.bert, stored.load(), multiple=vocab_multiple)


def import_gpt2(
  directory: str | pathlib.Path, *, vocab_multiple: int = 1
) -> tuple[Gpt2Config, Params]:
  """Reads a GPT-2 from a Hugging Face directory; its positions are learned ones.

  The names of the original's file, without `transformer.`, are known too; the masks that
  it holds are ignored. The rest is as for `import_bert`.
  """
  stored = _open(pathlib.Path(directory))
  if not isinstance(stored.config, Gpt2Config):
    raise WeightsError(
      f"{directory} holds a {MODELS[stored.head].__name__}; expected a GPT2LMHeadModel. "
      "Read it with import_bert."
    )
  return resize_vocabulary(stored.config, stored.load(), multiple=vocab_multiple)


def open_model(directory: str | pathlib.Path, *, step: int | None = None) -> StoredModel:
  """Opens a run's folder, an imported one or a Hugging Face directory.

  Names and shapes of the tensors are checked; their values are not read yet.

  Args:
    directory: the folder.
    step: of the checkpoint of a run; the newest if not given.

  Raises:
    WeightsError: it is none of these, or cannot be used; says why.
  """
  directory = pathlib.Path(directory)
  if (directory / MODEL).exists():
    return open_folder(directory, step=step)
  stored = _open(directory)
  if step is not None:
    raise WeightsError(f"{directory} is a Hugging Face directory; it has no --step.")
  if stored.head == "causal":
    paths = (directory / name for name in BYTE_LEVEL_FILES)
    tokens = next((read_byte_level_tokens(path) for path in paths if path.exists()), None)
    vocabulary = Vocabulary(tokens, lowercase=False) if tokens else None
  else:
    vocabulary = read_vocabulary(directory)
  check_vocabulary_size(directory, vocabulary, stored.config)
  return dataclasses.replace(stored, vocabulary=vocabulary)


class _Stored(NamedTuple):
  path: pathlib.Path  # of the file
  name: str  # in the file
  shape: tuple[int, ...]
  dtype: str  # as safetensors names them


def _open(directory: pathlib.Path) -> StoredModel:
  head, config, labels = read_config(directory)
  tensors = _read_headers(directory, head)
  if isinstance(config, BertConfig) and head == "pretraining":
    # Files of BertForMaskedLM may hold both heads, such as that of bert-base-uncased.
    both = "cls.seq_relationship.weight" in tensors
    config = dataclasses.replace(config, next_sentence=config.next_sentence or both)
  expected = abstract_params(config, head)
  _check_tensors(directory, tensors, head, names.shapes_there(expected, head=head))
  load = functools.partial(_load, directory, tensors, head, expected)
  label_names = labels if head == "sequence_classification" else ()
  return StoredModel(directory, head, config, None, label_names, None, load)


def _read_headers(directory: pathlib.Path, head: str) -> dict[str, _Stored]:
  """The tensors of a directory by their present names."""
  tensors: dict[str, _Stored] = {}
  for path in _weight_files(directory):
    try:
      with safetensors.safe_open(path, framework="numpy") as file:
        for stored_name in file.keys():  # noqa: SIM118  # not a dictionary
          part = file.get_slice(stored_name)
          name = names.present_name(stored_name, head=head)
          if name in tensors:
            raise WeightsError(
              f"{directory} holds {name} twice, as {tensors[name].name} and as "
              f"{stored_name}. Expected it once; remove one of them."
            )
          shape, dtype = tuple(part.get_shape()), part.get_dtype()
          tensors[name] = _Stored(path, stored_name, shape, dtype)
    except (OSError, safetensors.SafetensorError) as error:
      raise WeightsError(
        f"{path} cannot be read as safetensors: {error}. Fetch it again."
      ) from error
  return tensors


def _weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
  if (directory / WEIGHTS).exists():
    return [directory / WEIGHTS]
  if (directory / _INDEX).exists():
    try:
      index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
      names = sorted(set(index["weight_map"].values()))
      if any(pathlib.PurePath(name).name != name for name in names):
        raise ValueError("a part lies in another folder")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise WeightsError(
        f"{directory / _INDEX} is no index of safetensors: {error!r}. Fetch it again."
      ) from error
    return [directory / name for name in names]
  pickles = sorted(path.name for path in directory.glob("*.bin"))
  if pickles:
    raise WeightsError(
      f"Expected {WEIGHTS} in {directory}, found {', '.join(pickles)}. A pickle can run "
      "any program, so it is not opened. Where you trust it, load it with transformers and "
      "save_pretrained it to another folder."
    )
  raise WeightsError(
    f"Expected {WEIGHTS} in {directory}; it is not there. Fetch it beside {CONFIG}."
  )


def _check_tensors(
  directory: pathlib.Path,
  tensors: Mapping[str, _Stored],
  head: str,
  shapes: Mapping[str, tuple[int, ...]],
):
  known = {**shapes, **{copy: shapes[of] for copy, of in names.tied(head).items()}}
  problems = []
  missing = [name for name in shapes if name not in tensors]
  if missing:
    problems.append(f"missing {_some(missing)}")
  foreign = [
    name for name in tensors if name not in known and not names.is_ignored(name, head=head)
  ]
  if foreign:
    problems.append(f"foreign {_some(foreign)}")
  wrong = [
    f"{name} of shape {tensors[name].shape} instead of {shape}"
    for name, shape in known.items()
    if name in tensors and tensors[name].shape != shape
  ]
  wrong += [
    f"{name} of type {tensors[name].dtype} instead of F32, F16 or BF16"
    for name in known
    if name in tensors and tensors[name].dtype not in ("F32", "F16", "BF16")
  ]
  if wrong:
    problems.append(f"wrong {_some(wrong)}")
  if problems:
    raise WeightsError(
      f"The tensors in {directory} are not those that its {CONFIG} asks for: "
      f"{'; '.join(problems)}. Correct `architectures` or the sizes there, or save the "
      "model again with save_pretrained."
    )


def _some(names: list[str]) -> str:
  shown = ", ".join(names[:4])
  return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _load(
  directory: pathlib.Path, tensors: Mapping[str, _Stored], head: str, expected: Params
) -> Params:
  files: dict[pathlib.Path, Any] = {}

  def read(name: str) -> np.ndarray:
    tensor = tensors[name]
    if tensor.path not in files:
      files[tensor.path] = safetensors.safe_open(tensor.path, framework="numpy")
    return files[tensor.path].get_tensor(tensor.name).astype(np.float32)

  for copy, original in names.tied(head).items():
    if copy in tensors and not np.array_equal(read(copy), read(original)):
      raise WeightsError(
        f"In {directory} {copy} differs from {original}; expected the same numbers, since "
        "this model ties them. Choose a model that was trained with tied embeddings."
      )

  return jax.tree.map(jnp.asarray, names.from_tensors(read, expected, head=head))


# ---- export --------------------------------------------------------------------------


def export_bert(
  config: BertConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
):
  """Writes a BERT that `transformers` opens with `from_pretrained`.

  The folder is there whole or not at all. Rows that `vocab_multiple` added are cut.

  Args:
    config: of the model.
    params: of the model, a nested dictionary; its head is told by what it holds.
    directory: to write; must be new or empty.
    vocabulary: to write a tokenizer of; without it the folder has none.
    labels: names of the classes.

  Raises:
    FileExistsError: there is something in the directory.
    NotWritten: the disk is full, say.
    WeightsError: the reference cannot compute what this model does, or the parameters
      are not those of the config.
  """
  if config.attention_mask == "token_type":
    raise WeightsError(
      "attention_mask is 'token_type', and a BERT of transformers lets sentence A see B. "
      "Expected 'segment' or 'none'; this model cannot be exported."
    )
  if vocabulary and len(vocabulary.tokens) > config.vocab_size:
    raise WeightsError(
      f"Expected a vocabulary of at most vocab_size={config.vocab_size} tokens, found "
      f"{len(vocabulary.tokens)}."
    )
  with _written(config, params, directory) as partial:
    head = head_of(params)
    write_json(partial / CONFIG, bert_json(config, head, vocabulary, labels))
    if vocabulary:
      write_tokenizer(partial, vocabulary, max_length=config.max_position_embeddings)


def export_gpt2(
  config: Gpt2Config,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
):
  """Writes a GPT-2 that `transformers` opens with `from_pretrained`, without tokenizer.

  Arguments and errors as of `export_bert`; of the vocabulary only the end token is told.
  """
  if config.positions != "learned":
    raise WeightsError(
      f"positions is {config.positions!r}, and a GPT-2 of transformers has learned ones. "
      "Expected 'learned'; this model cannot be exported."
    )
  with _written(config, params, directory) as partial:
    write_json(partial / CONFIG, gpt2_json(config, vocabulary))


def export_model(
  config: ModelConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
):
  """`export_bert`, or `export_gpt2` where it is one."""
  if isinstance(config, Gpt2Config):
    export_gpt2(config, params, directory, vocabulary=vocabulary)
  else:
    assert isinstance(config, BertConfig)
    export_bert(config, params, directory, vocabulary=vocabulary, labels=labels)


@contextlib.contextmanager
def _written(
  config: ModelConfig, params: Params, directory: str | pathlib.Path
) -> Iterator[pathlib.Path]:
  """A folder with the tensors, to write the rest to; whole where the block ends."""
  head = head_of(params)
  config, params = resize_vocabulary(config, params, multiple=1)
  expected = abstract_params(config, head)
  if _shapes(expected) != _shapes(params):
    different = sorted({str(item) for item in _shapes(expected) ^ _shapes(params)})
    raise WeightsError(
      f"The parameters are not those of a {MODELS[head].__name__} of this config: "
      f"{_some(different)}."
    )
  tensors = names.to_tensors(params, head=head)
  with whole_folder(directory) as partial:
    try:
      safetensors.numpy.save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
      raise OSError(str(error)) from error
    with (partial / WEIGHTS).open("rb") as file:
      os.fsync(file.fileno())
    yield partial


def _shapes(params: Params) -> set[tuple[str, tuple[int, ...]]]:
  leaves = jax.tree_util.tree_flatten_with_path(params)[0]
  return {(jax.tree_util.keystr(keys), leaf.shape) for keys, leaf in leaves}
