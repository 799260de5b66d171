"""From a corpus to a prepared dataset: a folder of sequences that is whole or not there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np
import tqdm

from packing import InputError
from pipeline import corpus, pretraining, wordpiece
from pipeline.store import SequenceStore, StoredSequence, write_sequences

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a prepared dataset depends on. Fields as in `configs/base.py`, group `data`."""

  source: str
  max_sequence_length: int
  vocab_size: int
  vocab_file: str
  min_sentences: int
  held_out_fraction: float
  short_sequence_probability: float
  seed: int


@dataclasses.dataclass(frozen=True)
class PreparedDataset:
  """A prepared dataset, opened.

  Attributes:
    train: sequences to train on.
    held_out: sequences of documents that neither the vocabulary nor the training saw.
    vocabulary: tokens in the order of their ids.
    manifest: settings and counts, as in `manifest.json`.
  """

  train: SequenceStore
  held_out: SequenceStore
  vocabulary: list[str]
  manifest: dict


def open_dataset(directory: str | pathlib.Path) -> PreparedDataset:
  """Opens a folder that `prepare` wrote.

  Raises:
    InputError: the folder is not a prepared dataset, or a file of it was altered.
  """
  directory = pathlib.Path(directory)
  try:
    manifest = json.loads((directory / MANIFEST).read_text())
    digests = manifest["sha256"].items()
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise InputError(
      f"{directory} is no prepared dataset ({error!r}). Name another folder with "
      "--config.data.directory=DIR, or delete this one if nothing in it is needed."
    ) from error
  for name, digest in digests:
    if not (directory / name).is_file() or _sha256(directory / name) != digest:
      raise InputError(
        f"{directory / name} is missing or was altered since it was prepared. Delete "
        f"{directory} and prepare it again."
      )
  return PreparedDataset(
    train=SequenceStore(directory / "train.arrow"),
    held_out=SequenceStore(directory / "held_out.arrow"),
    vocabulary=wordpiece.read_vocabulary(directory / "vocab.txt"),
    manifest=manifest,
  )


def prepare(directory: str | pathlib.Path, settings: Settings) -> PreparedDataset:
  """Prepares a dataset, or opens it where that is done already.

  Everything is written to a folder beside the final one and renamed at the end, so a
  killed run leaves nothing that looks whole.

  Args:
    directory: where the dataset is, or shall be.
    settings: what to prepare.

  Raises:
    InputError: the folder holds something else, or the corpus cannot be used.
  """
  directory = pathlib.Path(directory)
  if _is_there(directory):
    return _open_same(directory, settings)
  try:
    _sweep(directory)
    partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
  except OSError as error:
    raise InputError(
      f"The dataset cannot be written: {error}. Name another folder with "
      "--config.data.directory=DIR."
    ) from error
  try:
    _write(partial, settings)
    os.rename(partial, directory)
  except OSError:
    if not _is_there(directory):
      raise
    return _open_same(directory, settings)  # another process was faster
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return open_dataset(directory)


def _is_there(directory: pathlib.Path) -> bool:
  return directory.exists() and any(directory.iterdir())


def _sweep(directory: pathlib.Path):
  """Removes what killed preparations of this folder left behind."""
  for partial in directory.parent.glob(f".{directory.name}.partial-*"):
    try:
      os.kill(int(partial.name.rpartition("-")[2]), 0)
    except ProcessLookupError:
      shutil.rmtree(partial)


def _open_same(directory: pathlib.Path, settings: Settings) -> PreparedDataset:
  dataset = open_dataset(directory)
  _check_same(directory, dataset.manifest["settings"], dataclasses.asdict(settings))
  if settings.vocab_file:
    given = wordpiece.read_vocabulary(settings.vocab_file)
    if given != dataset.vocabulary:
      raise InputError(
        f"{directory} was prepared with another vocabulary than {settings.vocab_file} "
        "holds now. Delete the folder, or name another with --config.data.directory=DIR."
      )
  return dataset


