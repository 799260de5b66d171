"""`python -m pipeline prepare`: its sources, its results and what it prints."""

import dataclasses
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import packing
from launch.data import check_prepared
from launch.parts import Data
from packing import __main__ as packing_command
from packing.commands import inputs
from pipeline.__main__ import main
from pipeline.dataset import open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.preparation.shard_files import ShardSummary
from pipeline.preparation.workers import write_shards
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import document_shards, is_held_out
from pipeline.sources.partitions import check_splits, source_files
from pipeline.tokenizer import SPECIAL_TOKENS
from tests.prepared import ROOT, arguments, contents, settings


def rows_of(path) -> list[dict]:
  return pa.ipc.open_file(str(path)).read_all().to_pylist()


def test_any_number_of_workers_gives_the_same_bytes(corpus, reference, tmp_path):
  assert len(reference.manifest["shards"]["train"]) > 5
  prepare(tmp_path / "d", settings(corpus), num_workers=3)
  assert contents(tmp_path / "d") == contents(reference.directory)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_stores_hold_pairs_of_segments_and_the_manifest_counts_them(reference, split):
  store, counts = getattr(reference, split), reference.manifest["counts"][split]
  rows = [
    row
    for name in reference.manifest["shards"][split]
    for row in rows_of(reference.directory / name)
  ]
  lengths = [len(row["input_ids"]) for row in rows]
  assert store.lengths.tolist() == lengths
  cls, sep = map(reference.vocabulary.index, ("[CLS]", "[SEP]"))
  for row in rows:
    ids, first = row["input_ids"], row["first_type_length"]
    assert [i for i, token in enumerate(ids) if token == cls] == [0]
    assert [i for i, token in enumerate(ids) if token == sep] == [first - 1, len(ids) - 1]
    assert 2 < first < len(ids) - 1  # neither segment is empty
  tokens = store.gather(np.arange(len(rows)))  # across shards
  assert tokens.tolist() == [token for row in rows for token in row["input_ids"]]
  histogram = np.bincount(lengths, minlength=62)[1:]
  assert reference.manifest["histograms"][split] == histogram.tolist()
  assert (counts["sequences"], counts["tokens"]) == (len(rows), sum(lengths))
  random_next = np.mean([row["sequence_label"] for row in rows])
  assert counts["random_next"] == pytest.approx(random_next)
  assert 0.3 < random_next < 0.8


def test_the_manifest_has_the_settings_the_documents_and_the_vocabulary(corpus, reference):
  manifest, counts = reference.manifest, reference.manifest["counts"]
  given = dataclasses.asdict(settings(corpus))
  assert manifest["settings"] == given | {"too_long": "truncate"}
  assert manifest["source"]["train"]["files"] == 3
  assert counts["documents"] == 132
  assert counts["documents_used"] == 129  # "?" and "..." have no sentences
  assert counts["train"]["documents"] + counts["held_out"]["documents"] == 129
  assert reference.vocabulary == (corpus / "vocab").read_text().splitlines()
  lengths, _ = inputs.read_lengths(reference.directory)
  np.testing.assert_array_equal(lengths, reference.train.lengths)


def test_a_vocabulary_that_is_learned_has_the_size_of_the_settings(corpus, tmp_path):
  chosen = settings(corpus, vocab_file="", vocab_size=64)
  assert len(prepare(tmp_path / "d", chosen, num_workers=1).vocabulary) == 64


def test_the_most_frequent_token_is_a_maskable_one_of_the_training_split(corpus, tmp_path):
  """There are more separators, and more of another token in a source that is held out."""
  for name, words in (("train", "aaaaacdef"), ("held_out", "b" * 99)):
    (tmp_path / name).write_text("\n\n".join(words))
  sources = {"source": tmp_path / "train", "held_out_source": tmp_path / "held_out"}
  chosen = settings(corpus, **{name: str(path) for name, path in sources.items()})
  dataset = prepare(tmp_path / "d", chosen)
  assert dataset.vocabulary[dataset.manifest["most_frequent_token"]] == "a"
  counts = dataset.manifest["counts"]
  assert [counts[split]["documents"] for split in ("train", "held_out")] == [9, 99]
  assert dataset.manifest["settings"]["held_out_fraction"] == 0.0


