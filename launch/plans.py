"""The plans of a run; that of its training is made once, and kept in its folder."""

from __future__ import annotations

import pathlib

import packing
from launch.parts import AtomRows, Packs, Rows
from packing import InputError
from packing.problem import Geometry
from pipeline import PreparedDataset, SequenceStore, plan_sha256
from pipeline.batches import atoms
from pipeline.batches.plans import ONLINE, online_plan
from training import processes
from training.errors import Stopped

KEPT = pathlib.Path("plans", "train.json")  # in a run's folder


def make_plan(
  rows: Rows, store: SequenceStore, *, seed: int, algorithm: str | None = None
) -> packing.Plan:
  """Packs the lengths of a store.

  For the layouts `concat` and `padding`, each row is a pack of one sequence, unless an
  algorithm is given. Rows of the unpacked baseline have `data.max_sequence_length` tokens,
  whatever `packing.row_length` is.

  Args:
    rows: of the run.
    store: the sequences.
    seed: of the run, for the order in which sequences are read.
    algorithm: the packing algorithm, such as "none" for the unpacked baseline; None for
      that of the rows.
  """
  histogram, algorithm, depth, row_length = _problem(rows, store, algorithm)
  if algorithm == ONLINE:
    if depth == "auto":
      depth = packing.choose_depth(histogram, algorithm="auto", row_length=row_length)
    geometry = Geometry.for_histogram(
      histogram, row_length=row_length, max_sequences_per_pack=depth
    )
    return online_plan(store.lengths, histogram, geometry, seed=seed)
  return packing.pack(
    histogram, algorithm=algorithm, row_length=row_length, max_sequences_per_pack=depth
  )


def _problem(
  rows: Rows, store: SequenceStore, algorithm: str | None = None
) -> tuple[packing.Histogram, str, int | str, int | None]:
  """Histogram, algorithm, depth ("auto" if the packer chooses it), and row length."""
  longest = rows.max_sequence_length
  if isinstance(rows, AtomRows) and algorithm is None:
    documents, _ = atoms.documents(store)
    cut = atoms.cut(
      documents,
      layout=rows.layout,
      atom_size=rows.atom_size or longest,
      row_length=longest,
    )
    of_rows = cut.row_tokens()
    histogram = packing.Histogram.from_lengths(of_rows, max_sequence_length=longest)
    return histogram, "none", 1, None
  histogram = store.histogram.extended(longest)
  if isinstance(rows, Packs):
    algorithm = algorithm or rows.algorithm
    if algorithm != "none":
      depth = rows.max_sequences_per_pack or "auto"
      row_length = rows.row_length or None
      if rows.is_chosen:
        row_length = packing.choose_row_length(histogram)
      return histogram, algorithm, depth, row_length
  return histogram, "none", 1, None


def row_lengths(rows: Rows, dataset: PreparedDataset) -> set[int]:
  """The lengths of all rows that a run computes, also of its evaluations and unpacked."""
  lengths = rows.lengths
  if isinstance(rows, Packs) and rows.is_chosen:
    for store in (dataset.train, *held_out_stores(dataset).values()):
      lengths |= {length for length in [_problem(rows, store)[3]] if length}
  return lengths


def held_out_stores(dataset: PreparedDataset) -> dict[str, SequenceStore]:
  """The sequences that a run is evaluated on, by name."""
  stores = {"held_out": dataset.held_out}
  if dataset.mismatched is not None:
    stores["mismatched"] = dataset.mismatched
  return stores


def kept_plan(
  rows: Rows, store: SequenceStore, workdir: pathlib.Path, *, seed: int, begun: bool
) -> packing.Plan:
  """The plan of the training sequences, `plans/train.json` in a run's folder.

  Process 0 makes it if it is missing, and all processes read it.

  Args:
    rows: of the run.
    store: the training sequences.
    workdir: its folder.
    seed: of the run.
    begun: whether the run has begun. If not, a plan in the folder belongs to another run
      and is replaced.

  Raises:
    InputError: a kept plan is damaged, or was made for another dataset.
    Stopped: this process reads another plan than process 0.
  """
  path = workdir / KEPT

  def keep():
    if not (begun and path.exists()):
      path.parent.mkdir(exist_ok=True)
      make_plan(rows, store, seed=seed).save(path)

  processes.on_first(keep)
  try:
    plan = packing.load_plan(path, histogram=_problem(rows, store)[0])
  except InputError as error:
    raise InputError(
      f"{error} Restore the file, or delete it: train.py makes the plan again."
    ) from error
  if not _is_that_of_process_0(plan):
    raise Stopped(f"{path} differs in process 0. Give all processes the same --workdir.")
  return plan


def held_out_plan(rows: Rows, store: SequenceStore, *, seed: int) -> packing.Plan:
  """The plan of held-out sequences, which each process makes for itself.

  Raises:
    Stopped: this process makes another plan than process 0.
  """
  plan = make_plan(rows, store, seed=seed)
  if not _is_that_of_process_0(plan):
    raise Stopped(
      "The held-out plan differs in process 0. Set --config.packing.algorithm=lpfhp."
    )
  return plan


def _is_that_of_process_0(plan: packing.Plan) -> bool:
  digest = plan_sha256(plan)
  return digest == processes.on_first(lambda: digest)
