"""The plans of a run: made once, kept in its folder, identified by their SHA-256."""

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

if TYPE_CHECKING:  # workers of a loader need none of its imports
  from pipeline.dataset import PreparedDataset

PLANS = "plans"  # folder of the plans in a run's folder


def make_plan(
  config: ml_collections.ConfigDict, store: SequenceStore, *, algorithm: str | None = None
) -> packing.Plan:
  """Packs the lengths of a store as the config says.

  For the layouts `concat` and `padding`, each row is a pack of one sequence, unless an
  algorithm is given.

  Args:
    config: of the run.
    store: the sequences.
    algorithm: the packing algorithm, such as "none" for the unpacked baseline; None for
      the config's.
  """
  histogram, algorithm, depth = _problem(config, store, algorithm)
  then = None if config.packing.then == "none" else config.packing.then
  return packing.pack(
    histogram, algorithm=algorithm, max_sequences_per_pack=depth, then=then
  )


def _problem(
  config: ml_collections.ConfigDict, store: SequenceStore, algorithm: str | None = None
) -> tuple[packing.Histogram, str, int | str]:
  """The histogram, the algorithm and the depth, "auto" if the packer chooses it."""
  lengths, depth = store.lengths, config.packing.max_sequences_per_pack
  row_length, layout = config.data.max_sequence_length, config.data.layout
  if layout in atoms.LAYOUTS and algorithm is None:
    documents, _ = atoms.documents(store)
    atom_size = config.data.atom_size or row_length
    cut = atoms.cut(documents, layout=layout, atom_size=atom_size, row_length=row_length)
    lengths, algorithm = cut.row_tokens(), "none"
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=row_length)
  algorithm = algorithm or config.packing.algorithm
  return histogram, algorithm, 1 if algorithm == "none" else depth or "auto"


def plan_sha256(plan: packing.Plan) -> str:
  """SHA-256 of all in a plan that decides which lengths stand in which row.

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
  """The sequences that a run is evaluated on, by the names of their plans."""
  stores = {"held_out": dataset.held_out}
  if dataset.mismatched is not None:
    stores["mismatched"] = dataset.mismatched
  return stores


def keep_plans(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  workdir: str | pathlib.Path,
  *,
  begun: bool,
) -> list[str]:
  """Makes the plans that a run's folder lacks: `plans/train.json` and so on.

  Args:
    config: of the run.
    dataset: its dataset.
    workdir: its folder.
    begun: whether the run has begun. If not, plans in the folder are not its own and are
      replaced.

  Returns:
    The files that were written.

  Raises:
    InputError: a kept plan is damaged, or was made for another dataset or packing.
  """
  written = []
  for name, store in _stores(config, dataset).items():
    path = _path(workdir, name)
    if not (begun and path.exists()):
      path.parent.mkdir(exist_ok=True)
      make_plan(config, store).save(path)
      written.append(str(path))
      continue
    plan, fits = _read(path, config, store)
    if not fits:
      raise InputError(
        f"{path} was made with packing.algorithm={plan.algorithm}, at most "
        f"{plan.max_sequences_per_pack} sequences a pack and packing.then="
        f"{'even' if 'even' in plan.details else 'none'}, and the run keeps its plan. Keep "
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
  """The plans in a run's folder, by `train`, `held_out` and `mismatched`.

  Missing plans and plans of another packing than the config's are left out, and the
  training plan too with `held_out_only`.

  Raises:
    InputError: a plan is damaged or was made for another dataset.
  """
  plans = {}
  stores = _stores(config, dataset)
  if held_out_only:
    del stores["train"]
  for name, store in stores.items():
    if (path := _path(workdir, name)).exists():
      plan, fits = _read(path, config, store)
      if fits:
        plans[name] = plan
  return plans


def _stores(
  config: ml_collections.ConfigDict, dataset: PreparedDataset
) -> dict[str, SequenceStore]:
  """The stores that have plans. Text is evaluated in windows, without a plan."""
  held_out = {} if config.data.task == "text" else held_out_stores(dataset)
  return {"train": dataset.train} | held_out


def _path(workdir: str | pathlib.Path, name: str) -> pathlib.Path:
  return pathlib.Path(workdir) / PLANS / f"{name}.json"


def _read(path: pathlib.Path, config, store) -> tuple[packing.Plan, bool]:
  """A kept plan, and whether it fits the config."""
  histogram, algorithm, depth = _problem(config, store)
  try:
    plan = packing.load_plan(path, histogram=histogram)
  except InputError as error:
    raise InputError(
      f"{error} Restore the file, or remove it: train.py makes the plan again, and resumes "
      "if it is the same."
    ) from error
  if isinstance(depth, int):
    depth = min(depth, plan.row_length)
  has_depth = depth in ("auto", plan.max_sequences_per_pack)
  has_then = (config.packing.then == "even") == ("even" in plan.details)
  return plan, has_depth and has_then and plan.algorithm == algorithm
