"""A real encoder pretrained further on Wikipedia, in two phases; Figures 18 and 19.

The encoder of figures_3_4_curves sees as many real tokens as there, in the phases of
figures_18_19_two_phases.
"""

from __future__ import annotations

import dataclasses

from experiments.packing_paper import figures_18_19_two_phases as two_phases
from experiments.packing_paper.real_weights import figures_3_4_curves as curves
from lab.exhibits import Exhibit, Part
from lab.studies.study import Study

SHORT, FULL = 128, curves.ROW_LENGTH  # tokens of a row
BATCH = {SHORT: 19, FULL: curves.BATCH}  # sequences a step: about as many real tokens
ABOUT = (
  f"{curves.WEIGHTS} (6 layers, width 384) is pretrained further on paragraphs of "
  f"Wikipedia, first in rows of {SHORT} tokens, then in rows of {FULL}, without dropout. "
  "All first phases start from the same encoder."
)


def make_study(part: Part) -> Study:
  """The study; raises as `curves.make_study`."""
  one_phase = curves.make_study(part.sibling("real_weights"))
  run = one_phase.runs[0][1].settings
  sequences = curves.QUICK_SEQUENCES if part.quick else curves.SEQUENCES
  phases = two_phases.make_phases(run, sequences, SHORT, FULL)
  arms = two_phases.make_arms(phases, BATCH)
  return dataclasses.replace(one_phase, folder=part.folder, arms=arms)


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests; raises as `Study.run`."""
  results = make_study(part).run()
  made = [two_phases.phase(part, number, results) for number in (1, 2)]
  return [
    dataclasses.replace(
      exhibit, name=f"{exhibit.name}, on Wikipedia", text=f"{ABOUT} {exhibit.text}"
    )
    for exhibit in made
  ]
