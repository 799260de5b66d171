"""The command line: results, and one line for each mistake."""

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

import packing
from packing.__main__ import main
from packing.algorithms.progress import Progress
from packing.algorithms.relaxation import Master


def run(capsys, *arguments):
  status = main(list(arguments))
  captured = capsys.readouterr()
  return status, captured.out, captured.err


def interrupt(monkeypatch, *, times):
  """Sends Ctrl-C during the second run of the solver."""
  solve, calls = Master.solve, []

  def interrupted(self, **options):
    calls.append(0)
    if len(calls) == 2:
      for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
    return solve(self, **options)

  monkeypatch.setattr(Master, "solve", interrupted)


@pytest.mark.parametrize("algorithm", ["optimal", "auto"])
def test_ctrl_c_gives_the_best_plan_so_far(capsys, monkeypatch, tmp_path, algorithm):
  interrupt(monkeypatch, times=1)
  handler = signal.getsignal(signal.SIGINT)
  status, out, err = run(
    capsys,
    *("pack", "--histogram", "squad_1_1_384", "--max-sequences-per-pack", "3", "--json"),
    *("--algorithm", algorithm, "--output", str(tmp_path / "plan.json")),
  )
  result = json.loads(out)
  assert status == 130
  assert result["details"]["stopped_by"] == "Ctrl-C"
  assert result["lower_bound"] <= 40_195 < result["num_packs"] <= 40_808
  assert packing.load_plan(tmp_path / "plan.json").num_packs == result["num_packs"]
  assert err == (
    f"interrupted: the best plan so far has {result['num_packs']:,} packs; at least "
    f"{result['lower_bound']:,} are needed.\n"
  )
  assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_gives_up(capsys, monkeypatch):
  interrupt(monkeypatch, times=2)
  handler = signal.getsignal(signal.SIGINT)
  arguments = ["pack", "--histogram", "squad_1_1_384", "--max-sequences-per-pack", "3"]
  assert run(capsys, *arguments) == (130, "", "interrupted\n")
  assert signal.getsignal(signal.SIGINT) is handler


def test_progress_shows_the_best_plan_and_bound():
  class Recorded(Progress):
    def found(self, result):
      results.append(result)

  results: list[str] = []
  histogram = packing.load_histogram("squad_1_1_384")
  packing.pack(histogram, max_sequences_per_pack=3, progress=Recorded())
  assert results[0] == "40,631 packs, at least 39,713 needed"
  assert results[-1] == "40,195 packs, at least 40,195 needed"


def test_pack_prints_one_object(capsys, tmp_path):
  status, out, _ = run(
    capsys,
    *("pack", "--histogram", "squad_1_1_384", "--algorithm", "spfhp"),
    *("--max-sequences-per-pack", "2", "--output", str(tmp_path / "plan.json")),
    *("--certificate", str(tmp_path / "certificate.json"), "--json"),
  )
  result = json.loads(out)
  assert status == 0
  expected = {
    "algorithm": "spfhp",
    "max_sequence_length": 384,
    "max_sequences_per_pack": 2,
    "num_sequences": 88_641,
    "num_packs": 45_335,
    "lower_bound": 44_321,
    "num_strategies": 348,
    "num_tokens": 17_408_640,
    "num_padding_tokens": 2_159_161,
    "packing_depth": 2,
  }
  assert {name: result[name] for name in expected} == expected
  assert result["efficiency"] == pytest.approx(0.87597, abs=5e-6)
  assert result["packing_factor"] == pytest.approx(1.955, abs=5e-4)
  assert result["seconds"] > 0
  assert packing.load_plan(tmp_path / "plan.json").num_packs == 45_335
  certificate = json.loads((tmp_path / "certificate.json").read_text())
  assert certificate["gap"] == 45_335 - 44_321


