import math
import types

import numpy as np
import pytest

import packing
from packing.epochs import PlannedPacks


def test_a_row_is_filled_from_the_left():
  row = packing.make_row([np.array([7, 8]), [9], (3, 3, 3)], row_length=8)
  assert {name: field.tolist() for name, field in row.items()} == {
    "input_ids": [7, 8, 9, 3, 3, 3, 0, 0],
    "segment_ids": [1, 1, 2, 3, 3, 3, 0, 0],
    "position_ids": [0, 1, 0, 0, 1, 2, 0, 0],
  }
  assert all(field.dtype == np.int32 for field in row.values())
  assert packing.make_row([[1], [2, 3]], row_length=3)["segment_ids"].tolist() == [1, 2, 2]


def test_a_pack_may_be_any_iterable_of_sequences_with_a_length():
  sequences = {1: [1, 2], 2: [3]}.values()
  assert packing.make_row(sequences, row_length=4)["input_ids"].tolist() == [1, 2, 3, 0]
  once = (sequence for sequence in ([1, 2], [3]))
  assert packing.make_row(once, row_length=4)["input_ids"].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize(
  ("sequences", "message"),
  [
    ([[1, 2, 3], [4, 5]], "A pack has 5 tokens; expected 1 to 4"),
    ([], "A pack has 0 tokens"),
    ([[]], "A pack has 0 tokens"),
    ([[1], [], [2]], r"have \[1, 0, 1\] tokens; expected at least one in each"),
    ([[0.5]], "Tokens are float64; expected integers"),
  ],
)
def test_sequences_that_do_not_make_a_row_are_refused(sequences, message):
  with pytest.raises(packing.InputError, match=message):
    packing.make_row(sequences, row_length=4)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"row_length": 0}, "row_length is 0; expected at least 1"),
    # It would lay the second sequence over the end of the first.
    ({"separator_tokens": -1}, "separator_tokens is -1; expected at least 0"),
  ],
)
def test_rows_that_cannot_be_are_refused(options, message):
  options = {"row_length": 8} | options
  with pytest.raises(packing.InputError, match=message):
    packing.make_row([[1, 2], [3, 4]], **options)
  with pytest.raises(packing.InputError, match=message):
    packing.make_rows([[{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]], **options)


IDS = {"input_ids": [1, 2]}


@pytest.mark.parametrize(
  "sequences", [[1, 2, 3], np.array([1, 2]), [None], [[[1], [2, 3]]]]
)
def test_tokens_instead_of_sequences_are_refused(sequences):
  with pytest.raises(packing.InputError, match=r"of tokens. Put a single|are object"):
    packing.make_row(sequences, row_length=4)


@pytest.mark.parametrize(
  ("packs", "message"),
  [
    (IDS, "A pack is .*; expected a list of examples"),
    ([IDS, IDS], "A pack is .*; expected a list of examples"),
    ([None], "A pack is .*; expected a list of examples"),
    ([[None]], "An example has no input_ids; found None"),
    ([[[1, 2], [3]]], r"An example has no input_ids; found \[1, 2\]"),
    ([[{"input_ids": None}]], "An example has None as input_ids"),
    ([[{"input_ids": "text"}]], "An example has 'text' as input_ids"),
    ([[{"input_ids": np.ones((1, 2), int)}]], r"array\(\[\[1, 1\]\]\) as input_ids"),
    ([[{"input_ids": [None, 1]}]], "object; expected integers"),
    ([[IDS | {"more": [[1], [2, 3]]}]], "object; expected integers"),
    (
      [[IDS | {"more": [1]}]],
      r"more has \[1\] values .*expected \[2\], one for each token",
    ),
    ([[IDS, IDS | {"label": None}]], "Examples differ in fields"),
    ([[IDS | {"label": None}]], "label is None; expected one number"),
  ],
)
def test_what_is_no_pack_of_examples_is_refused_in_one_line(packs, message):
  with pytest.raises(packing.InputError, match=message) as caught:
    packing.make_rows(packs, 4)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("as_list", [list, np.array])
def test_padding_is_not_packed_as_text(as_list):
  padded = {"input_ids": [5, 6, 0, 0], "attention_mask": as_list([1, 1, 0, 0])}
  stream = packing.StreamPacker(row_length=8)
  plan = packing.pack([4], max_sequence_length=8)
  for call in (
    lambda: packing.make_rows([[padded]], 8),
    lambda: stream.add(padded),
    lambda: PlannedPacks([padded], plan),
    lambda: PlannedPacks([padded], plan, lengths=[4]).rows(0, [0]),
  ):
    with pytest.raises(packing.InputError, match="Tokenize with padding=False"):
      call()
  whole = {"input_ids": [5, 6], "attention_mask": as_list([1, 1])}
  assert packing.make_rows([[whole]], 4)["attention_mask"].tolist() == [[1, 1, 0, 0]]


def test_numbers_of_sequences_have_one_type_in_all_rows():
  examples = [IDS | {"label": label} for label in (5, 3.5, 4)]
  with pytest.raises(packing.InputError, match="label has integers and floats"):
    packing.make_rows([examples], 8)
  stream = packing.StreamPacker(row_length=2, max_sequences_per_pack=1)
  for example in examples:
    stream.add(example)
  stream.flush()
  with pytest.raises(packing.InputError, match=r"labels is float32 and was int32 before"):
    list(stream.take_rows())
  packs = PlannedPacks(examples, packing.pack([2] * 3, max_sequence_length=2))
  with pytest.raises(packing.InputError, match="Use one type"):
    [packs.rows(0, [number]) for number in range(3)]


@pytest.mark.parametrize(
  ("first", "second", "message"),
  [
    ({"number": 2**40}, {"number": 1}, "Values of number hold 1099511627776; expected"),
    ({"places": [1, 2**33]}, {"places": [1, 2]}, "Values of places hold 8589934592"),
    ({"label": 1, "labels": [1, 2]}, {"label": 1, "labels": [1, 2]}, "have both label"),
    ({"label": 1}, {"label": [1, 2]}, r"label is \[1, 2\]; expected one number in each"),
  ],
)
def test_fields_that_a_row_would_change_are_refused(first, second, message):
  with pytest.raises(packing.InputError, match=message):
    packing.make_rows([[IDS | first, IDS | second]], 8)


def test_the_largest_numbers_of_32_bits_stay_as_they_are():
  numbers = (2**31 - 1, -(2**31))
  pack = [IDS | {"number": n, "places": np.array(numbers)} for n in numbers]
  rows = packing.make_rows([pack], 4)
  assert rows["number"].tolist() == [list(numbers)]
  assert rows["places"].tolist() == [[*numbers, *numbers]]


def test_whole_numbers_of_any_types_stay_whole():
  numbers = (np.uint64(2**31 - 5), np.int64(-1))  # NumPy joins them as floats
  rows = packing.make_rows([[IDS | {"label": n} for n in numbers]], 4)
  assert rows["labels"].dtype == np.int32
  assert rows["labels"].tolist() == [[2**31 - 5, -1]]
  beyond = [IDS | {"label": n} for n in (np.uint64(2**31), np.int64(-1))]
  with pytest.raises(packing.InputError, match="expected 32-bit integers"):
    packing.make_rows([beyond], 4)


BASE = types.SimpleNamespace(hidden_size=768, intermediate_size=3072)


@pytest.mark.parametrize("value", ["a text", None])
def test_fields_that_are_not_numbers_are_refused(value):
  with pytest.raises(packing.InputError, match=r"^name is .*; expected one number"):
    packing.make_rows([[{"input_ids": [1], "name": value}]], 4)


def test_a_layer_of_bert_base_by_its_operations():
  # Multiplications of a token: four matrices of width^2 and two of 4 width^2; of a pair:
  # width for the score and width for the value.
  cost = packing.Cost.of_bert(BASE)
  assert cost.linear == 1
  assert cost.quadratic == 2 * 768 / (12 * 768**2)
  long, short = cost.of([(512,), (256, 256)], row_length=512)
  assert long - short == pytest.approx((512**2 - 2 * 256**2) / 4608)


def test_a_layer_of_llama_by_its_operations():
  llama = types.SimpleNamespace(
    model_type="llama", hidden_size=48, intermediate_size=112, num_attention_heads=6
  )
  llama.num_key_value_heads, llama.head_dim = 2, 8
  # Query and output matrices of 48 x 48, key and value of 48 x 16, three of 48 x 112; half
  # of the pairs, each with 48 for the score and 48 for the value.
  token = 2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 112
  assert packing.Cost.of_model(llama).quadratic == 48 / token
  bert = types.SimpleNamespace(model_type="bert", hidden_size=768, intermediate_size=3072)
  assert packing.Cost.of_model(bert) == packing.Cost.of_bert(BASE)
  with pytest.raises(packing.InputError, match=r"Use Cost\.of_model"):
    packing.Cost.of_bert(llama)
  for wrong in ({"model_type": "mixtral"}, {"sliding_window": 64}):
    other = types.SimpleNamespace(**vars(llama) | wrong)
    with pytest.raises(packing.InputError, match="are not counted; expected one of"):
      packing.Cost.of_model(other)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_costs_of_any_type_are_dealt_and_compared_as_numbers(dtype):
  costs = [0, 100, 60, 90, 120, 110]
  typed = np.array(costs, dtype)
  dealt = packing.deal(typed, devices=2)
  assert dealt.tolist() == packing.deal(costs, devices=2).tolist()
  assert np.array(costs)[dealt].reshape(2, 3).sum(axis=1).tolist() == [270, 210]
  assert packing.waiting([typed], devices=2) == packing.waiting([costs], devices=2)


def test_nobody_waits_in_steps_that_cost_nothing():
  assert packing.waiting([[0, 0], [1, 3]], devices=2) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: packing.deal([1, math.nan], 2), "costs hold nan; expected finite"),
    (lambda: packing.deal([[1, 2], [3]], 2), "of object; expected 1-D numbers"),
    (lambda: packing.deal(["a", "b"], 2), "expected 1-D numbers"),
    (lambda: packing.waiting([1, 2], devices=2), "expected 2-D numbers"),
    (lambda: packing.waiting([[[1, 2]]], devices=2), "expected 2-D numbers"),
    (lambda: packing.waiting(np.ones((0, 2)), devices=2), "number of steps is 0"),
    (lambda: packing.waiting([[]], devices=2), "number of packs of a step is 0"),
    (lambda: packing.waiting([[1, -1]], devices=2), "costs hold -1"),
    (lambda: packing.deal([1] * 7, 2), "7 packs; .* number of devices, 2, such as 6 or 8"),
    (lambda: packing.deal([1], 2), "1 packs; .* multiple of .* devices, 2, such as 2"),
  ],
)
def test_what_is_no_cost_is_refused(call, message):
  with pytest.raises(packing.InputError, match=message) as caught:
    call()
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sequences", [[[5, 6], [7]], [[5, 6], [7, 8]], "text", None])
def test_sequences_instead_of_lengths_are_refused(sequences):
  with pytest.raises(packing.InputError, match="Count the tokens of each sequence"):
    packing.pack(sequences, max_sequence_length=8)
  with pytest.raises(packing.InputError, match=r"counts have shape .*; expected a vector"):
    packing.Histogram(sequences)


