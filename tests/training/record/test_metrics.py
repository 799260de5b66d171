"""Lines of metrics on a clock of the test's own, and what a whole run comes to."""

import json

import jax
import numpy as np
import pytest

from model import losses
from training import stopping
from training.record import files, metrics, report


class Clock:
  """Stands still but where the test moves it."""

  def __init__(self):
    self.now = 100.0

  def perf_counter(self) -> float:
    return self.now


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(metrics, "time", clock)
  return clock


def values_of(mlm, nsp, sequences, *, finite=True, skipped=0):
  step = {"mlm_loss": losses.Total(*mlm), "nsp_loss": losses.Total(*nsp)}
  step |= {"sequences": sequences, "real_tokens": 10 * sequences}
  step |= {"finite": finite, "skipped": skipped}
  return jax.tree.map(np.asarray, step)


def make_meter(last_line=None, **options) -> metrics.Meter:
  return metrics.Meter(last_line or {}, packs=5, tokens=70, **options)


def run_step(meter, clock, *, sequences=3, waits=(0.0, 0.0), rest=0.0):
  for name, seconds in zip(metrics.WAITS, waits, strict=True):
    with meter.waiting_for(name):
      clock.now += seconds
  meter.add(values_of((2.0, 1.0), (2.0, 1.0), sequences))
  clock.now += rest


def test_skipped_steps_do_not_count_and_never_look_like_a_loss_of_0(clock):
  meter = make_meter()
  skipped = (0.0, 0.0), (0.0, 0.0), 3
  meter.add(values_of((6.0, 2.0), (4.0, 1.0), 3))
  meter.add(values_of(*skipped, finite=False, skipped=1))
  line = meter.line()
  assert (line["mlm_loss"], line["loss"], line["skipped"]) == (3.0, 7.0, 1)
  assert line["sequences"] == 6  # the data moves on
  meter.add(values_of(*skipped, finite=False, skipped=2))
  clock.now += 1
  state = json.loads(json.dumps(meter.state()))  # also where the run is stopped there
  for same in (meter.line(), make_meter(line, state=state).line()):
    assert (same["mlm_loss"], same["loss"], same["skipped"]) == (3.0, 7.0, 2)


def test_the_meter_adds_up_units_and_counts_on(clock):
  meter = make_meter({"sequences": 100, "real_tokens": 1000, "seconds": 9.0})
  # The units of a loss need not be sequences: tokens or packs, or those with any token.
  clock.now += 1000  # the first step compiles and is not timed
  meter.add(values_of((7.0, 7.0), (4.0, 1.0), 1))
  clock.now += 0.5
  meter.add(values_of((3.0, 1.0), (2.0, 2.0), 3))
  line = meter.line(learning_rate=0.5)
  assert line["mlm_loss"] == 10 / 8
  assert line["nsp_loss"] == 6 / 3
  assert line["loss"] == 10 / 8 + 6 / 3
  assert line["sequences"] == 104
  assert line["real_tokens"] == 1040
  assert line["seconds"] == 9.5
  assert line["learning_rate"] == 0.5
  assert line["sequences_per_second"] == 3 / 0.5
  assert line["packs_per_second"] == 5 / 0.5
  assert line["padding"] == pytest.approx(1 - 40 / 140)  # of both steps
  meter.add(values_of((2.0, 7.0), (2.0, 7.0), 7))
  clock.now += 2.0
  second = meter.line()
  assert second["seconds"] == 11.5
  assert second["real_tokens_per_second"] == 70 / 2.0
  assert second["padding"] == 0


def lines_of_losses(meter, mlm_losses, *, first_step, last_step, log_every):
  """As train.py writes them: the means of each line, by its step."""
  found = {}
  for step, mlm_loss in enumerate(mlm_losses, start=first_step):
    units = 1.0 + step % 3
    meter.add(values_of((mlm_loss * units, units), (0.1, 1.0), 3))
    if step % log_every == 0 or step == last_step:
      line = meter.line()
      found[step] = {k: v for k, v in line.items() if not k.endswith(("second", "share"))}
  return found


def test_a_last_line_of_one_step_is_the_mean_of_a_whole_window(clock):
  meter = make_meter(window=4)
  mlm_losses = np.array([9.0, 9.0, 9.0, 9.0, 5.0, 3.0, 2.0, 4.0, 8.0])
  lines = lines_of_losses(meter, mlm_losses, first_step=1, last_step=9, log_every=4)
  units = 1.0 + np.arange(1, 10) % 3
  assert {step: line["mlm_loss"] for step, line in lines.items()} == {
    4: 9.0,
    8: pytest.approx(np.average(mlm_losses[4:8], weights=units[4:8])),
    9: pytest.approx(np.average(mlm_losses[5:], weights=units[5:])),
  }
  assert [line["sequences"] for line in lines.values()] == [12, 24, 27]