def test_pack_takes_lengths_rows_multiples_and_options(capsys, tmp_path):
  np.save(tmp_path / "lengths.npy", np.array([27, 9, 9, 18, 27, 3]))
  status, out, _ = run(
    capsys,
    *("pack", "--lengths", str(tmp_path / "lengths.npy"), "--max-sequence-length", "27"),
    *("--row-length", "36", "--algorithm", "auto", "--option", "time_budget=5", "--json"),
  )
  result = json.loads(out)
  assert status == 0
  assert (result["num_packs"], result["lower_bound"]) == (3, 3)
  assert result["max_sequences_per_pack"] == 2  # more gain nothing
  status, out, _ = run(
    capsys,
    *("pack", "--lengths", str(tmp_path / "lengths.npy"), "--max-sequence-length", "20"),
    *("--too-long", "truncate", "--length-multiple", "8", "--separator-tokens", "1"),
  )
  assert status == 0
  assert "6 in = 6 out" in out


def test_compare_prints_table_markdown_csv_and_json(capsys):
  arguments = ("compare", "--histogram", "glue_cola_128", "--depths", "3,max")
  _, table, _ = run(capsys, *arguments)
  _, markdown, _ = run(capsys, *arguments, "--format", "markdown")
  _, text, _ = run(capsys, *arguments, "--format", "csv")
  _, objects, _ = run(capsys, *arguments, "--json")
  rows = json.loads(objects)
  assert len(table.splitlines()) == 1 + len(rows)
  assert len(markdown.splitlines()) == 2 + len(rows)
  assert all(line.startswith("| ") for line in markdown.splitlines())
  records = list(csv.DictReader(io.StringIO(text)))
  assert [r["num_packs"] for r in records] == [
    "" if row["num_packs"] is None else str(row["num_packs"]) for row in rows
  ]
  spfhp = next(r for r in rows if r["algorithm"] == "spfhp" and r["depth"] == "max")
  assert (spfhp["num_packs"], spfhp["lower_bound"], spfhp["gap"]) == (913, 757, 156)
  assert "82.882" in table


def test_compare_shows_least_squares_before_and_why_it_failed(capsys):
  status, out, _ = run(
    capsys,
    *("compare", "--histogram", "glue_cola_128", "--depths", "3,max"),
    *("--algorithms", "nnlshp,ennlshp,lpfhp", "--option", "ennlshp:rounding=up"),
    *("--option", "nnlshp:residual_weight=1", "--json"),
  )
  rows = json.loads(out)
  assert status == 0
  assert [r["algorithm"] for r in rows] == [
    *("nnlshp before", "nnlshp", "nnlshp"),
    *("ennlshp before", "ennlshp", "ennlshp"),
    *("lpfhp", "lpfhp"),
  ]
  assert "GiB" in rows[2]["note"]


def test_analyze_advises_and_draws(capsys, tmp_path):
  pytest.importorskip("matplotlib")
  pa = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  rng = np.random.default_rng(0)
  tokens = [[7] * n for n in rng.integers(3, 70, 2003).tolist()]
  parquet.write_table(pa.table({"input_ids": tokens}), tmp_path / "d.parquet")
  status, out, _ = run(
    capsys, "analyze", str(tmp_path / "d.parquet"), "--pictures", str(tmp_path / "drawn")
  )
  assert status == 0
  assert "Advice: pack" in out
  names = ["efficiency.png", "fill.png", "histogram.png"]
  assert sorted(p.name for p in (tmp_path / "drawn").iterdir()) == names
  for name in names:
    assert (tmp_path / "drawn" / name).read_bytes()[:4] == b"\x89PNG"
  _, out, _ = run(capsys, "analyze", str(tmp_path / "d.parquet"), "--json")
  advice = json.loads(out)
  assert advice["num_sequences"] == 2003
  assert {c["name"] for c in advice["choices"]} == {
    *("pad", "bucket", "sorted batches", "concatenate", "unpad", "pack")
  }