def test_random_next_segments_come_from_the_same_shard_and_split(corpus, tmp_path):
  """Each document has its own words; those of a pair identify its documents."""
  words = [chr(97 + i) * 3 for i in range(26)]
  texts = [" ".join([f"{w.title()} {w} {w}."] * 9) for w in words]
  (tmp_path / "a.txt").write_text("\n\n".join(texts))
  vocabulary = tmp_path / "vocab"
  vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words, "."]) + "\n")
  fields = {"vocab_file": str(vocabulary), "shard_bytes": 600}
  chosen = DatasetSettings(str(tmp_path / "a.txt"), 31, **fields)
  dataset = prepare(tmp_path / "d", chosen, num_workers=1)
  shards = [rows_of(dataset.directory / n) for n in dataset.manifest["shards"]["train"]]
  assert len(shards) > 3
  assert sum(row["sequence_label"] for rows in shards for row in rows) > 10
  is_word = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + 26)
  seen = [{t for row in rows for t in row["input_ids"] if t in is_word} for rows in shards]
  assert sum(map(len, seen)) == len(set().union(*seen))


def test_held_out_documents_are_even_and_random_in_each_partition():
  class Partition:
    def read(self):
      yield from (Document({"text": str(index)}) for index in range(3000))

  def held_out(number, seed):
    chosen = DatasetSettings("", 9, held_out_fraction=0.05, shard_bytes=100, seed=seed)
    shards = document_shards(chosen, None, number, Partition())  # type: ignore[arg-type]
    groups = (shard.documents for shard in shards if shard.split == "held_out")
    return [int(document.fields["text"]) for group in groups for document in group]

  found = held_out(0, seed=7)
  assert np.bincount(np.array(found) // 200, minlength=15).tolist() == [10] * 15
  assert len({index % 20 for index in found}) == 20
  assert found not in (held_out(1, seed=7), held_out(0, seed=8))


@pytest.mark.parametrize("fraction", [0.03, 0.3, 0.4, 0.7, 0.99])
def test_as_many_documents_are_held_out_as_the_fraction_says(fraction):
  numbers = range(3000)
  found = np.cumsum([is_held_out(number, fraction, 7) for number in numbers])
  assert np.abs(found - fraction * np.arange(1, 3001)).max() < 2


def test_few_shards_are_read_ahead():
  taken = 0

  def work():
    nonlocal taken
    for number in range(50):
      taken += 1
      yield ShardSummary(f"train-0-{number}", 1, np.zeros(1), {}, "")

  given = enumerate(write_shards(work(), num_workers=3))
  ahead = [taken - number for number, _ in given]
  assert len(ahead) == 50
  assert max(ahead) <= 3


def test_progress_shows_partitions_documents_and_tokens(corpus, tmp_path, capsys):
  assert main(arguments(corpus, tmp_path / "d", "--workers=1", "--shard-bytes=9000")) == 0
  shown = capsys.readouterr().err.rpartition("preparing: ")[2]
  counts = open_dataset(tmp_path / "d").manifest["counts"]
  tokens = counts["train"]["tokens"] + counts["held_out"]["tokens"]
  assert f"{counts['documents']} documents" in shown
  assert f"partition 1 of 1, {tokens:,} tokens" in shown


def test_the_command_does_nothing_twice(corpus, reference, tmp_path, capsys):
  assert main(arguments(corpus, tmp_path / "d", "--json")) == 0
  result = json.loads(capsys.readouterr().out)
  assert result["counts"] == reference.manifest["counts"]
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / "d").iterdir()}
  assert main(arguments(corpus, tmp_path / "d")) == 0
  printed = capsys.readouterr()
  assert "sequences" in printed.out
  assert "preparing" not in printed.err
  assert before == {path: path.stat().st_mtime_ns for path in before}
  assert main(arguments(corpus, tmp_path / "d", "--seed=1")) == 2
  error = capsys.readouterr().err
  assert "has other settings (seed: 0, now 1)" in error
  assert len(error.splitlines()) == 1


def test_sources_are_the_same_in_each_spelling(corpus, tmp_path, capsys):
  files, out = [corpus / "0.txt", corpus / "1.txt"], tmp_path / "d"
  spellings = [
    [f"--source={path}" for path in files],
    [f"--source={files[0]},{files[1]}"],
    [f"--source={files[0]}, {files[1]}"],
  ]
  for options in spellings:
    assert main(arguments(corpus, out, *options)) == 0
  assert main(arguments(corpus, out, f"--source={files[1]},{files[0]}")) == 2
  assert "has other settings (source: " in capsys.readouterr().err


