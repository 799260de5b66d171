"""The command for accelerators, here on a CPU: what it proves, writes and leaves out."""

import json
import subprocess
import sys
import textwrap
import time

import jax
import pytest

from benchmarks import accelerator
from model.testing import verify
from training.record.flops import Peak

PEAK = {"flops": 1e12, "source": "config", "dtype": "float32"}


@pytest.fixture
def record(tmp_path):
  return accelerator.Record(tmp_path, machine="a machine", peak=PEAK)


def written(folder):
  return json.loads((folder / "results.json").read_text())


def test_an_attention_that_fails_or_does_not_run_is_reported_and_not_timed(
  record, tmp_path, monkeypatch
):
  def verify_case(head, implementation, dtype):
    if implementation == "cudnn":
      raise jax.errors.JaxRuntimeError("INTERNAL: no engine\nmore")
    leak = 0.1 if (implementation, dtype) == ("blocks", "bfloat16") else 0.0
    wrong = float("nan") if implementation == "cudnn_packed" else 0.0
    sizes = dict.fromkeys(("outputs", "losses", "gradients"), wrong)
    not_run = "needs TPUs" if implementation == "splash" else ""
    return verify.Row(
      head, implementation, dtype, **sizes, influence=leak, limit=1e-5, not_run=not_run
    )

  monkeypatch.setattr(verify, "verify_case", verify_case)
  names = ["xla", "blocks", "cudnn", "cudnn_packed", "splash"]
  assert accelerator.prove(record, names) == ["xla"]
  report = (tmp_path / "report.md").read_text()
  assert "| blocks | bfloat16 | 0 | 0 | 0 | - | 1.0e-01 | FAILS |" in report
  assert "Left out: proof of cudnn: INTERNAL: no engine\n" in report
  assert "Not run, splash: needs TPUs" in report


def test_a_report_is_replaced_and_never_half_written(record, tmp_path):
  before = (tmp_path / "report.md").stat().st_ino
  record.add("left_out", {"case": "large:512", "why": "a test"})
  assert (tmp_path / "report.md").stat().st_ino != before


def test_a_kernel_that_is_wrong_in_rows_of_a_length_is_not_timed_there(
  record, tmp_path, monkeypatch
):
  def difference(name, dtype, row_length):
    if name == "cudnn":
      raise jax.errors.JaxRuntimeError("INTERNAL: no engine")
    return 1.0 if (name, row_length) == ("blocks", 512) else 0.0

  monkeypatch.setattr(accelerator, "difference_from_xla", difference)
  names = ["xla", "blocks", "cudnn"]
  for row_length, right in ((128, ["xla", "blocks"]), (512, ["xla"])):
    assert accelerator.beside_xla(record, names, "float32", row_length) == right
  report = (tmp_path / "report.md").read_text()
  assert "| 512 | blocks | float32 | 1.0e+00 | FAILS |" in report
  assert "| 512 | cudnn | float32 | INTERNAL: no engine | FAILS |" in report


def test_cases_without_time_or_memory_are_named_and_the_rest_is_written_at_once(
  record, tmp_path, monkeypatch
):
  rows_tried = []

  def measure(plan, *, rows, **_):
    rows_tried.append(rows)
    if plan.row_length == 512:
      raise jax.errors.JaxRuntimeError("INTERNAL: broken\nmore")
    if rows > 100:
      raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
    assert written(tmp_path)["left_out"][0]["case"] == "large:512"
    return [{"row_length": plan.row_length, "attention": "xla", "not_run": "a test"}]

  monkeypatch.setattr(accelerator, "measure", measure)
  monkeypatch.setattr(accelerator, "beside_xla", lambda record, names, *_: names)
  cases = [accelerator.Case("large", 512, 1024), accelerator.Case("base", 128, 32768)]
  options = {"dtype": "bfloat16", "rounds": 2}
  until = time.monotonic() + 600
  accelerator.time_cases(record, cases, ["xla"], **options, until=until)
  assert rows_tried == [2, 256, 128, 64]
  (step,) = written(tmp_path)["steps"]
  assert (step["size"], step["rows"]) == ("base", 64)
  accelerator.time_cases(record, cases[1:], ["xla"], **options, until=0.0)
  why = [(x["case"], x["why"].split(":")[0]) for x in written(tmp_path)["left_out"]]
  assert why == [("large:512", "INTERNAL"), ("base:128", "no time is left")]


