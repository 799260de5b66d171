import numpy as np
import pytest

from packing.testing.layout import check_segment_ids, lay_out

A = {
  "input_ids": [7, 8, 9],
  "token_type_ids": [0, 0, 1],
  "mlm_positions": [1],
  "mlm_labels": [5],
  "sequence_label": 1,
  "token_labels": [-1, 4, 3],
  "start_position": 1,
  "end_position": 2,
}
B = A | {
  "input_ids": [4, 6],
  "token_type_ids": [0, 1],
  "mlm_positions": [0, 1],
  "mlm_labels": [2, 3],
  "token_labels": [1, 0],
  "start_position": 0,
  "end_position": 1,
}


def test_every_field_stands_where_the_contract_says():
  batch = lay_out([[A, B], []], row_length=7)
  assert {name: field[0].tolist() for name, field in batch.items()} == {
    "input_ids": [7, 8, 9, 4, 6, 0, 0],
    "token_type_ids": [0, 0, 1, 0, 1, 0, 0],
    "token_labels": [-1, 4, 3, 1, 0, 0, 0],
    "segment_ids": [1, 1, 1, 2, 2, 0, 0],
    "position_ids": [0, 1, 2, 0, 1, 0, 0],
    "mlm_positions": [1, 3, 4],
    "mlm_labels": [5, 2, 3],
    "mlm_segment_ids": [1, 2, 2],
    "cls_positions": [0, 3],
    "sequence_mask": [True, True],
    "sequence_labels": [1, 1],
    "start_positions": [1, 3],
    "end_positions": [2, 4],
  }
  for name, field in batch.items():
    assert field.dtype in (np.int32, bool), name
    assert not field[1].any(), name


def test_embeddings_and_numbers_keep_their_type():
  sequence = {"input_embeddings": np.ones((2, 5), np.float64), "sequence_label": 0.5}
  batch = lay_out([[sequence]], row_length=3)
  assert batch["input_embeddings"].dtype == np.float64
  assert batch["input_embeddings"][0, :, 0].tolist() == [1, 1, 0]
  assert batch["sequence_labels"].dtype == np.float32
  assert batch["sequence_labels"].tolist() == [[0.5]]


@pytest.mark.parametrize(
  ("packs", "fields", "message"),
  [
    ([[A, B]], {"row_length": 4}, r"Row 0 has room for 4 tokens .* \[3, 2\] tokens"),
    ([[A], [A, B]], {"row_length": 7, "max_sequences": 1}, "Row 1 has room .* 1 sequences"),
    ([[]], {"row_length": 7}, "at least one sequence"),
    ([A, B], {"row_length": 7}, "A pack is a sequence; .* Put a single one in a list"),
  ],
)
def test_what_does_not_fit_is_refused(packs, fields, message):
  with pytest.raises(ValueError, match=message):
    lay_out(packs, **fields)


def test_the_first_sequence_decides_which_fields_there_are():
  batch = lay_out(
    [[{"input_ids": [1]}, {"input_ids": [2], "token_labels": [0]}]], row_length=2
  )
  assert batch["input_ids"].tolist() == [[1, 2]]
  assert "token_labels" not in batch


@pytest.mark.parametrize(
  "row", [[0, 1, 1], [1, 0, 1], [2, 2, 0], [1, 1, 3], [1, 2, 1], [-1, 0, 0]]
)
def test_rows_that_no_packer_makes_are_refused(row):
  check_segment_ids([[1, 2, 0], [0, 0, 0], [1, 1, 1]])
  with pytest.raises(ValueError, match="in row 1"):
    check_segment_ids([[1, 1, 2], row])
