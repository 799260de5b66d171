import numpy as np
import pytest

import packing


def test_a_row_is_filled_from_the_left():
  row = packing.make_row([np.array([7, 8]), [9], (3, 3, 3)], row_length=8)
  assert {name: field.tolist() for name, field in row.items()} == {
    "input_ids": [7, 8, 9, 3, 3, 3, 0, 0],
    "segment_ids": [1, 1, 2, 3, 3, 3, 0, 0],
    "position_ids": [0, 1, 0, 0, 1, 2, 0, 0],
  }
  assert all(field.dtype == np.int32 for field in row.values())
  assert packing.make_row([[1], [2, 3]], row_length=3)["segment_ids"].tolist() == [1, 2, 2]


@pytest.mark.parametrize(
  ("sequences", "message"),
  [
    ([[1, 2, 3], [4, 5]], "have 5 tokens together; expected 1 to 4"),
    ([], "have 0 tokens"),
    ([[]], "have 0 tokens"),
    ([[0.5]], "Tokens are float64; expected integers"),
  ],
)
def test_sequences_that_do_not_make_a_row_are_refused(sequences, message):
  with pytest.raises(packing.InputError, match=message):
    packing.make_row(sequences, row_length=4)