@pytest.mark.parametrize("stopped", [6, 8])
def test_a_run_that_is_stopped_writes_the_lines_of_one_that_is_not(clock, stopped):
  mlm_losses = np.random.default_rng(0).random(9) / 3
  of = {"last_step": 9, "log_every": 4}
  whole = lines_of_losses(make_meter(window=4), mlm_losses, first_step=1, **of)
  meter = make_meter(window=4)
  lines = lines_of_losses(meter, mlm_losses[:stopped], first_step=1, **of)
  state = json.loads(json.dumps(meter.state()))
  meter = make_meter(list(lines.values())[-1], window=4, state=state)
  lines |= lines_of_losses(meter, mlm_losses[stopped:], first_step=stopped + 1, **of)
  assert lines == whole


def test_the_time_of_a_window_is_kept_when_a_run_is_stopped_in_it(clock):
  meter = make_meter()
  run_step(meter, clock)
  meter.line()
  run_step(meter, clock, waits=(0.5, 1.5))
  state = json.loads(json.dumps(meter.state()))
  meter = make_meter({"seconds": 7.0}, state=state)
  clock.now += 1000
  run_step(meter, clock, waits=(50.0, 60.0))  # compiles
  run_step(meter, clock, waits=(0.5, 1.0), rest=0.5, sequences=5)
  line = meter.line()
  assert line["seconds"] == 7.0 + 2.0 + 2.0
  assert line["sequences_per_second"] == (3 + 5) / 4
  assert (line["input_share"], line["compute_share"]) == (1 / 4, 2.5 / 4)


@pytest.mark.parametrize("line_before", [True, False])
def test_what_is_paused_does_not_count(clock, line_before):
  meter = make_meter()
  run_step(meter, clock)
  clock.now += 1.0
  if line_before:
    meter.line()
  with meter.paused():
    clock.now += 77.0
  clock.now += 2.0
  run_step(meter, clock)
  assert meter.line()["seconds"] == 3.0


def test_the_time_of_steps_is_split(clock):
  meter = make_meter(flops_per_step=6e9, peak_flops=1e10)
  run_step(meter, clock, waits=(50.0, 60.0))  # compiles
  run_step(meter, clock, waits=(0.5, 1.5), rest=0.25)
  run_step(meter, clock, waits=(0.25, 1.25), rest=0.25)
  line = meter.line()
  assert [line[f"{name}_share"] for name in ("input", "compute", "rest")] == [
    0.75 / 4,
    2.75 / 4,
    0.5 / 4,
  ]
  assert line["packs_per_second"] == 10 / 4
  assert line["peak_share"] == pytest.approx(2 * 6e9 / 4 / 1e10)
  run_step(meter, clock, waits=(1.0, 0.0), rest=3.0)
  assert meter.line()["input_share"] == 0.25  # since the last line


class Running(np.ndarray):
  """An array that the device has not made yet."""

  def is_ready(self):
    return False


def test_input_that_comes_while_the_device_works_costs_nothing(clock):
  meter = make_meter()
  run_step(meter, clock)
  meter.line()
  run_step(meter, clock, waits=(1.0, 0.0))
  with meter.waiting_for("input"):
    clock.now += 1.0
  step = values_of((2.0, 1.0), (2.0, 1.0), 3)
  meter.add(jax.tree.map(lambda x: x.view(Running), step))
  with meter.waiting_for("input"):
    clock.now += 2.0
  line = meter.line()
  assert (line["input_share"], line["compute_share"]) == (0.5, 0.5)


def test_the_wait_for_a_line_is_one_for_the_device(clock, monkeypatch):
  meter = make_meter()
  run_step(meter, clock)

  def device_get(values):
    clock.now += 3.0
    return values

  monkeypatch.setattr(metrics.jax, "device_get", device_get)
  clock.now += 1.0
  line = meter.line()
  assert (line["compute_share"], line["rest_share"]) == (0.75, 0.25)
  assert "peak_share" not in line


def test_a_line_without_a_timed_step_has_no_speed(clock):
  meter = make_meter(flops_per_step=1.0, peak_flops=1.0)
  run_step(meter, clock, waits=(1.0, 1.0))
  line = meter.line()
  names = [n for n in line if n.endswith(("_share", "_per_second"))]
  assert len(names) == 7
  assert {line[name] for name in names} == {0.0}


NUMBERS = dict.fromkeys(report.TRAIN_NUMBERS, 1.0)


