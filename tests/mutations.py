"""Breaks the code on purpose, one line at a time, and says which tests notice.

  python -m tests.mutations                 # all of them, 11 minutes on 2 cores
  python -m tests.mutations recipe masking  # those of some claims

Each mutation is made in a copy of what is committed, and one of the quick tests that are
named beside it must fail there; without it, they must pass (make test). The exit status is
1 if none fails, or if the line to be broken is gone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]


class Mutation(NamedTuple):
  """A place in the code, what replaces it, and the tests that must notice."""

  file: str
  old: str
  new: str
  tests: str


_ATTENTION = "tests/model/test_attention.py"
_LOSSES = "tests/model/test_losses.py"
_MODELS = "tests/model/test_bert.py tests/model/test_models.py"
_STEP = "tests/training/test_step.py"
_LOADER = "tests/pipeline/batches/test_loader.py"
_ONLINE = "tests/packing/test_online.py"
_RECIPE = "tests/launch/test_recipe.py tests/training/test_optimizer.py"

MUTATIONS = {
  "isolation": [
    Mutation(
      "model/masks.py",
      "jnp.equal(segment_ids[:, :, None], segment_ids[:, None, :])",
      "jnp.greater_equal(segment_ids[:, :, None], segment_ids[:, None, :])",
      _ATTENTION,
    ),
    Mutation(
      "model/masks.py",
      "(same_sequence & (segment_ids[:, None, :] > 0))[:, None]",
      "same_sequence[:, None]",
      _ATTENTION,
    ),
    Mutation(
      "model/masks.py", "jnp.abs(ahead) <= window", "jnp.abs(ahead) < window", _ATTENTION
    ),
    Mutation(
      "model/masks.py", "(ahead <= 0) if causal", "(ahead <= 1) if causal", _ATTENTION
    ),
    Mutation(
      "model/attention/__init__.py",
      "(same_sequence & (of_keys[:, None, :] > 0) & close[None])",
      "((of_keys[:, None, :] > 0) & close[None])",
      _ATTENTION,
    ),
    Mutation(
      "model/attention/block_attention.py",
      "allowed = (of_queries == of_keys) & (of_keys > 0)",
      "allowed = (of_queries == of_queries) & (of_keys > 0)",
      _ATTENTION,
    ),
    Mutation(
      "model/attention/kernels.py",
      "segment_ids=splash.SegmentIds(segment_ids, segment_ids)",
      "segment_ids=splash.SegmentIds(segment_ids * 0, segment_ids * 0)",
      _ATTENTION,
    ),
    Mutation(
      "model/bert.py",
      "places = rows.position_ids + config.position_offset",
      "places = jnp.arange(rows.position_ids.shape[1])[None] + config.position_offset",
      _MODELS,
    ),
    Mutation(
      "model/blocks.py",
      'tokens_at(hidden, batch["cls_positions"])',
      'tokens_at(hidden, 0 * batch["cls_positions"])',
      _MODELS,
    ),
  ],
  "loss": [
    Mutation(
      "model/losses.py",
      "return mean_per_sequence(values, owners, max_sequences)\n  raise",
      "return mean_per_sequence(values, (owners > 0).astype(jnp.int32), 1)\n  raise",
      _LOSSES,
    ),
    Mutation(
      "model/losses.py",
      "jnp.maximum(items, 1).astype(totals.dtype), items > 0",
      "jnp.maximum(items, 1).astype(totals.dtype).max(), items > 0",
      _LOSSES,
    ),
    Mutation(
      "model/losses.py",
      "units if counts is None else counts[head]",
      "units",
      f"{_LOSSES} {_STEP}",
    ),
    Mutation(
      "model/losses.py",
      "predicts = segment_ids == _following(segment_ids)",
      "predicts = segment_ids > 0",
      _LOSSES,
    ),
    Mutation(
      "training/step.py",
      "if self._accumulate > 1 or self.mesh.size > 1:",
      "if self.mesh.size > 1:",
      _STEP,
    ),
    Mutation(
      "training/step.py", "psum(sums, (DATA, FSDP))", "psum(sums, DATA)", "tests/training"
    ),
  ],
  "exactly once": [
    Mutation(
      "packing/assignment.py",
      "slots.first_ranks[places] + np.repeat(repeats, ends - firsts)",
      "slots.first_ranks[places] + np.repeat(repeats // 2, ends - firsts)",
      "tests/packing/test_plan.py",
    ),
    Mutation(
      "packing/permutation.py",
      "np.flatnonzero(result >= sizes)",
      "np.flatnonzero(result > sizes)",
      "tests/packing/test_permutation.py",
    ),
    Mutation(
      "packing/epochs.py",
      "np.random.SeedSequence([seed, epoch])",
      "np.random.SeedSequence([seed, 0])",
      _LOADER,
    ),
    Mutation(
      "pipeline/batches/loader.py",
      "steps[:, None] * self.batch_size + np.arange(self.batch_size)[self._block]",
      "steps[:, None] * self.batch_size + np.arange(self._size)",
      _LOADER,
    ),
    Mutation(
      "pipeline/batches/loader.py",
      "step * self.batch_size + self.process_index * self._size",
      "step * self.batch_size",
      _LOADER,
    ),
    Mutation(
      "packing/online/packer.py",
      "length, _, name = self._waiting.pop(position)",
      "length, _, name = self._waiting[position]",
      _ONLINE,
    ),
    Mutation(
      "packing/online/packer.py", "while self._open:", "while len(self._open) > 1:", _ONLINE
    ),
  ],
  "masking": [
    Mutation(
      "pipeline/batches/masking.py",
      "maskable = real & ~special[input_ids]",
      "maskable = real",
      "tests/pipeline/batches/test_batches.py",
    ),
    Mutation(
      "pipeline/batches/masking.py",
      "np.rint(masking.rate * tokens)",
      "np.floor(masking.rate * tokens)",
      "tests/pipeline/batches/test_batches.py",
    ),
    Mutation(
      "pipeline/batches/masking.py",
      "[fraction < 0.8, fraction < 0.9]",
      "[fraction < 0.8, fraction < 0.8]",
      "tests/pipeline/batches/test_batches.py",
    ),
    Mutation(
      "pipeline/batches/masking.py",
      "mix(np.uint64(seed) ^ mix(epochs))",
      "mix(np.uint64(seed) ^ mix(0 * epochs))",
      "tests/pipeline/batches",
    ),
    Mutation(
      "pipeline/batches/masking.py",
      'batch["sequence_ids"].astype(np.uint64) ^ epoch_key',
      '0 * batch["sequence_ids"].astype(np.uint64) ^ epoch_key',
      "tests/pipeline/batches",
    ),
  ],
  "resume": [
    Mutation(
      "pipeline/batches/loader.py",
      "self._step, self._loader = step, loader",
      "self._step, self._loader = step + 1, loader",
      _LOADER,
    ),
    Mutation(
      "pipeline/batches/loader.py",
      'check_same_order(state["rows"], loader.contents_of_step(step))',
      "loader.contents_of_step(step)",
      _LOADER,
    ),
    Mutation(
      "training/checkpoint.py",
      'if restored.run.pop("fingerprint") == fingerprint(restored.state):',
      'if restored.run.pop("fingerprint"):',
      "tests/training/test_checkpoint.py",
    ),
    Mutation(
      "packing/online/packer.py",
      'for length, late, name in state["waiting"]]',
      'for length, late, name in state["waiting"][:-1]]',
      _ONLINE,
    ),
    Mutation(
      "packing/online/stream.py",
      '"ready": [[encode(example) for example in pack] for pack in self._ready],',
      '"ready": [],',
      f"{_ONLINE} tests/packing/test_adapters.py",
    ),
    Mutation(
      "training/step.py",
      '"step": state["step"] + 1,',
      '"step": state["step"],',
      "tests/training",
    ),
  ],
  "recipe": [
    Mutation(
      "training/optimizer.py",
      "return b1**packing_factor, b2**packing_factor",
      "return b1**packing_factor, b2",
      _RECIPE,
    ),
    Mutation(
      "training/optimizer.py",
      'not names[-1].endswith("bias") and not any(',
      "not any(",
      _RECIPE,
    ),
    Mutation(
      "training/optimizer.py", "peak / max(warmup_steps, 1), peak,", "0.0, peak,", _RECIPE
    ),
    Mutation(
      "launch/recipe/adjustment.py",
      "growth = p * (rows / recipe.rows)",
      "growth = p",
      _RECIPE,
    ),
    Mutation(
      "launch/recipe/adjustment.py",
      '{"lr_linear": p, "lr_sqrt": math.sqrt(p)}',
      '{"lr_linear": math.sqrt(p), "lr_sqrt": p}',
      _RECIPE,
    ),
  ],
  "certificate": [
    Mutation(
      "packing/algorithms/pricing.py",
      "-(-carried // self.best_value) if",
      "carried // self.best_value + 1 if",
      "tests/packing/algorithms/test_optimal.py tests/packing/test_plan.py",
    ),
    Mutation(
      "packing/algorithms/pricing.py",
      "2**61 // most_items(problem)",
      "2**62",
      "tests/packing",
    ),
    Mutation(
      "packing/problem.py",
      'end = sizes.searchsorted(row - least, side="right")',
      'end = sizes.searchsorted(row - least, side="left")',
      "tests/packing/algorithms",
    ),
    Mutation(
      "packing/plan.py",
      "np.flatnonzero(used != self.histogram.counts)",
      "np.flatnonzero(used > self.histogram.counts)",
      "tests/packing/test_plan.py",
    ),
    Mutation(
      "packing/planfile.py",
      "if stored.sha256 != sha256:",
      "if not sha256:",
      "tests/packing/test_plan.py tests/packing/test_files.py",
    ),
  ],
}


def caught_by(mutation: Mutation, clone: pathlib.Path) -> str:
  """The first test that fails with a mutation; "" if none does.

  Raises:
    LookupError: the code to be broken does not stand once in its file.
  """
  path = clone / mutation.file
  source = path.read_text()
  if source.count(mutation.old) != 1:
    raise LookupError(f"{mutation.old!r} stands {source.count(mutation.old)} times in it.")
  path.write_text(source.replace(mutation.old, mutation.new))
  try:
    command = [
      sys.executable,
      "-m",
      "pytest",
      "-x",
      "-m",
      "not slow",
      "-p",
      "no:cacheprovider",
    ]
    done = subprocess.run(
      [*command, *mutation.tests.split()],
      cwd=clone,
      env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
      capture_output=True,
      text=True,
      timeout=600,
    )
  except subprocess.TimeoutExpired:
    return "a test that did not end"
  finally:
    path.write_text(source)
  found = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
  return found[1] if found and done.returncode == 1 else ""


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("claims", nargs="*", metavar="CLAIM", help=", ".join(MUTATIONS))
  chosen = parser.parse_args().claims or list(MUTATIONS)
  if unknown := set(chosen) - MUTATIONS.keys():
    parser.error(f"there is no {unknown.pop()!r}; expected some of {', '.join(MUTATIONS)}")
  todo = [(claim, mutation) for claim in chosen for mutation in MUTATIONS[claim]]
  own = threading.local()
  missed = 0
  with tempfile.TemporaryDirectory() as folder:

    def clone_here() -> pathlib.Path:
      if not hasattr(own, "clone"):
        own.clone = pathlib.Path(folder, str(threading.get_ident()))
        subprocess.run(["git", "clone", "--quiet", ROOT, own.clone], check=True)
        (ROOT / ".cache").mkdir(exist_ok=True)
        (own.clone / ".cache").symlink_to(ROOT / ".cache")  # compiled programs
      return own.clone

    def run(one: tuple[str, Mutation]) -> str:
      try:
        return caught_by(one[1], clone_here())
      except LookupError as error:
        print(f"{one[1].file}: {error}", file=sys.stderr)
        return ""

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      for (claim, mutation), test in zip(todo, threads.map(run, todo), strict=True):
        missed += not test
        print(
          f"{claim}: {mutation.file}: {mutation.new!r}: {test or 'NOT CAUGHT'}", flush=True
        )
  print(f"{len(todo) - missed} of {len(todo)} mutations are caught.")
  return 1 if missed else 0


if __name__ == "__main__":
  sys.exit(main())
