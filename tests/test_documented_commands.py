"""Commands in the documents: programs, options, configs and their fields are there."""

import ast
import dataclasses
import json
import pydoc_data.topics
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from typing import Any
from unittest import mock

import pytest
from ml_collections import ConfigDict

import pipeline.__main__
from configs import base
from pipeline.config import PREPARED, check_prepared
from pipeline.settings import DatasetSettings
from tests import forked, markdown
from tests.markdown import CURRENT, ROOT
from training.sweep.file import load_sweep, make_sweep

# Prints the help of several programs as one JSON object; what they import is shared.
HELP = """
import contextlib, io, json, runpy, sys
found = {}
for program, *command in json.loads(sys.argv.pop()):
  sys.argv[:] = [program, *command, "--help"]
  run = runpy.run_path if program.endswith(".py") else runpy.run_module
  with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
    run(program, run_name="__main__")
  found[" ".join([program, *command])] = told.getvalue()
print(json.dumps(found))
"""
WITH_COMMANDS = ("packing", "pipeline", "model")
# Theirs are absl's flags, which are one set a process.
WITH_FLAGS = ("train.py", "eval.py", "training.recipe", "experiments.lab.paired_run")
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]+|'.*'|.*[|<].*")


def python_commands() -> list[tuple[str, list[str]]]:
  """Where they stand, and their words after python."""
  return [
    (markdown.name(path), words[1:])
    for path in CURRENT
    for words in markdown.commands(path.read_text())
    if words[0].rpartition("/")[2] == "python" and len(words) > 1
  ]


