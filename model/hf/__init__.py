"""Weights from and to Hugging Face directories: `config.json` and safetensors.

Architectures have the names of the classes here, except that GPT2LMHeadModel is `Gpt2`.
Pickles are never opened.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import safetensors
import safetensors.numpy

from model.config import BertConfig, ModelConfig
from model.files import whole_folder
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
from model.hf.pooling import copy_pooling
from model.hf.tokenizer import (
  ORIGINALS,
  SPLITTING,
  copy_files,
  describe_fast,
  gives_pair_types,
  read_vocabulary,
  write_fast_tokenizer,
  write_tokenizer,
)
from model.modern_bert import ModernBertConfig
from model.weights import (
  MODEL,
  Params,
  StoredModel,
  Vocabulary,
  WeightsError,
  abstract_params,
  check_layers,
  check_vocabulary_size,
  open_folder,
  shapes_of,
)
from packing.files import write_json


def head_of(params: Params) -> str:
  """The name of the head that the parameters belong to, in any family."""
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
  of_sequences = params.keys() & {"pooler", "classifier_transform", "head"}
  return "sequence_classification" if of_sequences else "token_classification"


# ---- import --------------------------------------------------------------------------


def open_model(directory: str | pathlib.Path, *, step: int | None = None) -> StoredModel:
  """Opens a run's folder, an imported one or a Hugging Face directory.

  Checks the names and shapes of the tensors in a directory's `model.safetensors`, without
  reading their values. Half-precision tensors become float32. Buffers of positions are
  ignored, and so is the pooler that old files hold even if their head does not read it.

  Args:
    directory: the folder.
    step: the step of a run's checkpoint; by default the newest.

  Raises:
    WeightsError: the directory is missing, the config is not supported, or tensors are
      missing, unexpected or of another shape; the message names them.
  """
  directory = pathlib.Path(directory)
  if (directory / MODEL).exists():
    return open_folder(directory, step=step)
  stored = _open(directory)
  if step is not None:
    raise WeightsError(f"{directory} is a Hugging Face directory. Leave out --step.")
  vocabulary, config = read_vocabulary(directory), stored.config
  check_vocabulary_size(directory, vocabulary, config)
  if isinstance(config, BertConfig) and config.tells_types:
    config = dataclasses.replace(config, pair_types=gives_pair_types(directory))
  return dataclasses.replace(stored, vocabulary=vocabulary, config=config)


def _open(directory: pathlib.Path) -> StoredModel:
  head, config, labels = read_config(directory)
  kind = names.kind_of(config, head)
  stored = tensors.read_headers(directory, kind)
  check_layers(directory, config, len(stored))
  if isinstance(config, BertConfig) and head == "pretraining":
    # Some files of BertForMaskedLM, such as bert-base-uncased, hold both heads.
    both = "cls.seq_relationship.weight" in stored and config.variant == "bert"
    config = dataclasses.replace(config, next_sentence=config.next_sentence or both)
  if isinstance(config, BertConfig) and head == "encoder":
    config = dataclasses.replace(config, pooler="pooler.dense.weight" in stored)
  expected = abstract_params(config, head)
  tensors.check_tensors(directory, stored, kind, names.shapes_there(expected, kind))
  load = functools.partial(tensors.load, directory, stored, kind, expected)
  return StoredModel(directory, head, config, None, labels, None, load)


# ---- export --------------------------------------------------------------------------


def export_model(
  config: ModelConfig,
  params: Params,
  directory: str | pathlib.Path,
  *,
  vocabulary: Vocabulary | None = None,
  labels: Sequence[str] = (),
  tokenizer: str | pathlib.Path | None = None,
):
  """Writes a model that `transformers` opens with `from_pretrained`.

  The folder is written whole or not at all.

  Args:
    config: the config of the model.
    params: the parameters, a nested dictionary whose keys determine the head.
    directory: the folder to write, which must be new or empty.
    vocabulary: the vocabulary of the tokenizer to write; None for no tokenizer.
    labels: the names of the classes; a GPT-2 has none.
    tokenizer: a folder from which the tokenizer's files are copied: those that an import
      kept, or those of a vocabulary that a file splits; and those of sentence-transformers.
      Without it, such a vocabulary gets no tokenizer.

  Raises:
    FileExistsError: the directory is not empty.
    NotWritten: the folder could not be written, for example because the disk is full.
    WeightsError: `transformers` has no such model, or the parameters, the vocabulary or
      the tokenizer do not fit the config.
  """
  if isinstance(config, BertConfig) and config.attention_mask == "token_type":
    raise WeightsError("Cannot export attention_mask=token_type: transformers has none.")
  if isinstance(config, Gpt2Config) and config.positions != "learned":
    raise WeightsError(
      f"Cannot export positions={config.positions}: transformers has none."
    )
  if vocabulary and len(vocabulary.tokens) > config.vocab_size:
    raise WeightsError(
      f"The vocabulary has {len(vocabulary.tokens)} tokens, more than {config.vocab_size}."
    )
  head = head_of(params)
  kind, expected = names.kind_of(config, head), abstract_params(config, head)
  found, wanted = shapes_of(params), shapes_of(expected)
  if found != wanted:
    different = sorted(map(str, found.items() ^ wanted.items()))
    raise WeightsError(
      f"{kind.model.__name__} has other parameters: {tensors.some(different)}."
    )
  arrays = names.to_tensors(params, kind)
  with whole_folder(directory) as partial:
    try:
      safetensors.numpy.save_file(arrays, partial / WEIGHTS, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
      raise OSError(str(error)) from error
    # Its writer gives a file to its owner alone; others have the mode that is usual here.
    (partial / WEIGHTS).chmod(partial.stat().st_mode & 0o666)
    with (partial / WEIGHTS).open("rb") as file:
      os.fsync(file.fileno())
    longest, types = config.max_position_embeddings, 0
    if isinstance(config, BertConfig) and config.tells_types:
      types = config.type_vocab_size
    is_encoder = not isinstance(config, Gpt2Config)
    if vocabulary and not vocabulary.by_json:
      if isinstance(config, BertConfig):
        write_tokenizer(partial, vocabulary, max_length=longest, token_types=types)
      else:
        write_fast_tokenizer(partial, vocabulary, max_length=longest, is_encoder=is_encoder)
    elif vocabulary and tokenizer:
      copy_files(pathlib.Path(tokenizer), partial, SPLITTING)
      describe_fast(partial, max_length=longest, is_encoder=is_encoder, token_types=types)
    if vocabulary and tokenizer:
      copy_files(pathlib.Path(tokenizer) / ORIGINALS, partial)
    if tokenizer:
      copy_pooling(pathlib.Path(tokenizer), partial)
    if isinstance(config, Gpt2Config):
      about = gpt2_json(config, vocabulary)
    elif isinstance(config, ModernBertConfig):
      about = modern_bert_json(config, head, labels)
    else:
      assert isinstance(config, BertConfig)
      about = bert_json(config, head, vocabulary, labels)
    write_json(partial / CONFIG, about)
