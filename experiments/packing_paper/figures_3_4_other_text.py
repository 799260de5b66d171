"""Packed and unpacked training on another kind of text: WikiText-2; Figures 3 and 4.

Uses the paragraphs of all .txt files in the folder wikitext-2. Unpacked rows of 384 tokens
are then half padding.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, Figures 3 and 4;
  Merity et al., https://arxiv.org/abs/1609.07843.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.packing_paper.curves.arms import QUICK, make_study
from experiments.packing_paper.curves.claims import long_enough
from experiments.packing_paper.curves.tables import comparison, mean_difference
from lab import real_data
from lab.exhibits import Exhibit, Part
from lab.statistics import equivalent, larger
from lab.studies.paired_run import held_out
from lab.studies.study import Arm

ARMS = ("packed", "constant", "no_mask")
FIELDS: dict[str, Any] = {
  "data.documents": "line",
  "data.max_sequence_length": 384,
  "train.steps": 1000,  # as many real tokens as the learning curves have
  "optimizer.warmup_steps": 59,
}


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests; raises as `Study.run`."""
  text = real_data.find(part.real_data(), "wikitext-2/valid.txt").parent
  study = make_study(part, ["packed", "no_mask"])
  overrides = {**study.overrides, **FIELDS} | (QUICK if part.quick else {})
  overrides |= {"data.source": f"{text}/*.txt", "data.directory": str(part.folder / "data")}
  # The paper's unpacked steps have a constant number of sequences.
  constant = Arm("constant", {"packing.adjust": "reduce_batch"}, "constant")
  arms = [constant, *study.arms]
  study = dataclasses.replace(study, folder=part.folder, arms=arms, overrides=overrides)
  results = study.run()
  packed, unpacked, no_mask = (results[arm] for arm in ARMS)
  apart = [mean_difference(runs, packed) for runs in (unpacked, no_mask)]
  finding = (
    f"On WikiText-2 the held-out loss of unpacked training differs from that of packed "
    f"training by {apart[0]:+.4f} nats, and that of packed training without the mask by "
    f"{apart[1]:+.4f}."
  )
  return [
    comparison(
      part,
      results,
      ARMS,
      "Figures 3 and 4, on WikiText-2",
      "Packed, unpacked and unmasked training on other text",
      finding,
      picture="other_text.png",
      claim="Packed training reaches the same loss as unpacked training, and needs the "
      "mask for it.",
      statements=[
        long_enough(packed),
        equivalent(
          "Packed training reaches the same loss as unpacked training with a constant "
          "number of sequences a step, as in the paper",
          held_out(packed),
          held_out(unpacked),
          power=held_out(no_mask),
        ),
        larger(
          "Without the mask the held-out loss is higher at the end",
          held_out(no_mask),
          held_out(packed),
        ),
      ],
    )
  ]
