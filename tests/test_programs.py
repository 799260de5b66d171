"""train.py and eval.py as whole programs, in processes of their own."""

import datetime
import json
import re
import resource
import shutil

import pytest

import packing
import pipeline
from launch.record.parameters import parameters_digest
from model import weights
from model.__main__ import main as model_command
from pipeline.dataset import open_dataset
from tests import forked, prepared, programs
from tests.programs import ROOT, STEPS, fields, lines_of, run, succeed, summary_of


def test_a_run_leaves_everything_that_the_contract_names(finished):
  workdir, output = finished
  summary = summary_of(workdir)
  assert (summary["steps"], summary["compilations"]) == (STEPS, 1)
  assert (summary["peak_flops"] > 1e9, summary["peak_flops_source"]) == (True, "measured")
  assert summary["packing_factor"] >= 1.2
  assert summary["efficiency"] >= 0.9
  recipe = summary["recipe"]["packed"]
  assert (recipe["rows"], recipe["accumulation"], recipe["steps"]) == (16, 4, STEPS)
  assert recipe["packing_factor"] == summary["packing_factor"]
  assert recipe["epochs"] == pytest.approx(summary["epochs"])
  assert 0 < summary["unigram_mlm_accuracy"] < 1
  config = json.loads((workdir / "config.json").read_text())
  assert config["train"]["steps"] == STEPS

  plan = packing.load_plan(workdir / "plans" / "train.json")
  assert plan.num_packs == summary["packs"]
  metadata = workdir / "checkpoints" / str(STEPS) / "_CHECKPOINT_METADATA"
  saved = json.loads(metadata.read_text())["custom_metadata"]["input"]
  assert saved["plan"] == summary["plan_sha256"] == pipeline.plan_sha256(plan)
  assert (workdir / "plans" / "train.json").exists()

  lines = lines_of(workdir / "metrics.jsonl")
  assert [line["step"] for line in lines] == list(range(2, STEPS + 1, 2))
  names = "mlm_loss mlm_accuracy nsp_accuracy learning_rate sequences real_tokens seconds "
  names += "padding input_share peak_share"
  assert set(names.split()) <= lines[0].keys()
  assert lines[-1]["loss"] < lines[0]["loss"]
  assert [line["step"] for line in lines_of(workdir / "eval.jsonl")] == [STEPS // 2, STEPS]
  for picture in ("packing.png", "learning_curve.png"):
    assert (workdir / "plots" / picture).read_bytes().startswith(b"\x89PNG")
  assert list((workdir / "tensorboard").glob("events*"))
  assert "packing factor" in output
  assert summary["version"] == packing.__version__
  assert "commit" in summary  # None outside a checkout
  finished_at = datetime.datetime.fromisoformat(summary["finished"])
  age = datetime.datetime.now(datetime.UTC) - finished_at
  assert 0 <= age.total_seconds() < 3600


def test_a_run_describes_its_model(folder, finished):
  workdir, _ = finished
  head, config, vocabulary, labels = weights.read_description(workdir)
  assert (head, labels, config.max_position_embeddings) == ("pretraining", (), 128)
  assert vocabulary.tokens == tuple((folder / "data/vocab.txt").read_text().splitlines())
  stored = weights.open_folder(workdir)
  assert stored.step == STEPS
  digest = parameters_digest(stored.load())  # without the state of the optimizer
  assert digest == summary_of(workdir)["parameters_digest"]


@pytest.mark.slow
def test_a_run_stops_at_its_target(folder):
  workdir = folder / "target"
  text = "train.throughput_rounds=1 train.eval_every=2 train.target_mlm_accuracy=0.001"
  succeed(folder, "target", *fields(text))
  *before, last = lines_of(workdir / "eval.jsonl")
  assert all(line["mlm_accuracy"] < 0.001 for line in before)
  assert last["mlm_accuracy"] >= 0.001
  summary = summary_of(workdir)
  assert summary["steps"] == summary["step_to_target"] == last["step"]
  assert summary["steps"] == weights.steps(workdir)[-1] < STEPS
  assert summary["speedup_measured"] > 0
  more = fields(text + " train.steps=50"), "--allow_changed_config"
  said = succeed(folder, "target", *more[0], more[1]).stdout
  why = "it has reached train.target_mlm_accuracy=0.001"
  assert re.search(rf"ends at step {summary['steps']} of \d+: {why}", said)


def test_a_run_is_evaluated_on_data_that_have_moved(folder, finished):
  moved = folder / "moved"
  shutil.copytree(folder / "data", moved)
  option = f"--config.data.directory={moved}"
  here, there = (
    succeed(folder, "whole", "--json", *more, program="eval.py").stdout
    for more in ([], [option])
  )
  assert json.loads(here) == json.loads(there)


def test_a_finished_run_is_shown_not_repeated(folder, finished):
  summary = finished[0] / "summary.json"
  before = summary.stat().st_mtime_ns
  assert "is finished" in succeed(folder, "whole").stdout
  figures = summary_of(folder / "whole")
  assert (figures["dtype"], figures["attention_impl"]) == ("float32", "xla")
  assert figures["computation"].startswith("computing in float32 with attention_impl=xla: ")
  assert summary.stat().st_mtime_ns == before


def test_eval_repeats_the_runs_own_numbers_packed_or_not(folder, finished):
  def printed(*options):
    words = ["", ROOT / "eval.py", *options, "--json", "whole"]
    return json.loads(programs.succeeded(programs.complete(words, folder)).stdout)

  last = lines_of(finished[0] / "eval.jsonl")[-1]
  trained = {"seconds", "sequences_trained"}
  assert printed() == {k: v for k, v in last.items() if k not in trained}
  unpacked = printed("--config.packing.algorithm=none")
  for name in ("loss", "mlm_accuracy", "nsp_accuracy", "unigram_mlm_accuracy"):
    assert unpacked[name] == pytest.approx(last[name], rel=1e-4)
  before = f"--step={STEPS - programs.SAVED_EVERY}", "--config.model.dtype=bfloat16"
  result = succeed(folder, "whole", *before, program="eval.py")
  assert "masked-token" in result.stdout
  assert f"step 8 of {folder / 'whole'} (by --step)" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  ("workdir", "options"),
  [
    ("unpacked", "packing.algorithm=none"),
    ("balanced", "packing.balance=devices packing.adjust=none"),
    (
      "contaminated",
      "model.attention_mask=none model.position_reset=False model.next_sentence=False "
      "data.task=sentences data.directory=sentences train.loss_unit=pack "
      "packing.adjust=lamb_betas optimizer.warmup_steps=2",
    ),
    (
      "by_sentence",
      "model.attention_mask=token_type model.dtype=bfloat16 model.remat=layers "
      "model.dropout_rate=0.1 train.loss_unit=token",
    ),
  ],
)
def test_the_baseline_and_the_ablations_train(folder, workdir, options):
  succeed(folder, workdir, *fields(options), "--config.train.steps=6")
  summary = summary_of(folder / workdir)
  recipe, factor = summary["recipe"]["packed"], summary["packing_factor"]
  assert summary["compilations"] == 1
  assert summary["steps"] == recipe["steps"]
  assert (factor == 1.0) == (workdir == "unpacked")
  if workdir == "contaminated":
    assert recipe["steps"] == round(6 / factor) < 6
    assert recipe["b1"] == 0.9**factor
  assert ("eval_nsp_accuracy" in summary) == (workdir != "contaminated")


