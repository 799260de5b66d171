"""The command for accelerators, here on a CPU: what it proves, writes and leaves out."""

import functools
import json
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

import jax
import pytest

from benchmarks import accelerator, accelerator_session, train_program
from benchmarks.accelerator_session import Record, Session
from benchmarks.accelerator_steps import Bench, Case, Pace, choose, halving
from benchmarks.changes import CHANGES, OF_CUDNN_PACKED
from configs import base
from lab.timing import models, steps
from lab.timing.models import make_config
from launch.record.flops import Peak
from model.testing import verify
from tests import forked
from tests.programs import ROOT

PACE = Pace(steps=5, blocks=2, awaited=3)
ABOUT = {
  "machine": "a machine",
  "versions": {"jax": "1.0"},
  "xla_flags": "",
  "dtype": "float32",
  "peak": {"flops": 1e12, "source": "config"},
  "pace": PACE._asdict(),
}
TINY = Case("tiny", 128, 2)
CLOCKS = "seconds", "awaited"
SMALL = 97  # tokens of a vocabulary


@pytest.fixture(scope="module", autouse=True)
def small_vocabulary():
  """Which makes steps short."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (models, steps):
      patch.setattr(module, "VOCAB_SIZE", SMALL)
    yield


@pytest.fixture
def one_thread(monkeypatch):
  """PyTorch's threads wait for each other longer than they compute so small steps."""
  monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
  import torch

  number = torch.get_num_threads()
  torch.set_num_threads(1)
  yield
  torch.set_num_threads(number)


@pytest.fixture
def record(tmp_path):
  return Record(tmp_path, **ABOUT)


def make_session(record, *, cases=(TINY,), until=None, **changed):
  options: dict[str, Any] = {
    "dtype": "float32",
    "pace": PACE,
    "proven": ["xla"],
    "torch_device": None,
  }
  until = time.monotonic() + 3600 if until is None else until
  return Session(record, until=until, cases=cases, **options | changed)


def written(folder):
  return json.loads((folder / "results.json").read_text())


def left_out(folder):
  return [(x["case"], x["why"]) for x in written(folder)["left_out"]]


def exact(implementation, dtype, **changed):
  sizes = dict.fromkeys(("outputs", "losses", "gradients", "influence"), 0.0)
  return verify.Row("a head", implementation, dtype, limit=1e-5, **sizes | changed)


# ---- proofs ------------------------------------------------------------------------------


def test_an_attention_that_fails_or_does_not_run_is_reported_and_not_timed(
  record, tmp_path, monkeypatch
):
  rows = [
    exact("xla", "float32"),
    exact("blocks", "bfloat16", influence=0.1),
    exact("cudnn", "bfloat16"),
    exact("cudnn_packed", "bfloat16", failed="no engine"),
    exact("splash", "float32", not_run="needs TPUs"),
  ]
  comparisons = [verify.KernelComparison("cudnn", "bfloat16", 192, difference=float("nan"))]
  monkeypatch.setattr(verify, "quick", lambda show, dtypes: (rows, comparisons))
  assert accelerator_session.prove(record, "bfloat16") == ["xla", "cudnn"]
  assert not accelerator_session.agrees(record, "cudnn", "bfloat16", 192)
  report = (tmp_path / "report.md").read_text()
  assert "| a head | blocks | bfloat16 | 0 | 0 | 0 | - | 1.0e-01 | FAILS |" in report
  assert "FAILS, cudnn_packed: no engine\n" in report
  assert "Not run, splash: needs TPUs" in report
  monkeypatch.setattr(accelerator_session, "choose", lambda *_: choose(TINY, "float32"))
  make_session(record, proven=["blocks"]).measure("tiny:128")
  assert left_out(tmp_path) == [("tiny:128", "the proofs of xla do not pass")]


