"""The plans of a run: made once, kept in its folder, and named by their SHA-256."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import TYPE_CHECKING

import ml_collections

import packing
from packing import InputError
from pipeline.batches import atoms
from pipeline.store import SequenceStore

if TYPE_CHECKING:  # it brings all that prepares
  from pipeline.dataset import PreparedDataset

PLANS = "plans"  # the folder in a run's folder


def make_plan(
  config: ml_collections.ConfigDict, store: SequenceStore, *, algorithm: str | None = None
) -> packing.Plan:
  """Packs the lengths of a store as the config says.

  Of the layouts `concat` and `padding` it is a plan of their rows, each a pack by itself,
  unless an algorithm is given.

  Args:
    config: of the run.
    store: the sequences.
    algorithm: the packing algorithm, such as "none" for what packing is compared with;
      None for the config's.
  """
  histogram, algorithm, depth = _problem(config, store, algorithm)
  return packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=depth)


def _problem(
  config: ml_collections.ConfigDict, store: SequenceStore, algorithm: str | None = None
) -> tuple[packing.Histogram, str, int | str]:
  """What is packed, with which algorithm, and how deep; "auto" where that is chosen."""
  lengths, depth = store.lengths, config.packing.max_sequences_per_pack
  if config.data.layout in atoms.LAYOUTS and algorithm is None:
    lengths, algorithm = _atoms_of(config, store).row_tokens(), "none"
  histogram = packing.Histogram.from_lengths(
    lengths, max_sequence_length=config.data.max_sequence_length
  )
  algorithm = algorithm or config.packing.algorithm
  return histogram, algorithm, 1 if algorithm == "none" else depth or "auto"


def _atoms_of(config: ml_collections.ConfigDict, store: SequenceStore) -> atoms.Atoms:
  lengths, _ = atoms.documents(store)
  row_length = config.data.max_sequence_length
  return atoms.cut(
    lengths,
    layout=config.data.layout,
    atom_size=config.data.atom_size or row_length,
    row_length=row_length,
  )


def plan_sha256(plan: packing.Plan) -> str:
  """Of all in a plan that says which lengths stand in which row.

  Example:
    >>> histogram = packing.Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
    >>> plans = [packing.pack(histogram, algorithm=name) for name in ("ffd", "bfd", "none")]
    >>> ffd, bfd, none = map(plan_sha256, plans)
    >>> ffd == bfd, ffd == none
    (True, False)
  """
  rows = [plan.row_length, plan.strategies, plan.repeat_counts.tolist()]
  return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def held_out_stores(dataset: PreparedDataset) -> dict[str, SequenceStore]:
  """What a run is evaluated on, by the names of their plans."""
  found = {"held_out": dataset.held_out}
  if dataset.mismatched is not None:
    found["mismatched"] = dataset.mismatched
  return found


def keep_plans(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  workdir: str | pathlib.Path,
  *,
  anew: bool,
) -> list[str]:
  """Sees to it that a run's folder holds its plans: `plans/train.json` and so on.

  Args:
    config: of the run.
    dataset: its dataset.
    workdir: its folder.
    anew: whether the run has not begun, so that what is there is not its own.

  Returns:
    The files that were written: of the plans that were not there.

  Raises:
    InputError: a file there is damaged, of another dataset, or of another packing.
  """
  written = []
  for name, store in _stores(config, dataset).items():
    path = _path(workdir, name)
    if anew or not path.exists():
      path.parent.mkdir(exist_ok=True)
      make_plan(config, store).save(path)
      written.append(str(path))
    elif not _fits(plan := _read(path, config, store), config, store):
      raise InputError(
        f"{path} was made with packing.algorithm={plan.algorithm} and at most "
        f"{plan.max_sequences_per_pack} sequences a pack, which the run goes on with. Keep "
        "packing as it was, or give another --workdir."
      )
  return written


def read_plans(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  workdir: str | pathlib.Path,
  *,
  held_out_only: bool = False,
) -> dict[str, packing.Plan]:
  """The plans that a run's folder holds, by `train`, `held_out` and `mismatched`.

  Those that are not there, or of another packing than the config says, are left out, and
  that of training where only the others are asked for.

  Raises:
    InputError: a file is damaged, or of another dataset.
  """
  found = {}
  stores = _stores(config, dataset)
  if held_out_only:
    del stores["train"]
  for name, store in stores.items():
    path = _path(workdir, name)
    if path.exists() and _fits(plan := _read(path, config, store), config, store):
      found[name] = plan
  return found


def _stores(
  config: ml_collections.ConfigDict, dataset: PreparedDataset
) -> dict[str, SequenceStore]:
  """What is packed; text is evaluated in windows."""
  held_out = {} if config.data.task == "text" else held_out_stores(dataset)
  return {"train": dataset.train} | held_out


def _path(workdir: str | pathlib.Path, name: str) -> pathlib.Path:
  return pathlib.Path(workdir) / PLANS / f"{name}.json"


def _read(path: pathlib.Path, config, store: SequenceStore) -> packing.Plan:
  try:
    return packing.load_plan(path, histogram=_problem(config, store)[0])
  except InputError as error:
    raise InputError(
      f"{error} Restore the file, or remove it: train.py makes the plan again, and goes on "
      "if it is the same."
    ) from error


def _fits(plan: packing.Plan, config, store: SequenceStore) -> bool:
  _, algorithm, depth = _problem(config, store)
  if isinstance(depth, int):
    depth = min(depth, plan.row_length)
  return plan.algorithm == algorithm and depth in ("auto", plan.max_sequences_per_pack)
