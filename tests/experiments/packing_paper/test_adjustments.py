"""The study of `packing.adjust`: its runs, its statements, and the rule for the default."""

import re

import numpy as np
import pytest

from experiments.packing_paper import section_3_3_adjustments as study
from lab.exhibits import Part
from tests.experiments import made_up


def made_up_results(above, *, seeds=study.SEEDS, noise=1.0):
  """Results of all arms; `above` has what an adjustment adds to the loss, by factor."""
  results = {}
  for adjust in study.ADJUSTMENTS:
    for factor in study.ROWS:
      rng = np.random.default_rng((len(adjust), factor))
      extra = above.get((adjust, factor), above.get(adjust, 0.0))
      results[study.arm_name(adjust, factor)] = [
        made_up.run(seed, rng, above=extra + noise * 0.001 * rng.standard_normal())
        for seed in range(seeds)
      ]
  return results


def test_its_runs(tmp_path):
  part = Part(tmp_path / "adjustments", "command", jobs=2)
  runs = []
  for factor in study.ROWS:
    made = study.make_study(part, factor)
    assert made.jobs == 2
    runs += [run for _, run in made.runs]
  assert len({run.name for run in runs}) == 64
  assert {run.settings.seed for run in runs} == set(range(9, 17))
  assert {run.settings.train.adjust for run in runs} == set(study.ADJUSTMENTS)
  assert {
    (run.settings.given["packing.row_length"], run.settings.train.steps) for run in runs
  } == {
    (0, 1000),
    (384, 1000),
  }


@pytest.mark.parametrize(
  ("above", "default"),
  [
    ({}, "reduce_batch"),  # the same: nothing to change
    ({"none": 0.1, "lr_sqrt": 0.2, "lamb_betas": 0.3}, "reduce_batch"),
    ({"none": -0.1}, "none"),
    ({"none": -0.1, "lr_sqrt": -0.2}, "lr_sqrt"),  # the lowest
    ({("none", 2): -0.1, ("none", 4): 0.1}, "reduce_batch"),  # lower at one factor only
    ({("none", 2): -0.1, ("none", 4): -0.01}, "none"),  # by the margin at one is enough
    ({"none": -0.01}, "reduce_batch"),  # below the margin of 0.02
  ],
)
def test_the_default_by_the_rule(above, default):
  assert study.default_of(made_up_results(above)) == default


@pytest.mark.parametrize(
  ("above", "default"), [(0.1, "reduce_batch"), (-0.1, ""), (-0.001, "")]
)
def test_one_packing_factor_alone_decides_only_against_others(tmp_path, above, default):
  """A lower mean is needed at both."""
  results = made_up_results({"none": above, "lr_sqrt": 0.2, "lamb_betas": 0.3})
  half = {name: x for name, x in results.items() if name.endswith("_2")}
  assert study.default_of(half) == default
  text = study._exhibit(Part(tmp_path, "command"), half, 2, default).text
  expected = "whatever the other one shows." if default else "other packing factor, too."
  assert text.endswith(expected)


def test_its_exhibits_come_by_and_by(tmp_path, monkeypatch):
  results = made_up_results({"none": 0.1, "lr_sqrt": 0.2, "lamb_betas": 0.3})

  def run(made):
    return {arm.name: results[arm.name] for arm in made.arms}

  monkeypatch.setattr(study.Study, "run", run)
  first, both = study.exhibits(Part(tmp_path, "command"))
  assert [x.agreement for x in first] == ["in shape", "not run here"]
  assert [x.agreement for x in both] == ["in shape", "in shape"]
  assert [x.name for x in first] == [x.name for x in both]


def test_a_difference_that_is_only_noise_changes_no_default():
  results = made_up_results({"none": -0.03}, seeds=3, noise=100.0)
  assert not study._is_lower(results, "none", 2)
  one_seed = made_up_results({"none": -0.1}, seeds=1)
  assert study.default_of(one_seed) == "reduce_batch"


def test_its_exhibits(tmp_path):
  results = made_up_results({"none": 0.1, "lr_sqrt": 0.2, "lamb_betas": 0.3})
  exhibit = study._exhibit(Part(tmp_path, "command"), results, 4, "reduce_batch")
  assert exhibit.name == "Section 3.3, packing factor 4"
  assert [x.outcome for x in exhibit.statements] == ["holds"] * 6
  assert re.search(r"none \+0\.\d+, lr_sqrt \+0\.\d+, lamb_betas \+0\.\d+", exhibit.finding)
  assert exhibit.text.endswith("the default is `reduce_batch`.")
  assert (tmp_path / "adjustments_4.png").stat().st_size
  same = study._exhibit(Part(tmp_path, "command"), made_up_results({}), 2, "none")
  assert {x.outcome for x in same.statements[1:]} == {"equivalent"}