def test_a_changed_source_is_refused_but_a_missing_one_is_not(corpus, tmp_path, capsys):
  source = tmp_path / "a.txt"
  shutil.copy(corpus / "0.txt", source)
  chosen = settings(corpus, source=str(source), held_out_fraction=0.0)
  dataset = prepare(tmp_path / "d", chosen)
  with pytest.raises(packing.InputError, match="has no held-out documents"):
    _ = dataset.held_out
  os.utime(source, ns=(0, 10**18))  # as of a copy
  assert prepare(tmp_path / "d", chosen).manifest == dataset.manifest
  assert "WARNING" not in capsys.readouterr().err
  os.utime(source, ns=(0, 2**62))  # another text of the same size
  assert prepare(tmp_path / "d", chosen).manifest == dataset.manifest
  assert "WARNING: a.txt changed after" in capsys.readouterr().err
  source.write_text(source.read_text() + "\n\nOne more. And more.")
  with pytest.raises(
    packing.InputError, match=r"has changed since .* was prepared \([\d,]+ bytes then, "
  ):
    prepare(tmp_path / "d", chosen)
  source.unlink()
  assert prepare(tmp_path / "d", chosen).manifest == dataset.manifest


@pytest.mark.parametrize("change", ["another kind", "compressed", "another header"])
def test_a_changed_source_that_cannot_be_opened_is_not_taken_for_a_missing_one(
  corpus, tmp_path, change
):
  source = tmp_path / "in"
  source.mkdir()
  (source / "a.csv").write_text("sentence,label\na b,x\nc d,y\n")
  chosen = settings(corpus, source=str(source), task="classification", labels="x,y")
  chosen = dataclasses.replace(chosen, held_out_fraction=0.0)
  manifest = prepare(tmp_path / "d", chosen).manifest
  if change == "another kind":
    (source / "b.jsonl").write_text('{"sentence": "e", "label": "x"}\n')
  elif change == "compressed":
    (source / "a.csv.gz").write_bytes(gzip.compress((source / "a.csv").read_bytes()))
  else:
    (source / "a.csv").write_text("text,label\ne f g,y\n")
  with pytest.raises(packing.InputError, match=r"in has changed since .* was prepared \("):
    prepare(tmp_path / "d", chosen)
  shutil.rmtree(source)
  assert prepare(tmp_path / "d", chosen).manifest == manifest


def test_a_folder_of_several_splits_is_refused_when_it_is_prepared_anew(
  corpus, tmp_path, monkeypatch
):
  source = tmp_path / "in"
  source.mkdir()
  for name in ("train-00000-of-00001.txt", "test-00000-of-00001.txt", "testing.txt"):
    shutil.copy(corpus / "0.txt", source / name)
  whole, train = (settings(corpus, source=str(x)) for x in (source, source / "train*"))
  message = (
    r"in holds several splits, .* train-0.* and test-0.*: '.*/in/train\*'\. If .* all"
  )
  with pytest.raises(packing.InputError, match=message):
    prepare(tmp_path / "d", whole)
  assert prepare(tmp_path / "train", train).manifest["source"]["train"]["files"] == 1
  with monkeypatch.context() as before:
    checks = "pipeline.preparation.prepare.check_splits"
    before.setattr(checks, lambda spec, *, trained: None)
    manifest = prepare(tmp_path / "d", whole).manifest
  assert prepare(tmp_path / "d", whole).manifest == manifest
  (source / "test-00000-of-00001.txt").unlink()
  prepare(tmp_path / "rest", whole)  # testing.txt names no split


@pytest.mark.parametrize(
  ("files", "trained", "one", "everything"),
  [
    (("train.csv", "val.csv"), True, "train*", "*.csv"),
    (("train.csv", "val.csv"), False, "val*", "*.csv"),
    (("Training-0.csv.gz", "Dev-0.csv.gz"), True, "Training*", "*.csv.gz"),
    (("train/0.csv", "test/0.csv"), True, "train", "*.csv"),
    (("a/train/0.csv", "a/eval/0.csv"), False, "a/eval", "*.csv"),
    (("dev.csv", "test.csv"), False, "dev*", "*.csv"),
    (("squad-train.arrow", "squad-validation.arrow"), True, "squad-train*", "*.arrow"),
    (("a.train.csv", "a.valid-00-of-01.csv"), False, "a.valid*", "*.csv"),
    (
      ("c4-train.00000-of-01024.jsonl.gz", "c4-val.1.jsonl.gz"),
      True,
      "c4-train*",
      "*.jsonl.gz",
    ),
    (("test.csv", "validation.csv"), True, "test*", "*.csv"),
  ],
)
def test_files_or_folders_of_several_splits_are_told_how_to_be_named(
  tmp_path, files, trained, one, everything
):
  for name in files:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("text,label\n")
  with pytest.raises(packing.InputError) as caught:
    check_splits(str(tmp_path), trained=trained)
  named, whole = re.findall(r": '([^']*)'", str(caught.value))
  assert (named, whole) == (f"{tmp_path}/{one}", f"{tmp_path}/**/{everything}")
  assert len(source_files(named)) == 1
  assert len(source_files(whole)) == 2
  check_splits(named, trained=trained)
  check_splits(whole, trained=trained)