@pytest.mark.parametrize(
  ("fields", "options", "message"),
  [
    ({"segment_ids": [1, 1]}, {}, "field segment_ids, which is computed here. Remove it"),
    ({"position_ids": [0, 1]}, {}, "field position_ids, which is computed here. Remove it"),
    ({"position_ids": None}, {}, "field position_ids, which is computed here. Remove it"),
    ({"position_ids": [0, 0]}, {}, "begin again inside a row, which is packed already"),
    # As a difference without a sign, 0 - 1 would be above 0.
    ({"position_ids": np.array([1, 0], np.uint8)}, {}, "begin again inside a row"),
    ({"position_ids": np.array([1, 0], np.uint64)}, {}, "begin again inside a row"),
    ({"cls_positions": 9}, {}, "field cls_positions, which is computed here"),
    ({}, {"max_sequences": 2.5}, "max_sequences is 2.5; expected"),
    ({}, {"max_sequences": 0}, "max_sequences is 0; expected at least 1"),
  ],
)
def test_what_rows_compute_is_not_given(fields, options, message):
  with pytest.raises(packing.InputError, match=message):
    packing.make_rows([[{"input_ids": [5, 6]} | fields]], 5, **options)


def test_a_large_dataset_has_the_packs_of_a_small_one(monkeypatch):
  """They are computed when they are read, not at the start of an epoch."""
  lengths = [3, 1, 2, 4, 2, 3, 1, 1] * 20
  examples = [{"input_ids": [number] * n} for number, n in enumerate(lengths)]
  plan = packing.pack(lengths, max_sequence_length=5)
  numbers = list(range(plan.num_packs))
  small = PlannedPacks(examples, plan)
  expected = [small.rows(epoch, numbers)["input_ids"] for epoch in (0, 3)]
  monkeypatch.setattr("packing.epochs._SMALL", 0)
  large = PlannedPacks(examples, plan)
  for epoch, rows in zip((0, 3), expected, strict=True):
    np.testing.assert_array_equal(large.rows(epoch, numbers)["input_ids"], rows)
  assert "sequence_ids" in vars(small.assignment(3))
  assert "sequence_ids" not in vars(large.assignment(3))
