"""Two processes, each with its own rows from the loader, train and evaluate as one."""

import json
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

PROCESS = """
import json, sys
import jax

host, hosts, port, store, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
jax.config.update("jax_num_cpu_devices", 4 // hosts)
if hosts > 1:
  jax.distributed.initialize(f"localhost:{port}", hosts, host)

import numpy as np
import packing
from pipeline import Masking, PackedLoader, SequenceStore
from tests import packs
from training.evaluation import evaluate
from training.optimizer import lamb
from training.step import TrainingProgram, make_mesh, put_batch

assert jax.process_count() == hosts
store = SequenceStore(store)
histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=13)
plan = packing.pack(histogram, max_sequences_per_pack=3)
masking = Masking(rate=0.15, seed=5, mask_id=4, special_ids=(0, 2, 3, 4), vocab_size=29)
loader = PackedLoader(
  store, plan, batch_size=8, masking=masking, seed=3,
  host=jax.process_index(), hosts=jax.process_count(),
)
config = packs.small_config(num_layers=1)
program = TrainingProgram(config, lamb(0.01), mesh=make_mesh(), seed=0)
assert program.mesh.size == 4
state, losses = program.init(), []
batches = loader.iterate()
for _ in range(3):
  state, metrics = program.train_step(state, put_batch(next(batches), program.mesh))
  losses.append(float(metrics["loss"]))
held_out = loader.evaluation_batches()
result = evaluate(program, state["params"], held_out, unigram_token=7)
digest = [float(np.asarray(x, np.float64).sum()) for x in jax.tree.leaves(state["params"])]
with open(out, "w") as file:
  json.dump({"losses": losses, "evaluation": result, "parameters": digest}, file)
"""


def free_port() -> int:
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return server.getsockname()[1]


@pytest.mark.parametrize("hosts", [2])
def test_processes_with_a_block_each_compute_what_one_does(tmp_path, hosts):
  from tests.test_packed_equals_unpacked import StoredSequence, write_sequences

  rng = np.random.default_rng(0)
  rows = []
  for length in rng.integers(3, 14, 61).tolist():
    ids = [2, *rng.integers(5, 29, length - 2).tolist(), 3]
    rows.append(StoredSequence(ids, length // 2, int(rng.integers(2))))
  write_sequences(tmp_path / "s.arrow", rows)
  (tmp_path / "process.py").write_text(PROCESS)
  port = free_port()
  processes = [
    subprocess.Popen(
      [
        *(sys.executable, tmp_path / "process.py", str(host), str(number), str(port)),
        *(tmp_path / "s.arrow", tmp_path / f"{number}-{host}.json"),
      ],
      env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
      stderr=subprocess.PIPE,
      text=True,
    )
    for number in (1, hosts)
    for host in range(number)
  ]
  for process in processes:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
  alone = json.loads((tmp_path / "1-0.json").read_text())
  assert alone["evaluation"]["sequences"] == 61
  for host in range(hosts):
    found = json.loads((tmp_path / f"{hosts}-{host}.json").read_text())
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(
      found["parameters"], alone["parameters"], rtol=1e-4, atol=1e-4
    )
    for name, value in alone["evaluation"].items():
      if name != "mlm_accuracy_by_length":
        assert found["evaluation"][name] == pytest.approx(value, rel=1e-5), name
    counts = [
      [entry["sequences"] for entry in run["evaluation"]["mlm_accuracy_by_length"]]
      for run in (found, alone)
    ]
    assert counts[0] == counts[1]
