"""Other ways to batch and to mask: sorted batches, rows across documents, A and B apart.

Small models are trained on docstrings, in pairs of arms that differ in one thing.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 5, A and C;
  Liu et al., https://arxiv.org/abs/1907.11692, section 4.2.
"""

from __future__ import annotations

import dataclasses

from experiments.packing_paper.curves import arms
from experiments.packing_paper.curves.claims import long_enough
from experiments.packing_paper.curves.tables import comparison, mean_difference
from lab.exhibits import Exhibit, Part
from lab.statistics import equivalent, larger
from lab.studies.paired_run import held_out
from lab.studies.study import Arm, ByArm, Study

_BETAS = {"packing.adjust": "lamb_betas"}
_APART = {"packing.adjust": "reduce_batch", "model.attention_mask": "token_type"}


def make_arms(study: Study) -> list[Arm]:
  """The arms; those of sentences have as many real tokens as the pairs of `study`."""
  run = study.runs[0][1].settings
  made = [
    Arm("constant", _BETAS, "constant"),
    Arm("sorted", _BETAS, "sorted"),
    Arm("token_type", _APART),
  ]
  tokens = run.train.batch_size * arms.mean_length(run, {})  # of a step
  for name, cross in (("doc_sentences", False), ("full_sentences", True)):
    fields = arms.of_sentences(run, cross_documents=cross)
    batch = round(tokens / arms.mean_length(run, fields))
    made.append(Arm(name, fields | arms.lasting(run.train.steps * batch, batch)))
  return made


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, and tests; raises as `Study.run`."""
  pairs = arms.make_study(part, ["packed", "no_mask"])
  results = pairs.run()
  study = dataclasses.replace(pairs, folder=part.folder, arms=make_arms(pairs))
  results |= study.run()
  made = [sorted_batches(part, results), sentences(part, results), apart(part, results)]
  return [dataclasses.replace(x, text=f"{arms.ABOUT}\n\n{x.text}") for x in made]


def sorted_batches(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of unpacked batches of nearly the same length, against random batches."""
  by_length, at_random = (held_out(results[name]) for name in ("sorted", "constant"))
  difference = mean_difference(results["sorted"], results["constant"])
  return comparison(
    part,
    results,
    ["constant", "sorted"],
    "Section C",
    "Sorted batches",
    f"Batches sorted by length change the final held-out loss by {difference:+.4f} nats.",
    picture="sorted.png",
    claim="Batches sorted by length are no longer random, which can hurt convergence.",
    statements=[
      long_enough(results["constant"], "unpacked training"),
      larger("With sorted batches the held-out loss is higher", by_length, at_random),
    ],
  )


def sentences(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of rows that cross documents, against packed sentences of one document."""
  full, packed = (held_out(results[x]) for x in ("full_sentences", "doc_sentences"))
  difference = mean_difference(results["full_sentences"], results["doc_sentences"])
  return comparison(
    part,
    results,
    ["doc_sentences", "full_sentences"],
    "RoBERTa, section 4.2",
    "Whole sentences across documents, and packed ones of one document",
    "Rows that cross documents change the final loss on held-out sentences of one document "
    f"by {difference:+.4f} nats.",
    picture="full_sentences.png",
    claim="Sentences of one document are slightly better than rows that cross documents.",
    statements=[
      long_enough(results["doc_sentences"], "packed training on sentences"),
      larger("Rows that cross documents end with a higher loss", full, packed),
    ],
    before="Both have the same number of real tokens a step and in all, and no loss of the "
    "next sentence. Both are evaluated on the same held-out sentences of one document. "
    "Pairs start from the same weights, but are trained on other sequences.",
  )


def apart(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of sentences A and B that do not attend to each other."""
  names = ["packed", "no_mask", "token_type"]
  packed, no_mask, separate = (held_out(results[name]) for name in names)
  difference = mean_difference(results["token_type"], results["packed"])
  accuracies = [
    [100 * x for x in held_out(results[name], "nsp_accuracy")]
    for name in ("packed", "token_type")
  ]
  return comparison(
    part,
    results,
    names,
    "Sections A and 5, future work",
    "Sentence A and B apart",
    "If sentence A and B do not see each other, the final held-out loss of masked tokens "
    f"changes by {difference:+.4f} nats.",
    picture="token_type.png",
    claim="The mask can keep sentence A and B apart, too; the paper leaves it to others.",
    statements=[
      equivalent(
        "The masked-token loss is the same if A and B do not see each other",
        separate,
        packed,
        power=no_mask,
      ),
      larger(
        "Next sentences are predicted worse if [CLS] does not see sentence B",
        *accuracies,
        margin=1.0,
        unit="percentage points",
      ),
    ],
  )
