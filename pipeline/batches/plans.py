"""The plans of a run: made once, kept in its folder, identified by their SHA-256."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import pathlib
from typing import TYPE_CHECKING, Any

import ml_collections
import numpy as np

import packing
from packing import InputError
from packing.problem import Geometry
from pipeline.batches import atoms
from pipeline.store import SequenceStore

if TYPE_CHECKING:
  from pipeline.dataset import PreparedDataset

PLANS = "plans"  # folder of the plans in a run's folder
ONLINE = "online"  # packs are made while reading; the plan is that of the first epoch
ALGORITHMS = (*packing.ALGORITHMS, ONLINE)


def make_plan(
  config: ml_collections.ConfigDict, store: SequenceStore, *, algorithm: str | None = None
) -> packing.Plan:
  """Packs the lengths of a store as the config says.

  For the layouts `concat` and `padding`, each row is a pack of one sequence, unless an
  algorithm is given. Rows of the unpacked baseline have `data.max_sequence_length` tokens,
  whatever `packing.row_length` is.

  Args:
    config: the config of the run.
    store: the sequences.
    algorithm: the packing algorithm, such as "none" for the unpacked baseline; None for
      the config's.
  """
  histogram, algorithm, depth, row_length = _problem(config, store, algorithm)
  if algorithm == ONLINE:
    if depth == "auto":
      depth = packing.choose_depth(histogram, algorithm="auto", row_length=row_length)
    geometry = Geometry.for_histogram(
      histogram, row_length=row_length, max_sequences_per_pack=depth
    )
    return online_plan(store.lengths, histogram, geometry, seed=config.seed)
  return packing.pack(
    histogram, algorithm=algorithm, row_length=row_length, max_sequences_per_pack=depth
  )


def online_plan(
  lengths: np.ndarray, histogram: packing.Histogram, geometry: Geometry, *, seed: int
) -> packing.Plan:
  """The packs that an online packer makes of the first epoch, all closed at its end.

  Args:
    lengths: int[N], in tokens.
    histogram: of the same lengths.
    geometry: the geometry of the rows.
    seed: selects the order in which the epoch is read.
  """
  packer = packing.OnlinePacker(
    row_length=geometry.capacity,
    max_sequences_per_pack=geometry.max_sequences_per_pack,
    shortest=int(geometry.sizes(1)),
  )
  lengths = lengths[epoch_order(lengths.size, seed, 0)]
  packs = collections.Counter(
    tuple(sorted(lengths[pack].tolist()))
    for pack in packer.pack(geometry.sizes(lengths).tolist())
  )
  strategies = sorted(packs)
  return packing.Plan(
    histogram=histogram,
    strategies=strategies,
    repeat_counts=np.array([packs[strategy] for strategy in strategies]),
    algorithm=ONLINE,
    **dataclasses.asdict(geometry),
  )


def epoch_order(num_sequences: int, seed: int, epoch: int) -> np.ndarray:
  """int64[N]: the reading order of an epoch that is packed online."""
  return np.random.default_rng([seed, epoch]).permutation(num_sequences)


def _problem(
  config: ml_collections.ConfigDict, store: SequenceStore, algorithm: str | None = None
) -> tuple[packing.Histogram, str, int | str, int | None]:
  """Histogram, algorithm, depth ("auto" if the packer chooses it), and row length."""
  lengths = store.lengths
  longest, layout = config.data.max_sequence_length, config.data.layout
  if layout in atoms.LAYOUTS and algorithm is None:
    documents, _ = atoms.documents(store)
    atom_size = config.data.atom_size or longest
    cut = atoms.cut(documents, layout=layout, atom_size=atom_size, row_length=longest)
    lengths, algorithm = cut.row_tokens(), "none"
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=longest)
  algorithm = algorithm or config.packing.algorithm
  if algorithm == "none":
    return histogram, algorithm, 1, None
  row_length = config.packing.row_length or None
  return histogram, algorithm, config.packing.max_sequences_per_pack or "auto", row_length


def plan_sha256(plan: packing.Plan) -> str:
  """SHA-256 of everything in a plan that decides which lengths share a row.

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
):
  """Makes the plans that a run's folder lacks: `plans/train.json` and so on.

  Args:
    config: the config of the run.
    dataset: its dataset.
    workdir: its folder.
    begun: whether the run has begun. If not, plans in the folder belong to another run and
      are replaced.

  Raises:
    InputError: a kept plan is damaged, or was made for another dataset or packing.
  """
  for name, store in _stores(config, dataset).items():
    path = _path(workdir, name)
    if not (begun and path.exists()):
      path.parent.mkdir(exist_ok=True)
      make_plan(config, store).save(path)
      continue
    _, other = _read(path, config, store)
    if other:
      fields = ", ".join(f"packing.{name}={value}" for name, value in other.items())
      raise InputError(
        f"{path} was made with {fields}. Restore these, or give another --workdir."
      )


def read_plans(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  workdir: str | pathlib.Path,
  *,
  held_out_only: bool = False,
) -> dict[str, packing.Plan]:
  """The plans in a run's folder, by `train`, `held_out` and `mismatched`.

  Plans that are missing or were made with other packing fields than the config's are left
  out. With `held_out_only`, so is the training plan.

  Raises:
    InputError: a plan is damaged or was made for another dataset.
  """
  plans = {}
  stores = _stores(config, dataset)
  if held_out_only:
    del stores["train"]
  for name, store in stores.items():
    if (path := _path(workdir, name)).exists():
      plan, other = _read(path, config, store)
      if not other:
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


def _read(path: pathlib.Path, config, store) -> tuple[packing.Plan, dict[str, Any]]:
  """A kept plan, and the packing fields in which it differs from the config."""
  histogram, algorithm, depth, row_length = _problem(config, store)
  try:
    plan = packing.load_plan(path, histogram=histogram)
  except InputError as error:
    raise InputError(
      f"{error} Restore the file, or delete it; train.py makes it again."
    ) from error
  of_plan = plan.max_sequences_per_pack
  geometry = Geometry.for_histogram(
    histogram,
    row_length=row_length,
    max_sequences_per_pack=of_plan if depth == "auto" else depth,
  )
  made_with = {"algorithm": plan.algorithm} | dataclasses.asdict(plan.geometry)
  wanted = {"algorithm": algorithm} | dataclasses.asdict(geometry)
  return plan, {
    name: made_with.get(name) for name in wanted if made_with.get(name) != wanted[name]
  }