def _check_same(directory: pathlib.Path, found: dict, expected: dict):
  differences = [
    f"{name}: {found.get(name)!r}, now {value!r}"
    for name, value in expected.items()
    if found.get(name) != value
  ]
  if differences:
    raise InputError(
      f"{directory} was prepared with other settings ({'; '.join(differences)}). Delete "
      "it, or name another folder with --config.data.directory=DIR."
    )


def _documents(source: str) -> Iterator[list[str]]:
  kind, _, root = source.partition(":")
  if kind != "stdlib":
    raise InputError(
      f"There is no data source {source!r}; expected 'stdlib' or 'stdlib:FOLDER'."
    )
  return corpus.standard_library_documents(root or None)


def _write(directory: pathlib.Path, settings: Settings):
  source = _documents(settings.source)
  documents = list(tqdm.tqdm(source, "reading documents", unit=" documents"))
  num_documents = len(documents)
  documents = [d for d in documents if len(d) >= settings.min_sentences]

  # Split off what is held out before anything is learned from the rest.
  order = np.random.default_rng(settings.seed).permutation(len(documents))
  num_held_out = round(settings.held_out_fraction * len(documents))
  if num_held_out < 2 or len(documents) - num_held_out < 2:
    raise InputError(
      f"Expected at least 2 documents to train on and 2 to hold out; {settings.source} "
      f"has {len(documents)} documents of at least {settings.min_sentences} sentences, "
      f"and held_out_fraction={settings.held_out_fraction} holds out {num_held_out}."
    )
  held_out = [documents[i] for i in order[:num_held_out]]
  train = [documents[i] for i in order[num_held_out:]]

  if settings.vocab_file:
    vocabulary = wordpiece.read_vocabulary(settings.vocab_file)
  else:
    sentences = (sentence for document in train for sentence in document)
    vocabulary = wordpiece.train_vocabulary(sentences, vocab_size=settings.vocab_size)
  (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")

  counts: dict = {"documents": num_documents, "documents_used": len(documents)}
  for split, texts_of_split in (("train", train), ("held_out", held_out)):
    sequences = _sequences(texts_of_split, vocabulary, settings, split)
    write_sequences(directory / f"{split}.arrow", sequences)
    store = SequenceStore(directory / f"{split}.arrow")
    counts[split] = {
      "documents": len(texts_of_split),
      "sequences": len(store),
      "tokens": int(store.lengths.sum()),
      "random_next": float(store.sequence_labels.mean()),
    }
  manifest = {
    "settings": dataclasses.asdict(settings),
    "counts": counts,
    "most_frequent_token": _most_frequent_token(directory / "train.arrow", vocabulary),
    "sha256": {path.name: _sha256(path) for path in sorted(directory.iterdir())},
  }
  (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _sequences(
  texts: list[list[str]], vocabulary: list[str], settings: Settings, split: str
) -> Iterator[StoredSequence]:
  tokenizer = wordpiece.make_tokenizer(vocabulary)
  documents = []
  for document in texts:
    encoded = tokenizer.encode_batch_fast(document, add_special_tokens=False)
    if sentences := [e.ids for e in encoded if e.ids]:
      documents.append(sentences)
  cls, sep = vocabulary.index(wordpiece.CLS), vocabulary.index(wordpiece.SEP)
  numbers = tqdm.trange(len(documents), desc=f"cutting {split}", unit=" documents")
  for index in numbers:
    for pair in pretraining.segment_pairs(
      documents,
      index,
      max_sequence_length=settings.max_sequence_length,
      short_sequence_probability=settings.short_sequence_probability,
      seed=settings.seed,
    ):
      input_ids = [cls, *pair.a, sep, *pair.b, sep]
      yield StoredSequence(input_ids, len(pair.a) + 2, pair.is_random_next)


def _most_frequent_token(path: pathlib.Path, vocabulary: list[str]) -> int:
  """The id that a unigram model predicts: the commonest of those that are hidden."""
  store = SequenceStore(path)
  tokens = np.bincount(store.gather(np.arange(len(store))), minlength=len(vocabulary))
  tokens[[vocabulary.index(token) for token in wordpiece.NEVER_MASKED]] = 0
  return int(tokens.argmax())


def _sha256(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
