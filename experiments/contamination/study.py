"""ModernBERT-tiny on paragraphs of Wikipedia: how documents become rows.

Paragraphs stand in for documents: relative to a row, they are as short as web documents in
rows of 1,024 tokens. Their order is random, so neighbours in a row are unrelated.
"""

from __future__ import annotations

from typing import Any

from lab import real_data
from lab.part import Part
from lab.studies.study import SEEDS, Arm, Study

CONFIG = "configs/modern_bert_base.py"
TEXT_BYTES = 30_000_000  # of the articles
ROW_LENGTH = 256
ARMS = (
  Arm("isolated", {}, keep=True),
  Arm("one_a_row", {}, "unpacked", keep=True),
  Arm("pieces", {}, "pieces", keep=True),
  Arm("concatenated", {}, "concatenated", keep=True),
)
OVERRIDES: dict[str, Any] = {
  "data.documents": "line",
  "data.min_words": 20,
  "data.max_sequence_length": ROW_LENGTH,
  "data.vocab_size": 8192,
  "data.held_out_fraction": 0.02,
  "data.too_long": "truncate",
  "packing.algorithm": "optimal",
  "packing.max_sequences_per_pack": 0,
  "model.size": "tiny",
  "model.remat": "none",
  "optimizer.learning_rate": 3e-3,
  "optimizer.decay_share": 0.3,
  "optimizer.warmup": "0.05 epochs",
  "train.batch_size": 16,
  "train.micro_batch_size": 0,
  "train.duration": "1 epochs",
}


def make_study(part: Part) -> Study:
  """The study.

  Raises:
    InputError: the text is missing.
  """
  source = real_data.write_articles(
    part.real_data(),
    part.folder / "text.txt",
    at_least=TEXT_BYTES,
  )
  places = {"data.source": str(source), "data.directory": str(part.folder / "data")}
  seeds, overrides = part.seeds or SEEDS, OVERRIDES | places
  return Study(part.folder, ARMS, overrides, seeds, part.jobs, config=CONFIG)
