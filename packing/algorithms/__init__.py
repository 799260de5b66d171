"""Algorithms from a problem to packs: the heuristics of the papers, and the optimum."""
