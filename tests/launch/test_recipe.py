"""From a recipe without packing to the packed one: by hand, at the edges, and printed."""

import collections
import dataclasses
import json
import math
import pathlib
import re
import shlex

import numpy as np
import pytest

from configs import base, bert_base_phase2
from lab import records
from lab.studies.paired_run import held_out
from launch.door import settings_of
from launch.parts import ADJUSTMENTS, parse_duration
from launch.recipe import adjustment
from launch.recipe.adjustment import ABOVE_DEFAULT, packed
from launch.recipe.table import table
from tests import forked
from training.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_says_what_the_command_prints():
  page = (ROOT / "docs" / "training.md").read_text()
  command = re.search(r"python (-m launch\.recipe (?:.*\\\n)*.*)\n```\n\n(.*\n.*)", page)
  modern = re.search(r"`(--config\.train\.steps=\d+ --config\S+)`", page)
  assert command
  assert modern
  of_modern = (
    "-m launch.recipe --config=configs/modern_bert_base.py --packing_factor=2.984 "
    f"--num_sequences=64746545 --num_tokens=22217605516 {modern[1]}"
  )
  for words, text in (
    (command[1].replace("\\\n", " "), command[2]),
    (of_modern, "364,296, 636"),
  ):
    done = forked.run(shlex.split(words), cwd=ROOT)
    figures = re.findall(r"-?\d[\d,.]*\d%?", text)
    assert len(figures) >= 2
    assert all(figure in done.stdout for figure in figures), done.stderr


def unpacked(config, **counts):
  run = settings_of(config)
  return adjustment.unpacked(run.train, run.optimizer, **counts)


def resolve(config, **options):
  run = settings_of(config)
  return adjustment.resolve(run.train, run.optimizer, **options)


def config_for(**fields):
  """A config of 60 sequences a step, 1,000 steps, 100 of warm-up."""
  config = base.get_config()
  config.train.batch_size = 60
  for name, value in fields.items():
    group, field = name.split("__")
    config[group][field] = value
  return config


def small(**fields):
  return unpacked(config_for(**fields), num_sequences=5000, num_tokens=70_000)


def test_without_packing_a_step_has_as_many_sequences_as_rows():
  recipe = small()
  assert (recipe.rows, recipe.accumulation, recipe.sequences) == (60, 1, 60)
  assert (recipe.real_tokens, recipe.epochs) == (60 * 14, 1000 * 60 / 5000)
  assert unpacked(config_for()).epochs is None
  assert small(train__micro_batch_size=12).accumulation == 5


@pytest.mark.parametrize("adjust", ADJUSTMENTS)
def test_a_packing_factor_of_1_changes_nothing(adjust):
  recipe = small(train__micro_batch_size=12)
  assert packed(recipe, packing_factor=1.0, adjust=adjust, multiple=12) == (
    dataclasses.replace(recipe, adjust=adjust)
  )


@pytest.mark.parametrize(
  ("p", "multiple", "rows"),  # the exact ones are 35.3 and 8.6
  [(1.7, 1, 35), (1.7, 4, 36), (1.7, 10, 40), (7.0, 20, 20)],
)
def test_a_batch_that_p_does_not_divide_is_rounded_to_the_nearest(p, multiple, rows):
  before, rounding = small(), rows * p / 60 - 1
  after = packed(before, packing_factor=p, adjust="reduce_batch", multiple=multiple)
  assert after.rows == rows
  assert after.rounding == pytest.approx(rounding)
  assert after.sequences == pytest.approx(rows * p)
  assert f"{rounding:+.2%} by rounding the rows" in table(before, after)


