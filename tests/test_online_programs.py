"""train.py packs while it reads: a dataset, a growing folder, standard input."""

import json
import subprocess

import pytest

from tests import programs
from tests.programs import fields, succeed, summary_of
from tests.test_resume import assert_ends_as

ONLINE = fields("packing.algorithm=online packing.open_packs=6 packing.look_ahead=6")
ONLINE += fields("packing.length_multiple=8 packing.separator_tokens=2")


@pytest.fixture(scope="module")
def documents(folder):
  """Texts like those of the sample, one JSON object a line."""
  topics: dict = {}
  for path in sorted((folder / "library").rglob("topics.py")):
    exec(path.read_text(), topics)
  lines = [line for text in topics["topics"].values() for line in text.splitlines()]
  texts = ["\n".join(lines[n : n + 6]) for n in range(0, 3000, 6)]
  return [json.dumps({"text": text}) for text in texts]


def write(path, lines):
  path.parent.mkdir(exist_ok=True)
  path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def streamed(folder, documents):
  """A run on a folder that has all documents from the start."""
  write(folder / "stream" / "all.jsonl", documents)
  options = [*ONLINE, f"--config.data.stream={folder / 'stream'}"]
  return folder / "streamed", succeed(folder, "streamed", *options).stdout


def test_a_stream_is_planned_on_a_sample(streamed):
  workdir, printed = streamed
  assert "These figures are of a sample. Training reads" in printed
  assert "sequences of the sample -> packs" in printed
  summary = summary_of(workdir)
  assert summary["epochs"] is None
  assert summary["recipe"]["packed"]["epochs"] is None


def test_a_run_on_a_stream_is_evaluated_without_it(folder, streamed):
  (folder / "stream").rename(folder / "gone")
  words = ["", programs.ROOT / "eval.py", "streamed", "--json"]
  unpacked = "--config.packing.algorithm=none"
  for options in ([], [unpacked]):
    result = programs.succeeded(programs.complete([*words, *options], folder))
    found = json.loads(result.stdout)["mlm_loss"]
    assert found == pytest.approx(summary_of(streamed[0])["eval_mlm_loss"], rel=1e-4)
  (folder / "gone").rename(folder / "stream")


def test_a_stream_that_is_killed_and_grows_ends_with_the_same_bits(
  folder, documents, streamed
):
  """Read from another split of the documents into files, some of them written later."""
  stream, workdir = folder / "growing", folder / "killed_stream"
  few = 70  # of 500; enough for more steps than are saved, and not for all
  write(stream / "1.jsonl", documents[:few])
  options = [*ONLINE, f"--config.data.stream={stream}"]
  options += fields("data.stream_wait=4")
  process = programs.begin(folder, workdir.name, *options, **programs.READ_ONLY_CACHE)
  saved = workdir / "checkpoints" / str(programs.SAVED_EVERY)
  programs.wait_for(process, saved.is_dir)
  programs.kill(process)
  paused = programs.run(folder, workdir.name, *options)
  assert paused.returncode == 1
  assert "gave no batch for 4 seconds: saved step" in paused.stderr
  write(stream / "2.jsonl", documents[few:])
  result = succeed(folder, workdir.name, *options)
  assert "resuming from step" in result.stdout
  assert_ends_as(workdir, streamed[0])


def test_standard_input_is_trained_on(folder, documents, streamed):
  (folder / "typed").write_text("".join(f"{line}\n" for line in documents))
  words = programs.command(folder, "from_input", *ONLINE, "--config.data.stream=-")
  with (folder / "typed").open() as typed:
    done = subprocess.run(words, cwd=folder, stdin=typed, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-3000:]
  assert_ends_as(folder / "from_input", streamed[0])


def test_a_stream_that_is_not_there_is_refused_before_any_work(folder):
  options = [*ONLINE, *fields("data.stream=nowhere data.directory=never")]
  result = programs.run(folder, "no_stream", *options)
  assert result.returncode == 2
  assert "There is no stream 'nowhere'; expected - for standard input" in result.stderr
  assert not (folder / "never").exists()


@pytest.mark.slow
def test_a_dataset_that_is_packed_while_it_is_read_resumes(folder):
  whole = folder / "online"
  succeed(folder, "online", *ONLINE)
  assert summary_of(whole)["epochs"] > 0
  process = programs.begin(folder, "online_killed", *ONLINE, **programs.READ_ONLY_CACHE)
  saved = folder / "online_killed" / "checkpoints" / str(programs.SAVED_EVERY)
  programs.wait_for(process, saved.is_dir)
  programs.kill(process)
  result = succeed(folder, "online_killed", *ONLINE)
  assert "resuming from step" in result.stdout
  assert_ends_as(folder / "online_killed", whole)
