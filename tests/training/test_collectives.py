"""What devices send each other in a step, read from the compiled program."""

import collections
import math
import re

import jax
import pytest

from tests.training.test_step import SPLIT, make_batch, make_program

_OPERATION = re.compile(
  r"= (\S+|\(.*?\)) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
  r"(?:-start)?\("
)
_SHAPE = re.compile(r"(f32|bf16|s32|u32|pred|f64)\[([\d,]*)\]")
_BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "f64": 8}


def sent(program) -> dict[str, collections.Counter]:
  """Bytes of the results, by operation, outside of loops and in each pass of one."""
  batch = program.put_batch(make_batch(16))
  compiled = program.train_step.lower(program.abstract_state(), batch).compile().as_text()
  loops = set(re.findall(r"body=%?([\w.\-]+)", compiled))
  found: dict[str, collections.Counter] = {
    "once": collections.Counter(),
    "in a loop": collections.Counter(),
  }
  computation = ""
  for line in compiled.splitlines():
    if begins := re.match(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
      computation = begins[1]
    if operation := _OPERATION.search(line):
      size = sum(
        _BYTES[dtype] * math.prod(int(x) for x in shape.split(",") if x)
        for dtype, shape in _SHAPE.findall(operation[1])
      )
      found["in a loop" if computation in loops else "once"][operation[2]] += size
  return found


def parameter_bytes(program) -> int:
  leaves = jax.tree.leaves(program.abstract_state()["params"])
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


SMALL = 2000  # bytes for counts, totals and norms


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("head", ["pretraining", "causal"])
def test_gradients_are_added_up_once_a_step(accumulate, head):
  program = make_program(4, head=head, step=(("accumulate", accumulate),))
  found = sent(program)
  assert found["in a loop"].total() == 0
  assert found["once"]["all-reduce"] >= parameter_bytes(program)
  assert found["once"].total() <= 1.02 * parameter_bytes(program) + SMALL


@pytest.mark.parametrize("accumulate", [1, 4])
def test_split_parameters_are_gathered_once_and_their_gradients_scattered(accumulate):
  program = make_program(4, fsdp=4, step=(("accumulate", accumulate),), **SPLIT)
  found = sent(program)
  assert found["in a loop"].total() == 0
  whole = parameter_bytes(program)
  assert 0.9 * whole <= found["once"]["all-gather"] <= 1.02 * whole + SMALL
  # Each device gets its share of the sums.
  assert found["once"]["reduce-scatter"] <= 1.02 * whole / 4 + SMALL
  assert found["once"]["all-reduce"] <= 0.1 * whole + SMALL


def test_kernels_are_gathered_in_the_dtype_of_the_computation():
  """As lowered; a CPU, which has no such operation in 16 bits, widens them again."""
  program = make_program(4, fsdp=4, dtype="bfloat16", **SPLIT)
  batch = program.put_batch(make_batch(16))
  lowered = program.train_step.lower(program.abstract_state(), batch).as_text()
  gathered = re.findall(r"all_gather.*?-> tensor<[\dx]*x(\w+)>", lowered)
  leaves = jax.tree_util.tree_leaves_with_path(program.abstract_state()["params"])
  kernels = [path for path, _ in leaves if path[-1].key == "kernel"]
  assert gathered.count("bf16") == len(kernels) > 0
