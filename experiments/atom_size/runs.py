"""Runs of the atom-size study: one study a row length, one arm a layout.

The learning rate is constant after `optimizer.warmup_steps`; the config's decay is not
used. So what a run does up to a step does not depend on the run's length, and arms can be
compared at any step.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import optax

from lab import records
from lab.machine import machine_and_device
from lab.studies.paired_run import fit
from lab.studies.study import Arm, Study, identity, is_same_run, worker
from lab.timing.turns import in_turns
from launch.data import make_held_out, make_loader, prepare_dataset
from launch.parts import AdamW, parse_duration
from launch.settings import RunSettings
from packing.files import write_json
from pipeline import PreparedDataset
from pipeline.batches.packed import PackedBatch
from training.evaluation import evaluate_causal
from training.mesh import make_mesh
from training.optimizer import adamw
from training.step import TrainingProgram

SEEDS = 3
PARTS, SAMPLE = 9, 80  # of a run's evaluations, and batches in each but the last
TURNS, STEPS_A_TURN = 20, 5  # of each layout, when steps are timed
OVERRIDES: dict[str, Any] = {
  "model.dropout_rate": 0.0,
  "model.attention_dropout_rate": 0.0,
  "optimizer.learning_rate": 1e-3,  # the best of six for concat, in small runs: LOG.md
  "optimizer.weight_decay": 0.01,
  "optimizer.warmup": "",
  "optimizer.warmup_steps": 100,
}


class Scale(NamedTuple):
  """How large the runs of a study are.

  Attributes:
    tokens: of a step: rows times their length, the same for all row lengths.
    epochs: of a run.
    size: of the model.
    vocab_size: of the byte-level BPE that is learned from the text.
  """

  tokens: int
  epochs: int
  size: str
  vocab_size: int


SMALL = Scale(tokens=512, epochs=3, size="tiny", vocab_size=2048)
LARGE = Scale(tokens=4096, epochs=1, size="mini", vocab_size=16_384)


_LONGEST_ATOM = 2**20  # rows; more than any of these texts has


class Layout(NamedTuple):
  """How documents become rows.

  Attributes:
    kind: concat, concat_isolated, padding or packed.
    atom: in rows; packed rows have no atoms, and 1 here. If it is infinite, the whole text
      is one atom, and nothing is shuffled.
    loss_on_padding: whether end tokens that only fill an atom are predicted too.
  """

  kind: str
  atom: float = 1.0
  loss_on_padding: bool = False

  @property
  def name(self) -> str:
    """The name of the arm, and so of its files."""
    if self.kind == "packed":
      return "packed"
    loss = ",loss_on_padding" if self.loss_on_padding else ""
    return f"{self.kind},atom={self.atom:g}{loss}"

  def tokens(self, row_length: int) -> int:
    """The atom size in tokens; 0 for packed rows."""
    if self.kind == "packed":
      return 0
    return round(min(self.atom, _LONGEST_ATOM) * row_length)

  def arm(self, row_length: int) -> Arm:
    """The arm of a study for this row length."""
    fields = {
      "data.layout": self.kind,
      "data.atom_size": self.tokens(row_length),
      "data.loss_on_padding": self.loss_on_padding,
    }
    return Arm(self.name, fields)


CONCAT, PADDING, PACKED = Layout("concat"), Layout("padding"), Layout("packed")
ISOLATED = Layout("concat_isolated")
PADDING_ALL = Layout("padding", loss_on_padding=True)
UNSHUFFLED = Layout("concat", math.inf)


def make_study(
  folder: pathlib.Path,
  row_length: int,
  layouts: Sequence[Layout],
  *,
  text: Mapping[str, Any],
  scale: Scale = SMALL,
  jobs: int = 1,
) -> Study:
  """The study of one row length.

  Args:
    folder: of the study; its dataset is there too.
    row_length: S, in tokens; divides those of a step.
    layouts: its arms.
    text: fields of the config's `data` that name the text.
    scale: of its runs.
    jobs: runs at a time.
  """
  fields = {
    "data.max_sequence_length": row_length,
    "data.directory": str(folder / "data"),
    "data.vocab_size": scale.vocab_size,
    "model.size": scale.size,
    "train.batch_size": scale.tokens // row_length,
    "train.duration": f"{scale.epochs} epochs",
  }
  fields |= OVERRIDES
  fields |= {f"data.{name}": value for name, value in text.items()}
  return Study(
    folder,
    [layout.arm(row_length) for layout in layouts],
    fields,
    seeds=SEEDS,
    jobs=jobs,
    config="configs/gpt2_atoms.py",
    module="experiments.atom_size.runs",
  )


def prepare_data(run: RunSettings) -> tuple[PreparedDataset, TrainingProgram]:
  """The dataset of a run, and its model and training step.

  Args:
    run: of any arm; arms differ only in the layout and in the seed.

  Raises:
    ConfigError, InputError: the text cannot be used.
  """
  dataset, optimizer = prepare_dataset(run.data), run.optimizer
  assert isinstance(optimizer, AdamW)  # as the config of all arms says
  peak, steps = optimizer.learning_rate, optimizer.warmup_steps
  options = ("b1", "b2", "eps", "weight_decay", "clip_norm")
  return dataset, TrainingProgram(
    run.model.of(vocab_size=len(dataset.vocabulary)),
    adamw(
      optax.warmup_constant_schedule(peak / steps, peak, steps - 1),
      **{name: getattr(optimizer, name) for name in options},
    ),
    mesh=make_mesh(1),
    seed=run.seed,
    head="causal",
    loss_unit=run.train.loss_unit,
  )


def run(arm: Arm, settings: RunSettings, *, keep_in: pathlib.Path) -> dict[str, Any]:
  """Trains and evaluates.

  Returns:
    `rows` of an epoch, and `steps_per_epoch`; `nats`, the mean loss of each step, and
    `targets`, the tokens that were predicted; `evaluations`, each with `step`, and
    `perplexity` and `tokens` of a sample of the held-out text; and `held_out`, the same for
    all of it at the end.

  Raises:
    Stopped: the loss is not finite.
    InputError: the documents do not fit the layout.
  """
  del keep_in
  dataset, program = prepare_data(settings)
  loader = make_loader(settings, dataset.train, dataset.vocabulary)
  (windows,) = make_held_out(settings, dataset)  # the same for all arms
  held_out = list(windows.batches())
  epochs, unit = parse_duration("train.duration", settings.train.duration)
  assert unit == "epoch", "see make_study"
  steps = round(epochs * loader.batches_per_epoch)
  sample = held_out[:: max(1, len(held_out) // SAMPLE)]
  losses: list[Any] = []
  evaluations: list[dict[str, Any]] = []

  def evaluate(params, batches: Sequence[PackedBatch]) -> dict[str, Any]:
    result = evaluate_causal(program, params, batches)
    return {name: result[name] for name in ("perplexity", "tokens")}

  with contextlib.closing(loader.iterate()) as batches:
    for step, state, values in fit(
      program,
      batches,
      steps=steps,
      pauses={round(steps * n / PARTS) for n in range(1, PARTS + 1)} - {0},
      name=f"{arm.name}, seed {settings.seed}",
    ):
      losses += [x["causal_loss"] for x in values]
      evaluations.append({"step": step} | evaluate(state["params"], sample))
  return {
    "rows": loader.num_rows,
    "steps_per_epoch": loader.batches_per_epoch,
    "nats": [round(float(x.total / max(x.units, 1)), 6) for x in losses],
    "targets": [int(x.units) for x in losses],
    "evaluations": evaluations,
    "held_out": evaluate(state["params"], held_out),
  }


def time_steps(study: Study, layouts: Sequence[Layout]) -> dict[str, Any]:
  """Times steps of some layouts in turns; measured once and kept.

  Returns:
    `seconds`, by the names of the layouts those of a step in each turn; and `machine`.
  """
  chosen = {
    arm.name: run.settings
    for arm, run in study.runs
    if run.settings.seed == 1 and arm.name in [layout.name for layout in layouts]
  }
  first = next(iter(chosen.values()))
  path, made_from = study.folder / "seconds.json", identity(Arm("seconds", {}), first)
  kept = records.read(path)
  same = kept is not None and is_same_run(kept.get("of"), made_from)
  if same and kept["seconds"].keys() >= chosen.keys():
    return kept
  dataset, program = prepare_data(first)
  state = program.init()

  def some_steps(batches, _: int):
    nonlocal state
    for batch in itertools.islice(batches, STEPS_A_TURN):
      state, _ = program.train_step(state, program.put_batch(batch))
    return state["step"]

  with contextlib.ExitStack() as stack:
    turns = {}
    for name, settings in chosen.items():
      batches = make_loader(settings, dataset.train, dataset.vocabulary).iterate()
      stack.enter_context(contextlib.closing(batches))
      turns[name] = functools.partial(some_steps, batches)
    name = f"timing rows of {first.data.max_sequence_length}"
    taken = in_turns(turns, rounds=TURNS, name=name)
  seconds = {name: (x / STEPS_A_TURN).tolist() for name, x in taken.items()}
  kept = {"of": made_from, "machine": machine_and_device(), "seconds": seconds}
  write_json(path, kept)
  return kept


if __name__ == "__main__":
  worker(run, head="causal")
