"""Weights to and from Hugging Face directories: `config.json` and safetensors.

Architectures have the names of the classes here, but GPT2LMHeadModel is `Gpt2`.
Pickles are never opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Sequence

import safetensors
import safetensors.numpy

from model.config import BertConfig, ModelConfig
from model.files import whole_folder, write_json
from model.gpt2 import Gpt2Config
from model.hf import names, tensors
from model.hf.config import (
  CONFIG,
  WEIGHTS,
  bert_json,
  gpt2_json,
  modern_bert_json,
  read_config,
)
from model.hf.tokenizer import (
  copy_byte_level,
  describe_fast,
  read_vocabulary,
  write_fast_tokenizer,
  write_tokenizer,
)
from model.models import model_of
from model.modern_bert import ModernBertConfig
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
  shapes_of,
)


def head_of(params: Params) -> str:
  """The head of parameters, of any family."""
  if "decoder" in params:
    return "causal"
  if "mlm_bias" in params:
    return "pretraining"
  if "answer" in params:
    return "question_answering"
  if "token_classifier" in params:
    return "token_classification"
  if "classifier" not in params:
    return "encoder"
  of_sequences = "pooler" in params or "head" in params
  return "sequence_classification" if of_sequences else "token_classification"


# ---- import --------------------------------------------------------------------------


def import_bert(directory: str | pathlib.Path) -> tuple[BertConfig, Params]:
  """Reads a BERT from a Hugging Face directory.

  Half-precision tensors become float32. Buffers of positions are ignored, as is the pooler
  that old files keep for heads that do not read it.

  Args:
    directory: with `config.json` and `model.safetensors` (or its parts with an index).

  Returns:
    The config, and the parameters as a nested dictionary of float32 arrays. The head is the
    one that `architectures` names; see `head_of`.

  Raises:
    WeightsError: the directory is missing, the config is not supported, or tensors are
      missing, foreign or of another shape; names them.
  """
  stored = _open(pathlib.Path(directory))
  return stored.config_as(BertConfig), stored.load()


def import_modern_bert(directory: str | pathlib.Path) -> tuple[ModernBertConfig, Params]:
  """Reads a ModernBERT from a Hugging Face directory; otherwise as `import_bert`."""
  stored = _open(pathlib.Path(directory))
  return stored.config_as(ModernBertConfig), stored.load()


def import_gpt2(directory: str | pathlib.Path) -> tuple[Gpt2Config, Params]:
  """Reads a GPT-2, with learned positions, from a Hugging Face directory.

  The names of the original file, without `transformer.`, are read too; its masks are
  ignored. Otherwise as `import_bert`.
  """
  stored = _open(pathlib.Path(directory))
  return stored.config_as(Gpt2Config), stored.load()


def open_model(directory: str | pathlib.Path, *, step: int | None = None) -> StoredModel:
  """Opens a run's folder, an imported one or a Hugging Face directory.

  Checks names and shapes of the tensors, without reading their values.

  Args:
    directory: the folder.
    step: of a run's checkpoint; the newest if not given.

  Raises:
    WeightsError: the folder holds another kind of model, or cannot be used.
  """
  directory = pathlib.Path(directory)
  if (directory / MODEL).exists():
    return open_folder(directory, step=step)
  stored = _open(directory)
  if step is not None:
    raise WeightsError(f"{directory} is a Hugging Face directory; it has no --step.")
  vocabulary = read_vocabulary(directory)
  check_vocabulary_size(directory, vocabulary, stored.config)
  return dataclasses.replace(stored, vocabulary=vocabulary)


def _open(directory: pathlib.Path) -> StoredModel:
  head, config, labels = read_config(directory)
  kind = model_of(config, head)
  stored = tensors.read_headers(directory, kind)
  if isinstance(config, BertConfig) and head == "pretraining":
    # Files of BertForMaskedLM may hold both heads, such as that of bert-base-uncased.
    both = "cls.seq_relationship.weight" in stored
    config = dataclasses.replace(config, next_sentence=config.next_sentence or both)
  if isinstance(config, BertConfig) and head == "encoder":
    config = dataclasses.replace(config, pooler="pooler.dense.weight" in stored)
  expected = abstract_params(config, head)
  tensors.check(directory, stored, kind, names.shapes_there(expected, kind))
  load = functools.partial(tensors.load, directory, stored, kind, expected)
  label_names = labels if head == "sequence_classification" else ()
  return StoredModel(directory, head, config, None, label_names, None, load)


# ---- export --------------------------------------------------------------------------


def export_bert(
  config: BertConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
  tokenizer: str | pathlib.Path | None = None,
):
  """Writes a BERT that `transformers` opens with `from_pretrained`.

  Writes the folder whole or not at all. Cuts the entries that `vocab_multiple` added.

  Args:
    config: of the model.
    params: of the model, a nested dictionary; the head follows from its keys.
    directory: to write; must be new or empty.
    vocabulary: of the tokenizer to write; None for no tokenizer.
    labels: names of the classes.
    tokenizer: a folder with the `tokenizer.json` to copy, where that splits text.

  Raises:
    FileExistsError: the directory is not empty.
    NotWritten: the folder could not be written, because the disk is full for example.
    WeightsError: `transformers` has no such model, or the parameters, the vocabulary or
      the tokenizer do not fit the config.
  """
  if config.attention_mask == "token_type":
    raise WeightsError(
      "attention_mask is 'token_type', and a BERT of transformers lets sentence A see B. "
      "Expected 'segment' or 'none'; this model cannot be exported."
    )
  with _written(config, params, directory, vocabulary, tokenizer) as partial:
    value = bert_json(config, head_of(params), vocabulary, labels)
    write_json(partial / CONFIG, value)


def export_modern_bert(
  config: ModernBertConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
  tokenizer: str | pathlib.Path | None = None,
):
  """Writes a ModernBERT that `transformers` opens with `from_pretrained`.

  Arguments and errors as for `export_bert`.
  """
  with _written(config, params, directory, vocabulary, tokenizer) as partial:
    value = modern_bert_json(config, head_of(params), labels)
    write_json(partial / CONFIG, value)


def export_gpt2(
  config: Gpt2Config,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  tokenizer: str | pathlib.Path | None = None,
):
  """Writes a GPT-2 that `transformers` opens with `from_pretrained`.

  Arguments and errors as for `export_bert`.
  """
  if config.positions != "learned":
    raise WeightsError(
      f"positions is {config.positions!r}, and a GPT-2 of transformers has learned ones. "
      "Expected 'learned'; this model cannot be exported."
    )
  with _written(config, params, directory, vocabulary, tokenizer) as partial:
    write_json(partial / CONFIG, gpt2_json(config, vocabulary))


def export_model(
  config: ModelConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
  tokenizer: str | pathlib.Path | None = None,
):
  """The export of the config's family; arguments and errors as for `export_bert`."""
  texts: dict = {"vocabulary": vocabulary, "tokenizer": tokenizer}
  if isinstance(config, Gpt2Config):
    export_gpt2(config, params, directory, **texts)
  elif isinstance(config, ModernBertConfig):
    export_modern_bert(config, params, directory, labels=labels, **texts)
  else:
    assert isinstance(config, BertConfig)
    export_bert(config, params, directory, labels=labels, **texts)


