"""train.py and eval.py in processes of their own, on a small corpus."""

import json
import os
import pathlib
import signal
import socket
import sys
import time

import jaxlib.version

from tests import forked

ROOT = pathlib.Path(__file__).parents[1]
STEPS, SAVED_EVERY = 12, 4
UNFINISHED = "*.orbax-checkpoint-tmp*"  # checkpoints that are being saved
# For tests, and for what they start. Compiling takes most of their time: each program is
# compiled once in this checkout for each set of XLA's flags, with few optimisations, and
# without XLA's emitters for fusions, which take three times as long as the plain ones.
XLA_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if jaxlib.version.__version_info__ < (0, 11):  # 0.11.2 does not know it, and stops at it
  XLA_FLAGS.append("--xla_cpu_use_fusion_emitters=false")
COMPILING = {
  "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]),
  "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "compiled"),
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
# For what must compile as users do.
AS_USERS = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
# For a process that may be killed: it must not leave half a file in the cache.
READ_ONLY_CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}


def link_checkout(folder):
  """Links all that the programs need from a folder, to run them there."""
  names = (
    "train.py eval.py predict.py configs experiments lab model packing pipeline training"
  )
  for name in names.split():
    (folder / name).symlink_to(ROOT / name)


def fields(text):
  """Settings of the config, separated by spaces, as options."""
  return [f"--config.{setting}" for setting in text.split()]


SETTINGS = fields(
  "data.max_sequence_length=128 data.vocab_size=2000 data.held_out_fraction=0.01 "
  "train.throughput_rounds=0 "
  f"train.steps={STEPS} train.log_every=2 train.eval_every={STEPS // 2} "
  f"train.checkpoint_every={SAVED_EVERY} optimizer.warmup_steps=5 "
  # The rows come to about 16, a multiple of 4, so the steps stay as they are.
  "train.batch_size=20 train.micro_batch_size=4"
)


def command(folder, workdir, *options, program="train.py"):
  places = {
    "data.source": f"stdlib:{folder / 'library'}",
    "data.directory": folder / "data",
  }
  more = (*SETTINGS, *options)
  return words(program, "quickstart.py", folder / workdir, places, more)


def settings(text):
  """By their names, as `words` takes them."""
  return dict(setting.split("=") for setting in text.split())


def words(program, config, workdir, values, options=()):
  return [
    *(sys.executable, str(ROOT / program)),
    f"--config={ROOT / 'configs' / config}",
    f"--workdir={workdir}",
    *(f"--config.{name}={value}" for name, value in values.items()),
    *options,
  ]


def run(folder, workdir, *options, program="train.py", **variables):
  """Runs train.py or eval.py to its end, with more variables in the environment."""
  return complete(command(folder, workdir, *options, program=program), folder, **variables)


def succeed(folder, workdir, *options, **others):
  return succeeded(run(folder, workdir, *options, **others))


def succeeded(result):
  assert result.returncode == 0, result.stderr[-3000:]
  return result


def complete(words, folder, **variables):
  return forked.run(words[1:], cwd=folder, env=os.environ | variables)


def start(words, folder, *, new_session=False, **variables):
  """Begins to run a command in a folder, as `forked.Process`."""
  env = os.environ | variables
  return forked.Process(words[1:], cwd=folder, env=env, new_session=new_session)


def begin(folder, workdir, *options, **others):
  """Begins to run train.py; as `start`."""
  return start(command(folder, workdir, *options), folder, **others)


def begin_two(command, folder, request, **variables):
  """Starts two processes that train one model, on two devices each; as `start`."""
  with socket.socket() as server:
    server.bind(("localhost", 0))
    port = server.getsockname()[1]
  joined = ["--processes=2", f"--coordinator=localhost:{port}"]
  variables["JAX_NUM_CPU_DEVICES"] = "2"
  both = [
    start([*command, *joined, f"--process={number}"], folder, **variables)
    for number in range(2)
  ]
  for process in both:  # if one fails, none is left to wait for it
    request.addfinalizer(process.kill)
  return both


def kill(process):
  process.kill()
  process.communicate()
  assert process.returncode == -signal.SIGKILL


def kill_once_saved(words, folder, workdir):
  """Starts a command that trains in `workdir`, and kills it when a checkpoint is there."""
  process = start(words, folder, **READ_ONLY_CACHE)
  saved = workdir / "checkpoints"
  wait_for(process, lambda: any(path.name.isdigit() for path in saved.glob("*")))
  kill(process)


def wait_for(process, seen, every=0.02):
  """Looks until something is seen, every so many seconds."""
  deadline = time.monotonic() + 300
  while not seen():
    assert process.poll() is None, f"ended too early: {process.communicate()}"
    assert time.monotonic() < deadline
    time.sleep(every)


def summary_of(workdir):
  return json.loads((workdir / "summary.json").read_text())


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]