def split(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
  """A program, with its command if it has some, and its arguments."""
  program, *rest = words[1:] if words[0] == "-m" else words
  if program in WITH_COMMANDS and rest:
    return (program, rest[0]), rest[1:]
  return (program,), rest


def source(program: str):
  if program.endswith(".py"):
    return ROOT / program
  path = ROOT / program.replace(".", "/")
  return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


OTHERS = ("-c", "pip", "pytest", "venv")
COMMANDS = [
  (where, words)
  for where, words in python_commands()
  if words[words[0] == "-m"] not in OTHERS
]


def test_there_are_commands():
  assert len(COMMANDS) > 60
  assert {words[0] for _, words in COMMANDS} >= {"train.py", "eval.py", "predict.py", "-m"}


def test_programs_are_there():
  for where, words in COMMANDS:
    (program, *_), _ = split(words)
    assert source(program).is_file(), f"{where}: {program}"


def test_python_on_the_command_line_is_python():
  for _, words in python_commands():
    if words[0] == "-c":
      ast.parse(words[1])


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
  """By program the options that its own parser tells of."""
  programs = {split(words)[0] for _, words in COMMANDS}
  asked = []
  found = {}
  for program in sorted(programs):
    text = source(program[0]).read_text()
    if program[0].startswith("tests."):  # some need an environment of their own
      found[program[0]] = text
    elif program[0] not in WITH_FLAGS:
      asked.append(program)
  command = [sys.executable, "-c", HELP, json.dumps(asked)]
  told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  found |= json.loads(told.stdout.splitlines()[-1])
  for name in WITH_FLAGS:
    found[name] = forked.run([*named(name), "--helpfull"], cwd=ROOT).stdout
  flags = {
    name: set(re.findall(r"--(?:\[no\])?([a-z][\w-]*)", text))
    for name, text in found.items()
  }
  assert all(flags[" ".join(program)] for program in asked), flags
  return flags


def named(program: str) -> tuple[str, ...]:
  return (program,) if program.endswith(".py") else ("-m", program)


def test_options_are_known(known):
  for where, words in COMMANDS:
    program, rest = split(words)
    for word in rest:
      option = word.removeprefix("--").partition("=")[0]
      if word.startswith("--") and not option.startswith("config."):
        assert option in known[" ".join(program)], f"{where}: {' '.join(words)}"


def test_configs_are_there():
  for where, words in COMMANDS:
    for word in words:
      file, _, argument = word.removeprefix("--config=").partition(":")
      if file.startswith("configs/"):
        module = runpy.run_path(str(ROOT / file))
        make = module["get_sweep" if "/sweeps/" in file else "get_config"]
        assert make(*filter(None, [argument])), f"{where}: {word}"


class Prepared(Exception):
  """Raised in place of the work, with the settings of the dataset."""


def steps_on_prepared_data() -> list[tuple[str, list[str], DatasetSettings, list[str]]]:
  """The page, a command that prepares a dataset, and a later one that is run on it."""

  def caught(_, settings, **options):
    raise Prepared(settings)

  found = []
  prepared: dict[tuple[str, str], tuple[list[str], DatasetSettings]] = {}
  for where, words in COMMANDS:
    program, arguments = split(words)
    directory = option_of(arguments, "--config.data.directory")
    if program == ("pipeline", "prepare") and "--out" in arguments:
      with (
        mock.patch.object(pipeline.__main__, "prepare", caught),
        pytest.raises(Prepared) as made,
      ):
        pipeline.__main__.main(["prepare", *arguments])
      out = arguments[arguments.index("--out") + 1]
      prepared[where, out] = words, made.value.args[0]
    elif (where, directory) in prepared:
      found.append((where, *prepared[where, directory], words))
  return found


def option_of(words: list[str], name: str) -> str:
  return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def configs_of(words: list[str]) -> list[ConfigDict]:
  """Of the runs that a documented train.py, eval.py or sweep makes; they are checked."""
  (program,), arguments = split(words)
  options = [word for word in arguments if word.startswith("--config.")]
  if program == "training.sweep":
    at = [i + 1 for i, word in enumerate(arguments) if word == "--only"]
    swept = load_sweep(arguments[0], options, only=[arguments[i] for i in at])
  else:
    spec = {"config": option_of(arguments, "--config"), "grid": {"seed": [0]}}
    swept = make_sweep(spec, options, where=" ".join(words))
  return [run.config for run in swept.runs]


def test_what_is_prepared_is_what_the_next_command_needs():
  steps = steps_on_prepared_data()
  assert {where for where, *_ in steps} >= {"README.md", "docs/data.md", "docs/training.md"}
  for _, _, settings, words in steps:
    for config in configs_of(words):
      assert config.data.source == PREPARED, words
      check_prepared(config.data, dataclasses.asdict(settings))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/data.md"])
def test_a_prepared_dataset_is_trained_on_as_the_page_says(page, finished, tmp_path):
  """On other text, with a small model and a few steps."""
  few = ["model.size=tiny", "train.batch_size=8", "train.steps=4", "train.log_every=2"]
  few += ["train.eval_every=4", "train.checkpoint_every=4", "train.throughput_rounds=0"]
  few += ["train.peak_flops=1e9", "optimizer.warmup_steps=2"]
  (tmp_path / "wiki").mkdir()
  text = "\n\n".join(pydoc_data.topics.topics.values())
  (tmp_path / "wiki" / "a.txt").write_text(text)
  shutil.copy(finished[0] / "vocab.txt", tmp_path)
  for name in ("configs", "model", "packing", "pipeline", "training", "train.py"):
    (tmp_path / name).symlink_to(ROOT / name)
  ((prepare, train),) = [(x[1], x[3]) for x in steps_on_prepared_data() if x[0] == page]
  for words in (prepare, [*train, *(f"--config.{option}" for option in few)]):
    result = forked.run(words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
  (made,) = (tmp_path / "runs").glob("*/summary.json")
  assert json.loads(made.read_text())["steps"] > 0


def test_fields_of_the_config_are_there():
  """Wherever one is set, with a value of its type."""
  for path in CURRENT:
    for option in re.findall(
      r"--config\.([a-z0-9_.]+[a-z0-9_])(?:=([^\s`),;\"]+))?", path.read_text()
    ):
      field, value = option
      config: Any = base.get_config()
      for part in field.split("."):
        assert part in config, f"{markdown.name(path)}: --config.{field}"
        config = config[part]
      if value and not PLACEHOLDER.fullmatch(value):
        made = ast.literal_eval(value) if type(config) is bool else type(config)(value)
        assert type(made) is type(config), (
          f"{markdown.name(path)}: --config.{field}={value}"
        )


def test_targets_of_make_are_there():
  targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
  seen = set()
  for path in CURRENT:
    for words in markdown.commands(path.read_text()):
      if words[0] == "make" and len(words) > 1:
        seen.add(words[1])
        assert words[1] in targets, f"{markdown.name(path)}: {' '.join(words)}"
  assert {"train", "test"} <= seen


def test_extras_are_there():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  for path in CURRENT:
    for words in markdown.commands(path.read_text()):
      if words[0] == "pip":
        for extra in re.findall(r"\[(\w+)\]", " ".join(words)):
          assert extra in project["optional-dependencies"], markdown.name(path)
