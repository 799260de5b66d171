"""Pretraining with the next-sentence loss, and ways to do without it: section I.

A small model is pretrained in four ways (`NAMES`) on the same number of real tokens. They
are compared after fine-tuning. Whole sentences are RoBERTa's DOC-SENTENCES; packed greedily
in random order, each with its separator, without a mask, a row mixes documents, as in T5.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section I;
  Liu et al., https://arxiv.org/abs/1907.11692, section 4.2.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.finetuning import pretrained
from experiments.packing_paper import table_3_downstream as downstream
from experiments.packing_paper.curves.arms import (
  lasting,
  make_study,
  mean_length,
  of_sentences,
)
from experiments.packing_paper.curves.claims import long_enough
from lab.exhibits import Exhibit, Part
from lab.statistics import larger
from lab.studies.study import Arm, Study

_GREEDY: dict[str, Any] = {
  "packing.algorithm": "greedy",
  "packing.max_sequences_per_pack": 192,  # the row length: no limit
  "model.attention_mask": "none",
  "model.position_reset": False,
}
NAMES = {
  "packed": "pairs, next sentence",
  "no_next_sentence": "pairs",
  "sentences": "whole sentences",
  "greedy": "whole sentences, greedy, no mask",
}
# The arm that should score higher and the one that should score lower, with the claim.
CLAIMS = (
  (
    "packed",
    "no_next_sentence",
    "without the loss of the next sentence the score is lower",
  ),
  ("packed", "sentences", "whole sentences without it score lower than pairs with it"),
  ("sentences", "greedy", "mixing sentences of other documents makes the score lower"),
)
PAPER_EFFECT = 1.31  # points of F1 that BERT-base drops on SQuAD without the loss


def make_arms(study: Study) -> list[Arm]:
  """The three arms without the loss; they have as many real tokens as `study`'s pairs."""
  run = study.runs[0][1].settings
  whole_sentences = of_sentences(run)
  longer = mean_length(run, {}) / mean_length(run, whole_sentences)
  batch = round(run.train.batch_size * longer)  # as many real tokens a step, and in all
  fields = whole_sentences | lasting(run.train.steps * batch, batch)
  same = {"packing.adjust": "reduce_batch", "model.next_sentence": False}
  return [
    Arm("no_next_sentence", same, keep=True),
    Arm("sentences", fields, keep=True),
    Arm("greedy", fields | _GREEDY, keep=True),
  ]


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, fine-tunes and tests; raises as `Study.run`."""
  pairs = make_study(part, ["packed"])
  results = pairs.run()
  study = dataclasses.replace(pairs, folder=part.folder, arms=make_arms(pairs))
  results |= study.run()
  models = {NAMES["packed"]: pairs.kept_of("packed")}
  models |= {NAMES[arm.name]: study.kept_of(arm.name) for arm in study.arms}
  scores = downstream.fine_tune(part, models, [pairs, study])
  pairs_score, *others = NAMES.values()
  without, whole, greedy = (
    downstream.difference(scores, name, pairs_score) for name in others
  )
  statements = [
    long_enough(results[arm], what=f"'{name}'") for arm, name in NAMES.items()
  ] + [
    larger(
      f"{downstream.NAME}: {claim}",
      scores[NAMES[better]],
      scores[NAMES[worse]],
      margin=PAPER_EFFECT,
      unit="points",
    )
    for better, worse, claim in CLAIMS
  ]
  return [
    part.exhibit(
      "Section I",
      "Pretraining with and without the loss of the next sentence",
      "Compared with pretraining with the next-sentence loss, fine-tuned models score "
      f"{without} without it (in the paper -1.31 F1), {whole} with whole sentences, and "
      f"{greedy} if these are packed greedily without a mask.",
      claim="Without the loss of the next sentence the fine-tuned model scores lower.",
      statements=statements,
      text=pretrained.score_table({downstream.NAME: scores})
      + "\n\nScores are those of the last evaluation on the dev set; fine-tuning is "
      f"packed. A claim fails if a drop of {PAPER_EFFECT} points or more is ruled out, the "
      "paper's effect on SQuAD's F1; the margin was 2 when the results were first seen "
      "(LOG.md). With the same seed, pretraining on whole sentences starts from the same "
      "weights as on pairs of segments, but sees other sequences. "
      f"{downstream.ABOUT_TASK} The arm without a mask differs from whole sentences in "
      "three things: the algorithm, the mask, and positions that are not reset.",
    )
  ]
