"""All pictures have one style: packing/pictures.mplstyle."""

import itertools
from typing import Any

import matplotlib
import matplotlib.colors
import matplotlib.style
import numpy as np
import pytest

# Of red, green, blue: what somebody without red, green or blue cones sees (linear light;
# Machado, Oliveira and Fernandes 2009, severity 1).
BLINDNESS: dict[str, Any] = {
  "red": [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  "green": [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
  ],
  "none": np.eye(3),
}


@pytest.mark.parametrize("cones", BLINDNESS)
def test_colours_can_be_told_apart_also_by_the_colour_blind(cones):
  with matplotlib.style.context("packing.pictures"):
    names = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    known: dict[Any, Any] = {**matplotlib.rcParams}
  faces = {known[f"{x}.facecolor"] for x in ("figure", "savefig", "axes")}
  assert faces == {"white"}  # not transparent: letters are dark
  colours = np.array([matplotlib.colors.to_rgb(name) for name in names])
  linear = np.where(colours > 0.04045, ((colours + 0.055) / 1.055) ** 2.4, colours / 12.92)
  seen = np.clip(linear @ np.transpose(BLINDNESS[cones]), 0, 1)
  seen = np.where(seen > 0.0031308, 1.055 * seen ** (1 / 2.4) - 0.055, 12.92 * seen)
  apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
  assert min(apart) > 0.15
