"""Made-up results of paired runs, whose truth is known."""

from lab.studies.paired_run import EVALUATED


def run(seed, rng, *, above=0.0, by_length=(0.5, 0.0), alone=0.0, **fields):
  """A run whose held-out loss lies `above` that of others with its seed, apart from noise.

  `by_length` and `alone` are added to the loss of groups of lengths, and of each sequence
  alone; `fields` are those of the result that differ.
  """
  evaluations = []
  for share in EVALUATED:
    loss = 4 + 0.1 * seed + above + 40 / share + 0.001 * rng.standard_normal()
    own = {
      "mlm_loss": loss,
      "mlm_accuracy": 1 - loss / 6,
      "unigram_mlm_accuracy": 0.05,
      "nsp_accuracy": 0.9 - above,
      "mlm_accuracy_by_length": [
        {"from": 1 + 64 * k, "to": 64 + 64 * k, "mlm_loss": loss + x}
        for k, x in enumerate(by_length)
      ],
    }
    counters = {"sequences": 500 * share, "real_tokens": 9000 * share}
    losses = {"own": own, "alone": own | {"mlm_loss": loss + alone}}
    evaluations.append(counters | losses)
  return {
    "recipe": {"rows": 8, "steps": 400},
    "plan": {"packing_factor": 1.5},
    "sequences_a_step": {"mean": 16.0},
    "curve": [
      {"sequences": 500 * x, "real_tokens": 9000 * x, "mlm_loss": 4 + above + 40 / x}
      for x in range(1, 101)
    ],
    "evaluations": evaluations,
  } | fields