def test_files_of_one_split_in_several_folders_are_one_source(tmp_path):
  names = "a/train.txt", "b/test.txt", "c/val-1.txt", "c/valid-2.txt", "c/trainer.txt"
  about = "Express_train.txt", "Crash_test.txt", "d/a-train-b.csv", "d/b-test-c.csv"
  for name in (*names, *about, "train-1.txt", "training-2.txt", "latest.txt"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a\n")
  check_splits(str(tmp_path), trained=True)


def test_no_file_is_read_twice(corpus, tmp_path):
  folder = tmp_path / "text"
  folder.mkdir()
  for number in range(2):
    shutil.copy(corpus / "0.txt", folder / f"{number}.txt")
  chosen = settings(corpus, source=str(folder), held_out_source=str(folder / "1.txt"))
  with pytest.raises(packing.InputError, match=r"1\.txt is in the source to train on"):
    prepare(tmp_path / "d", chosen)
  (folder / "0.txt.gz").write_bytes(gzip.compress((folder / "0.txt").read_bytes()))
  with pytest.raises(packing.InputError, match=r"0\.txt\.gz is there uncompressed, too"):
    prepare(tmp_path / "d", settings(corpus, source=str(folder)))


def test_a_changed_vocabulary_is_refused_but_a_missing_one_is_not(corpus, tmp_path):
  vocabulary = tmp_path / "vocab.txt"
  shutil.copy(settings(corpus).vocab_file, vocabulary)
  chosen = settings(corpus, vocab_file=str(vocabulary))
  dataset = prepare(tmp_path / "d", chosen)
  vocabulary.write_text(vocabulary.read_text() + "more\n")
  with pytest.raises(packing.InputError, match="another vocabulary"):
    prepare(tmp_path / "d", chosen)
  vocabulary.unlink()
  assert prepare(tmp_path / "d", chosen).manifest == dataset.manifest
  with pytest.raises(
    packing.InputError, match=r"Cannot read the vocabulary .*: No such file"
  ):
    prepare(tmp_path / "new", chosen)


def test_the_folder_may_be_the_current_one(corpus, tmp_path, monkeypatch):
  (tmp_path / "a").mkdir()
  monkeypatch.chdir(tmp_path / "a")
  made = prepare(".", settings(corpus), num_workers=1)
  assert made.directory == tmp_path / "a"
  monkeypatch.chdir(tmp_path / "a")  # the empty one was replaced
  assert prepare(".", settings(corpus)).manifest
  assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
  ("words", "status", "text"),
  [
    ("prepare --help", 0, "resumes where it stopped"),
    ("prepare --source=a --max-sequence-length=9 --out=d extra", 2, "arguments: extra"),
  ],
)
def test_help_teaches_and_unknown_words_are_refused(capsys, words, status, text):
  with pytest.raises(SystemExit) as stop:
    main(words.split())
  assert stop.value.code == status
  printed = capsys.readouterr()
  assert text in (printed.err if status else printed.out)


def test_analyze_takes_the_length_that_a_run_expects(corpus, tmp_path, capsys):
  chosen = settings(corpus, task="sentences", max_sequence_length=900)
  dataset = prepare(tmp_path / "d", chosen, num_workers=1)
  longest = int(dataset.train.lengths.max())
  assert longest < 900

  def run(*words):
    assert packing_command.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)

  found = run("analyze", str(dataset.directory))
  flags = found["flags"]["train"].split()
  assert "--config.data.max_sequence_length=900" in flags
  data = Data(directory="d", task="sentences", max_sequence_length=900)
  check_prepared(data, dataset.manifest["settings"])
  packed = run("pack", *shlex.split(found["flags"]["pack"]))
  assert packed["num_packs"] == found["num_packs"]
  given = f"--max-sequence-length={longest}"
  found = run("analyze", str(dataset.directory), given)
  assert f"--config.data.max_sequence_length={longest}" in found["flags"]["train"]


def test_a_result_that_cannot_be_written_is_an_error(corpus, reference):
  command = [sys.executable, "-m", "pipeline", *arguments(corpus, reference.directory)]
  with open("/dev/full", "w") as full:
    done = subprocess.run(
      command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
    )
  assert done.returncode == 1
  assert done.stderr == "error: Cannot write the result: No space left on device.\n"