@contextlib.contextmanager
def _written(
  config: ModelConfig,
  params: Params,
  directory: str | pathlib.Path,
  vocabulary: Vocabulary | None,
  tokenizer: str | pathlib.Path | None,
) -> Iterator[pathlib.Path]:
  """A folder with tensors and tokenizer, to write the rest into; final after the block."""
  if vocabulary and len(vocabulary.tokens) > config.vocab_size:
    raise WeightsError(
      f"Expected a vocabulary of at most vocab_size={config.vocab_size} tokens, found "
      f"{len(vocabulary.tokens)}."
    )
  head = head_of(params)
  config, params = resize_vocabulary(config, params, multiple=1)
  kind, expected = model_of(config, head), abstract_params(config, head)
  found, wanted = shapes_of(params), shapes_of(expected)
  if found != wanted:
    different = sorted(map(str, found.items() ^ wanted.items()))
    raise WeightsError(
      f"The parameters are not those of a {kind.__name__} of this config: "
      f"{tensors.some(different)}."
    )
  arrays = names.to_tensors(params, kind)
  with whole_folder(directory) as partial:
    try:
      safetensors.numpy.save_file(arrays, partial / WEIGHTS, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
      raise OSError(str(error)) from error
    with (partial / WEIGHTS).open("rb") as file:
      os.fsync(file.fileno())
    longest = config.max_position_embeddings
    if vocabulary and not vocabulary.by_json:
      write = write_tokenizer if isinstance(config, BertConfig) else write_fast_tokenizer
      write(partial, vocabulary, max_length=longest)
    elif vocabulary and tokenizer:
      copy_byte_level(pathlib.Path(tokenizer), partial)
      describe_fast(partial, max_length=longest)
    yield partial
