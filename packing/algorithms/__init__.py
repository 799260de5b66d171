"""From a problem to packs: heuristics of the papers, and the optimum."""
