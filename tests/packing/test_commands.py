"""The command line: results, and one line for each mistake."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys

import highspy
import numpy as np
import pytest

import packing
from packing.__main__ import main
from packing.algorithms.progress import Progress
from packing.algorithms.relaxation import Master

COLA = "--histogram glue_cola_128"
SQUAD = "--histogram squad_1_1_384 --max-sequences-per-pack 3"


@pytest.fixture
def run(capsys):
  """Runs a line of arguments; returns the status and what was printed."""

  def run(line):
    status = main(shlex.split(line))
    return status, *capsys.readouterr()

  return run


@pytest.fixture
def result(run):
  """Runs a line of arguments that shall succeed; returns the object printed."""

  def result(line):
    status, out, _ = run(f"{line} --json")
    assert status == 0
    return json.loads(out)

  return result


def interrupt(monkeypatch, *, times):
  """Sends Ctrl-C during the second run of the solver."""
  # A program that is started in the background ignores it.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  solve, calls = Master.solve, []

  def interrupted(self, **options):
    calls.append(0)
    if len(calls) == 2:
      for _ in range(times):
        signal.raise_signal(signal.SIGINT)  # in this thread, so that two count as two
    return solve(self, **options)

  monkeypatch.setattr(Master, "solve", interrupted)


@pytest.mark.parametrize("algorithm", ["optimal", "auto"])
def test_ctrl_c_gives_the_best_plan_so_far(run, monkeypatch, tmp_path, algorithm):
  interrupt(monkeypatch, times=1)
  handler, path = signal.getsignal(signal.SIGINT), tmp_path / "plan.json"
  status, out, err = run(f"pack {SQUAD} --json --algorithm {algorithm} --output {path}")
  result = json.loads(out)
  packs, bound = result["num_packs"], result["lower_bound"]
  assert status == 130
  assert result["details"]["stopped_by"] == "Ctrl-C"
  assert bound <= 40_195 < packs <= 40_808
  assert packing.load_plan(path).num_packs == packs
  assert f"the best plan so far has {packs:,} packs; at least {bound:,} are needed" in err
  assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_gives_up(run, monkeypatch):
  interrupt(monkeypatch, times=2)
  handler = signal.getsignal(signal.SIGINT)
  assert run(f"pack {SQUAD}") == (130, "", "interrupted\n")
  assert signal.getsignal(signal.SIGINT) is handler


def test_progress_shows_the_best_plan_and_bound():
  class Recorded(Progress):
    def found(self, result):
      results.append(result)

  results: list[str] = []
  histogram = packing.load_histogram("squad_1_1_384")
  packing.pack(histogram, max_sequences_per_pack=3, progress=Recorded())
  assert results[0] == "40,346 packs, at least 39,775 needed"
  assert results[-1] == "40,195 packs, at least 40,195 needed"


def test_pack_prints_one_object(result, tmp_path):
  found = result(
    "pack --histogram squad_1_1_384 --algorithm spfhp --max-sequences-per-pack 2 "
    f"--output {tmp_path}/plan.json"
  )
  plan = packing.load_plan(tmp_path / "plan.json")
  for name in (
    *("algorithm", "max_sequences_per_pack", "num_sequences", "num_packs", "lower_bound"),
    *("num_strategies", "num_padding_tokens", "packing_depth", "efficiency"),
    "packing_factor",
  ):
    assert found[name] == getattr(plan, name), name
  assert (found["num_packs"], found["lower_bound"]) == (45_335, 44_321)
  assert (found["max_sequence_length"], found["num_tokens"]) == (384, 17_408_640)
  assert found["seconds"] > 0
  certificate = json.loads((tmp_path / "plan.json").read_text())["certificate"]
  assert certificate["gap"] == 45_335 - 44_321


def test_pack_takes_lengths_rows_multiples_and_options(run, result, tmp_path):
  np.save(tmp_path / "lengths.npy", np.array([27, 9, 9, 18, 27, 3]))
  lengths = f"pack --lengths {tmp_path}/lengths.npy --max-sequence-length"
  geometry = f"{lengths} 27 --row-length 36"
  found = result(f"{geometry} --algorithm auto --option effort=0.1")
  assert (found["num_packs"], found["lower_bound"]) == (3, 3)
  assert found["max_sequences_per_pack"] == "max"
  found = result(f"{geometry} --max-sequences-per-pack auto")
  assert (found["num_packs"], found["max_sequences_per_pack"]) == (3, 2)  # as few
  status, out, _ = run(
    f"{lengths} 20 --too-long truncate --length-multiple 8 --separator-tokens 1"
  )
  assert status == 0
  assert "6 in = 6 out" in out


def test_lengths_above_any_maximum_are_truncated_or_dropped(run, result, tmp_path):
  (tmp_path / "lengths.txt").write_text(f"{3 * 10**7} 5 {10**12}")
  line = f"pack --lengths {tmp_path}/lengths.txt"
  for how, tokens in (("truncate", 512 + 5 + 512), ("drop", 5)):
    found = result(f"{line} --max-sequence-length 512 --too-long {how}")
    assert found["num_real_tokens"] == tokens
  status, _, err = run(f"{line} --max-sequence-length 4 --too-long drop")
  assert (status, "holds no sequence" in err) == (2, True)
  for size in ("", "--max-sequence-length 512"):
    status, _, err = run(f"{line} {size}")
    assert status == 2
    assert f"has a sequence of {10**12} tokens; expected at most" in err
    assert "max_sequence_length is" not in err


def test_pack_prints_the_depth_of_the_plan(result):
  alone = result(f"pack {COLA} --max-sequences-per-pack 3 --algorithm none")
  assert (alone["max_sequences_per_pack"], alone["gap"]) == (1, 0)
  deepest = result(f"pack {COLA} --max-sequences-per-pack 128")
  assert deepest["max_sequences_per_pack"] == "max"


def test_compare_prints_table_and_json(run, result):
  line = f"compare {COLA} --depths 3,max"
  _, table, _ = run(line)
  rows = result(line)
  assert len(table.splitlines()) == 1 + len(rows)
  spfhp = next(r for r in rows if r["algorithm"] == "spfhp" and r["depth"] == "max")
  assert (spfhp["num_packs"], spfhp["lower_bound"], spfhp["gap"]) == (913, 757, 156)
  assert "82.882" in table


def test_compare_shows_least_squares_before_and_why_it_failed(result):
  rows = result(f"compare {COLA} --depths 3,max --algorithms nnlshp,ennlshp,lpfhp")
  assert [r["algorithm"] for r in rows] == [
    *("nnlshp before", "nnlshp", "nnlshp"),
    *("ennlshp before", "ennlshp", "ennlshp"),
    *("lpfhp", "lpfhp"),
  ]
  assert "GiB" in rows[2]["note"]


@pytest.mark.parametrize(
  ("flags", "row"),
  [("", 128), ("--row-length 256", 256), ("--length-multiple 129", 129)],
)
def test_packing_factors_of_a_comparison_are_of_the_same_rows(result, flags, row):
  rows = result(f"compare {COLA} {flags} --depths max --algorithms none,sorted,lpfhp")
  for found in rows:
    per_row = 8551 * row / found["num_tokens"]
    assert found["packing_factor"] == pytest.approx(per_row), found["algorithm"]


def test_analyze_advises_and_draws(run, result, tmp_path):
  pytest.importorskip("matplotlib")
  pa = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  rng = np.random.default_rng(0)
  tokens = [[7] * n for n in rng.integers(3, 70, 2003).tolist()]
  parquet.write_table(pa.table({"input_ids": tokens}), tmp_path / "d.parquet")
  status, out, _ = run(f"analyze {tmp_path}/d.parquet --picture {tmp_path}/rows.png")
  assert status == 0
  assert "Advice: pack" in out
  assert (tmp_path / "rows.png").read_bytes()[:4] == b"\x89PNG"
  status, _, errors = run(f"analyze {tmp_path}/d.parquet --picture {tmp_path}/rows.svg")
  assert status == 2
  assert "expected a file whose name ends in .png" in errors
  status, _, errors = run(f"analyze {tmp_path}/none --picture {tmp_path}/no/rows.png")
  assert (status, "Cannot write" in errors) == (2, True)  # before the lengths are read
  advice = result(f"analyze {tmp_path}/d.parquet")
  assert advice["num_sequences"] == 2003
  named = {choice["name"] for choice in advice["choices"]}
  assert named == {"pad", "bucket", "concatenate", "pack"}


def test_analyze_prints_flags_that_make_its_plan(run, result, tmp_path):
  lengths = [2] * 30 + [30, 16, 14] * 5
  (tmp_path / "my lengths.txt").write_text(" ".join(map(str, lengths)))
  chosen = f"--lengths '{tmp_path}/my lengths.txt' --max-sequence-length 32"
  advice = result(f"analyze {chosen}")
  flags = advice["flags"]
  assert result(f"pack {flags['pack']}")["num_packs"] == advice["num_packs"]
  # With "auto", `pack` and train.py choose the same one.
  command = f"pack {chosen} --max-sequences-per-pack auto"
  depth = result(command)["max_sequences_per_pack"]
  assert f"--config.packing.max_sequences_per_pack={depth}" in flags["train"]
  _, text, _ = run(f"analyze {chosen}")
  assert flags["pack"] in text
  assert flags["train"] in text


@pytest.mark.parametrize(("width", "row", "of_train"), [(128, 256, 384), (768, 384, 384)])
def test_analyze_says_if_training_takes_another_row(
  run, result, tmp_path, width, row, of_train
):
  lengths = np.random.default_rng(0).integers(80, 250, 3000)
  np.save(tmp_path / "lengths.npy", lengths)
  line = f"analyze --lengths {tmp_path}/lengths.npy --max-sequence-length 512"
  advice = result(f"{line} --hidden-size {width}")
  assert (advice["row_length"], advice["train_row_length"]) == (row, of_train)
  _, text, _ = run(f"{line} --hidden-size {width}")
  says_so = "train.py makes another plan, with rows of 384 tokens instead of 256" in text
  assert says_so == (row != of_train)
  # What train.py does with the flags, see `launch.plans`; 0 is "auto".
  flags = dict(flag.removeprefix("--config.").split("=") for flag in text.split()[-4:])
  assert flags["packing.row_length"] == "-1"
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=512)
  chosen = packing.choose_row_length(histogram)
  depth = int(flags["packing.max_sequences_per_pack"]) or "auto"
  plan = packing.pack(histogram, row_length=chosen, max_sequences_per_pack=depth)
  deepest = packing.choose_depth(histogram, row_length=of_train)
  assert (plan.row_length, plan.max_sequences_per_pack) == (of_train, deepest)


def test_lengths_from_standard_input_and_from_tables(result, monkeypatch, tmp_path):
  monkeypatch.setattr(sys, "stdin", io.StringIO("3 5\n8\n8 2\n"))
  assert result("pack --lengths - --algorithm ffd")["num_sequences"] == 5
  monkeypatch.setattr(sys, "stdin", io.StringIO("3 5\n8\n8 2\n"))
  advice = result("analyze -")
  assert (advice["source"], advice["num_packs"]) == ("standard input", 4)
  pytest.importorskip("pyarrow")
  (tmp_path / "a.csv").write_text('text,length\n"a, b",3\nc,5\n')
  (tmp_path / "a.tsv").write_text("id\tn\n7\t3\n8\t5\n")
  for source in (f"{tmp_path}/a.csv", f"{tmp_path}/a.tsv --column n"):
    found = result(f"pack --lengths {source} --max-sequence-length 8")
    assert (found["num_sequences"], found["num_packs"]) == (2, 1)


def test_the_command_packs_as_the_library_does(result):
  found = result("pack --histogram glue_rte_128")
  plan = packing.pack(packing.load_histogram("glue_rte_128"))
  for name in ("algorithm", "packing_depth", "num_packs", "lower_bound"):
    assert found[name] == getattr(plan, name)
  assert found["max_sequences_per_pack"] == "max"
  assert plan.max_sequences_per_pack == plan.row_length


def test_analyze_does_not_advise_packing_without_a_gain(result, tmp_path):
  (tmp_path / "lengths.txt").write_text("64 " * 500)
  assert result(f"analyze {tmp_path}/lengths.txt")["recommendation"] == "pad"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ("pack --histogram nothing", "histogram is 'nothing'; expected one of"),
    ("pack COLA --algorithm magic", "algorithm is 'magic'; expected one of"),
    ("pack COLA --row-length 40", "expected at least 47 for the longest"),
    ("pack COLA --option x", "expected NAME=VALUE"),
    ("pack COLA --option seed=1", "auto has no option 'seed'; expected effort.\n"),
    ("pack COLA --option efort=1", "expected effort. Did you mean effort?"),
    (
      "pack COLA --algorithm spfhp --option efort=1",
      "expected none. Did you mean effort? It is an option of optimal, auto.",
    ),
    (
      "pack COLA --algorithm spfhp --option effort=1",
      "expected none. It is an option of optimal, auto.",
    ),
    (
      "pack COLA --row-length 47 --length-multiple 8",
      "at least 48 for the longest sequence, of 47 tokens, rounded up to a multiple of 8.",
    ),
    ("pack --histogram wikipedia_2048 --output /no/such/place", "Cannot write"),
    ("compare COLA --algorithms magic", "is 'magic'; expected one of sorted, none,"),
    ("compare COLA --depths 3,x", "A limit of --depths is 'x'; expected a whole number"),
    ("pack COLA --max-sequences-per-pack 0", "of at least 1, or max, or auto."),
    (
      "pack COLA --max-sequence-length 40",
      "are too long. Raise it to 47, or set --too-long to truncate or drop.",
    ),
    ("pack COLA --algorithm nnlshp", "max_sequences_per_pack="),
    ("pack COLA --option effort={[]}", "effort is '{[]}'; expected a number above 0"),
    ("pack COLA --column n", "A histogram has no columns; found column 'n'"),
    ("analyze COLA --split test", "A histogram has no splits; found split 'test'"),
    ("pack --lengths - --column n", "standard input has no columns; found column 'n'"),
    ("pack --lengths nothing.npy", "There is no nothing.npy"),
    ("compare COLA --batch-size 0", "batch_size is 0"),
    ("analyze nothing", "There is no nothing"),
  ],
)
def test_a_mistake_is_one_line_and_status_2(run, arguments, message):
  status, out, err = run(arguments.replace("COLA", COLA))
  assert (status, out) == (2, "")
  assert err.startswith("error: ")
  assert err.count("\n") == 1
  assert message in err


@pytest.mark.parametrize("algorithm", ["auto", "bfd"])
def test_a_histogram_of_a_hundred_thousand_lengths(result, tmp_path, algorithm):
  counts = np.random.default_rng(0).integers(0, 3, 100_003)
  content = {"max_sequence_length": counts.size, "counts": counts.tolist()}
  (tmp_path / "h.json").write_text(json.dumps(content))
  found = result(
    f"pack --histogram-file {tmp_path}/h.json --max-sequences-per-pack 3 "
    f"--algorithm {algorithm}"
  )
  assert found["num_sequences"] == counts.sum()


def test_a_solver_that_prints_when_it_is_made_leaves_the_json_alone(monkeypatch, capfd):
  class Loud(highspy.Highs):  # as of version 1.16
    def __init__(self):
      super().__init__()
      os.write(1, b"Running HiGHS\n")

  monkeypatch.setattr(highspy, "Highs", Loud)
  assert main(shlex.split(f"pack {SQUAD} --json")) == 0
  assert json.loads(capfd.readouterr().out)["num_packs"] == 40_195


def test_as_a_program():
  command = [sys.executable, "-m", "packing", "pack", "--histogram", "x"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert "error: histogram is 'x'; expected one of " in done.stderr
  assert "Traceback" not in done.stderr
