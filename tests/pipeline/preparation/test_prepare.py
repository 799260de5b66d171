"""`python -m pipeline prepare`: its sources, its results and what it prints."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import packing
from packing.commands import inputs
from pipeline.__main__ import main
from pipeline.dataset import open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.preparation.shard_files import ShardSummary
from pipeline.preparation.workers import write_shards
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import document_shards, is_held_out
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import shared_data
from tests.prepared import arguments, command, contents, settings
from tests.stdlib_corpus import make_library


def test_any_number_of_workers_gives_the_same_bytes(corpus, reference, tmp_path):
  assert len(reference.manifest["shards"]["train"]) > 5
  prepare(tmp_path / "d", settings(corpus), num_workers=3)
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_the_manifest_has_the_histogram_and_the_counts(corpus, reference):
  manifest = reference.manifest
  for split in ("train", "held_out"):
    store = getattr(reference, split)
    counts = np.bincount(store.lengths, minlength=62)[1:]
    assert manifest["histograms"][split] == counts.tolist()
    assert manifest["counts"][split]["sequences"] == len(store)
    assert manifest["counts"][split]["tokens"] == store.lengths.sum()
    assert sum(
      len(pa.ipc.open_file(str(reference.directory / name)).read_all())
      for name in manifest["shards"][split]
    ) == len(store)
  assert manifest["source"]["train"]["files"] == 3
  assert manifest["counts"]["documents"] == 132
  assert manifest["counts"]["documents_used"] == 129  # "?" and "..." have no sentences
  lengths, _ = inputs.read_lengths(reference.directory)
  np.testing.assert_array_equal(lengths, reference.train.lengths)


def test_the_store_gathers_across_shards(reference):
  ids = np.random.default_rng(0).permutation(len(reference.train))[:97]
  alone = [reference.train.gather(ids[i : i + 1]) for i in range(97)]
  np.testing.assert_array_equal(reference.train.gather(ids), np.concatenate(alone))


def test_random_next_segments_come_from_the_same_shard_and_split(corpus, tmp_path):
  """Each document has its own words; those of a pair identify its documents."""
  words = [chr(97 + i) * 3 for i in range(26)]
  (tmp_path / "a.txt").write_text(
    "\n\n".join(" ".join([f"{w.title()} {w} {w}."] * 9) for w in words)
  )
  (tmp_path / "vocab").write_text("\n".join([*SPECIAL_TOKENS, *words, "."]) + "\n")
  dataset = prepare(
    tmp_path / "d",
    DatasetSettings(
      str(tmp_path / "a.txt"), 31, vocab_file=str(tmp_path / "vocab"), shard_bytes=600
    ),
  )
  names = dataset.manifest["shards"]["train"]
  assert len(names) > 3
  seen: list[set] = []
  random = 0
  for name in names:
    table = pa.ipc.open_file(str(dataset.directory / name)).read_all()
    tokens = {t for ids in table["input_ids"].to_pylist() for t in ids} - set(range(5))
    seen.append(tokens - {len(SPECIAL_TOKENS) + 26})
    random += sum(table["sequence_label"].to_pylist())
  assert random > 10
  assert all(not a & b for i, a in enumerate(seen) for b in seen[:i])


def test_held_out_documents_are_even_and_random():
  found = [i for i in range(3000) if is_held_out(i, 0.05, 7)]
  assert len(found) == 150
  assert np.bincount(np.array(found) // 200, minlength=15).tolist() == [10] * 15
  assert len({i % 20 for i in found}) == 20
  assert found != [i for i in range(3000) if is_held_out(i, 0.05, 8)]


def test_each_partition_holds_out_other_documents():
  class Partition:
    def read(self):
      yield from (Document({"text": str(index)}) for index in range(200))

  found = []
  for number in (0, 1):
    shards = document_shards(
      Partition(),  # type: ignore[arg-type]
      number,
      split=None,
      held_out_fraction=0.1,
      shard_bytes=100,
      seed=7,
    )
    held_out = [s.documents for s in shards if s.split == "held_out"]
    found.append([d.fields["text"] for documents in held_out for d in documents])
  assert [len(texts) for texts in found] == [20, 20]
  assert found[0] != found[1]


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet", "arrow", "stdlib"])
def test_progress_reaches_its_end(corpus, tmp_path, capsys, suffix):
  path = tmp_path / f"a.{suffix}"
  rows = (corpus / "0.txt").read_text().split("\n\n")
  table = pa.table({"text": rows})
  if suffix == "parquet":
    pa.parquet.write_table(table, path)
  elif suffix == "arrow":
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
      out.write_table(table, max_chunksize=7)
  elif suffix == "jsonl":
    path.write_text("\n".join(json.dumps({"text": row}) for row in rows))
  elif suffix == "txt":
    path.write_text("\n\n".join(rows))
  source = path
  if suffix == "stdlib":
    path.mkdir()
    source = f"stdlib:{make_library(path)}"
  options = [f"--source={source}", "--workers=1", "--shard-bytes=9000"]
  assert main([*arguments(corpus, tmp_path / "d"), *options]) == 0
  shown = capsys.readouterr().err.rpartition("preparing: ")[2]
  assert shown.startswith("100%")
  counts = open_dataset(tmp_path / "d").manifest["counts"]
  tokens = counts["train"]["tokens"] + counts["held_out"]["tokens"]
  assert f"{counts['documents']:,} documents, {tokens:,} tokens" in shown


def test_the_most_frequent_token_is_of_the_training_split(corpus, tmp_path):
  vocabulary = (corpus / "vocab").read_text().splitlines()
  for name, word in (("train", "a"), ("held_out", "b")):
    times = 9 if name == "train" else 99
    (tmp_path / name).write_text("\n\n".join([f"{word} {word} {word}."] * times))
  chosen = settings(
    corpus, source=str(tmp_path / "train"), held_out_source=str(tmp_path / "held_out")
  )
  manifest = prepare(tmp_path / "d", chosen).manifest
  assert vocabulary[manifest["most_frequent_token"]] == "a"


def test_few_shards_are_in_memory_at_a_time():
  taken = 0

  def work():
    nonlocal taken
    for number in range(50):
      taken += 1
      yield ShardSummary(f"train-0-{number}", 1, np.zeros(1), {}, "")

  ahead = [
    taken - given for given, _ in enumerate(write_shards(work(), num_workers=3), start=0)
  ]
  assert len(ahead) == 50
  assert max(ahead) == 3 + 2


def test_a_held_out_source_is_held_out(corpus, tmp_path):
  chosen = settings(
    corpus,
    source=str(corpus / "[01].txt"),
    held_out_source=str(corpus / "2.txt"),
  )
  dataset = prepare(tmp_path / "d", chosen)
  alone = prepare(
    tmp_path / "e", settings(corpus, source=str(corpus / "2.txt"), held_out_fraction=0.0)
  )
  counts = dataset.manifest["counts"]
  assert counts["held_out"]["documents"] == alone.manifest["counts"]["documents_used"]
  assert dataset.manifest["settings"]["held_out_fraction"] == 0.0
  with pytest.raises(packing.InputError, match="without held-out documents"):
    _ = alone.held_out


def test_the_command_prints_its_result_and_does_nothing_twice(corpus, reference, tmp_path):
  first = command(*arguments(corpus, tmp_path / "d"), "--json")
  assert first.returncode == 0, first.stderr
  result = json.loads(first.stdout)
  assert result["counts"] == reference.manifest["counts"]
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / "d").iterdir()}
  again = command(*arguments(corpus, tmp_path / "d"))
  assert again.returncode == 0
  assert "sequences" in again.stdout
  assert "preparing" not in again.stderr
  assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "d").iterdir()}
  other = command(*arguments(corpus, tmp_path / "d", "--seed=1"))
  assert other.returncode == 2
  assert "other settings (seed: 0, now 1)" in other.stderr
  assert len(other.stderr.splitlines()) == 1


def test_a_changed_source_is_refused_but_a_missing_one_is_not(corpus, tmp_path):
  source = tmp_path / "a.txt"
  shutil.copy(corpus / "0.txt", source)
  chosen = settings(corpus, source=str(source))
  made = prepare(tmp_path / "d", chosen).manifest
  source.write_text(source.read_text() + "\n\nOne more. And more.")
  with pytest.raises(
    packing.InputError, match=r"was prepared from 1 files with [\d,]+ byt"
  ):
    prepare(tmp_path / "d", chosen)
  source.unlink()
  assert prepare(tmp_path / "d", chosen).manifest == made


def test_help_teaches(capsys):
  for args, text in (
    (["--help"], "prepare"),
    (["prepare", "--help"], "resumes where it was stopped"),
    (["inspect", "--help"], "--against"),
    (["assign", "--help"], "packs-00000.arrow"),
  ):
    with pytest.raises(SystemExit) as stop:
      main(args)
    assert stop.value.code == 0
    assert text in capsys.readouterr().out
  with pytest.raises(SystemExit) as stop:
    main(["prepare", "--sourc"])
  assert stop.value.code == 2


@pytest.mark.extra
def test_real_text_is_prepared_and_inspected(tmp_path, capsys):
  vocabulary = shared_data.needed("bert-base-uncased-vocab.txt")
  text = shared_data.needed("wikitext-2/valid.txt")
  start = "--documents=start:^ = [^=].*[^=] = $"
  out = tmp_path / "d"
  args = ["prepare", f"--source={text}", start, f"--vocab-file={vocabulary}"]
  assert main([*args, "--max-sequence-length=128", f"--out={out}"]) == 0
  dataset = open_dataset(out)
  assert (
    dataset.manifest["counts"]["documents"] == 61
  )  # articles, and the blank line before
  assert len(dataset.vocabulary) == 30_522
  assert dataset.train.lengths.max() == 128
  capsys.readouterr()
  assert main(["inspect", str(out), "--against", "glue_cola_128"]) == 1
  assert "not equal" in capsys.readouterr().out
  assert main(["inspect", str(out), "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["histograms"]["train"][127] > 100
