"""docs/how_to_check_a_model.md, for a model of another framework."""

import pathlib
import re
import runpy

import pytest

from model.testing import (
  LeakError,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
)
from packing.testing import lay_out

RECIPE = pathlib.Path(__file__).parents[1] / "docs/recipes/hugging_face_model.py"
SEQUENCES = [{"input_ids": ids} for ids in ([5, 9, 2], [7, 3], [8, 1, 4, 6])]


@pytest.mark.extra("torch", "transformers")
def test_a_hugging_face_model_is_isolated_by_a_mask_of_four_axes():
  from tests.model import reference

  bert = reference.make("BertModel", **reference.SIZES["odd"])
  recipe = runpy.run_path(str(RECIPE))
  layers, alone = recipe["layers"], recipe["layers_alone"](bert)
  batch = lay_out([SEQUENCES[:2], SEQUENCES[2:]], row_length=8)
  assert_no_cross_contamination(layers(bert), batch)
  assert_packed_equals_unpacked(layers(bert), SEQUENCES, reference=alone)
  with pytest.raises(LeakError) as caught:
    assert_no_cross_contamination(layers(bert, whole_row=True), batch)
  page = " ".join((RECIPE.parents[1] / "how_to_check_a_model.md").read_text().split())
  for part in re.split(r"0\.33\d", str(caught.value)):  # the last digit is the machine's
    assert part in page