def test_analyze_prints_flags_that_make_its_plan(capsys, tmp_path):
  lengths = [2] * 30 + [30, 16, 14] * 5
  (tmp_path / "my lengths.txt").write_text(" ".join(map(str, lengths)))
  chosen = ("--lengths", str(tmp_path / "my lengths.txt"), "--max-sequence-length", "32")
  _, out, _ = run(capsys, "analyze", *chosen, "--json")
  advice = json.loads(out)
  _, packed, _ = run(capsys, "pack", *shlex.split(advice["flags"]["pack"]), "--json")
  assert json.loads(packed)["num_packs"] == advice["num_packs"]
  # Without a depth, `pack` and train.py choose the same one.
  _, default, _ = run(capsys, "pack", *chosen, "--json")
  depth = json.loads(default)["max_sequences_per_pack"]
  assert f"--config.packing.max_sequences_per_pack={depth}" in advice["flags"]["train"]
  _, text, _ = run(capsys, "analyze", *chosen)
  assert advice["flags"]["pack"] in text
  assert advice["flags"]["train"] in text


def test_analyze_does_not_advise_packing_without_a_gain(capsys, tmp_path):
  (tmp_path / "lengths.txt").write_text("64 " * 500)
  _, out, _ = run(capsys, "analyze", str(tmp_path / "lengths.txt"), "--json")
  assert json.loads(out)["recommendation"] == "pad"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ("pack --histogram nothing", "no built-in histogram 'nothing'"),
    ("pack --histogram glue_cola_128 --algorithm magic", "no packing algorithm 'magic'"),
    ("pack --histogram glue_cola_128 --max-sequences-per-pack 0", "'0'; expected"),
    ("pack --histogram glue_cola_128 --max-sequences-per-pack 1.5", "'1.5'; expected"),
    ("pack --histogram glue_cola_128 --row-length 40", "longest sequence, 47"),
    ("pack --histogram glue_cola_128 --row-length 99999999999", "at most 16777216"),
    ("pack --histogram glue_cola_128 --length-multiple 0", "length_multiple is 0"),
    ("pack --histogram glue_cola_128 --separator-tokens -1", "separator_tokens is -1"),
    ("pack --histogram glue_cola_128 --option depth=3", "no option 'depth'; expected"),
    ("pack --histogram glue_cola_128 --option x", "expected NAME=VALUE"),
    ("pack --histogram glue_cola_128 --option seed=1", "no option 'seed'"),
    ("pack --histogram glue_cola_128 --option algorithm=x", "no option 'algorithm'"),
    ("pack --histogram glue_cola_128 --option row_length=200", "no option 'row_length'"),
    ("pack --histogram glue_cola_128 --seed -1", "seed is -1"),
    (f"pack --histogram glue_cola_128 --option target_gap={'7' * 5000}", "target_gap is"),
    (f"pack --histogram glue_cola_128 --separator-tokens {10**12}", "separator_tokens is"),
    (f"pack --histogram glue_cola_128 --max-sequence-length {10**24}", "at most 16777216"),
    ("pack --lengths=", "There is no file without a name"),
    (f"pack --lengths {'x' * 5000}", "There is no xxx"),
    (f"pack --histogram-file {'x' * 5000}", "File name too long"),
    (f"pack --histogram glue_cola_128 --output {'x' * 5000}", "File name too long"),
    ("pack --histogram wikipedia_512 --output x --certificate ./x", "expected two files"),
    ("pack --histogram wikipedia_2048 --certificate /no/such/place", "Cannot write"),
    ("compare --histogram glue_cola_128 --option optimal:seed=1", "no option 'seed'"),
    (
      "compare --histogram glue_cola_128 --option lpfhp:x=1 --algorithms lpfhp",
      "option 'x'",
    ),
    ("compare --histogram glue_cola_128 --row-length 10", "cannot hold the longest"),
    ("compare --histogram glue_cola_128 --algorithms=", "There is no algorithm"),
    ("compare --histogram glue_cola_128 --seed -1", "seed is -1"),
    ("compare --histogram glue_cola_128 --output /no/such/place", "Cannot write"),
    (f"compare --histogram glue_cola_128 --batch-size {10**30}", "batch_size is 1000"),
    (f"analyze --histogram glue_cola_128 --hidden-size {10**400}", "hidden_size is 1000"),
    ("pack --histogram glue_cola_128 --option time_limit=0", "time_limit is 0"),
    ("pack --histogram glue_cola_128 --option time_limit=a", "time_limit is 'a'"),
    ("pack --histogram glue_cola_128 --max-sequence-length 40", "--too-long"),
    ("pack --histogram glue_cola_128 --algorithm nnlshp", "max_sequences_per_pack="),
    ("pack --histogram glue_cola_128 --output /no/such/place", "Cannot write"),
    ("pack --histogram-file nothing.json", "No such file"),
    ("pack --lengths nothing.npy", "There is no nothing.npy"),
    ("compare --histogram glue_cola_128 --algorithms a,b", "no packing algorithm 'a'"),
    ("compare --histogram glue_cola_128 --depths 1,x", "'x'; expected"),
    ("compare --histogram glue_cola_128 --option nnlshp:a=1", "expected A:NAME=VALUE"),
    ("compare --histogram glue_cola_128 --batch-size 0", "batch_size is 0"),
    ("analyze nothing", "There is no nothing"),
    ("analyze --histogram glue_cola_128 --hidden-size 0", "hidden_size is 0"),
  ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, arguments, message):
  status, out, err = run(capsys, *arguments.split())
  assert status == 2
  assert out == ""
  assert err.startswith("error: ")
  assert err.count("\n") == 1
  assert message in err


