"""The plans of a run: made once from its config, and kept in its folder."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from ml_collections import ConfigDict

import packing
from packing import InputError
from packing.problem import Geometry
from pipeline import PreparedDataset, SequenceStore, plan_sha256
from pipeline.batches import atoms
from pipeline.batches.plans import ONLINE, online_plan
from training import processes
from training.errors import Stopped

PLANS = "plans"  # folder of the plans in a run's folder
ALGORITHMS = (*packing.ALGORITHMS, ONLINE)


def make_plan(
  config: ConfigDict, store: SequenceStore, *, algorithm: str | None = None
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


def _problem(
  config: ConfigDict, store: SequenceStore, algorithm: str | None = None
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


def held_out_stores(dataset: PreparedDataset) -> dict[str, SequenceStore]:
  """The sequences that a run is evaluated on, by the names of their plans."""
  stores = {"held_out": dataset.held_out}
  if dataset.mismatched is not None:
    stores["mismatched"] = dataset.mismatched
  return stores


def kept_plans(
  config: ConfigDict, dataset: PreparedDataset, workdir: pathlib.Path, *, begun: bool
) -> dict[str, packing.Plan]:
  """The plans in a run's folder, `plans/train.json` and so on.

  Process 0 makes those that are missing, and all processes read them.

  Args:
    config: the config of the run.
    dataset: its dataset.
    workdir: its folder.
    begun: whether the run has begun. If not, plans in the folder belong to another run and
      are replaced.

  Raises:
    InputError: a kept plan is damaged, or was made for another dataset or packing.
    Stopped: this process reads other plans than process 0.
  """

  def keep():
    for name, store in _stores(config, dataset).items():
      path = _path(workdir, name)
      if not (begun and path.exists()):
        path.parent.mkdir(exist_ok=True)
        make_plan(config, store).save(path)
      elif other := _read(path, config, store)[1]:
        fields = ", ".join(f"packing.{name}={value}" for name, value in other.items())
        raise InputError(
          f"{path} was made with {fields}, and a run keeps its plan. Restore the config's "
          "packing fields, or give another --workdir."
        )

  processes.on_first(keep)
  plans = read_plans(config, dataset, workdir)
  digests = {name: plan_sha256(plan) for name, plan in plans.items()}
  if digests != processes.on_first(lambda: digests):
    raise Stopped(
      f"The plans that this process reads in {workdir} differ from those of process 0. "
      "Give all processes the same folder as --workdir."
    )
  return plans


def read_plans(
  config: ConfigDict,
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


def _stores(config: ConfigDict, dataset: PreparedDataset) -> dict[str, SequenceStore]:
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
      f"{error} Restore the file, or delete it: train.py makes the plan again, and resumes "
      "if it is the same."
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