@pytest.mark.slow
def test_a_prepared_dataset_is_trained_on_as_it_is(folder):
  options = ["--max-sequence-length=64", "--vocab-size=300", "--held-out-fraction=0.1"]
  source, data = f"--source=stdlib:{folder / 'library'}", folder / "prepared"
  programs.succeeded(prepared.command("prepare", source, *options, f"--out={data}"))
  before = prepared.contents(data)
  text = f"data.source=prepared data.directory={data} data.max_sequence_length=64"
  succeed(folder, "on_prepared", *fields(text))
  summary = summary_of(folder / "on_prepared")
  assert (summary["steps"], summary["compilations"]) == (STEPS, 1)
  vocabulary = (folder / "on_prepared" / "vocab.txt").read_text().splitlines()
  assert vocabulary == open_dataset(data).vocabulary
  assert prepared.contents(data) == before


@pytest.mark.slow
def test_a_run_starts_from_given_weights_and_goes_on_without_them(folder, finished):
  """Out to Hugging Face's form, in as the start of a run, killed, resumed."""
  whole, exported, given = finished[0], folder / "exported", folder / "given"
  assert model_command(["export", str(whole), "--out", str(exported)]) == 0
  # Steps so small that no parameter changes: what comes out is what went in.
  text = "optimizer.learning_rate=1e-30 optimizer.warmup_steps=1 train.steps=4 "
  text += f"train.eval_every=4 train.checkpoint_every=2 model.init_from={exported} "
  text += f"data.vocab_file={exported}/vocab.txt data.directory=by_vocabulary"
  succeed(folder, "given", *fields(text))
  expected = summary_of(whole)["parameters_digest"]
  assert summary_of(given)["parameters_digest"] == expected

  (given / "summary.json").unlink()
  shutil.rmtree(given / "checkpoints" / "4")
  shutil.rmtree(exported)
  assert "resuming from step 2" in succeed(folder, "given", *fields(text)).stdout
  succeed(folder, "given", *fields(text), program="eval.py")
  assert summary_of(given)["parameters_digest"] == expected


