"""`python -m pipeline prepare` as a whole: workers, kills, full disks, bad input, Beam."""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import packing
from packing import inputs
from pipeline import ranks, textfiles
from pipeline.__main__ import main
from pipeline.assignments import read_assignment, write_assignment
from pipeline.dataset import open_dataset, prepare
from pipeline.documents import is_held_out
from pipeline.settings import Settings
from pipeline.wordpiece import SPECIAL_TOKENS
from tests import shared_data
from tests.tfds_data import sentence

ROOT = pathlib.Path(__file__).parents[2]
SHARD_BYTES = 5_000
needs_beam = pytest.mark.skipif(
  importlib.util.find_spec("apache_beam") is None,
  reason='Apache Beam is not installed; pip install -c requirements.lock -e ".[beam]"',
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Three text files of 130 documents in all, and a vocabulary."""
  folder = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(0)
  for number in range(3):
    documents = [
      "\n".join(sentence(rng) for _ in range(rng.integers(1, 31))) for _ in range(43)
    ]
    documents += ["?"] if number else ["", "..."]
    (folder / f"{number}.txt").write_text("\n\n".join(documents))
  letters = "abcdefghijklmnopqrstuvwxyz"
  words = [*letters, *(f"##{letter}" for letter in letters), "the", "cat", "."]
  (folder / "vocab").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
  return folder


def settings(corpus, **fields) -> Settings:
  chosen: dict = {
    "source": str(corpus),
    "max_sequence_length": 61,
    "vocab_file": str(corpus / "vocab"),
    "held_out_fraction": 0.2,
    "shard_bytes": SHARD_BYTES,
    "dupe_factor": 2,
  }
  return Settings(**chosen | fields)


@pytest.fixture(scope="module")
def reference(corpus, tmp_path_factory):
  """Prepared by this process alone."""
  return prepare(tmp_path_factory.mktemp("one") / "d", settings(corpus), num_workers=1)


def arguments(corpus, out, *more) -> list[str]:
  fields = settings(corpus)
  names = ("source", "max_sequence_length", "vocab_file", "held_out_fraction")
  names = (*names, "shard_bytes", "dupe_factor")  # type: ignore[assignment]
  options = [f"--{n.replace('_', '-')}={getattr(fields, n)}" for n in names]
  return ["prepare", "--out", str(out), *options, *map(str, more)]


def command(*args, **options) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, "-m", "pipeline", *map(str, args)],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
    **options,
  )


def contents(folder) -> dict:
  return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def test_any_number_of_workers_gives_the_same_bytes(corpus, reference, tmp_path):
  assert len(reference.manifest["shards"]["train"]) > 5
  prepare(tmp_path / "d", settings(corpus), num_workers=3)
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_the_manifest_tells_the_histogram_and_the_counts(corpus, reference):
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
  assert manifest["counts"]["documents_used"] == 129  # of "?" and "..." nothing is left
  lengths, _ = inputs.read_lengths(reference.directory)
  np.testing.assert_array_equal(lengths, reference.train.lengths)


def test_the_store_gathers_across_shards(reference):
  ids = np.random.default_rng(0).permutation(len(reference.train))[:97]
  alone = [reference.train.gather(ids[i : i + 1]) for i in range(97)]
  np.testing.assert_array_equal(reference.train.gather(ids), np.concatenate(alone))


def test_random_next_segments_come_from_the_same_shard_and_split(corpus, tmp_path):
  """Each document has words of its own; those of a pair tell where it is from."""
  words = [chr(97 + i) * 3 for i in range(26)]
  (tmp_path / "a.txt").write_text(
    "\n\n".join(" ".join([f"{w.title()} {w} {w}."] * 9) for w in words)
  )
  (tmp_path / "vocab").write_text("\n".join([*SPECIAL_TOKENS, *words, "."]) + "\n")
  dataset = prepare(
    tmp_path / "d",
    Settings(
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


def test_the_command_prints_what_it_made_and_repeats_nothing(corpus, reference, tmp_path):
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


def test_a_source_that_changed_is_refused_and_one_that_is_gone_is_not(corpus, tmp_path):
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


def test_a_killed_prepare_goes_on_and_its_workers_end(corpus, reference, tmp_path):
  process = subprocess.Popen(
    [sys.executable, "-m", "pipeline", *arguments(corpus, tmp_path / "d", "--workers=2")],
    cwd=ROOT,
    stderr=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
  )
  partial = tmp_path / ".d.partial"
  deadline = time.monotonic() + 60
  while len(list(partial.glob("*.summary.npz"))) < 3:
    assert time.monotonic() < deadline
    assert process.poll() is None
    time.sleep(0.001)
  workers = subprocess.run(
    ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=False
  ).stdout.split()
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert not (tmp_path / "d").exists()
  kept = {p.name: p.stat().st_mtime_ns for p in partial.glob("train-*.summary.npz")}
  assert kept
  while any(_runs(int(pid)) for pid in workers):
    assert time.monotonic() < deadline
    time.sleep(0.01)

  copies = shutil.copytree(partial, tmp_path / "kept")
  chosen = settings(corpus)
  prepare(tmp_path / "d", chosen, num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert not partial.exists()

  # With other settings the rest of a killed one is no use, and is not mixed in.
  shutil.copytree(copies, tmp_path / ".e.partial")
  other = prepare(tmp_path / "e", settings(corpus, seed=1), num_workers=1)
  clean = prepare(tmp_path / "f", settings(corpus, seed=1), num_workers=1)
  assert contents(other.directory) == contents(clean.directory)


def test_workers_that_outlive_a_prepare_are_waited_for(corpus, tmp_path):
  """Those of a killed one, with other settings, which are held up for a while."""
  start = [sys.executable, "-m", "pipeline"]
  first = subprocess.Popen(
    [*start, *arguments(corpus, tmp_path / "d", "--workers=2")],
    cwd=ROOT,
    stderr=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
  )
  deadline = time.monotonic() + 60
  while not list((tmp_path / ".d.partial").glob("*.summary.npz")):
    assert time.monotonic() < deadline
    assert first.poll() is None
    time.sleep(0.001)
  first.send_signal(signal.SIGSTOP)
  workers = subprocess.run(
    ["ps", "-o", "pid=", "--ppid", str(first.pid)], capture_output=True, check=False
  ).stdout.split()
  assert workers
  for pid in map(int, workers):
    os.kill(pid, signal.SIGSTOP)
  first.kill()
  first.wait()
  try:
    second = subprocess.Popen(
      [*start, *arguments(corpus, tmp_path / "d", "--workers=2", "--seed=1")],
      cwd=ROOT,
      stderr=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
    )
    assert second.stderr is not None
    told = second.stderr.readline()
  finally:
    for pid in map(int, workers):
      os.kill(pid, signal.SIGCONT)
  _, errors = second.communicate(timeout=60)
  assert "or its last workers" in told
  assert second.returncode == 0, errors
  clean = prepare(tmp_path / "e", settings(corpus, seed=1), num_workers=1)
  assert contents(tmp_path / "d") == contents(clean.directory)


def _runs(pid: int) -> bool:
  with contextlib.suppress(OSError):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
  return False


def test_what_is_written_is_not_written_again(corpus, tmp_path, monkeypatch):
  from pipeline import shards

  write, calls = shards.write_sequences, []

  def failing(path, rows, **options):
    calls.append(path.name)
    if len(calls) == 4:
      raise OSError(28, "No space left on device")
    return write(path, rows, **options)

  monkeypatch.setattr(shards, "write_sequences", failing)
  with pytest.raises(OSError, match="No space left"):
    prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert not (tmp_path / "d").exists()
  made = len(calls)
  dataset = prepare(tmp_path / "d", settings(corpus), num_workers=1)
  shards_made = sum(map(len, dataset.manifest["shards"].values()))
  assert len(calls) - made == shards_made - 3


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
  """What is left of a preparation that ended at the fourth shard."""
  from pipeline import shards

  folder, calls = tmp_path_factory.mktemp("stopped"), []

  def failing(path, rows, **options):
    calls.append(path)
    if len(calls) == 4:
      raise OSError(28, "No space left on device")
    return write(path, rows, **options)

  write = shards.write_sequences
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, "write_sequences", failing)
    with pytest.raises(OSError, match="No space left"):
      prepare(folder / "d", settings(corpus), num_workers=1)
  return folder / ".d.partial"


@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
@pytest.mark.parametrize("pattern", ["train-*.arrow", "train-*.summary.npz"])
def test_a_shard_that_was_damaged_meanwhile_is_written_again(
  corpus, reference, stopped, tmp_path, pattern, damage
):
  shutil.copytree(stopped, tmp_path / ".d.partial")
  path = min((tmp_path / ".d.partial").glob(pattern))
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content if damage == "altered" else b"")
  if damage == "gone":
    path.unlink()
  prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_a_shard_that_is_damaged_last_does_not_end_in_a_dataset(
  corpus, reference, tmp_path, monkeypatch
):
  from pipeline import preparation

  write = preparation.write

  def damaging(directory, *args, **options):
    manifest = write(directory, *args, **options)
    min(directory.glob("train-*.arrow")).write_bytes(b"")
    return manifest

  with monkeypatch.context() as patch:
    patch.setattr(preparation, "write", damaging)
    with pytest.raises(OSError, match="arrow is not what was written to it"):
      prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert not (tmp_path / "d").exists()
  prepare(tmp_path / "d", settings(corpus), num_workers=1)
  assert contents(tmp_path / "d") == contents(reference.directory)


@pytest.mark.parametrize(
  "options",
  [
    ["--workers=1"],
    ["--workers=2"],
    pytest.param(["--runner=DirectRunner"], marks=needs_beam),
  ],
)
def test_a_full_disk_is_told_and_goes_on_later(corpus, reference, tmp_path, options):
  """A limit on the size of a file stands for the full disk."""
  limit = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    "runpy.run_module('pipeline', run_name='__main__', alter_sys=True)"
  )
  args = arguments(corpus, tmp_path / "d", *options)
  result = subprocess.run(
    [sys.executable, "-c", limit, *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1, result.stderr
  assert "Make room, and run the same command again" in result.stderr
  assert "Traceback" not in result.stderr
  assert not (tmp_path / "d").exists()
  assert main(args) == 0
  assert contents(tmp_path / "d") == contents(reference.directory)


def test_two_processes_make_one_dataset(corpus, reference, tmp_path):
  start = [sys.executable, "-m", "pipeline", *arguments(corpus, tmp_path / "d")]
  both = [
    subprocess.Popen(start, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(2)
  ]
  outputs = [process.communicate(timeout=120) for process in both]
  assert [process.returncode for process in both] == [0, 0], outputs
  assert contents(tmp_path / "d") == contents(reference.directory)
  assert [path.name for path in tmp_path.iterdir()] == ["d"]


# ---- bad input -------------------------------------------------------------------------


def one_gigabyte_line(path):
  """A long line; reading stops at the limit, whatever follows."""
  with path.open("wb") as file:
    file.write(b"word " * (textfiles.MAX_DOCUMENT_BYTES // 5 + 1))
    file.truncate(10**9)  # a hole, which takes no space


BAD_TEXT = {
  "empty": (
    lambda path: path.write_text(" \n\n \n"),
    "gave 0 and 0 that can be used, of 0",
  ),
  "only marks": (lambda path: path.write_text("?\n\n!\n"), "of 2 in all"),
  "one line": (one_gigabyte_line, r"line 1: a document is longer than 16,777,216 bytes"),
  "binary": (lambda path: path.write_bytes(bytes(range(256)) * 9), "is a binary file"),
  "utf-8": (
    lambda path: path.write_bytes(b"a\n\nb\ncaf\xe9\n"),
    r"line 4 is no UTF-8: byte 233 at 3",
  ),
}


@pytest.mark.parametrize("case", BAD_TEXT)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_refused_and_nothing_is_left(corpus, tmp_path, capsys, case, workers):
  write, message = BAD_TEXT[case]
  (tmp_path / "in").mkdir()
  write(tmp_path / "in" / "bad.txt")
  args = arguments(corpus, tmp_path / "out" / "d", f"--workers={workers}")
  args.append(f"--source={tmp_path / 'in'}")
  assert main(args) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("error: ")
  assert message in error
  assert list((tmp_path / "out").iterdir()) == []


BAD_FILES = {
  "no column": ("a.parquet", {"content": ["A b."]}, "has no column 'text'; found content"),
  "numbers for text": ("a.parquet", {"text": [1, 2]}, "is int64; expected text"),
  "tokens for text": ("a.parquet", {"text": [[1], [2]]}, "use --task tokens"),
  "no parquet": ("a.parquet", b"PAR1 no", "is no parquet file"),
  "no arrow": ("a.arrow", b"no arrow", "is no arrow file"),
  "no json": ("a.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 is no JSON"),
  "a list": ("a.jsonl", b"[1]\n", "line 1 holds a list"),
  "no field": ("a.jsonl", b'{"txt": "a"}\n', "line 1 has no 'text'; found txt"),
  "half a character": ("a.jsonl", b'{"text": "a\\ud800"}\n', "half of a character"),
  "a number": ("a.jsonl", b'{"text": 3}\n', "text is 3; expected a string"),
  "squad": ("a.json", b'{"data": 3}', "for --task squad"),
  "nothing known": ("a.xyz", b"", "holds no file ending in .arrow"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_and_nothing_is_left(corpus, tmp_path, capsys, case):
  name, content, message = BAD_FILES[case]
  (tmp_path / "in").mkdir()
  if isinstance(content, dict):
    pa.parquet.write_table(pa.table(content), tmp_path / "in" / name)
  else:
    (tmp_path / "in" / name).write_bytes(content)
  args = [*arguments(corpus, tmp_path / "out" / "d"), f"--source={tmp_path / 'in'}"]
  assert main(args) == 2
  assert message in capsys.readouterr().err.splitlines()[-1]
  assert not list(tmp_path.glob("out/*"))


def test_a_damaged_parquet_file_is_told_by_row(corpus, tmp_path, capsys):
  path = tmp_path / "a.parquet"
  pa.parquet.write_table(
    pa.table({"text": ["A b. C d."] * 5000}), path, compression="zstd", row_group_size=100
  )
  content = bytearray(path.read_bytes())
  content[len(content) // 3 : len(content) // 3 + 40] = b"\xff" * 40
  path.write_bytes(content)
  assert main([*arguments(corpus, tmp_path / "d"), f"--source={path}"]) == 2
  assert "is damaged after row" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--out=/proc/here/d"], "The dataset cannot be written"),
    (["--out={corpus}/0.txt"], "is no prepared dataset"),
    (["--out={corpus}"], "is no prepared dataset"),
    (["--source={corpus}/none.txt"], "There is no data source"),
    (["--source={corpus}#dev"], "has no splits"),
    (["--source=stdlib", "--task=glue/cola"], "Source stdlib has text; the task needs"),
    (["--task=glue/nope"], "There is no task 'glue/nope'; expected one of pretraining"),
    (["--columns=label=x"], "columns names 'label'; the task pretraining has the fields"),
    (["--columns=x"], "expected FIELD=NAME"),
    (["--documents=page"], "expected blank-line, line, file or start:REGEX"),
    (["--documents=start:("], "is no regular expression"),
    (["--max-sequence-length=4"], "max_sequence_length is 4; expected at least 5"),
    (["--dupe-factor=0"], "dupe_factor is 0"),
    (["--held-out-fraction=1"], "expected a fraction in [0, 1)"),
    (["--vocab-file=/none"], "Expected a vocabulary file"),
    (["--task=tokens", "--vocab-file="], "expected the vocabulary they belong to"),
    (["--workers=0"], "--workers is 0"),
  ],
)
def test_mistakes_are_told_in_a_line_before_any_work(
  corpus, tmp_path, capsys, options, message
):
  before = contents(corpus)
  given = [option.format(corpus=corpus) for option in options]
  assert main([*arguments(corpus, tmp_path / "d"), *given]) == 2
  error = capsys.readouterr().err
  assert message in error
  assert len(error.splitlines()) == 1
  assert contents(corpus) == before
  assert not list(tmp_path.iterdir())


def test_help_teaches(capsys):
  for args, text in (
    (["--help"], "prepare"),
    (["prepare", "--help"], "goes on where it was stopped"),
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


@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
def test_a_shard_that_is_not_what_was_written_is_found(reference, tmp_path, damage):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  path = folder / reference.manifest["shards"]["train"][3]
  content = bytearray(path.read_bytes())
  if damage == "cut":
    path.write_bytes(content[:-100])
  elif damage == "gone":
    path.unlink()
  else:
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  with pytest.raises(packing.InputError, match=rf"{path.name} is missing or was altered"):
    open_dataset(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable_is_told(corpus, tmp_path, capsys):
  (tmp_path / "out").mkdir(mode=0o555)
  assert main(arguments(corpus, tmp_path / "out" / "d")) == 2
  assert "cannot be written" in capsys.readouterr().err


# ---- real data -------------------------------------------------------------------------


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


# ---- assignments and Beam --------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000])
def test_ranks_are_permuted(count):
  found = ranks.permute(np.arange(count), count, key=3)
  assert sorted(found.tolist()) == list(range(count))
  part = ranks.permute(np.arange(count)[count // 2 :], count, key=3)
  np.testing.assert_array_equal(part, found[count // 2 :])
  if count == 1000:
    assert (found != ranks.permute(np.arange(count), count, key=4)).mean() > 0.9
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.15


def test_shards_assigned_apart_are_the_whole_assignment(reference, tmp_path):
  plan = write_assignment(
    reference.directory, tmp_path / "a", max_sequences_per_pack=3, seed=5
  )
  found = read_assignment(tmp_path / "a")
  whole = ranks.assign(plan, reference.train.lengths, seed=5)
  np.testing.assert_array_equal(found.offsets, whole.offsets)
  np.testing.assert_array_equal(found.sequence_ids, whole.sequence_ids)
  np.testing.assert_array_equal(
    np.sort(found.sequence_ids), np.arange(len(reference.train))
  )
  lengths = reference.train.lengths[found.sequence_ids]
  packs = [tuple(p) for p in np.split(lengths.tolist(), found.offsets[1:-1])]
  expected = [
    tuple(s)
    for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(n)
  ]
  assert packs == expected
  with pytest.raises(packing.InputError, match="is there already"):
    write_assignment(reference.directory, tmp_path / "a")


@needs_beam
def test_beam_gives_the_same_bytes_plan_and_packs(corpus, reference, tmp_path):
  from pipeline.beam import BeamRunner

  runner = BeamRunner("DirectRunner")
  dataset = prepare(tmp_path / "d", settings(corpus), runner=runner)
  assert contents(dataset.directory) == contents(reference.directory)
  here = write_assignment(reference.directory, tmp_path / "here", seed=5)
  there = write_assignment(dataset.directory, tmp_path / "there", seed=5, runner=runner)
  assert here.certificate() == there.certificate()
  assert contents(tmp_path / "here").keys() == contents(tmp_path / "there").keys()
  for name in ("packs-00000.arrow", "plan.json"):
    assert contents(tmp_path / "here")[name] == contents(tmp_path / "there")[name]


@needs_beam
def test_beam_tells_a_disk_without_space_for_the_error(corpus, tmp_path, monkeypatch):
  from pipeline import shards
  from pipeline.beam import BeamRunner

  def full(*args, **options):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(shards, "write_sequences", full)
    patch.setattr(pathlib.Path, "write_text", lambda path, text: path.touch() or full())
    patch.setattr("pipeline.dataset._start_or_go_on", lambda *args: None)
    with pytest.raises(OSError, match="No space left") as stop:
      prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))
  assert stop.value.errno == 28
  prepare(tmp_path / "d", settings(corpus), runner=BeamRunner("DirectRunner"))


@needs_beam
def test_beam_tells_bad_input_as_the_local_run_does(corpus, tmp_path, capsys):
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "bad.txt").write_bytes(b"a\n\nb\ncaf\xe9\n")
  args = [*arguments(corpus, tmp_path / "d"), f"--source={tmp_path / 'in'}"]
  assert main([*args, "--runner=DirectRunner"]) == 2
  assert "line 4 is no UTF-8" in capsys.readouterr().err
  assert main([*args, "--runner=NoRunner"]) == 2
  assert "Beam cannot make the runner 'NoRunner'" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_without_beam_the_error_says_how_to_get_it(corpus, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  assert main([*arguments(corpus, tmp_path / "d"), "--runner=DirectRunner"]) == 2
  assert 'pip install -c requirements.lock -e ".[beam]"' in capsys.readouterr().err
