"""Lines of metrics on a clock of the test's own, and what a whole run comes to."""

import types

import jax
import numpy as np
import pytest

from launch.record import metrics, report
from launch.record.flops import Cost, Peak
from model import losses


@pytest.fixture
def clock(monkeypatch):
  """Stands still but where the test moves it."""
  clock = types.SimpleNamespace(now=100.0)
  monkeypatch.setattr(metrics, "time", clock)
  clock.perf_counter = lambda: clock.now
  return clock


def values_of(mlm=(2.0, 1.0), nsp=(2.0, 1.0), sequences=3):
  step = {"mlm_loss": losses.Total(*mlm), "nsp_loss": losses.Total(*nsp)}
  step |= {"sequences": sequences, "real_tokens": 10 * sequences}
  return jax.tree.map(np.asarray, step | {"finite": True})


def make_meter(last_line=None, *, flops=0.0, peak=0.0, **options) -> metrics.Meter:
  cost = Cost(5, 70, flops, Peak(peak, "table"))
  return metrics.Meter(last_line or {}, cost=cost, **options)


def run_step(meter, clock, *, sequences=3, waits=(0.0, 0.0), rest=0.0):
  for name, seconds in zip(metrics.WAITS, waits, strict=True):
    with meter.waiting_for(name):
      clock.now += seconds
  meter.add(values_of(sequences=sequences))
  clock.now += rest


def pick(line, *names):
  return tuple(line[name] for name in names)


def shares(line):
  return pick(line, "input_share", "compute_share", "rest_share")


def test_the_meter_adds_up_units_and_counts_on(clock):
  meter = make_meter({"sequences": 100, "real_tokens": 1000, "seconds": 9.0})
  # The units of a loss need not be sequences: tokens or packs, or those with any token.
  clock.now += 1000  # the first step compiles and is not timed
  meter.add(values_of((7.0, 7.0), (4.0, 1.0), 1))
  clock.now += 0.5
  meter.add(values_of((3.0, 1.0), (2.0, 2.0), 3))
  line = meter.line(learning_rate=0.5)
  means = pick(line, "mlm_loss", "nsp_loss", "loss", "learning_rate")
  assert means == (10 / 8, 6 / 3, 10 / 8 + 6 / 3, 0.5)
  assert pick(line, "sequences", "real_tokens", "seconds") == (104, 1040, 9.5)
  assert pick(line, "sequences_per_second", "packs_per_second") == (3 / 0.5, 5 / 0.5)
  assert line["padding"] == pytest.approx(1 - 40 / 140)  # of both steps
  meter.add(values_of(sequences=7))
  clock.now += 2.0
  second = meter.line()
  assert pick(second, "seconds", "real_tokens_per_second", "padding") == (11.5, 35.0, 0)


# ---- time ------------------------------------------------------------------------------


def test_what_is_paused_does_not_count(clock):
  meter = make_meter()
  run_step(meter, clock)
  clock.now += 1.0
  with meter.paused():
    clock.now += 77.0
  clock.now += 2.0
  run_step(meter, clock)
  assert meter.line()["seconds"] == 3.0


def test_the_time_of_steps_is_split(clock):
  meter = make_meter(flops=6e9, peak=1e10)
  run_step(meter, clock, waits=(50.0, 60.0))  # compiles
  speeds = {k: x for k, x in meter.line().items() if k.endswith(("_share", "_per_second"))}
  assert list(speeds.values()) == [0.0] * 7  # no step was timed
  run_step(meter, clock, waits=(0.5, 1.5), rest=0.25)
  run_step(meter, clock, waits=(0.25, 1.25), rest=0.25)
  line = meter.line()
  assert shares(line) == (0.75 / 4, 2.75 / 4, 0.5 / 4)
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
  meter.add(jax.tree.map(lambda x: x.view(Running), values_of()))
  with meter.waiting_for("input"):
    clock.now += 2.0
  assert shares(meter.line()) == (0.5, 0.5, 0)


def test_the_wait_for_a_line_is_one_for_the_device(clock, monkeypatch):
  meter = make_meter()
  run_step(meter, clock)

  def device_get(values):
    clock.now += 3.0
    return values

  monkeypatch.setattr(metrics.jax, "device_get", device_get)
  clock.now += 1.0
  assert shares(meter.line()) == (0, 0.75, 0.25)


# ---- the summary -----------------------------------------------------------------------


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


HELD_OUT: dict = {"step": 20, "loss": 3.0, "mlm_loss": 2.0, "mlm_accuracy": 0.3}
HELD_OUT |= {"unigram_mlm_accuracy": 0.1, "mlm_accuracy_by_length": []}
PEAK = {"flops": 1e9, "peak": 1e10}


def row_of(summary, words) -> str:
  counts = ("sequences", "packs", "padding_tokens", "unpacked_padding_tokens")
  summary = dict.fromkeys(counts, 1) | {"packing_factor": 1.5, "efficiency": 0.9} | summary
  lines = report.summary_table(summary).splitlines()
  (line,) = [line for line in lines if line.startswith(words)]
  return line.removeprefix(words).strip()


def test_the_summary_weighs_shares_by_time(clock):
  summary = report.run_summary(lines_of_a_run(clock, **PEAK), [HELD_OUT])
  assert summary["seconds"] == 4.0
  assert shares(summary) == pytest.approx((0.5 / 4, 2.25 / 4, 1.25 / 4))
  assert summary["packs_per_second"] == pytest.approx(10 / 4)
  assert summary["peak_share"] == pytest.approx(2e9 / 4 / 1e10)
  assert "peak_share" not in report.run_summary(lines_of_a_run(clock), [HELD_OUT])


def test_the_table_shows_time_peak_and_target(clock):
  summary = report.run_summary(lines_of_a_run(clock, **PEAK), [HELD_OUT])
  summary |= {"peak_flops": 61e9, "peak_flops_source": "measured"}
  assert row_of(summary, "step time") == "input 12.5%, compute 56.2%, rest 31.2%"
  shown = row_of(summary, "share of the peak")
  assert "5.0% of 61 GFLOP/s" in shown
  assert "measured here" in shown
  summary |= {"peak_flops": 989.4e12, "peak_flops_source": "table"}
  assert "5.0% of 989 TFLOP/s" in row_of(summary, "share of the peak")
  summary |= {"target_mlm_accuracy": 0.712}
  assert row_of(summary, "target accuracy") == "71.2% not reached"
  at = {"step_to_target": 1900, "seconds_to_target": 77.4, "sequences_to_target": 51_234}
  assert "71.2% at step 1,900, after 77 s" in row_of(summary | at, "target accuracy")


def test_the_summary_of_a_task_has_its_metrics_and_the_best(clock):
  evaluations = [
    {"step": step, "loss": 0.5, "score": score, "f1": score, "sequences": 7}
    for step, score in ((10, 0.25), (20, 0.75), (30, 0.5))
  ]
  lines = [
    {name: x for name, x in line.items() if name != "mlm_accuracy"}
    for line in lines_of_a_run(clock)
  ]
  summary = report.run_summary(lines, evaluations, metric="score")
  best = pick(summary, "best_step", "best_score", "eval_score", "eval_f1")
  assert best == (20, 0.75, 0.5, 0.5)
  assert "eval_sequences" not in summary
  assert row_of(summary, "held out") == "loss 0.5000, score 50.00%, f1 50.00%"
  assert row_of(summary, "best score") == "75.00% at step 20"
