"""Small models trained in pairs: the learning curves of section 4.2, Figures 3 and 4.

Other parts of the report share these runs.
"""

from __future__ import annotations

import dataclasses

from experiments.packing_paper.curves import ablation, arms, claims
from lab.exhibits import Exhibit, Part


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests; raises as `Study.run`."""
  names = [arm.name for arm in arms.ARMS]
  study = arms.make_study(part, names)
  results = study.run()
  of_more = [*ablation.ARMS, *claims.RATES]
  more = arms.make_study(part, of_more, seeds=arms.MORE_SEEDS).run()
  (betas,) = (arm for arm in study.arms if arm.name == "twice_betas")
  timed = dataclasses.replace(betas, name="speed")
  speed = arms.timed(study, [timed])["speed"]
  made = [
    claims.same_batch(part, results),
    claims.heuristics(part, results, more),
    claims.by_time(part, results, speed),
    claims.spread(part, results),
    ablation.ablation(part, more),
    ablation.loss_unit(part, more),
  ]
  made = [
    dataclasses.replace(arms.told_of_added_seeds(x), text=f"{arms.ABOUT}\n\n{x.text}")
    for x in made
  ]
  if not part.quick:
    return made
  steps = results["packed"][0]["recipe"]["steps"]
  note = f"Quick: {steps} steps, seeds: {study.seeds}; the statements prove nothing. "
  return [dataclasses.replace(x, finding=note + x.finding) for x in made]