@pytest.mark.parametrize(
  ("rows", "steps", "p", "multiple", "found"),
  [
    (32, 62, 4.7177, 1, (7, 60)),  # an epoch of 2,000 sequences
    (32, 62, 4.7177, 6, (6, 70)),
    (32, 62, 4.7177, 8, (8, 53)),
    (32, 62, 4.0, 1, (8, 62)),  # exact: nothing changes
    (32, 3, 9.0, 8, (8, 1)),
    (65536, 7038, 1.17, 512, (55808, 7064)),
  ],
)
def test_rounding_the_rows_keeps_the_sequences_in_all(rows, steps, p, multiple, found):
  fields = {"train__batch_size": rows, "train__steps": steps}
  before = small(**fields, optimizer__warmup_steps=steps // 10)
  after = packed(before, packing_factor=p, adjust="reduce_batch", multiple=multiple)
  assert (after.rows, after.steps) == found
  missing = before.steps * before.sequences - after.steps * after.sequences
  assert abs(missing) <= after.sequences / 2
  ratio = after.steps / before.steps
  assert after.warmup_steps == pytest.approx(before.warmup_steps * ratio, abs=1)
  told = "for the same sequences in all" in table(before, after)
  assert told == (after.steps != before.steps)


@pytest.mark.parametrize("adjust", ["lamb_betas", "lr_linear", "lr_sqrt", "none"])
def test_the_others_keep_the_rows_and_the_sequences_in_all(adjust):
  before = small(train__micro_batch_size=12)
  after = packed(before, packing_factor=2.5, adjust=adjust, multiple=12)
  assert (after.rows, after.accumulation, after.rounding) == (60, 5, 0)
  assert (after.steps, after.warmup_steps) == (400, 40)
  assert after.steps * after.sequences == before.steps * before.sequences
  assert after.epochs == before.epochs
  betas = (0.9**2.5, 0.999**2.5) if adjust == "lamb_betas" else (0.9, 0.999)
  assert (after.b1, after.b2) == betas
  factor = {"lr_linear": 2.5, "lr_sqrt": math.sqrt(2.5)}.get(adjust, 1)
  assert after.learning_rate == pytest.approx(1e-3 * factor, rel=1e-12)


@pytest.mark.parametrize(
  ("text", "steps"),
  [
    ("250 steps", 250),
    ("3 epochs", 250),  # of 5000 sequences, 60 a step
    ("0.5 epochs", 42),
    ("6e3 sequences", 100),
  ],
)
def test_a_duration_is_converted_to_steps(text, steps):
  fields = {"train__duration": text, "optimizer__warmup_steps": 0}
  assert small(**fields).steps == steps
  warm = small(train__steps=10**6, optimizer__warmup=text)
  assert (warm.steps, warm.warmup_steps) == (10**6, steps)


NONSENSE = "3 fortnights;-1 steps;3;inf steps"


@pytest.mark.parametrize("text", NONSENSE.split(";"))
def test_nonsense_is_no_duration(text):
  expected = r"config\.train\.duration is .*expected a number of steps"
  with pytest.raises(ConfigError, match=expected):
    parse_duration("train.duration", text)


@pytest.mark.parametrize(
  ("fields", "p", "message"),
  [
    ({"train__duration": "9 sequences"}, 1, r"steps comes to 0\. .* train\.duration"),
    (
      {"train__steps": 1, "packing__adjust": "none"},
      3,
      r"steps comes to 0 at a packing factor of 3\.000",
    ),
    ({"train__duration": "2 epochs"}, 1, "is '2 epochs'; expected steps .*--num_sequences"),
    ({}, 0.9, r"packing_factor is 0\.9; expected at least 1"),
  ],
)
def test_recipes_that_cannot_be_are_refused(fields, p, message):
  with pytest.raises(ConfigError, match=message):
    resolve(config_for(**fields), packing_factor=p)


@pytest.mark.parametrize(
  ("fields", "steps", "warmup"),
  [
    ({"train__steps": 100}, 100, 10),
    ({"train__steps": 5}, 5, 0),
    ({"train__duration": "1 epochs", "optimizer__warmup": "2 epochs"}, 83, 8),
  ],
)
def test_a_short_run_of_any_config_has_a_short_warm_up(fields, steps, warmup):
  recipe = small(**fields)
  assert (recipe.steps, recipe.warmup_steps) == (steps, warmup)
  asked = recipe.shortened_from
  assert asked == (100 if "train__steps" in fields else 167)
  told = table(recipe, packed(recipe, packing_factor=1.0, adjust="none"))
  assert f"a tenth, since the configured {asked} would outlast the run" in told


def test_a_warm_up_that_fits_stays():
  recipe = small(train__steps=101)
  assert (recipe.warmup_steps, recipe.shortened_from) == (100, None)
  after = packed(recipe, packing_factor=2.5, adjust="none")
  assert (after.steps, after.warmup_steps) == (40, 39)  # both would round to 40
  assert "a tenth" not in table(recipe, after)


@pytest.mark.parametrize(
  ("adjust", "found"),
  [
    ("reduce_batch", "ended lowest of four"),
    ("lamb_betas", "ended 0.178 nats above reduce_batch"),
    ("lr_linear", "was not tried"),
  ],
)
def test_the_printed_recipe_says_how_the_adjustment_did_in_our_study(adjust, found):
  recipe = small(train__steps=500)
  after = packed(recipe, packing_factor=2.0, adjust=adjust)
  line = table(recipe, after).splitlines()[-1]
  assert line == f"In our study {adjust} {found} (docs/training.md)."
  assert "study" not in table(recipe, packed(recipe, packing_factor=1.0, adjust=adjust))


def test_what_the_recipe_says_of_the_study_is_what_its_records_say():
  study = records.read_all(ROOT / "docs" / "reproduction" / "adjustments")
  losses: dict[str, dict[str, float]] = collections.defaultdict(dict)
  for name, record in study.items():
    if match := re.fullmatch(r"runs/(\w+)_2,seed=(\d+)\.json", name):
      (losses[match[1]][match[2]],) = held_out([record])
  default = losses.pop(base.get_config().packing.adjust)
  assert len(default) == 8
  assert losses.keys() == ABOVE_DEFAULT.keys()
  for adjust, found in losses.items():
    above = np.mean([found[seed] - default[seed] for seed in default])
    assert round(float(above), 3) == ABOVE_DEFAULT[adjust]


def test_rows_are_a_multiple_of_the_devices_or_of_the_micro_batch():
  config = config_for(packing__adjust="reduce_batch")
  assert resolve(config, packing_factor=1.7, num_devices=4)[1].rows == 36
  config.train.micro_batch_size = 12
  _, after = resolve(config, packing_factor=1.7, num_devices=4)
  assert (after.rows, after.accumulation) == (36, 3)  # whatever the devices


def command(*options):
  return forked.run(["-m", "launch.recipe", *options], cwd=ROOT)


def test_the_command_prints_the_translation_without_data():
  options = ("--config=configs/bert_base_phase2.py:384", "--packing_factor=1.7")
  result = command(*options, "--num_sequences=18608128", "--json")
  assert result.returncode == 0, result.stderr
  config = bert_base_phase2.get_config("384")
  before, after = resolve(config, packing_factor=1.7, num_sequences=18608128)
  found = json.loads(result.stdout)
  assert found == {"unpacked": before.as_dict(), "packed": after.as_dict()}


@pytest.mark.parametrize(
  ("config", "option", "message"),
  [
    ("bert_base_phase2.py:99", "--json", "xpected bert_base_phase2.py:384 or :512"),
    ("base.py", "--config.optimizer.warmup=3 fortnights", "warmup is '3 fortnights'"),
  ],
)
def test_the_command_tells_a_mistake_in_a_line(config, option, message):
  result = command(f"--config=configs/{config}", "--packing_factor=2", option)
  assert result.returncode == 2
  assert message in result.stderr
  assert len(result.stderr.strip().splitlines()) == 1
  assert "Traceback" not in result.stderr
