"""Runs laid over each other."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from tests.training import test_sweep
from tests.training.test_evaluation import picture, share_of
from training import plots
from training.errors import ConfigError
from training.record import metrics
from training.record import plots as drawing
from training.sweep import __main__ as sweep
from training.sweep import picture as sweep_picture

FIRST, SECOND = map(to_rgba, drawing.colours(2))


def make_run(folder, slope, *, seconds=36.0):
  """A line each 10 steps of 90, an evaluation each 30."""
  folder.mkdir(parents=True)
  with metrics.MetricsLog(folder, first_step=0) as log:
    for step in range(10, 91, 10):
      line = {"mlm_accuracy": slope * step, "loss": 5 - step / 100, "learning_rate": 0.1}
      log.train(step, line | {"seconds": seconds * step, "sequences": 7 * step})
      if step % 30 == 0:
        log.evaluation(step, {"mlm_accuracy": slope * step, "nsp_accuracy": 0.5})
  return folder


@pytest.fixture
def runs(tmp_path):
  return [make_run(tmp_path / "a", 0.001), make_run(tmp_path / "b", 0.003, seconds=72.0)]


@pytest.fixture
def axes_of(tmp_path, monkeypatch):
  """Draws; returns the axes as they are when the picture is saved, and its pixels."""

  def draw(function, *arguments, **options):
    found = []
    save = drawing.save

    def keep(figure, path):
      found.extend(figure.axes)
      save(figure, path)

    with monkeypatch.context() as patched:
      patched.setattr(drawing, "save", keep)
      function(tmp_path / "picture.png", *arguments, **options)
    return found, picture(tmp_path / "picture.png")

  return draw


def curves_of(axis) -> list[np.ndarray]:
  """float[points, 2] of each line with points."""
  return [line.get_xydata() for line in axis.lines if len(line.get_xydata())]


def texts(labels) -> list[str]:
  return [label.get_text() for label in labels]


@pytest.mark.parametrize(
  ("by", "last", "label"),
  [
    ("steps", (90, 90), "steps"),
    ("sequences", (630, 630), "sequences trained on"),
    ("hours", (0.9, 1.8), "hours of training"),
  ],
)
def test_runs_are_laid_over_each_other(runs, axes_of, by, last, label):
  (axis,), pixels = axes_of(plots.plot_runs, runs, by=by)
  assert (axis.get_xlabel(), axis.get_ylabel()) == (label, "masked-token accuracy")
  assert axis.get_title("right") == "light: training, strong: held out"
  assert texts(axis.get_legend().get_texts()) == ["a", "b"]
  curves = curves_of(axis)
  assert list(map(len, curves)) == [9, 3, 9, 3]  # trained and held out
  ends = [(x, 90 * slope) for x, slope in zip(last, (0.001, 0.003), strict=True)]
  found = [curve[-1] for curve in curves]
  np.testing.assert_allclose(found, np.repeat(ends, 2, axis=0))
  for colour in (FIRST, SECOND):
    assert share_of(pixels, colour) > 1e-3


@pytest.mark.parametrize(
  ("metric", "curves", "title"),
  [
    ("learning_rate", [9, 9], "training"),
    ("nsp_accuracy", [3, 3], "held out"),
  ],
)
def test_a_metric_is_drawn_where_it_is(runs, axes_of, metric, curves, title):
  (axis,), _ = axes_of(plots.plot_runs, runs, metric=metric)
  assert list(map(len, curves_of(axis))) == curves
  assert axis.get_title("right") == title


def test_an_evaluation_whose_step_has_lost_its_line_is_left_out(runs, axes_of):
  path = runs[0] / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:2] + lines[3:]))  # without step 30
  (axis,), _ = axes_of(plots.plot_runs, runs)
  assert list(map(len, curves_of(axis))) == [8, 2, 9, 3]
  path.write_text(lines[0])
  with pytest.raises(ConfigError, match=r"metrics\.jsonl for 'nsp_accuracy', found none"):
    plots.plot_runs(path.with_name("p.png"), runs[:1], metric="nsp_accuracy")


def test_runs_with_the_same_name_are_told_apart(tmp_path, axes_of):
  runs = [make_run(tmp_path / parent / "run", 0.001) for parent in ("x", "y")]
  (axis,), _ = axes_of(plots.plot_runs, runs)
  assert texts(axis.get_legend().get_texts()) == [str(run) for run in runs]


def test_the_command_draws(runs, tmp_path, capsys):
  path = tmp_path / "new" / "compared.png"
  arguments = [str(run) for run in runs]
  assert plots.main([*arguments, "--by=hours", "--metric=loss", f"--out={path}"]) == 0
  assert capsys.readouterr().out == f"written to {path}\n"
  picture(path)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["FOLDER/c"], "found nothing at FOLDER/c"),
    (["FOLDER/a", "FOLDER"], "There are runs below it: FOLDER/a FOLDER/b."),
    (["FOLDER/a", "--metric=los"], "expected one of learning_rate, loss, mlm_accuracy"),
    (["FOLDER/a", "--metric=seconds"], "has no metric 'seconds'"),
  ],
)
def test_a_mistake_is_told_in_a_line(runs, tmp_path, capsys, arguments, message):
  arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
  assert plots.main([*arguments, f"--out={tmp_path / 'compared.png'}"]) == 2
  (told,) = capsys.readouterr().err.splitlines()
  assert message.replace("FOLDER", str(tmp_path)) in told
  assert not (tmp_path / "compared.png").exists()


def test_the_picture_of_a_sweep_has_every_run_and_the_means(axes_of):
  def lines(last):
    return [{"step": t, "mlm_accuracy": last * t / 30} for t in (10, 20, 30)]

  arms = {"with": [lines(0.2), lines(0.4)], "without": [lines(0.1)]}
  (left, right), pixels = axes_of(sweep_picture.draw, arms)
  assert texts(left.get_yticklabels()) == ["with", "without"]
  ends = [[[0.2, 0], [0.4, 0]], [[pytest.approx(0.3), 0]], [[0.1, 1]], [[0.1, 1]]]
  assert [curve.tolist() for curve in curves_of(left)] == ends
  last = [curve[-1].tolist() for curve in curves_of(right)]
  assert last == [[30, pytest.approx(y)] for y in (0.2, 0.4, 0.3, 0.1, 0.1)]
  for colour in (FIRST, SECOND):
    assert share_of(pixels, colour) > 5e-4


def test_a_sweep_of_several_tasks_shows_the_runs_of_the_first(tmp_path, monkeypatch):
  """The others do not have its metric."""
  arms = {"masked": {}, "causal": {"data.task": "text"}}
  swept = test_sweep.make_sweep(tmp_path, arms=arms)
  for run, metric in zip(swept.runs, ("mlm_accuracy", "causal_accuracy"), strict=True):
    test_sweep.finish(tmp_path, run, 0.25, metric=metric)
  drawn = {}
  draw = sweep_picture.draw

  def keep(path, arms, *, metric):
    drawn.update(arms)
    draw(path, arms, metric=metric)

  monkeypatch.setattr(sweep_picture, "draw", keep)
  sweep.write(tmp_path, sweep.tabulate(swept, tmp_path, {}), {})
  picture(tmp_path / "sweep.png")
  assert list(drawn) == ["masked"]
