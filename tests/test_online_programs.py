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
  words = programs.command(folder, workdir.name, *options)
  programs.kill_once_saved(words, folder, workdir)
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


@pytest.fixture
def two_on_a_stream(folder, documents, request):
  """Starts two processes of a run on a stream of two files."""

  def begin(workdir, lines=documents, **variables):
    for number in range(2):
      write(folder / f"of_{workdir}" / f"{number}.jsonl", lines[number::2])
    options = [*ONLINE, f"--config.data.stream=hf:{folder / f'of_{workdir}'}"]
    command = programs.command(folder, workdir, *options)
    return programs.begin_two(command, folder, request, **variables)

  return begin


@STREAM
@pytest.mark.slow
def test_two_processes_on_a_stream_are_killed_and_end_with_the_same_bits(
  folder, two_on_a_stream
):
  for workdir in ("whole_pair", "killed_pair"):
    cache = programs.READ_ONLY_CACHE if workdir == "killed_pair" else {}
    processes = two_on_a_stream(workdir, **cache)
    if workdir == "killed_pair":
      saved = folder / workdir / "checkpoints" / str(programs.SAVED_EVERY)
      programs.wait_for(processes[0], saved.is_dir)
      for process in processes:
        programs.kill(process)
      assert {path.name for path in saved.glob("parts/*.json")} == {"0.json", "1.json"}
      processes = two_on_a_stream(workdir)
    (printed, errors), (_, others) = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], (errors, others)
    assert "Each of 2 processes reads 1 of the 2 shards of hf:" in printed
  assert "resuming from step" in printed
  assert_ends_as(folder / "killed_pair", folder / "whole_pair")


@STREAM
@pytest.mark.slow
def test_processes_on_a_stream_end_together(folder, documents, two_on_a_stream):
  for name, lines, status, told in (
    ("short_pair", documents[:200], {1}, ["of_short_pair ended: saved step"] * 2),
    (
      "failed_pair",
      [*documents[:49], json.dumps({"words": "a"}), *documents[50:]],
      {1, 2},
      ["Another process failed; its message says why", "part 1 of 2 cannot be read"],
    ),
  ):
    processes = two_on_a_stream(name, lines)
    errors = [process.communicate()[1] for process in processes]
    assert {process.returncode for process in processes} == status
    for error, text in zip(errors, told, strict=True):
      assert text in error
      assert "Traceback" not in error


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
  words = programs.command(folder, "online_killed", *ONLINE)
  programs.kill_once_saved(words, folder, folder / "online_killed")
  result = succeed(folder, "online_killed", *ONLINE)
  assert "resuming from step" in result.stdout
  assert_ends_as(folder / "online_killed", whole)