def test_a_kernel_that_is_wrong_in_rows_of_a_length_is_not_timed_there(
  record, tmp_path, monkeypatch
):
  def compare_with_xla(name, dtype, row_length):
    if name == "cudnn":
      return verify.KernelComparison(name, dtype, row_length, failed="no engine")
    return verify.KernelComparison(
      name, dtype, row_length, difference=float(row_length == 512)
    )

  monkeypatch.setattr(verify, "compare_with_xla", compare_with_xla)
  for row_length, right in ((128, ["xla", "blocks"]), (512, ["xla"])):
    names = ["xla", "blocks", "cudnn"]
    agree = [accelerator_session.agrees(record, x, "float32", row_length) for x in names]
    assert [x for x, agrees in zip(names, agree, strict=True) if agrees] == right
  report = (tmp_path / "report.md").read_text()
  assert "| blocks | float32 | 512 | 1.0e+00 | FAILS |" in report
  assert "| cudnn | float32 | 512 | no engine | refused |" in report
  monkeypatch.setattr(verify, "compare_with_xla", None)  # each is compared once
  assert not accelerator_session.agrees(record, "blocks", "float32", 512)


# ---- steps -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench():
  return Bench(TINY, 2, "xla", "float32", PACE)


def test_steps_are_timed_in_blocks_and_each(bench, record, tmp_path):
  step = bench.measure()
  assert step["case"] == "tiny:128"
  assert 1 <= step["batch_factor"] <= 3
  for kind in ("packed", "unpacked"):
    assert 0 < step["seconds"][kind]["low"] <= step["seconds"][kind]["high"]
    assert step["awaited"][kind]["median"] > 0
    every, one_sequence = (step["flops"][kind][x] for x in ("model", "one_sequence"))
    assert 0.9 * every < one_sequence < every
    assert step["compile_seconds"][kind] > 0
    assert 0 < step["share"][kind]["low"] <= step["share"][kind]["high"]
  record.add("steps", step | {"why": "the test says so"})
  report = (tmp_path / "report.md").read_text()
  assert "| tiny:128 | 2 | xla |" in report
  (row,) = written(tmp_path)["tables"]["steps"]
  for times, how in (("seconds", "queued"), ("awaited", "awaited")):
    rate = 2 * step["batch_factor"] / step[times]["packed"]["median"]
    assert row[f"sequences/s, {how}"] == f"{rate:,.1f}"
  assert "xla: the test says so." in report


def test_dropout_is_timed_beside_the_step_without_it(bench, record, tmp_path):
  record.add("dropout", bench.with_dropout())
  (dropout,) = written(tmp_path)["dropout"]
  assert dropout["ratio"]["median"] > 0.5
  assert dropout["awaited_ratio"]["median"] > 0.5
  assert "| tiny:128 | 0.1 |" in (tmp_path / "report.md").read_text()
  (row,) = written(tmp_path)["tables"]["dropout"]
  assert (row["case"], row["dropout"]) == ("tiny:128", "0.1")


@pytest.mark.slow
def test_changes_are_timed_beside_the_step_without_them(
  bench, record, tmp_path, monkeypatch
):
  session = make_session(record)
  monkeypatch.setattr(session, "_bench", bench)
  session.measure("changes")
  found = written(tmp_path)["changes"]
  (name,) = OF_CUDNN_PACKED
  assert left_out(tmp_path) == [(name, "it changes cudnn_packed; here steps use xla")]
  assert [x["change"] for x in found] == [
    name for name in CHANGES if name not in OF_CUDNN_PACKED
  ]
  assert all(x["ratio"]["median"] > 0.2 < x["awaited_ratio"]["median"] for x in found)
  assert "| tiny:128 | GELU exact to bfloat16 |" in (tmp_path / "report.md").read_text()


def test_rows_are_halved_until_memory_suffices():
  tried = []

  def make(rows, error):
    tried.append(rows)
    if rows > 2:
      raise error
    return "made"

  for error in (
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GB"),
    RuntimeError("CUDA out of memory. Tried to allocate 3 GB"),
  ):
    assert halving(8, functools.partial(make, error=error)) == "made"
  assert tried == 2 * [8, 4, 2]
  with pytest.raises(RuntimeError, match="broken"):
    halving(8, lambda rows: make(rows, RuntimeError("broken")))


def test_parts_without_time_or_that_fail_are_named_and_the_rest_is_kept(
  record, tmp_path, monkeypatch
):
  class Broken:
    def __init__(self, case, *_):
      if case.row_length == 512:
        raise jax.errors.JaxRuntimeError("INTERNAL: broken\nmore")

    def measure(self):
      raise ImportError("no torch.nn")

  monkeypatch.setattr(accelerator_session, "Bench", Broken)
  cases = (TINY, Case("tiny", 512, 2), Case("large", 128, 2, seconds=1e9))
  session = make_session(record, cases=cases)
  for case in cases:
    session.measure(case.name)
  found = left_out(tmp_path)
  assert found[:2] == [("tiny:128", "no torch.nn"), ("tiny:512", "INTERNAL: broken")]
  assert found[2][0] == "large:128"
  assert found[2][1].startswith("no time is left: it may take")


