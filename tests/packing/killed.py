"""Programs that are killed while they read, and resume."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from unittest import mock

# Appends what is made and the state after it to a file, and starts from its last state. A
# line that was being written when the program was killed does not count.
READS = """
import json, os, sys, time

done, last = sys.argv[1], int(sys.argv[2])
if os.path.exists(done):
  whole = open(done).read().rpartition("\\n")[0]
  os.truncate(done, len(whole.encode()) + 1)
  restore(json.loads(whole.splitlines()[-1])["state"])
with open(done, "a") as file:
  for number, row in enumerate(rows, start=1):
    print(json.dumps({"made": made(row), "state": state()}), file=file, flush=True)
    print("row", flush=True)
    if number == last:
      time.sleep(60)  # until it is killed
"""


def resumed(program: str, folder: pathlib.Path) -> list:
  """What a program writes that is killed twice, after it was checked to be whole.

  Args:
    program: Python that defines `rows`, an iterable; `made`, what to write of a row; and
      `state` and `restore`, which get and set the place in `rows`.
    folder: for its files.
  """

  def run(name, kill_after):
    last = str(kill_after + 3 if kill_after else 0)
    command = [sys.executable, "-c", program + READS, str(folder / name), last]
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

  with mock.patch.object(sys, "argv", ["", str(folder / "whole"), "0"]):
    exec(program + READS, {})
  assert [run("killed", after) for after in (3, 10, None)] == [-9, -9, 0]
  assert made("killed") == made("whole")
  return made("killed")
