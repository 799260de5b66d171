"""What is said of learning curves, on made-up ones whose truth is known."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.lab import part as parts
from experiments.lab import report
from experiments.lab.exhibits import Exhibit
from experiments.lab.paired_run import EVALUATED
from experiments.packing_paper.curves import ablation as ablation_exhibits
from experiments.packing_paper.curves import arms as learning_curves
from experiments.packing_paper.curves import claims as learning_exhibits

SEEDS = 3
SPEED = {
  "packed_sequences_per_second": 390.0,
  "unpacked_sequences_per_second": 200.0,
  "speedup_measured": 1.95,
  "speedup_low": 1.93,
  "speedup_high": 1.97,
  "packing_factor": 1.9,
}
# How far the held-out loss of each arm lies above that of `packed`; and as time goes by.
ABOVE = {
  "unpacked": 0.0,
  "twice": 0.05,
  "twice_rate": 0.09,
  "twice_betas": 0.03,
  "constant_twice_betas": 0.0301,
  "no_mask": 0.3,
  "no_position_reset": 0.004,
  "loss_of_packs": 0.0,
}
BY_LENGTH = np.array([0.2, 0.05, 0.0, -0.1])  # of the loss of packs


def made_up(arm, seed):
  rng = np.random.default_rng((seed, len(arm), ABOVE.get(arm, 0) > 0))
  start = 4 + 0.1 * seed + ABOVE.get(arm, 0.0)
  rows = 16 if "twice" in arm else 8
  evaluations = []
  for share in EVALUATED:
    loss = start + 40 / share + 0.001 * rng.standard_normal()
    groups = loss + (BY_LENGTH if arm == "loss_of_packs" else 0)
    own = {
      "mlm_loss": loss,
      "mlm_accuracy": 1 - loss / 6,
      "unigram_mlm_accuracy": 0.06,
      "mlm_accuracy_by_length": [
        {"from": 1 + 10 * k, "to": 10 + 10 * k, "mlm_loss": x}
        for k, x in enumerate(groups + np.zeros(4))
      ],
    }
    alone = own | {"mlm_loss": loss + (1.0 if arm == "no_mask" else 0.0)}
    evaluations.append({"sequences": 500 * share, "own": own, "alone": alone})
  counts = np.random.default_rng(seed).binomial(3 * rows, 0.6, 2000)
  return {
    "recipe": {"rows": rows, "steps": 400 * 8 // rows},
    "plan": {"sequences_a_pack_sd": (3 * 0.6 * 0.4) ** 0.5},
    "curve": [
      {"sequences": 500 * share, "mlm_loss": start + 40 / share} for share in range(1, 101)
    ],
    "evaluations": evaluations,
    "sequences_a_step": {
      "mean": float(counts.mean()),
      "steps": {str(n): int((counts == n).sum()) for n in np.unique(counts)},
    },
  }


@pytest.fixture(scope="module")
def exhibits(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pictures")
  found = {
    arm.name: [made_up(arm.name, seed) for seed in range(SEEDS)]
    for arm in learning_curves.ARMS
  }
  made = [
    learning_exhibits.same_batch(found, folder, "command"),
    learning_exhibits.heuristics(found, folder, "command"),
    learning_exhibits.by_time(found, [SPEED] * SEEDS, folder, "command"),
    learning_exhibits.spread(found, folder, "command"),
    ablation_exhibits.ablation(found, folder, "command"),
    ablation_exhibits.loss_unit(found, folder, "command"),
  ]
  for exhibit in made:
    assert all((folder / name).stat().st_size for name in exhibit.pictures)
  return {x.name: x for x in made}


def test_claims_that_are_true_hold_and_others_fail(exhibits):
  found = {
    name: [x.outcome for x in exhibit.statements] for name, exhibit in exhibits.items()
  }
  assert found == {
    "Figure 3 left, Figure 15": ["holds", "holds", "holds"],
    # slower early; a larger rate is worse; betas match; unpacked is slowed more
    "Figure 3 middle, Figure 16": ["holds", "holds", "fails", "fails"],
    # in less time, but not by the packing factor: its loss is higher to the end
    "Figure 3 right, Figure 17": ["holds", "fails"],
    "Section 3.3": ["holds", "holds"],
    # without the mask it is as far behind early on
    "Figure 4, section 4.2.1": ["holds", "holds", "fails", *["holds"] * 5],
    "Section 3.2.3": ["fails", "holds", "holds"],
  }


def test_findings_are_computed(exhibits):
  ablation = exhibits["Figure 4, section 4.2.1"]
  assert "ends +0.30" in ablation.finding
  assert "alone +1.30" in ablation.finding
  assert "| no attention mask |" in ablation.text
  assert "shortest sequences ends +0.20" in exhibits["Section 3.2.3"].finding


def test_they_survive_json(exhibits):
  for exhibit in exhibits.values():
    kept = json.loads(json.dumps(dataclasses.asdict(exhibit)))
    told = [report.section(x, folder=".") for x in (Exhibit.from_dict(kept), exhibit)]
    assert told[0] == told[1]


def test_command_refuses_what_it_cannot_do(tmp_path, capsys):
  with pytest.raises(SystemExit) as error:
    parts.main(
      learning_curves.__doc__,
      learning_curves.exhibits,
      name="learning_curves",
      add_options=learning_curves.add_options,
      arguments=["--workdir", str(tmp_path), "--seeds", "0"],
    )
  assert error.value.code == 2
  assert "expected a whole number of at least 1, found 0" in capsys.readouterr().err
