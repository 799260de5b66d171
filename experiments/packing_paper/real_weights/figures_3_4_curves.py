"""A real encoder pretrained further on Wikipedia, packed and unpacked; Figures 3 and 4.

From random weights BERT-tiny learns no context from 30 MB of Wikipedia (LOG.md), so its
arms do not differ; `minilm-l6-h384` already knows English. Its heads of pretraining start
at random. Each paragraph is a document, so unpacked rows of 256 tokens are half padding, as
the paper's rows of 512 are.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, Figures 3 and 4, section 4.2.1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.packing_paper.curves import ablation, claims
from experiments.packing_paper.curves.arms import ARMS, lasting
from lab import real_data
from lab.exhibits import Exhibit, Part
from lab.studies.study import Study
from launch import init_from

WEIGHTS = "minilm-l6-h384"
SEEDS = 4
TEXT_BYTES = 30_000_000  # of the articles
SEQUENCES, BATCH, ROW_LENGTH = 4_800, 16, 256
NAMES = ("packed", "unpacked", "no_mask", "no_position_reset")
OVERRIDES: dict[str, Any] = lasting(SEQUENCES, BATCH) | {
  "data.documents": "line",
  "data.dupe_factor": 1,
  "data.held_out_fraction": 0.003,
  "data.max_sequence_length": ROW_LENGTH,
  "packing.algorithm": "optimal",
  "packing.max_sequences_per_pack": 0,
  "model.size": "given",
  "optimizer.learning_rate": 2e-3,  # LOG.md
}
# A hundredth is held out, which is enough even of little text.
QUICK_SEQUENCES = 12 * BATCH
QUICK = lasting(QUICK_SEQUENCES, BATCH) | {"data.held_out_fraction": 0.01}
ABOUT = (
  f"{WEIGHTS} (6 layers, width 384) is pretrained further on paragraphs of Wikipedia, in "
  f"rows of {ROW_LENGTH} tokens, without dropout. All seeds start from the same encoder. "
  "They differ in the heads of pretraining, which start at random, in the order of the "
  "packs and in the masked tokens."
)


def make_study(part: Part) -> Study:
  """The study of some of `arms.ARMS`, which all start from the same weights.

  Raises:
    InputError: the text or the weights are missing.
    ConfigError: the runs cannot start from these weights.
  """
  folder = part.folder
  weights = real_data.find(part.real_data(), WEIGHTS)
  source = real_data.write_articles(
    part.real_data(), folder / "text.txt", at_least=TEXT_BYTES
  )
  overrides = OVERRIDES | (QUICK if part.quick else {})
  overrides |= {
    "data.source": str(source),
    "data.directory": str(folder / "data"),
    "data.vocab_file": str(real_data.find(weights, "vocab.txt")),
    "model.init_from": str(weights),
  }
  arms = [x for x in ARMS if x.name in NAMES]
  seeds = part.seeds or (1 if part.quick else SEEDS)
  study = Study(folder, arms, overrides, seeds, part.jobs)
  init_from.open_weights(study.runs[0][1].settings)  # raises before any text is prepared
  return study


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests; raises as `Study.run`."""
  results = make_study(part).run()
  made = [claims.same_batch(part, results), ablation.ablation(part, results)]
  made = [
    dataclasses.replace(
      exhibit, name=f"{name}, on Wikipedia", text=f"{ABOUT}\n\n{exhibit.text}"
    )
    for name, exhibit in zip(("Figure 3 left", "Figure 4"), made, strict=True)
  ]
  return made
