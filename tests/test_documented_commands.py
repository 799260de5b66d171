"""Commands in the documents: programs, options, configs and their fields are there."""

import ast
import dataclasses
import re
import runpy
import tomllib
from typing import Any
from unittest import mock

import pytest

import pipeline.__main__
from configs import base
from launch.data import check_prepared
from launch.parts import PREPARED
from launch.settings import RunSettings
from launch.sweep.file import load_sweep, make_sweep
from tests import forked, markdown
from tests.markdown import CURRENT, ROOT

WITH_COMMANDS = ("packing", "pipeline", "model")
# Theirs are absl's flags, which are one set a process.
WITH_FLAGS = ("train.py", "eval.py", "launch.recipe", "lab.studies.paired_run")
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]+|'.*'|.*[|<].*")


def python_commands() -> list[tuple[str, list[str]]]:
  """Where they stand, and their words after python."""
  return [
    (markdown.name(path), words[1:])
    for path in CURRENT
    for words in markdown.commands(path.read_text())
    if words[0].rpartition("/")[2] == "python" and len(words) > 1
  ]


OTHERS = ("-c", "pip", "pytest", "venv")
COMMANDS = [
  (where, words)
  for where, words in python_commands()
  if words[words[0] == "-m"] not in OTHERS
]


def split(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
  """A program, with its command if it has some, and its arguments."""
  program, *rest = words[1:] if words[0] == "-m" else words
  if program in WITH_COMMANDS and rest:
    return (program, rest[0]), rest[1:]
  return (program,), rest


def options_of(program: str, *command: str) -> set[str]:
  """Those that its own parser tells of."""
  if program.startswith("tests."):  # some need an environment of their own
    text = (ROOT / f"{program.replace('.', '/')}.py").read_text()
  else:
    words = [program] if program.endswith(".py") else ["-m", program]
    asked = "--helpfull" if program in WITH_FLAGS else "--help"
    text = forked.run([*words, *command, asked], cwd=ROOT).stdout
  return set(re.findall(r"--(?:\[no\])?([a-z][\w-]*)", text))


def test_programs_are_there_with_their_options():
  assert len(COMMANDS) > 60
  known = {program: options_of(*program) for program in {split(x)[0] for _, x in COMMANDS}}
  assert known.keys() >= {("train.py",), ("predict.py",), ("packing", "pack")}
  for where, words in COMMANDS:
    program, rest = split(words)
    assert known[program] or program[0].startswith("tests."), f"{where}: {program}"
    options = [x[2:].partition("=")[0] for x in rest if x.startswith("--")]
    asked = {option for option in options if not option.startswith("config.")}
    assert asked <= known[program], f"{where}: {' '.join(words)}"


def test_python_on_the_command_line_is_python():
  for _, words in python_commands():
    if words[0] == "-c":
      ast.parse(words[1])


def test_configs_are_there():
  for _, words in COMMANDS:
    for word in words:
      file, _, argument = word.removeprefix("--config=").partition(":")
      if file.startswith("configs/"):
        module = runpy.run_path(str(ROOT / file))
        make = module["get_sweep" if "/sweeps/" in file else "get_config"]
        assert make(*filter(None, [argument])), word


def option_of(words: list[str], name: str) -> str:
  return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def settings_of(words: list[str]) -> list[RunSettings]:
  """Of the runs that a documented train.py, eval.py or sweep makes; they are checked."""
  (program,), arguments = split(words)
  options = [word for word in arguments if word.startswith("--config.")]
  if program == "launch.sweep":
    swept = load_sweep(arguments[0], options)
  else:
    spec = {"config": option_of(arguments, "--config"), "grid": {"seed": [0]}}
    swept = make_sweep(spec, options, where=" ".join(words))
  return [run.settings for run in swept.runs]


class Prepared(Exception):
  """Raised in place of the work."""


def test_what_is_prepared_is_what_the_next_command_needs():
  prepared, pages = {}, set()
  for page, words in COMMANDS:
    program, arguments = split(words)
    place = page, option_of(arguments, "--config.data.directory")
    if program == ("pipeline", "prepare") and "--out" in arguments:
      work = mock.patch.object(pipeline.__main__, "prepare", side_effect=Prepared)
      with work as called, pytest.raises(Prepared):
        pipeline.__main__.main(["prepare", *arguments])
      out = arguments[arguments.index("--out") + 1]
      prepared[page, out] = dataclasses.asdict(called.call_args.args[1])
    elif place in prepared:
      pages.add(page)
      for settings in settings_of(words):
        assert settings.data.source == PREPARED, words
        check_prepared(settings.data, prepared[place])
  assert pages >= {"docs/data.md", "docs/training.md"}


def test_fields_of_the_config_are_there():
  """Wherever one is set, with a value of its type."""
  for path in CURRENT:
    for option in re.findall(
      r"--config\.([a-z0-9_.]+[a-z0-9_])(?:=([^\s`),;\"]+))?", path.read_text()
    ):
      field, value = option
      found: Any = base.get_config()
      for part in field.split("."):
        assert part in found, f"{markdown.name(path)}: --config.{field}"
        found = found[part]
      if value and not PLACEHOLDER.fullmatch(value):
        made = ast.literal_eval(value) if type(found) is bool else type(found)(value)
        assert type(made) is type(found), f"--config.{field}={value}"


def test_targets_of_make_and_extras_are_there():
  targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  commands = [x for path in CURRENT for x in markdown.commands(path.read_text())]
  assert (
    {"train", "test"} <= {x[1] for x in commands if x[0] == "make" and x[1:]} <= targets
  )
  installed = [" ".join(words) for words in commands if words[0] == "pip"]
  named = [x for words in installed for x in re.findall(r"\[([\w,]+)\]", words)]
  extras = [extra for names in named for extra in names.split(",")]
  assert "wandb" in extras
  assert project["optional-dependencies"].keys() >= {*extras}