# ---- train.py and PyTorch ----------------------------------------------------------------


def test_the_fields_of_train_py_exist(tmp_path):
  words = train_program._words(tmp_path, tmp_path / "run", TINY, 40, log_every=5)
  fields = [word.removeprefix("--config.") for word in words if "--config." in word]
  config = base.get_config()
  for field in fields:
    part, name = field.partition("=")[0].split(".")
    assert name in config[part]
  assert len(fields) == 13


@pytest.mark.parametrize(
  ("program", "limit", "why"),
  [
    ("import sys; sys.exit('first\\nno such field')", 60, "status 1: no such field"),
    ("import time; time.sleep(60)", 0.5, "more than 0 s"),
  ],
)
def test_what_ends_train_py_is_said(program, limit, why):
  with pytest.raises(train_program.ProgramError, match=why):
    train_program._run([sys.executable, "-c", program], limit)


def test_a_peer_that_does_not_run_is_named(record, tmp_path, monkeypatch):
  def peers(case, rows, dtype, **_):
    if rows > 2:
      raise RuntimeError("CUDA out of memory")
    seconds = dict.fromkeys(("median", "low", "high"), 0.5)
    way = accelerator_session.WAYS["masked"]
    measured = {"case": case.name, "sequences": rows, "way": way, "seconds": seconds}
    return [measured | {"awaited": seconds}], {"compiled": "there is no compiler"}

  monkeypatch.setattr(accelerator_session, "peers", peers)
  make_session(record, torch_device="cuda").measure("pytorch")
  compiled = accelerator_session.WAYS["compiled"]
  assert left_out(tmp_path) == [(compiled, "there is no compiler")]
  assert "| 500.0 (500.0 to 500.0) | 4.0 |  |" in (tmp_path / "report.md").read_text()


@pytest.mark.extra("torch", "transformers")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pytorch_takes_the_same_sequences(dtype):
  measured, failed = accelerator_session.peers(TINY, 4, dtype, pace=PACE, device="cpu")
  ways = [peer["way"] for peer in measured]
  assert ways[:2] == [accelerator_session.WAYS[x] for x in ("masked", "unpadded")]
  assert all(peer[x]["median"] > 0 for peer in measured for x in CLOCKS)
  assert len(measured) + len(failed) == len(accelerator_session.WAYS)


def test_packed_is_compared_with_a_peer_within_one_clock(record, tmp_path, bench):
  ours, given = bench.measure() | {"why": "fastest"}, bench.measure() | {"why": "given"}
  rates = {x: 2 * ours["batch_factor"] / ours[x]["packed"]["median"] for x in CLOCKS}
  times = dict.fromkeys(("median", "low", "high"), 1.0)
  peer = {"case": TINY.name, "sequences": 1, "way": "PyTorch"}
  peer |= {"seconds": times, "awaited": {x: 2 * y for x, y in times.items()}}
  record.add("steps", given, ours)
  record.add("peers", peer)
  (row,) = written(tmp_path)["tables"]["pytorch"]
  assert row["packed is faster, queued"] == f"{rates['seconds']:.2f}"
  assert row["packed is faster, awaited"] == f"{2 * rates['awaited']:.2f}"


