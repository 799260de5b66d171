"""What ends a run: signals to processes that only listen, and evaluations."""

import os
import pathlib
import pty
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from training import stopping

ROOT = pathlib.Path(__file__).parents[2]
# Like a compilation: the main thread runs no Python, and a signal does not wake it.
COMPILE = "hashlib.pbkdf2_hmac('sha256', b'', b'', {})"
SHORT, LONG = COMPILE.format(5_000_000), COMPILE.format(10**9)


@pytest.fixture
def program(request):
  """Starts a program that listens; the test goes on when it has printed a line."""

  def start(body, *, ignored=(), stderr=subprocess.PIPE):
    before = "import hashlib, signal, sys, time\nfrom training.stopping import signals\n"
    before += "".join(f"signal.signal({n:d}, signal.SIG_IGN)\n" for n in ignored)
    process = subprocess.Popen(
      [sys.executable, "-c", f"{before}signals.listen()\n{textwrap.dedent(body)}"],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=stderr,
      text=True,
    )
    request.addfinalizer(process.communicate)
    request.addfinalizer(process.kill)
    assert process.stdout.readline()
    return process

  return start


def end(process):
  out, err = process.communicate(timeout=60)
  assert "Traceback" not in err
  return process.returncode, out, err


TRAINS = """
  signals.resume_hint = lambda: "Nothing is kept."
  with signals.deferred():
    print("begins", flush=True)
    {work}
    print("saved after", signals.heard, flush=True)
    raise SystemExit(128 + signals.heard)
"""


BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_the_first_signal_lets_the_step_end(program, number):
  process = program(TRAINS.format(work=SHORT))
  process.send_signal(number)
  status, out, err = end(process)
  assert (status, out) == (128 + number, f"saved after {number:d}\n")
  assert ("Ctrl-C again exits at once" in err) == (number == signal.SIGINT)


def test_on_a_terminal_the_message_replaces_the_bar(program):
  ours, theirs = pty.openpty()
  bar = "print(end='02:12 left', file=sys.stderr)"
  process = program(
    TRAINS.format(work=f"{bar}; sys.stderr.flush(); {SHORT}"), stderr=theirs
  )
  text = b""
  while b"left" not in text:
    text += os.read(ours, 4096)
  process.send_signal(signal.SIGINT)
  assert process.wait(60) == 130
  after = (text + os.read(ours, 4096)).decode().partition("02:12 left")[2]
  os.close(ours)
  os.close(theirs)
  assert after.startswith("\r\x1b[K-c: Finishing this step to save it")


def test_an_interrupt_is_not_lost_in_the_garbage_collector(program):
  """JAX has a callback there, and Python drops what callbacks raise."""
  body = """
    import gc
    signals.resume_hint = lambda: "Nothing is kept."
    gc.callbacks.append(lambda phase, _: signal.raise_signal(signal.SIGINT))
    print("begins", flush=True)
    gc.collect()
    time.sleep(60)
  """
  process = program(body)
  _, err = process.communicate(timeout=60)  # with Python's note of what it dropped
  assert process.returncode == 130
  assert err.endswith(": Stopped. Nothing is kept.\n")


def test_a_second_ctrl_c_leaves_at_once_and_says_what_is_kept(program):
  process = program(TRAINS.format(work=LONG))
  process.send_signal(signal.SIGINT)
  assert "Ctrl-C again exits at once" in process.stderr.readline()  # while it compiles
  process.send_signal(signal.SIGINT)
  status, out, err = end(process)
  assert (status, out) == (130, "")
  assert err.endswith(": Stopped. Nothing is kept.\n")


def test_another_sigterm_does_not_hurry_a_run_that_saves(program):
  """A sweep passes SIGTERM on to a run that may have got its Ctrl-C already."""
  process = program(TRAINS.format(work=SHORT))
  process.send_signal(signal.SIGINT)
  process.stderr.readline()
  for _ in range(2):
    process.send_signal(signal.SIGTERM)
  assert end(process)[:2] == (130, "saved after 2\n")


@BOTH
def test_before_and_after_training_a_signal_breaks_off(program, number):
  process = program("""
    signals.resume_hint = lambda: "Step 8 is kept."
    try:
      print("begins", flush=True)
      time.sleep(60)
    except KeyboardInterrupt:
      print("cleaned", flush=True)
      signals.leave()
  """)
  process.send_signal(number)
  status, out, err = end(process)
  assert (status, out) == (128 + number, "cleaned\n")
  assert err.endswith(": Stopped. Step 8 is kept.\n")


@BOTH
def test_before_training_a_compilation_is_not_waited_for(program, number):
  process = program(f"""
    signals.resume_hint = lambda: "Nothing is kept."
    print("begins", flush=True)
    {LONG}
  """)
  time.sleep(0.5)  # it has begun to compile
  process.send_signal(number)
  status, _, err = end(process)
  assert status == 128 + number
  assert err.endswith(": Stopped. Nothing is kept.\n")


AFTER_THE_LAST_STEP = """
  with signals.deferred():
    print("begins", flush=True)
    while not signals.heard:
      time.sleep(0.01)
  print("went on")
"""
SWALLOWED = """
  try:
    print("begins", flush=True)
    time.sleep(60)
  except BaseException:
    pass
  with signals.deferred():
    print("trains")
"""


@pytest.mark.parametrize(
  "body", [AFTER_THE_LAST_STEP, SWALLOWED], ids=["after the last step", "swallowed"]
)
def test_a_signal_is_not_lost(program, body):
  before, after = (
    "signals.resume_hint = lambda: ''\ntry:",
    "except KeyboardInterrupt: signals.leave()",
  )
  process = program(f"{before}{body}{after}")
  process.send_signal(signal.SIGINT)
  assert end(process)[:2] == (130, "")


def test_train_speaks_before_it_imports():
  command = [sys.executable, "train.py", "--config=configs/quickstart.py", "--workdir=x"]
  process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
  assert "loading JAX" in process.stderr.readline()
  process.send_signal(signal.SIGINT)
  assert process.communicate(timeout=60)[1] == "train.py: Stopped.\n"
  assert process.returncode == 130


def test_a_ctrl_c_that_the_shell_has_switched_off_stays_so(program):
  process = program("print('begins', flush=True)\ntime.sleep(0.3)", ignored=[signal.SIGINT])
  process.send_signal(signal.SIGINT)
  assert end(process) == (0, "", "")


def test_evaluations_decide_the_best_step_and_the_end():
  lines = [
    {"step": 10 * i, "seconds": 1.0, "sequences_trained": 7, "mlm_accuracy": accuracy}
    for i, accuracy in enumerate([0.1, 0.3, 0.25, 0.3], start=1)
  ]

  def verdicts(**options):
    rules = {"metric": "mlm_accuracy", "target": 0.0, "patience": 0} | options
    return [stopping.judge(lines[:number], **rules) for number in range(5)]

  assert verdicts()[0] == (None, "")
  assert verdicts()[4] == (20, "")
  reached = "it has reached train.target_mlm_accuracy=0.3"
  assert [x.ended for x in verdicts(target=0.3)] == [""] * 2 + [reached] * 3
  no_better = "its evaluations have not improved for train.patience=2"
  assert [x.ended for x in verdicts(patience=2)] == [""] * 4 + [no_better]
