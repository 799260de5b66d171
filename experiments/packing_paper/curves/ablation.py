"""What packing needs, left out piece by piece: mask, positions, loss of sequences.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 3.2 and 4.2.1.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.lab.exhibits import Exhibit
from experiments.lab.statistics import equivalent, larger
from experiments.lab.study import EARLY, early_share, held_out, in_training
from experiments.packing_paper.curves import pictures as learning_pictures
from experiments.packing_paper.curves.tables import (
  Found,
  accuracy,
  mean_difference,
  named,
  table,
)


def ablation(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Without the mask, without the reset of positions.

  Args:
    found: the results of each arm.
    folder: for the pictures.
    command: that makes it.
  """
  names = ["packed", "no_mask", "no_position_reset"]
  packed, no_mask, no_reset = (found[name] for name in names)
  control = held_out(no_mask)
  apart = [mean_difference(x, packed) for x in (no_mask, no_reset)]
  alone = [mean_difference(x, packed, way="alone") for x in (no_mask, no_reset)]
  finding = (
    f"Without the mask the held-out loss ends {apart[0]:+.3f} nats from that with both "
    f"adjustments, without the reset of positions {apart[1]:+.3f}; on each sequence alone "
    f"{alone[0]:+.3f} and {alone[1]:+.3f}."
  )
  shown = named(found, *names)
  learning_pictures.curves(folder / "ablation.png", shown, title=finding)
  learning_pictures.curves(
    folder / "ablation_alone.png",
    shown,
    title=f"Each held-out sequence alone: {alone[0]:+.3f} nats without the mask, "
    f"{alone[1]:+.3f} without the reset of positions",
    way="alone",
  )
  return Exhibit(
    "Figure 4, section 4.2.1",
    "with and without the adjustments of mask and positions",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        "Without the mask the training loss is higher",
        in_training(no_mask),
        in_training(packed),
      ),
      larger(
        "Without the mask the held-out loss is higher at the end",
        control,
        held_out(packed),
      ),
      larger(
        "Longer training does not make up for it: in the end it is further behind than "
        f"after {early_share():.0%} of the sequences",
        np.subtract(control, held_out(packed)).tolist(),
        np.subtract(held_out(no_mask, at=EARLY), held_out(packed, at=EARLY)).tolist(),
      ),
      larger(
        "Without the mask the accuracy is lower at the end",
        [100 * x for x in accuracy(packed)],
        [100 * x for x in accuracy(no_mask)],
        margin=0.3,
        unit="percentage points",
      ),
      larger(
        "Without the mask the model is worse on each sequence alone",
        held_out(no_mask, way="alone"),
        held_out(packed, way="alone"),
      ),
      equivalent(
        "Without the reset of positions the loss almost matches",
        held_out(no_reset),
        held_out(packed),
        power=control,
      ),
      larger(
        "Without the reset of positions the accuracy stays a little lower",
        [100 * x for x in accuracy(packed)],
        [100 * x for x in accuracy(no_reset)],
        margin=0.3,  # the paper's 72.1 % and 71.8 %
        unit="percentage points",
      ),
      larger("The mask matters more than the positions", control, held_out(no_reset)),
    ],
    pictures=["ablation.png", "ablation_alone.png"],
    text=table(found, names),
  )


def loss_unit(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """The loss averaged over packs in place of sequences.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  of_packs, packed = found["loss_of_packs"], found["packed"]
  groups = [f"{x['from']} to {x['to']}" for x in _groups(packed[0])]
  a, b = (
    np.array([[x["mlm_loss"] for x in _groups(run)] for run in runs])
    for runs in (of_packs, packed)
  )
  change = (a - b).mean(0)
  finding = (
    f"Averaged over packs, the loss of the shortest sequences ends {change[0]:+.3f} nats "
    f"from that with an average over sequences, of the longest {change[-1]:+.3f}."
  )
  learning_pictures.by_length(
    folder / "loss_unit.png",
    groups,
    a - b,
    label="held-out loss: of packs less of sequences, nats",
    title=finding,
  )
  rows = [
    f"| {name} | {x:.3f} | {y:.3f} | {x - y:+.3f} |"
    for name, x, y in zip(groups, a.mean(0), b.mean(0), strict=True)
  ]
  head = [
    "| tokens | loss of packs | loss of sequences | difference |",
    "|---|---:|---:|---:|",
  ]
  return Exhibit(
    "Section 3.2.3",
    "the loss of packs against that of sequences, by length",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        "Averaged over packs, training comes to another optimum: the mean over sequences "
        "is higher",
        held_out(of_packs),
        held_out(packed),
      ),
      larger(
        "The shortest sequences, which share a pack with more, are learned less well",
        a[:, 0].tolist(),
        b[:, 0].tolist(),
      ),
      larger("The longest are learned better", b[:, -1].tolist(), a[:, -1].tolist()),
    ],
    pictures=["loss_unit.png"],
    text="\n".join([*head, *rows]) + "\n\n" + table(found, ["packed", "loss_of_packs"]),
  )


def _groups(run: Mapping[str, Any]) -> list[dict[str, Any]]:
  return run["evaluations"][-1]["own"]["mlm_accuracy_by_length"]