NEW = "--config.data.directory=new"
JOINED = "--coordinator=localhost:1 --processes=2"


@pytest.mark.parametrize(
  ("program", "option", "message"),
  [
    ("train.py", "--config.train.step=5", "did you mean 'train.steps'"),
    ("train.py", f"--config={ROOT / 'README.md'}", "README.md"),
    ("train.py", "--config=configs/missing.py", "missing.py"),
    ("train.py", "--config.data.vocab_size=600", "vocab_size: 2000, now 600"),
    ("train.py", f"{NEW} --config.data.source=stdlib:/x", "topics.py. Install all of"),
    ("train.py", "--workdir=", "expected a folder, found an empty text"),
    ("train.py", "extra", "Expected --name=value, found 'extra'"),
    ("train.py", "--processes=2", "Give --coordinator=HOST:PORT, at which process 0"),
    ("train.py", "--coordinator=localhost:1", "expected both, and process < processes"),
    ("train.py", f"{JOINED} --process=2", "--processes=2 --process=2"),
    ("eval.py", "--workdir=/nowhere", "Expected the config of a run"),
    ("eval.py", "--step=7", "has no checkpoint of step 7"),
    ("eval.py", "other", "Expected one folder, found "),
    ("eval.py", "--config.model.size=mini", "model.size was 'tiny' and is now 'mini'"),
    (
      "eval.py",
      "--config.seed=7",
      "now 7. Give the same config, or leave out --config",
    ),
  ],
)
def test_a_users_mistake_is_told_in_a_line_with_status_2(
  folder, finished, tmp_path, program, option, message
):
  workdir = "whole" if program == "eval.py" else tmp_path
  result = run(folder, workdir, *option.split(), program=program)
  assert result.returncode == 2, result.stderr
  assert message in result.stderr
  assert "Traceback" not in result.stderr
  assert len(result.stderr.splitlines()) <= 2
  assert not (tmp_path / "config.json").exists()  # the folder is free for the next try


@pytest.mark.slow
def test_a_full_disk_is_told_with_what_to_do(folder, tmp_path):
  """A limit on the size of a file stands for the full disk."""
  process = programs.begin(folder, tmp_path, **programs.READ_ONLY_CACHE)
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
  _, errors = process.communicate()
  assert process.returncode == 1
  assert "Make room, and run the same command again" in errors


@pytest.mark.parametrize(
  ("words", "status", "text"),
  [
    ("train.py --help", 0, "configs/quickstart.py"),
    ("train.py", 2, "example, --config=configs/quickstart.py --workdir=runs/mine; see --h"),
    ("train.py --workdir=run", 2, "Add, for example, --config=configs/quickstart.py; see"),
    ("train.py --config=configs/quickstart.py", 2, "Add, for example, --workdir=runs/mine"),
    ("train.py --config=nope.py --workdir=run", 2, "There is no config file 'nope.py'."),
    ("eval.py", 2, "Expected the folder of a run, such as runs/mine. See --help"),
    ("eval.py runs/nope", 2, "Restore it, or name a folder such as runs/mine"),
    ("eval.py --workdir runs/nope", 2, "Cannot read runs/nope/config.json"),
    ("eval.py workdir", 2, "Cannot read workdir/config.json"),
  ],
)
def test_help_teaches_and_both_flags_are_required(words, status, text):
  result = forked.run(words.split(), cwd=ROOT)
  assert result.returncode == status
  assert text in result.stdout + result.stderr
  assert status == 0 or len(result.stderr.splitlines()) <= 2
