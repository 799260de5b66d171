"""Programs that are killed while they read, and go on."""

import json
import os
import pathlib
import signal
import subprocess
import sys


def resumed(program: str, folder: pathlib.Path) -> list:
  """What a program writes that is killed twice, after it was checked to be whole.

  Args:
    program: Python. It appends lines of JSON to the file that is its argument, each with
      what it `made` and the `state` after it, prints a line for each, and starts from the
      last state in the file.
    folder: for its files.
  """

  def run(name, kill_after=None):
    command = [sys.executable, "-c", program, str(folder / name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=os.getcwd()) as process:
      assert process.stdout is not None
      for count, _ in enumerate(process.stdout, start=1):
        if count == kill_after:
          os.kill(process.pid, signal.SIGKILL)
          break
    return process.returncode

  def made(name):
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line)["made"] for line in lines]

  assert run("whole") == 0
  assert [run("killed", after) for after in (3, 10, None)] == [-9, -9, 0]
  assert made("killed") == made("whole")
  return made("killed")
