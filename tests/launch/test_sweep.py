"""Sweeps: the file, the runs, the table."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
from matplotlib.colors import to_rgba

from launch import workdir
from launch.door import nested
from launch.record import metrics, plots
from launch.sweep import __main__ as sweep
from launch.sweep import file as sweep_file
from launch.sweep import picture as sweep_picture
from launch.sweep import table as sweep_table
from launch.sweep.file import load_sweep
from tests.launch.record.test_report import picture, share_of
from tests.pipeline import processes
from tests.programs import READ_ONLY_CACHE, SETTINGS, STEPS, fields
from training.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[2]
FIELD = "model.attention_mask"
GRID = {FIELD: ["segment", "none"], "seed": [0, 1, 2]}


def write_sweep(folder, spec) -> pathlib.Path:
  path = folder / "tried.py"
  path.write_text(f"def get_sweep():\n  return {spec!r}\n")
  return path


def make_sweep(folder, *options, **spec) -> sweep_file.Sweep:
  spec = {"config": "configs/quickstart.py"} | spec
  return load_sweep(write_sweep(folder, spec), options)


def test_a_grid_is_every_combination_seeds_outermost(tmp_path):
  grid = {FIELD: ["segment", "none"], "model.position_reset": [True, False], "seed": [5, 6]}
  runs = make_sweep(tmp_path, grid=grid).runs
  assert [run.name for run in runs[:5]] == [
    "attention_mask=segment,position_reset=True,seed=5",
    "attention_mask=segment,position_reset=False,seed=5",
    "attention_mask=none,position_reset=True,seed=5",
    "attention_mask=none,position_reset=False,seed=5",
    "attention_mask=segment,position_reset=True,seed=6",
  ]
  assert len(runs) == 8
  for run in runs:
    given = run.settings.given
    reset, mask = given["model.position_reset"], given[FIELD]
    assert run.name == f"{run.arm},seed={run.settings.seed}"
    assert run.arm == f"attention_mask={mask},position_reset={reset}"


@pytest.mark.parametrize(
  ("options", "arm", "expected"),
  [
    ([], {}, ("2 epochs", 1661)),
    (["--config.train.steps=9"], {}, ("", 9)),
    ([], {"train.steps": 9}, ("", 9)),
    ([], {"train.steps": 9, "train.duration": "1 epoch"}, ("1 epoch", 9)),
  ],
)
def test_steps_replace_a_duration_of_the_overrides(tmp_path, options, arm, expected):
  arms, overrides = {"a": arm}, {"train.duration": "2 epochs"}
  (run,) = make_sweep(tmp_path, *options, arms=arms, overrides=overrides).runs
  assert (run.settings.train.duration, run.settings.train.steps) == expected
  assert run.fields.get("train.duration", "") == expected[0]  # the flag of train.py


@pytest.mark.parametrize(
  ("option", "arm"),
  [
    ("train.steps=9", {"train.steps": 5}),
    ("train.steps=9", {"train.duration": "1 epoch"}),
    ("train.duration=1 epoch", {"train.steps": 5}),
    ("optimizer.warmup=9 steps", {"optimizer.warmup_steps": 5}),
  ],
)
def test_an_option_and_an_arm_do_not_set_the_same(tmp_path, option, arm):
  with pytest.raises(ConfigError, match="for 'a', but an option sets or replaces it"):
    make_sweep(tmp_path, f"--config.{option}", arms={"a": arm})


def test_a_duration_that_an_option_empties_replaces_no_steps(tmp_path):
  (run,) = make_sweep(
    tmp_path, "--config.train.duration=", arms={"a": {"train.steps": 5}}
  ).runs
  assert (run.settings.train.duration, run.settings.train.steps) == ("", 5)


def test_arms_have_their_names_and_win_over_the_overrides(tmp_path):
  found = make_sweep(
    tmp_path,
    "--config.train.log_every=50",
    overrides={"train.steps": 600, "train.log_every": 10},
    arms={"short": {"train.steps": 300}, "a/b": {"optimizer.learning_rate": 1}},
    grid={"data.seed": [7], "seed": [0]},
  )
  short, other = found.runs
  assert (short.name, other.name) == ("short,seed=7,seed=0", "a_b,seed=7,seed=0")
  assert (short.settings.train.steps, other.settings.train.steps) == (300, 600)
  assert short.settings.train.log_every == 50  # the command line, over the file
  assert other.settings.optimizer.learning_rate == 1.0
  assert other.fields == {
    "train.steps": 600,
    "optimizer.learning_rate": 1,
    "data.seed": 7,
    "seed": 0,
  }


def test_a_sweep_of_text_is_checked_as_of_a_gpt2(tmp_path):
  arms = {"learned": {"model.positions": "learned"}}
  (run,) = make_sweep(tmp_path, config="configs/gpt2_atoms.py", arms=arms).runs
  assert run.settings.given["model.positions"] == "learned"
  with pytest.raises(ConfigError, match=r"position_reset is False, which has no effect"):
    make_sweep(
      tmp_path,
      config="configs/gpt2_atoms.py",
      arms={"running on": {"model.position_reset": False}},
    )


def test_fields_with_the_same_last_part_are_named_whole(tmp_path):
  grid: dict = {"model.dropout_rate": [0.1], "model.attention_dropout_rate": [0.2]}
  (run,) = make_sweep(tmp_path, grid=grid).runs
  assert run.name == run.arm == "dropout_rate=0.1,attention_dropout_rate=0.2"
  grid = {FIELD: ["none"], "seed": [3]}
  grid |= {"data.seed": [1], "packing.algorithm": ["none"], "seed": [3]}
  (run,) = make_sweep(tmp_path, grid=grid).runs
  assert run.name == "attention_mask=none,seed=1,algorithm=none,seed=3"


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ({"grid": {"model.attention_mast": ["none"]}}, "did you mean 'model.attention_mask'"),
    ({"grid": {FIELD: []}}, "expected a list of values for 'model.attention_mask'"),
    ({"grid": {FIELD: [3]}}, "is 3; expected str, such as 'segment'"),
    ({"grid": {FIELD: ["some"]}}, "config.model.attention_mask is 'some'; expected"),
    ({"grid": {"train.steps": [2.5]}}, "train.steps is 2.5; expected int"),
    ({"grid": {"train.log_every": [0]}}, "log_every"),
    ({"grid": {"seed": [1, 1]}}, "two runs with the name run,seed=1"),
    ({"grid": GRID, "overrides": {FIELD: "none"}}, "is in the grid, and in the overrides"),
    ({"grid": GRID, "arms": {"x": {"seed": 1}}}, "'seed' is in the grid, and in the overr"),
    ({"grid": GRID, "overrides": []}, "expected a dictionary with config, overrides, arms"),
    ({"arms": {"x": 3}}, "expected a dictionary with config, overrides, arms, grid; found"),
    ({}, "expected 'arms' or a 'grid' to run"),
    ({"grid": GRID, "gird": {}}, "(it has 'gird')"),
    ({"grid": GRID, "config": 3}, "expected a dictionary with config"),
    ({"grid": GRID, "config": "configs/none.py"}, "configs/none.py"),
  ],
)
def test_a_sweep_that_cannot_run_is_refused(tmp_path, capsys, spec, message):
  path = write_sweep(tmp_path, {"config": "configs/quickstart.py"} | spec)
  assert sweep.main([str(path), "--workdir", str(tmp_path / "runs")]) == 2
  told = capsys.readouterr().err
  assert message in told
  assert len(told.splitlines()) == 1
  assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
  ("option", "message"),
  [
    ("--config.train.stepz=9", "did you mean 'train.steps'"),
    ("--config.train.steps=many", "many"),
    ("--config.seed=4", "FILE sets seed for 'attention_mask=segment', but an option"),
    ("--config.train.log_every=0", "log_every"),
    ("--steps=4", "Expected --config.FIELD=VALUE, found '--steps=4'"),
    ("--config.train.steps", "Expected --config.FIELD=VALUE"),
  ],
)
def test_an_option_that_cannot_be_is_refused(tmp_path, capsys, option, message):
  path = write_sweep(tmp_path, {"config": "configs/quickstart.py", "grid": GRID})
  assert sweep.main([str(path), f"--workdir={tmp_path / 'runs'}", option]) == 2
  told = capsys.readouterr().err
  assert message.replace("FILE", str(path)) in told
  assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("1 +", "SyntaxError"),
    ("x = 1", r"broken\.py cannot be used: it defines no get_sweep\(\)"),
    ("def get_sweep(): 1 / 0", "ZeroDiv"),
  ],
)
def test_a_file_that_fails_is_told_in_a_line(tmp_path, text, message):
  path = tmp_path / "broken.py"
  path.write_text(text)
  with pytest.raises(ConfigError, match=message):
    load_sweep(path)
  with pytest.raises(ConfigError, match=r"There is no sweep file .*other\.py"):
    load_sweep(tmp_path / "other.py")


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "sweeps").glob("*.py")))
def test_every_sweep_of_the_project_can_be_run(path, capsys):
  assert sweep.main([str(path), "--dry-run"]) == 0
  names = capsys.readouterr().out.splitlines()
  assert len(names) == len(set(names)) > 1


def finish(folder, run, accuracy, *, metric="mlm_accuracy", **more):
  """What train.py leaves of a run."""
  workdir.check_folder(folder / run.name, run.settings)
  with workdir.claimed(folder / run.name):
    workdir.record(folder / run.name, run.settings.given, {})
    log = metrics.MetricsLog(folder / run.name)
    for step in (10, 20):
      log.evaluation(step, {metric: accuracy * step / 20})
    summary = {f"eval_{metric}": accuracy, "sequences_per_second": 1234.5} | more
    (folder / run.name / "summary.json").write_text(json.dumps(summary))


def test_seeds_are_pooled_and_what_failed_is_told(tmp_path):
  swept = make_sweep(tmp_path, grid=GRID)
  accuracies = {"segment": [0.2, 0.3, 0.7], "none": [0.1]}
  for run in swept.runs:
    values = accuracies[run.settings.model.config.attention_mask]
    if run.settings.seed < len(values):
      finish(tmp_path, run, values[run.settings.seed])
  failures = {"attention_mask=none,seed=1": "train.py: no"}
  arms = sweep.tabulate(swept, tmp_path, failures)
  assert [(row["arm"], row["n"]) for row in arms] == [
    ("attention_mask=segment", 3),
    ("attention_mask=none", 1),
  ]
  pooled, alone = (row["eval_mlm_accuracy"] for row in arms)
  assert pooled["values"] == accuracies["segment"]
  assert pooled["mean"] == pytest.approx(0.4)
  assert pooled["sd"] == pytest.approx(np.sqrt((0.04 + 0.01 + 0.09) / 2))
  assert alone == {"mean": 0.1, "sd": None, "values": [0.1]}
  assert [run["finished"] for run in arms[1]["runs"]] == [True, False, False]
  assert arms[1]["runs"][1]["error"] == "train.py: no"

  sweep.write(tmp_path, arms, failures)
  written = (tmp_path / "sweep.md").read_text()
  header, rule, first, second = sweep_table.table(arms).splitlines()
  assert {len(header), len(rule)} == {len(first), len(second)} == {len(header)}
  assert " 40.00% ± 26.46% |" in first
  assert " 10.00% |" in second
  assert "1,234 ± 0 |" in first
  assert header.startswith("| attention_mask | n | masked-token accuracy |")
  assert "loss" not in header  # no run has it
  assert sweep_table.table(arms) in written
  assert "- attention_mask=none,seed=1: train.py: no" in written
  found = json.loads((tmp_path / "sweep.json").read_text())
  assert found == {"arms": arms, "tables": sweep_table.records(arms)}
  first, second = found["tables"]["results"]
  assert first["masked-token accuracy"] == "40.00% ± 26.46%"
  assert (second["attention_mask"], second["n"]) == ("none", "1")
  assert found["tables"]["differences"] == []
  assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_arms_are_compared_with_the_first_in_pairs_of_seeds(tmp_path):
  """Seed 1 of the second arm is not finished, so its pair does not count."""
  swept = make_sweep(tmp_path, grid=GRID)
  scores: dict[str, list] = {"segment": [0.5, 0.9, 0.6], "none": [0.3, None, 0.5]}
  for run in swept.runs:
    score = scores[run.settings.model.config.attention_mask][run.settings.seed]
    if score is not None:
      finish(tmp_path, run, score)
  arms = sweep.tabulate(swept, tmp_path, {})
  header, _, row = sweep_table.differences(arms).splitlines()
  expected = scipy.stats.ttest_1samp([-0.2, -0.1], 0).confidence_interval(0.95)
  told = f"-15.00% ({expected.low:+.2%} to {expected.high:+.2%})"
  titles, cells = (
    [cell.strip() for cell in line.strip("|").split("|")] for line in (header, row)
  )
  assert titles == ["attention_mask", "pairs", "masked-token accuracy"]
  assert cells == ["none", "2", told]
  assert sweep_table.differences(arms) in sweep.described(arms)
  alone = sweep.tabulate(make_sweep(tmp_path, grid=GRID | {"seed": [0]}), tmp_path, {})
  assert not sweep_table.differences(alone)  # one pair has no interval


def test_the_baseline_is_the_last_row(tmp_path):
  swept = make_sweep(tmp_path, grid=GRID | {"model.position_reset": [True]})
  for run, unigram in zip(swept.runs, (0.05, 0.07), strict=False):
    finish(tmp_path, run, 0.3, unigram_mlm_accuracy=unigram)
  arms = sweep.tabulate(swept, tmp_path, {})
  header, *_, last = sweep_table.table(arms).splitlines()
  cells = [cell.strip() for cell in last.strip("|").split("|")]
  assert cells == ["most-frequent baseline", "", "2", "6.00% ± 1.41%", ""]
  assert len(last) == len(header)


def test_the_caption_names_the_best_evaluation_where_a_score_is_of_it(tmp_path):
  runs = make_sweep(tmp_path, grid=GRID).runs[:2]  # an arm each
  finish(tmp_path, runs[0], 0.3)
  arms = [sweep._row(run.arm, [run], tmp_path, {}) for run in runs]
  assert sweep.described(arms).startswith("Held-out results at the end: mean ±")
  finish(tmp_path, runs[1], 0.4, metric="score", best_score=0.5)
  arms = [sweep._row(run.arm, [run], tmp_path, {}) for run in runs]
  told = "Held-out results at the end (best score: of all evaluations): mean ±"
  assert sweep.described(arms).startswith(told)


def test_the_quick_look_that_is_advised_is_not_all_warm_up():
  path = ROOT / "configs" / "sweeps" / "ablations.py"
  advice = path.read_text().partition("quick look")[2].partition("\n\n")[0]
  options = re.findall(r"--config\.[a-z_.]+=\w+", advice)
  for run in load_sweep(path, options).runs:
    assert run.settings.optimizer.warmup_steps <= run.settings.train.steps / 5


def test_the_picture_has_the_finished_runs_of_the_first_task(tmp_path, monkeypatch):
  """Another task does not have its metric; the table has both."""
  arms = {"causal": {"data.task": "text"}, "masked": {}}
  swept = make_sweep(tmp_path, arms=arms, grid={"seed": [0, 1, 2]})
  for run in swept.runs[:4]:  # of two seeds
    metric = {"causal": "causal_accuracy", "masked": "mlm_accuracy"}[run.arm]
    finish(tmp_path, run, 0.1 * (1 + run.settings.seed), metric=metric)
  drawn = {}

  def draw(path, arms, *, metric, best):
    assert not best
    drawn.update({arm: [x[-1][metric] for x in lines] for arm, lines in arms.items()})

  monkeypatch.setattr(sweep_picture, "draw", draw)
  sweep.write(tmp_path, sweep.tabulate(swept, tmp_path, {}), {})
  assert drawn == {"causal": [0.1, 0.2]}
  written = " ".join((tmp_path / "sweep.md").read_text().split())
  assert "masked-token accuracy | next-token accuracy" in written
  assert "15.00% ± 7.07%" in written


@pytest.fixture
def axes(monkeypatch):
  """Those of the pictures that are drawn."""
  found: list = []
  save = plots.save

  def keep(figure, path):
    found.extend(figure.axes)
    save(figure, path)

  monkeypatch.setattr(plots, "save", keep)
  return found


def points(axis):
  return [x for line in axis.lines if (x := line.get_xydata().tolist())]


def test_the_picture_shows_the_best_score_as_the_table_does(tmp_path, axes):
  (run,) = make_sweep(tmp_path, arms={"a": {}}).runs
  finish(tmp_path, run, 0.3, metric="score", best_score=0.7)
  log = tmp_path / run.name / "eval.jsonl"
  scores = (0.5, 0.7, 0.3)
  lines = [json.dumps({"step": step, "score": x}) for step, x in enumerate(scores, 1)]
  log.write_text("\n".join(lines) + "\n")
  arms = sweep.tabulate(load_sweep(tmp_path / "tried.py"), tmp_path, {})
  sweep.write(tmp_path, arms, {})
  left, right = axes
  assert points(left) == [[[0.7, 0]], [[0.7, 0]]]
  assert left.get_xlabel() == "held-out score of the task at its best"
  assert [curve[-1] for curve in points(right)] == [[3, 0.3]] * 2
  assert "70.00%" in (tmp_path / "sweep.md").read_text()


def test_the_picture_has_every_run_and_the_means(tmp_path, axes):
  def lines(last):
    return [{"step": t, "mlm_accuracy": last * t / 30} for t in (10, 20, 30)]

  arms = {"with": [lines(0.2), lines(0.4)], "without": [lines(0.1)]}
  sweep_picture.draw(tmp_path / "picture.png", arms)
  left, right = axes
  assert [x.get_text() for x in left.get_yticklabels()] == ["with", "without"]
  ends = [[[0.2, 0], [0.4, 0]], [[pytest.approx(0.3), 0]], [[0.1, 1]], [[0.1, 1]]]
  assert points(left) == ends
  last = [curve[-1] for curve in points(right)]
  assert last == [[30, pytest.approx(y)] for y in (0.2, 0.4, 0.3, 0.1, 0.1)]
  pixels = picture(tmp_path / "picture.png")
  assert min(share_of(pixels, to_rgba(x)) for x in plots.colours(2)) > 5e-4
  (legend,) = right.figure.legends
  assert [x.get_text() for x in legend.get_texts()] == ["with", "without"]
  assert len({line.get_linestyle() for line in legend.get_lines()}) == 2
  axes.clear()
  once = {arm: [run[-1:] for run in runs] for arm, runs in arms.items()}
  sweep_picture.draw(tmp_path / "picture.png", once)
  (left,) = axes  # runs that were evaluated once have no curves
  assert points(left) == ends
  assert left.get_xlabel().endswith("at the end")


def test_only_what_is_not_finished_is_run(tmp_path, monkeypatch, capsys):
  """A run of another config is not finished: train.py refuses its folder."""
  path = write_sweep(tmp_path, {"config": "configs/quickstart.py", "grid": GRID})
  swept, longer = load_sweep(path), load_sweep(path, ["--config.train.steps=1800"])
  names = [run.name for run in swept.runs]
  finish(tmp_path / "runs", swept.runs[1], 0.3)
  finish(tmp_path / "runs", longer.runs[2], 0.3)
  begun: list[str] = []

  def run_all(queue, *, jobs, failures):
    assert jobs == 4
    begun.extend(job.name for job in queue if not job.is_finished())
    finish(tmp_path / "runs", swept.runs[0], 0.4)
    failures[names[5]] = "broken"

  monkeypatch.setattr(sweep.jobs, "run_all", run_all)
  arguments = [str(path), "--workdir", str(tmp_path / "runs"), "--json", "--jobs=4"]
  assert sweep.main(arguments) == 1
  assert begun == [names[0], *names[2:]]
  segment, none = json.loads(capsys.readouterr().out)["arms"]
  assert (segment["n"], none["n"]) == (1, 1)
  assert none["runs"][2]["error"] == "broken"


def options_of(folder, data) -> list[str]:
  places = f"data.source=stdlib:{folder / 'library'} data.directory={data}"
  return [*fields(places), *SETTINGS]


@pytest.mark.slow
def test_runs_are_real_and_one_that_is_refused_stops_no_other(folder, tmp_path, capsys):
  """The first folder belongs to another config; train.py says so, and the next runs."""
  spec = {"config": "configs/quickstart.py", "grid": {FIELD: ["none"], "seed": [0, 1]}}
  path, options = write_sweep(tmp_path, spec), options_of(folder, tmp_path / "data")
  refused, trained = load_sweep(path, options).runs
  runs = tmp_path / "runs"
  other = nested({**refused.settings.given, "train.steps": 6})
  (runs / refused.name).mkdir(parents=True)
  (runs / refused.name / "config.json").write_text(json.dumps(other))

  assert sweep.main([str(path), f"--workdir={runs}", "--jobs=2", *options]) == 1
  told = capsys.readouterr()
  assert f"{refused.name}: failed:" in told.err
  assert f"train.steps was 6 and is now {STEPS}" in told.err
  summary = json.loads((runs / trained.name / "summary.json").read_text())
  steps = summary["steps"]
  assert steps == summary["recipe"]["packed"]["steps"] >= STEPS
  config = json.loads((runs / trained.name / "config.json").read_text())
  assert config == nested(trained.settings.given)
  (row,) = json.loads((runs / "sweep.json").read_text())["arms"]
  assert row["n"] == 1
  assert row["eval_mlm_accuracy"]["values"] == [summary["eval_mlm_accuracy"]]
  figures = row["runs"][1]["figures"]
  assert figures["parameters_digest"] == summary["parameters_digest"]
  assert figures["cores"] == summary["cores"] == max(len(os.sched_getaffinity(0)) // 2, 1)
  assert re.search(r"\| none +\| 1 \|", told.out)
  log = (runs / trained.name / "train.log").read_text()
  assert f"training: {steps}/{steps} steps, loss" in log


def test_an_interrupted_sweep_takes_its_run_along(folder, tmp_path):
  path = write_sweep(tmp_path, {"config": "configs/quickstart.py", "grid": GRID})
  options = [f"--workdir={tmp_path / 'runs'}", *options_of(folder, tmp_path / "data")]
  process = subprocess.Popen(
    [sys.executable, "-m", "launch.sweep", path, *options],
    cwd=ROOT,
    env=os.environ | READ_ONLY_CACHE,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 300
  while not (children := processes.children_of(process.pid)):
    assert process.poll() is None
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGTERM)
  _, told = process.communicate(timeout=300)
  assert process.returncode == 130
  written = tmp_path / "runs" / "sweep.md"
  assert told.splitlines()[-1] == (
    f"{written} has what is finished. Stopped. Run the same command again to continue."
  )
  assert "| none " in written.read_text()
  assert not any(pathlib.Path(f"/proc/{child}").exists() for child in children)


def test_reading_a_sweep_starts_no_device():
  """Its runs need the device, and a TPU serves one process only."""
  program = (
    "from jax._src import xla_bridge; from launch.sweep.file import load_sweep; "
    "load_sweep('configs/sweeps/ablations.py'); "
    "assert not xla_bridge.backends_are_initialized()"
  )
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
