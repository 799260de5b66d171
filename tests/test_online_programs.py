"""train.py packs while it reads: a prepared dataset, or a stream."""

import json

import pytest

from tests import programs
from tests.programs import fields, succeed, summary_of
from tests.test_resume import assert_ends_as

ONLINE = fields("packing.algorithm=online")


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


STREAM = pytest.mark.extra("datasets")


@pytest.fixture(scope="module")
def streamed(folder, documents):
  """A run on a folder of documents, which Hugging Face's datasets reads."""
  write(folder / "stream" / "all.jsonl", documents)
  options = [*ONLINE, f"--config.data.stream=hf:{folder / 'stream'}"]
  return folder / "streamed", succeed(folder, "streamed", *options).stdout


@STREAM
def test_a_stream_is_planned_on_a_sample(streamed):
  workdir, printed = streamed
  assert "These figures are of a sample. Training reads" in printed
  assert "sequences of the sample -> packs" in printed
  summary = summary_of(workdir)
  assert summary["epochs"] is None
  assert summary["recipe"]["packed"]["epochs"] is None


@STREAM
def test_a_run_on_a_stream_is_evaluated_without_it(folder, streamed):
  (folder / "stream").rename(folder / "gone")
  words = ["", programs.ROOT / "eval.py", "streamed", "--json"]
  unpacked = "--config.packing.algorithm=none"
  for options in ([], [unpacked]):
    result = programs.succeeded(programs.complete([*words, *options], folder))
    found = json.loads(result.stdout)["mlm_loss"]
    assert found == pytest.approx(summary_of(streamed[0])["eval_mlm_loss"], rel=1e-4)
  (folder / "gone").rename(folder / "stream")


@STREAM
def test_a_stream_that_is_killed_ends_with_the_same_bits(folder, streamed):
  workdir = folder / "killed_stream"
  options = [*ONLINE, f"--config.data.stream=hf:{folder / 'stream'}"]
  process = programs.begin(folder, workdir.name, *options, **programs.READ_ONLY_CACHE)
  saved = workdir / "checkpoints" / str(programs.SAVED_EVERY)
  programs.wait_for(process, saved.is_dir)
  programs.kill(process)
  result = succeed(folder, workdir.name, *options)
  assert "resuming from step" in result.stdout
  assert_ends_as(workdir, streamed[0])


@STREAM
def test_a_run_on_a_stream_that_ends_too_early_is_saved(folder, documents):
  write(folder / "short" / "few.jsonl", documents[:150])
  options = [*ONLINE, f"--config.data.stream=hf:{folder / 'short'}"]
  ended = programs.run(folder, "short_stream", *options)
  assert ended.returncode == 1
  assert f"hf:{folder / 'short'} ended: saved step" in ended.stderr


def test_a_stream_that_is_not_there_is_refused_before_any_work(folder):
  options = [*ONLINE, *fields("data.stream=nowhere data.directory=never")]
  result = programs.run(folder, "no_stream", *options)
  assert result.returncode == 2
  assert "There is no stream 'nowhere'; expected hf:NAME" in result.stderr
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