def test_lengths_beyond_the_row_and_empty_sequences(capsys, tmp_path):
  for lengths, message in (("3 600", "lengths[1] is 600"), ("0 3", "lengths[0] is 0")):
    (tmp_path / "x.txt").write_text(lengths)
    path = str(tmp_path / "x.txt")
    status, _, err = run(capsys, "pack", "--lengths", path, "--max-sequence-length", "512")
    assert status == 2
    assert message in err
  (tmp_path / "x.txt").write_text("")
  assert run(capsys, "analyze", path)[0] == 2


def test_a_histogram_of_a_hundred_thousand_lengths(capsys, tmp_path):
  counts = np.random.default_rng(0).integers(0, 3, 100_003)
  content = {"max_sequence_length": counts.size, "counts": counts.tolist()}
  (tmp_path / "h.json").write_text(json.dumps(content))
  arguments = ["pack", "--histogram-file", str(tmp_path / "h.json")]
  arguments += ["--max-sequences-per-pack", "3"]
  status, out, _ = run(capsys, *arguments, "--algorithm", "auto", "--json")
  assert status == 0
  assert json.loads(out)["num_sequences"] == counts.sum()


def test_pack_prints_the_depth_of_the_plan(capsys):
  arguments = ("pack", "--histogram", "glue_cola_128", "--max-sequences-per-pack", "3")
  _, out, _ = run(capsys, *arguments, "--algorithm", "none", "--json")
  result = json.loads(out)
  assert result["max_sequences_per_pack"] == 1
  assert result["gap"] == 0
  arguments = ("pack", "--histogram", "glue_cola_128", "--max-sequences-per-pack", "128")
  _, out, _ = run(capsys, *arguments, "--json")
  assert json.loads(out)["max_sequences_per_pack"] == "max"


@pytest.mark.parametrize(
  "arguments", ["", "pack", "magic", "pack --histogram x --seed y", "pack --magic"]
)
def test_a_mistake_in_the_arguments_is_two_lines(capsys, arguments):
  with pytest.raises(SystemExit) as raised:
    main(arguments.split())
  assert raised.value.code == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ")
  assert error.count("\n") <= 2


def test_a_closed_output_is_an_error(monkeypatch, capsys):
  monkeypatch.setattr(sys, "stdout", None)
  status = main(["pack", "--histogram", "glue_cola_128", "--algorithm", "lpfhp"])
  assert status == 1
  assert "standard output is closed" in capsys.readouterr().err


def test_as_a_program():
  command = [sys.executable, "-m", "packing"]
  done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
  for name in ("pack", "compare", "analyze"):
    assert name in done.stdout
    shown = subprocess.run(
      [*command, name, "--help"], capture_output=True, text=True, check=True
    )
    assert "examples:" in shown.stdout
  done = subprocess.run(
    [*command, "pack", "--histogram", "x"], capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert "Traceback" not in done.stderr