def test_of_several_processes_the_first_writes(tmp_path, monkeypatch):
  with metrics.MetricsLog(tmp_path, first_step=0) as log:
    log.train(2, NUMBERS | {"loss": 1.0})
    log.train(4, NUMBERS | {"loss": 0.5})
  before = (tmp_path / "metrics.jsonl").read_text()
  monkeypatch.setattr(metrics.jax, "process_index", lambda: 1)
  with metrics.MetricsLog(tmp_path, first_step=2) as log:
    assert log.last_train_line["loss"] == 1.0
    log.train(4, NUMBERS | {"loss": 0.7})
    log.evaluation(4, {"loss": 0.7})
  assert (tmp_path / "metrics.jsonl").read_text() == before
  assert files.read_json_lines(tmp_path / "eval.jsonl") == []
  assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def lines_of_a_run(clock, **options) -> list[dict]:
  """Two lines, of 1 and 3 seconds."""
  meter = make_meter(**options)
  run_step(meter, clock)
  lines = []
  for step, (waits, rest) in enumerate([((0.5, 0.25), 0.25), ((0.0, 2.0), 1.0)], start=1):
    run_step(meter, clock, waits=waits, rest=rest)
    more = {"mlm_accuracy": 0.3, "learning_rate": 0.1, "compilations": 1}
    lines.append({"step": step} | meter.line(**more))
  return lines


HELD_OUT = {
  "step": 20,
  "loss": 3.0,
  "mlm_loss": 2.0,
  "mlm_accuracy": 0.3,
  "unigram_mlm_accuracy": 0.1,
  "mlm_accuracy_by_length": [],
}


def test_the_summary_weighs_shares_by_time(clock):
  lines = lines_of_a_run(clock, flops_per_step=1e9, peak_flops=1e10)
  summary = report.run_summary(lines, [HELD_OUT])
  assert summary["seconds"] == 4.0
  assert summary["input_share"] == pytest.approx(0.5 / 4)
  assert summary["compute_share"] == pytest.approx(2.25 / 4)
  assert summary["rest_share"] == pytest.approx(1.25 / 4)
  assert summary["packs_per_second"] == pytest.approx(10 / 4)
  assert summary["peak_share"] == pytest.approx(2e9 / 4 / 1e10)
  assert "peak_share" not in report.run_summary(lines_of_a_run(clock), [HELD_OUT])


def row_of(summary, words) -> str:
  counts = ("sequences", "packs", "padding_tokens", "unpacked_padding_tokens")
  summary = dict.fromkeys(counts, 1) | {"packing_factor": 1.5, "efficiency": 0.9} | summary
  lines = report.summary_table(summary).splitlines()
  (line,) = [line for line in lines if line.startswith(words)]
  return line.removeprefix(words).strip()


def test_the_table_shows_time_peak_and_target(clock):
  lines = lines_of_a_run(clock, flops_per_step=1e9, peak_flops=1e10)
  summary = report.run_summary(lines, [HELD_OUT])
  peak = {"peak_flops": 61e9, "peak_flops_source": "measured"}
  assert row_of(summary | peak, "step time") == "input 12.5%, compute 56.2%, rest 31.2%"
  shown = row_of(summary | peak, "share of the peak")
  assert shown == "5.0% of 61 GFLOP/s in matrix products (measured here)"
  peak = {"peak_flops": 989.4e12, "peak_flops_source": "table"}
  assert "5.0% of 989 TFLOP/s" in row_of(summary | peak, "share of the peak")
  summary |= peak | {"target_mlm_accuracy": 0.712}
  assert row_of(summary, "target accuracy") == "71.2% not reached"
  at = {"step_to_target": 1900, "seconds_to_target": 77.4, "sequences_to_target": 51_234}
  shown = row_of(summary | at, "target accuracy")
  assert shown == "71.2% at step 1,900, after 77 s and 51,234 sequences"


def test_a_target_is_reached_where_it_is_first_met():
  accuracies = [0.1, 0.3, 0.25, 0.4]
  lines = [
    {"step": 7 * i, "seconds": 2.5 * i, "sequences_trained": 30 * i, "mlm_accuracy": x}
    for i, x in enumerate(accuracies, start=1)
  ]
  expected = {"step_to_target": 14, "seconds_to_target": 5.0, "sequences_to_target": 60}
  for target in (0.2, 0.3):
    assert stopping.target_reached(lines, target=target) == expected
  assert stopping.target_reached(lines, target=0.31)["step_to_target"] == 28
  assert stopping.target_reached(lines, target=0.41) == {}
  assert stopping.target_reached([], target=0.1) == {}


def test_the_summary_of_a_task_has_its_metrics_and_the_best(clock):
  evaluations = [
    {"step": step, "loss": 0.5, "score": score, "f1": score, "sequences": 7}
    for step, score in ((10, 0.25), (20, 0.75), (30, 0.5))
  ]
  lines = lines_of_a_run(clock)
  for line in lines:
    del line["mlm_accuracy"]
  summary = report.run_summary(lines, evaluations, metric="score")
  assert (summary["best_step"], summary["best_score"]) == (20, 0.75)
  assert (summary["eval_score"], summary["eval_f1"]) == (0.5, 0.5)
  assert "eval_sequences" not in summary
  shown = row_of(summary, "held out")
  assert shown == "loss 0.5000, score 50.00%, f1 50.00%"
  assert row_of(summary, "best score") == "75.00% at step 20"