def test_a_peer_that_does_not_run_is_named_and_the_steps_are_kept(
  record, tmp_path, monkeypatch
):
  def peers(*_, **__):
    raise ImportError("no torch.nn.attention.varlen")

  def measure(plan, **_):
    return [{"row_length": plan.row_length, "attention": "xla", "not_run": "a test"}]

  monkeypatch.setattr(accelerator, "measure", measure)
  monkeypatch.setattr(accelerator, "beside_xla", lambda record, names, *_: names)
  monkeypatch.setattr(accelerator, "peers", peers)
  cases = [accelerator.Case(size, 128, 512) for size in ("large", "base")]
  options = {"dtype": "bfloat16", "rounds": 2, "until": time.monotonic() + 600}
  accelerator.time_cases(record, cases, ["xla"], **options, torch_device="cuda")
  found = written(tmp_path)
  assert [step["size"] for step in found["steps"]] == ["large", "base"]
  why = "no torch.nn.attention.varlen"
  names = [f"PyTorch's BERT, {size}:128" for size in ("large", "base")]
  assert found["left_out"] == [{"case": name, "why": why} for name in names]


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pytorch_takes_the_same_sequences(record, tmp_path, dtype):
  case = accelerator.Case("tiny", 128, 512)
  options = {"rows": 4, "dtype": dtype, "rounds": 2, "torch_device": "cpu"}
  record.add("peers", *accelerator.peers(case, **options))
  padded, unpadded = written(tmp_path)["peers"]
  assert padded["sequences_per_second"]["median"] > 0
  assert unpadded["sequences_per_second"]["median"] > 0
  report = (tmp_path / "report.md").read_text()
  assert "| tiny | 128 | 4 | PyTorch, un-padded, head at masked tokens |" in report


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("", "there is no accelerator, only a CPU. Use --quick"),
    ("--quick --minutes 0", "expected a whole number of at least 1"),
    ("--quick --cases huge:512", "there is no 'huge:512'"),
    ("--quick --cases large:512", "--quick and --cases exclude each other"),
    ("--quick --implementations flash", "there is no 'flash'"),
  ],
)
@pytest.mark.usefixtures("on_cpu")
def test_mistakes_are_one_line(words, message, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(accelerator, "prove", lambda *_: [])
  with pytest.raises(SystemExit) as ended:
    accelerator.main(["--out", str(tmp_path / "out"), *words.split()])
  assert ended.value.code == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.count("\n") == 1
  assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("on_cpu")
def test_json_has_what_the_folder_has(tmp_path, monkeypatch):
  monkeypatch.setattr(accelerator, "prove", lambda *_: ["xla"])
  monkeypatch.setattr(accelerator, "time_cases", lambda *_, **__: None)
  monkeypatch.setattr(accelerator, "find_torch", lambda: None)
  monkeypatch.setattr(accelerator, "peak_of", lambda *_, **__: Peak(1e12, "config"))
  accelerator.main(["--quick", f"--out={tmp_path}", f"--json={tmp_path / 'all.json'}"])
  found = json.loads((tmp_path / "all.json").read_text())
  assert found.pop("options")["out"] == str(tmp_path)
  assert found == written(tmp_path)


@pytest.mark.usefixtures("on_cpu")
def test_only_the_chosen_implementations_are_proven(tmp_path, monkeypatch):
  proven = []

  def prove(_, names):
    proven.append([*names])
    return names

  monkeypatch.setattr(accelerator, "prove", prove)
  monkeypatch.setattr(accelerator, "time_cases", lambda *_, **__: None)
  monkeypatch.setattr(accelerator, "find_torch", lambda: None)
  monkeypatch.setattr(accelerator, "peak_of", lambda *_, **__: Peak(1e12, "config"))
  for words in ([], ["--implementations=xla,blocks"]):
    accelerator.main(["--quick", f"--out={tmp_path}", *words])
  assert proven == [["xla", "blocks", "splash_interpret"], ["xla", "blocks"]]


@pytest.mark.usefixtures("on_cpu")
def test_a_proof_that_fails_gives_status_1(tmp_path, capsys, monkeypatch):
  def verify_case(head, implementation, dtype):
    leak = 0.1 if implementation == "blocks" else 0.0
    same = dict.fromkeys(("outputs", "losses", "gradients"), 0.0)
    return verify.Row(head, implementation, dtype, **same, influence=leak, limit=1e-5)

  monkeypatch.setattr(verify, "verify_case", verify_case)
  monkeypatch.setattr(accelerator, "time_cases", lambda *_, **__: None)
  monkeypatch.setattr(accelerator, "find_torch", lambda: None)
  monkeypatch.setattr(accelerator, "peak_of", lambda *_, **__: Peak(1e12, "config"))
  with pytest.raises(SystemExit, match="proofs of blocks fail"):
    accelerator.main(["--quick", f"--out={tmp_path}"])
  assert "| blocks |" in capsys.readouterr().out


@pytest.mark.usefixtures("on_cpu")
def test_implementations_that_cannot_run_here_give_status_1(tmp_path, monkeypatch):
  monkeypatch.setattr(accelerator, "find_torch", lambda: None)
  monkeypatch.setattr(accelerator, "peak_of", lambda *_, **__: Peak(1e12, "config"))
  with pytest.raises(SystemExit, match="splash cannot run on this cpu"):
    accelerator.main(["--quick", f"--out={tmp_path}", "--implementations=splash"])
  assert "Not run, splash" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_the_quick_run_needs_few_packages(tmp_path):
  program = """
    import sys

    class Refuse:
      def find_spec(self, name, path=None, target=None):
        if name in ("ml_collections", "safetensors", "tqdm", "tokenizers", "pyarrow",
                    "grain", "tensorflow_datasets", "matplotlib", "transformers", "torch"):
          raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Refuse())
    from benchmarks import accelerator
    accelerator.QUICK = accelerator.QUICK[:1]
    accelerator.HEADS = accelerator.HEADS[:1]
    accelerator.main(sys.argv[1:])
  """
  command = [sys.executable, "-c", textwrap.dedent(program)]
  subprocess.run([*command, "--out", tmp_path, "--quick"], check=True, capture_output=True)
  found = written(tmp_path)
  assert all(proof["passes"] for proof in found["proofs"])
  steps = [(step["attention"], step["row_length"]) for step in found["steps"]]
  assert steps == [("xla", 128), ("blocks", 128), ("splash_interpret", 128)]
  for step in found["steps"]:
    one_sequence, every = (step["flops"]["packed"][x] for x in ("one_sequence", "model"))
    assert 0.9 * every < one_sequence < every