@pytest.mark.extra("torch", "transformers")
@pytest.mark.usefixtures("one_thread")
def test_a_block_of_pytorchs_steps_waits_once_and_reads_no_loss(monkeypatch):
  from benchmarks import hugging_face
  from benchmarks.accelerator_steps import plan_of
  from lab.timing import speedup

  events = []
  computation = hugging_face.Computation

  def note(name):
    made = getattr(computation, name)

    def noted(self, *args):
      events.append(name)
      return made(self, *args)

    monkeypatch.setattr(computation, name, noted)

  for name in ("to_device", "step", "wait", "loss"):
    note(name)
  for left_out in ("compiled", "flattened"):  # no compiler is needed here
    monkeypatch.delitem(hugging_face.COMPUTATIONS, left_out)
  config = make_config("tiny", longest=128)
  batches = speedup.make_batches(plan_of(128), rows=3, number=6)["unpacked"]
  pace = {"steps": 3, "blocks": 1, "awaited": 2}
  measured, failed = hugging_face.seconds_of_steps(config, batches, device="cpu", **pace)
  assert list(measured) == ["masked", "unpadded"]
  assert list(failed) == ["compiled", "flattened"]
  for seconds in measured.values():
    assert {kind: x.shape for kind, x in seconds.items()} == {
      "queued": (1,),
      "awaited": (2,),
    }
  tried = 2 * [*6 * ["to_device"], "step", "wait"]
  blocks, each = 2 * 2 * [*3 * ["step"], "wait"], 2 * 3 * ["step", "wait"]
  assert events == [*tried, *blocks, *each]


@pytest.mark.extra("torch", "transformers")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("what", ["masked", "unpadded"])
def test_a_step_of_pytorch_reads_nothing_from_the_device(what, monkeypatch):
  """Reading a value waits for a GPU. Transformers' own reading of a padding mask stays."""
  import torch

  from benchmarks import hugging_face
  from benchmarks.accelerator_steps import plan_of
  from lab.timing import speedup

  trained = hugging_face.HuggingFace(make_config("tiny", longest=128))
  computation = hugging_face.Computation(trained, what)
  (batch,) = speedup.make_batches(plan_of(128), rows=3, number=1)["unpacked"]
  prepared = computation.to_device(batch)

  def refuse(*_, **__):
    raise AssertionError("a value was read")

  for name in ("item", "tolist", "numpy", "cpu"):
    monkeypatch.setattr(torch.Tensor, name, refuse)
  monkeypatch.setattr(torch, "tensor", refuse)  # copies from the host, and waits for it
  loss = computation.step(prepared)
  monkeypatch.undo()
  assert 0 < computation.loss(loss) < 100


@pytest.mark.extra("torch", "transformers")
def test_a_gpu_is_awaited_and_a_cpu_needs_no_wait(monkeypatch):
  import torch

  from benchmarks import hugging_face

  awaited = []
  monkeypatch.setattr(torch.cuda, "synchronize", lambda: awaited.append(True))
  trained = hugging_face.HuggingFace(make_config("tiny", longest=128))
  computation = hugging_face.Computation(trained, "masked")
  for device, times in (("cpu", 0), ("cuda", 1)):
    trained.device = device
    computation.wait()
    assert len(awaited) == times


@pytest.mark.extra("torch", "transformers")
def test_flattened_batches_have_the_unpadded_ones_tokens():
  import numpy as np

  from benchmarks import hugging_face
  from benchmarks.accelerator_steps import plan_of
  from lab.timing import speedup

  batch = speedup.make_batches(plan_of(128), rows=3, number=1)["unpacked"][0]
  ours = hugging_face._prepare_unpadded(batch)
  theirs = hugging_face._prepare_flattened(batch)
  for name in ("input_ids", "token_type_ids", "position_ids", "starts"):
    assert np.array_equal(ours[name], theirs[name])
  assert np.array_equal(ours["ends"], theirs["cu_seq_lens_q"])
  assert ours["ends"].dtype == theirs["cu_seq_lens_q"].dtype
  first = np.isin(ours["masked"], ours["starts"])
  assert np.array_equal(ours["masked"][~first], theirs["masked"])


# ---- the command -------------------------------------------------------------------------


@pytest.fixture
def nothing_measured(monkeypatch):
  monkeypatch.setattr(accelerator, "prove", lambda *_: ["xla"])
  monkeypatch.setattr(accelerator, "find_torch", lambda: None)
  monkeypatch.setattr(accelerator, "peak_of", lambda *_, **__: Peak(1e12, "config"))
  monkeypatch.setattr(accelerator.compiler, "keep_programs", lambda: None)
  measured = []
  monkeypatch.setattr(Session, "measure", lambda _, name: measured.append(name))
  monkeypatch.setenv("XLA_FLAGS", "")
  monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
  return measured


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("", "there is no accelerator. Use --cases=tiny:128"),
    ("--cases tiny:128 --minutes 0", "expected a whole number of at least 1"),
    ("--cases huge:512", "there is no 'huge:512'"),
  ],
)
@pytest.mark.usefixtures("on_cpu", "nothing_measured")
def test_mistakes_are_one_line(words, message, tmp_path, capsys):
  with pytest.raises(SystemExit) as ended:
    accelerator.main(["--out", str(tmp_path / "out"), *words.split()])
  assert ended.value.code == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.count("\n") == 1
  assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("on_cpu")
