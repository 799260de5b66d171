"""The plans of a run; that of its training is made once, and kept in its folder."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

import packing
from launch.fields import CHOSEN, row_length
from packing import InputError
from packing.problem import Geometry
from pipeline import PreparedDataset, SequenceStore, plan_sha256
from pipeline.batches import atoms
from pipeline.batches.plans import ONLINE, online_plan
from training import processes
from training.errors import Stopped

KEPT = pathlib.Path("plans", "train.json")  # in a run's folder
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
  if row_length == CHOSEN:
    row_length = packing.choose_row_length(histogram)
  return histogram, algorithm, config.packing.max_sequences_per_pack or "auto", row_length


def row_lengths(config: ConfigDict, dataset: PreparedDataset) -> set[int]:
  """The lengths of all rows that a run computes, also of its evaluations and unpacked."""
  lengths = {config.data.max_sequence_length}
  if config.packing.row_length != CHOSEN or config.packing.algorithm == "none":
    return lengths | {row_length(config)}
  stores = (dataset.train, *held_out_stores(dataset).values())
  return lengths | {length for x in stores if (length := _problem(config, x)[3])}


def held_out_stores(dataset: PreparedDataset) -> dict[str, SequenceStore]:
  """The sequences that a run is evaluated on, by name."""
  stores = {"held_out": dataset.held_out}
  if dataset.mismatched is not None:
    stores["mismatched"] = dataset.mismatched
  return stores


def kept_plan(
  config: ConfigDict, store: SequenceStore, workdir: pathlib.Path, *, begun: bool
) -> packing.Plan:
  """The plan of the training sequences, `plans/train.json` in a run's folder.

  Process 0 makes it if it is missing, and all processes read it.

  Args:
    config: the config of the run.
    store: the training sequences.
    workdir: its folder.
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
      make_plan(config, store).save(path)

  processes.on_first(keep)
  try:
    plan = packing.load_plan(path, histogram=_problem(config, store)[0])
  except InputError as error:
    raise InputError(
      f"{error} Restore the file, or delete it: train.py makes the plan again."
    ) from error
  if not _is_that_of_process_0(plan):
    raise Stopped(f"{path} differs in process 0. Give all processes the same --workdir.")
  return plan


def held_out_plan(config: ConfigDict, store: SequenceStore) -> packing.Plan:
  """The plan of held-out sequences, which each process makes for itself.

  Raises:
    Stopped: this process makes another plan than process 0.
  """
  plan = make_plan(config, store)
  if not _is_that_of_process_0(plan):
    raise Stopped(
      "The held-out plan differs in process 0. Set --config.packing.algorithm=lpfhp."
    )
  return plan


def _is_that_of_process_0(plan: packing.Plan) -> bool:
  digest = plan_sha256(plan)
  return digest == processes.on_first(lambda: digest)