def test_json_has_what_the_folder_has(tmp_path, nothing_measured):
  words = ["--cases=dropout,tiny:128", f"--out={tmp_path}"]
  accelerator.main([*words, f"--json={tmp_path / 'all.json'}"])
  found = json.loads((tmp_path / "all.json").read_text())
  assert found.pop("options")["out"] == str(tmp_path)
  assert found == written(tmp_path)
  assert found["versions"]["jax"] == jax.__version__
  assert nothing_measured == ["dropout", "tiny:128"]


@pytest.mark.usefixtures("on_cpu", "nothing_measured")
def test_a_proof_that_fails_gives_status_1(tmp_path, capsys, monkeypatch):
  failing = [exact("blocks", "float32", influence=0.1)]
  monkeypatch.setattr(accelerator, "prove", accelerator_session.prove)
  monkeypatch.setattr(verify, "quick", lambda *_: (failing, []))
  with pytest.raises(SystemExit, match="proofs of blocks fail"):
    accelerator.main(["--cases=tiny:128", f"--out={tmp_path}"])
  assert "| blocks |" in capsys.readouterr().out


# The command with short steps, and train.py with little text.
LITTLE = f"""
import runpy, sys
from benchmarks import train_program
from lab.timing import models, steps
from model import BertConfig, ModernBertConfig

models.VOCAB_SIZE = steps.VOCAB_SIZE = {SMALL}
BertConfig.SIZES["tiny"], ModernBertConfig.SIZES["tiny"] = (1, 64), (2, 64)
words = train_program._words
text = [f"--config.data.source=stdlib:{{sys.argv.pop()}}", "--config.data.vocab_size=2000"]
train_program._words = lambda *given, **options: [*words(*given, **options), *text]
runpy.run_module("benchmarks.accelerator", run_name="__main__")
"""


@pytest.mark.slow
def test_the_parts_of_this_project_are_measured_on_a_cpu(tmp_path, folder):
  program = tmp_path / "little.py"
  program.write_text(LITTLE)
  parts = "tiny:128,modern_tiny:128,dropout,train.py,attention"
  words = [program, "--out", tmp_path, f"--cases={parts}", "--minutes=60"]
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  result = forked.run([*words, folder / "library"], cwd=ROOT, env=environment)
  assert result.returncode == 0, result.stderr[-3000:]
  found = written(tmp_path)
  assert all(proof["passes"] for proof in found["proofs"])
  steps = [(step["case"], step["attention"]) for step in found["steps"]]
  assert steps == [("tiny:128", "xla"), ("modern_tiny:128", "xla"), ("tiny:128", "blocks")]
  assert found["kinds"]["tiny:128"]["products"]["seconds"] > 0
  (program,) = found["programs"]
  assert 0.3 < program["ratio"] < 3
  assert [x["rate"] for x in found["dropout"]] == [0.1]


@pytest.mark.slow
def test_proofs_and_steps_need_few_packages(tmp_path):
  program = """
    import sys

    class Refuse:
      def find_spec(self, name, path=None, target=None):
        if name in ("ml_collections", "safetensors", "tqdm", "tokenizers", "pyarrow",
                    "grain", "tensorflow_datasets", "matplotlib", "transformers", "torch"):
          raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Refuse())
    from lab.timing import models, steps
    from model import BertConfig

    models.VOCAB_SIZE = steps.VOCAB_SIZE = 97  # which makes steps short
    BertConfig.SIZES["tiny"] = 1, 64
    from benchmarks import accelerator

    accelerator.main(sys.argv[1:])
  """
  command = [sys.executable, "-c", textwrap.dedent(program)]
  words = ["--out", tmp_path, "--cases=tiny:128,pytorch"]
  subprocess.run([*command, *words], cwd=ROOT, check=True, capture_output=True)
  (step,) = written(tmp_path)["steps"]
  assert step["case"] == "tiny:128"
