"""Plans, certificates and inputs as files."""

import io
import json
import os
import pathlib

import numpy as np
import pytest

import packing
from packing import files
from packing.commands import inputs

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LENGTHS = [5, 3, 8, 1, 3, 13, 2]
TOKENS = [list(range(n)) for n in LENGTHS]


@pytest.fixture(scope="module")
def plan():
  return packing.pack(
    packing.load_histogram("squad_1_1_384"), max_sequences_per_pack=3, separator_tokens=1
  )


@pytest.fixture
def path(plan, tmp_path):
  """The plan in a file."""
  plan.save(tmp_path / "plan.json")
  return tmp_path / "plan.json"


def load_changed(path, keys, value):
  content = entry = json.loads(path.read_text())
  for key in keys[:-1]:
    entry = entry[key]
  entry[keys[-1]] = value
  path.write_text(json.dumps(content))
  return packing.load_plan(path)


def test_a_plan_comes_back_as_it_was(plan, path):
  loaded = packing.load_plan(path, histogram=plan.histogram)
  assert loaded.strategies == plan.strategies
  for name in ("repeat_counts", "bound_weights"):
    np.testing.assert_array_equal(getattr(loaded, name), getattr(plan, name))
  assert loaded.certificate() == plan.certificate()
  assert loaded.details == plan.details
  assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_another_histogram_is_refused(path):
  with pytest.raises(packing.InputError, match="made for another histogram"):
    packing.load_plan(path, histogram=packing.load_histogram("glue_cola_128"))


def test_another_histogram_of_as_many_sequences_is_told_by_a_length(tmp_path):
  packing.pack([3, 5, 2], max_sequence_length=5).save(tmp_path / "plan.json")
  other = packing.Histogram.from_lengths([3, 8, 2], max_sequence_length=8)
  with pytest.raises(packing.InputError, match="1 of its lengths are 5, and 0 of this"):
    packing.load_plan(tmp_path / "plan.json", histogram=other)


@pytest.mark.parametrize(
  ("keys", "value", "message"),
  [
    (["format"], "other", "format 'other'"),
    (["version"], 2, "version 2"),
    (["histogram", "counts", 0, 1], 111, "the histogram was changed"),
    (["histogram", "counts", 0, 1], 1.5, "not pairs of whole numbers"),
    (["histogram", "max_sequence_length"], 2**40, "a length is out of range"),
    (["repeat_counts", 0], 1, "The plan uses 1 sequences"),
    (["repeat_counts", 0], 10**6, "at most 88641"),
    (["strategies", 0], [384, 128], "tokens"),
    (["strategies", 0, 0], 0, "a length out of range"),
    (["bound_weights"], [1, 2], "bound_weights"),
    (["bound_weights", 0], 2**62, "bound_weights"),
    (["histogram"], None, "damaged"),
  ],
)
def test_a_changed_file_is_refused(path, keys, value, message):
  with pytest.raises(packing.InputError, match=message):
    load_changed(path, keys, value)


def test_weights_in_a_file_cannot_lift_the_bound_above_the_truth(plan, path):
  rng = np.random.default_rng(0)
  for _ in range(20):
    weights = rng.integers(0, 2**50, len(plan.bound_weights)).tolist()
    assert load_changed(path, ["bound_weights"], weights).lower_bound <= plan.num_packs
  true = plan.bound_weights.tolist()
  assert load_changed(path, ["bound_weights"], true).lower_bound == plan.lower_bound


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff", "[" * 200_000])
def test_other_files_are_refused_as_plans(tmp_path, text):
  file = tmp_path / "plan.json"
  file.write_bytes(text.encode(errors="surrogateescape"))
  with pytest.raises(packing.InputError, match="expected a plan"):
    packing.load_plan(file)
  with pytest.raises(packing.InputError, match="No such file"):
    packing.load_plan(tmp_path / "other.json")


def test_a_certificate_accounts_for_everything(plan, tmp_path):
  certificate = plan.certificate()
  assert certificate.num_sequences_in == certificate.num_sequences_out == 88_641
  assert certificate.num_tokens_in == certificate.num_tokens_out == 15_249_479
  assert sum(certificate.packs_by_depth.values()) == plan.num_packs
  assert certificate.gap == plan.num_packs - plan.lower_bound
  plan.save(tmp_path / "plan.json")
  stored = json.loads((tmp_path / "plan.json").read_text())["certificate"]
  assert stored["num_packs"] == plan.num_packs
  assert f"{plan.num_packs:,}" in str(certificate)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
  path = tmp_path / "plan.json"
  path.write_text("before")

  def full(descriptor):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(packing.InputError, match="No space left on device"):
    files.write_text(path, "after")
  assert path.read_text() == "before"
  assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_file_gets_the_permissions_that_open_gives(tmp_path):
  files.write_text(tmp_path / "ours", "text")
  (tmp_path / "theirs").write_text("text")
  ours, theirs = ((tmp_path / name).stat().st_mode for name in ("ours", "theirs"))
  assert ours == theirs


def test_a_link_and_a_mode_are_kept(tmp_path):
  link, loop, target = (tmp_path / name for name in ("link", "loop", "target"))
  link.symlink_to("target")
  for text in ("before", "after"):  # at first, the link leads nowhere
    files.write_text(link, text)
    assert link.is_symlink()
    assert target.read_text() == text
    target.chmod(0o640)
  files.write_text(target, "again")
  assert target.stat().st_mode & 0o777 == 0o640
  loop.symlink_to("loop")
  with pytest.raises(packing.InputError, match="is not a file"):
    files.write_text(loop, "x")


def test_a_device_or_directory_is_not_replaced(tmp_path):
  for path in (tmp_path, pathlib.Path(os.devnull)):
    with pytest.raises(packing.InputError, match="is not a file"):
      files.write_text(path, "x")


def table(**columns):
  return pa.table(columns or {"input_ids": TOKENS, "label": [0] * len(LENGTHS)})


def write(path, content, kind=""):
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == ".parquet":
    parquet.write_table(content, path, row_group_size=2)
    return
  new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
  with pa.OSFile(str(path), "wb") as sink, new(sink, content.schema) as out:
    out.write_table(content, max_chunksize=3)


def read(path, **options):
  return inputs.read_lengths(path, **options)[0].tolist()


@pytest.mark.parametrize("kind", ["npy", "txt", "parquet", "arrow", "stream", "large"])
def test_lengths_from_files(tmp_path, kind):
  path = tmp_path / f"data.{ {'stream': 'arrow', 'large': 'parquet'}.get(kind, kind) }"
  if kind == "npy":
    np.save(path, np.array(LENGTHS, np.uint16))
  elif kind == "txt":
    path.write_text("5 3 8\n1 3\n13 2\n")
  elif kind == "large":
    write(path, table(tokens=pa.array(TOKENS, pa.large_list(pa.int64())), n=LENGTHS))
  else:
    write(path, table(), kind)
  lengths, source = inputs.read_lengths(path)
  assert lengths.tolist() == LENGTHS
  assert str(path) in source


@pytest.mark.parametrize(
  ("columns", "named", "message"),
  [
    (["text", "size"], None, r"found text .*, size .*\. Name one with --column"),
    (["text", "size"], "x", "no column 'x'; found text"),
    (["text", "size"], "text", "Tokenize text first"),
    (["text", "size", "id"], "size", None),
    (["length", "label"], None, None),
  ],
)
def test_an_integer_column_is_named_or_its_name_says_lengths(
  tmp_path, columns, named, message
):
  path = tmp_path / "n.parquet"
  values = {name: ["a"] * 7 if name == "text" else LENGTHS for name in columns}
  write(path, table(**values))
  if message is None:
    assert read(path, column=named) == LENGTHS
  else:
    with pytest.raises(packing.InputError, match=message):
      read(path, column=named)


def test_splits_are_kept_apart(tmp_path):
  for name, length in (
    ("hub/data/train-00000-of-00001", 1),
    ("hub/data/test-00000-of-00001", 2),
    ("several/data/dev-00000-of-00001", 1),
    ("several/data/test-00000-of-00001", 2),
    ("folders/train/part-0", 1),
    ("folders/train_small/train-0", 2),
    ("parts/part_0", 1),
    ("parts/part_1", 2),
    ("config/en/train-00000-of-00001", 1),
    ("config/en/test-00000-of-00001", 2),
    ("nested/train/shard/0000", 1),
    ("nested/test/shard/0000", 2),
    ("language/en/dev-00000-of-00001", 1),
    ("language/en/test-00000-of-00001", 2),
    ("named/squad-train", 1),
    ("named/squad-validation", 2),
    ("named/part/train-a", 3),
    ("named/part/train-b.c", 4),
    ("folds/fold1", 1),
    ("folds/fold2", 2),
  ):
    write(tmp_path / f"{name}.parquet", table(length=[length]))
  for folder, split, expected in (
    ("hub", None, [1]),
    ("hub", "train", [1]),
    ("hub", "test", [2]),
    ("hub", "all", [2, 1]),
    ("folders", None, [1]),
    ("folders", "train", [1]),
    ("folders", "train_small", [2]),
    ("parts", None, [1, 2]),
    ("config", None, [1]),
    ("config", "test", [2]),
    ("nested", None, [1]),
    ("nested", "test", [2]),
    ("named", "squad-validation", [2]),
    ("named/part", None, [3, 4]),
    ("folds", "fold2", [2]),
  ):
    assert read(tmp_path / folder, split=split) == expected, (folder, split)
  with pytest.raises(packing.InputError, match="no split 'dev'; found test, train"):
    read(tmp_path / "hub", split="dev")
  for folder in ("several", "language"):
    with pytest.raises(packing.InputError, match=r"several splits, dev, test\. Name one"):
      read(tmp_path / folder)
  with pytest.raises(packing.InputError, match=r"several splits, fold1, fold2\. Name one"):
    read(tmp_path / "folds")


@pytest.mark.parametrize("values", [[["two", "words"]], [[[1, 2], [3]]], [[0.5, 1.5]]])
def test_lists_of_anything_but_token_ids_are_refused(tmp_path, values):
  write(tmp_path / "a.parquet", table(tokens=values))
  with pytest.raises(packing.InputError, match=r"expected lists of token ids\. Tokenize"):
    read(tmp_path / "a.parquet")


def test_directories_as_hugging_face_and_pipeline_write_them(tmp_path):
  for split in ("train", "validation"):
    for part in range(2):
      path = tmp_path / "hf" / split / f"data-0000{part}-of-00002.arrow"
      write(path, table(), "stream")
  (tmp_path / "hf" / "train" / "cache-1234.arrow").write_bytes(b"not to be read")
  write(tmp_path / "hf" / "train" / ".hidden" / "data-00000.arrow", table(), "stream")
  assert read(tmp_path / "hf") == read(tmp_path / "hf", split="validation") == LENGTHS * 2
  with pytest.raises(packing.InputError, match="no split 'test'; found train, validation"):
    read(tmp_path / "hf", split="test")
  for name in ("train", "held_out"):
    write(tmp_path / "prepared" / f"{name}.arrow", table(length=[len(name)]))
  assert read(tmp_path / "prepared") == [5]
  assert read(tmp_path / "prepared", split="held_out") == [8]
  (tmp_path / "empty").mkdir()
  with pytest.raises(packing.InputError, match="holds no"):
    read(tmp_path / "empty")


def npy(array):
  file = io.BytesIO()
  np.save(file, array, allow_pickle=True)
  return file.getvalue()


@pytest.mark.parametrize(
  ("name", "data", "message"),
  [
    ("x.npy", b"nonsense", r"not a \.npy file"),
    ("x.npy", npy(np.ones((2, 3), int)), r"shape \(2, 3\)"),
    ("x.npy", npy(np.ones(3)), "of float64"),
    ("x.arrow", b"nonsense", r"x\.arrow is not valid \("),
    ("x.parquet", b"nonsense", r"x\.parquet is not valid \("),
    ("x.txt", b"3 4 five", "'five'"),
    ("x.txt", b"3\n1_0\n", "x.txt has '1_0'; expected integers, the lengths"),
    ("x.txt", b"3\n1.0\n", "x.txt has '1.0'"),
    ("x.txt", b"3\n\xe9\n", "x.txt is not text"),
    ("x.txt", b"     12 3\n      7 5\n", "two numbers a line.* what uniq -c counts"),
    ("x.txt", b"5 12\n6 13\n\n7 14\n", "two numbers a line"),
    (
      "x.csv",
      b"length,count\n3,12\n5,7\n",
      "'length' and 'count', so it may be a hist",
    ),
    ("x.csv", b"num_tokens,count\n3,12\n", "'num_tokens' and 'count', so it may be a hist"),
    ("x.md", b"1,2", "ends in '.md'"),
    ("x.csv", b"", r"x\.csv is not valid \("),
    ("x.csv", b"length\n5\n7,8\n", r"x\.csv is not valid \("),
    ("x.tsv", b"text\tlabel\nab c\t1.5\n", "none of the columns input_ids"),
  ],
)
def test_files_that_are_not_what_their_names_say(tmp_path, name, data, message):
  (tmp_path / name).write_bytes(data)
  with pytest.raises(packing.InputError, match=message):
    read(tmp_path / name)


@pytest.mark.parametrize("name", ["x.txt", "x.npy"])
def test_a_column_or_a_split_of_a_file_without_them_is_refused(tmp_path, name):
  data = b"1 5 2\n" if name == "x.txt" else npy(np.arange(1, 9))
  (tmp_path / name).write_bytes(data)
  with pytest.raises(packing.InputError, match=f"{name} has no columns; found column '3'"):
    read(tmp_path / name, column="3")
  with pytest.raises(packing.InputError, match=f"{name} has no splits; found split 'dev'"):
    read(tmp_path / name, split="dev")


def test_missing_values_are_refused(tmp_path):
  write(tmp_path / "x.parquet", table(input_ids=[[1], None]))
  with pytest.raises(packing.InputError, match="1 missing values"):
    read(tmp_path / "x.parquet")


def test_what_a_damaged_or_merged_file_may_hold_is_refused(tmp_path):
  np.save(tmp_path / "x.npy", np.arange(1, 9))
  whole = (tmp_path / "x.npy").read_bytes()
  for place in range(10, 60):  # a flipped bit of the header
    data = bytearray(whole)
    data[place] ^= 16
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(packing.InputError, match=r"x\.npy"):
      read(tmp_path / "x.npy")
  (tmp_path / "x.csv").write_text("length,length\n1,2\n")
  with pytest.raises(packing.InputError, match="several columns 'length'"):
    read(tmp_path / "x.csv")
  write(tmp_path / "x.parquet", table(length=np.array([2**63 + 5, 3], np.uint64)))
  with pytest.raises(packing.InputError, match="holds 9223372036854775813"):
    read(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_padded_sequences_are_refused(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  masks = [[True, True, False], [True] * 3]
  write(path, table(input_ids=[[5, 6, 0], [7, 8, 9]], attention_mask=masks))
  with pytest.raises(packing.InputError, match=r"x\.\w+ has zeros in attention_mask"):
    read(path)
  write(path, table(input_ids=[[5, 6], [7, 8, 9]], attention_mask=[[1, 1], [1] * 3]))
  assert read(path) == [2, 3]
  # The mask is of another column.
  write(path, table(input_ids=TOKENS, labels=TOKENS[::-1], attention_mask=TOKENS))
  assert read(path, column="labels") == LENGTHS[::-1]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_that_are_packed_already_are_refused(tmp_path, kind):
  path = tmp_path / f"x.{kind}"
  tokens = [[5, 6, 7], [8, 9]]
  write(path, table(input_ids=tokens, position_ids=[[0, 1, 2], [2, 3]]))
  assert read(path) == [3, 2]
  write(path, table(input_ids=tokens, position_ids=[[0, 1, 0], [2, 3]]))
  with pytest.raises(packing.InputError, match=r"position_ids that begin again .* alone"):
    read(path)


@pytest.mark.parametrize(
  ("positions", "is_packed"),
  [
    ([[], [0, 1, 2], [0, 1], []], False),
    ([[], [0, 1, 0], [0, 1], []], True),
    ([[], [0, 1, 2], [0, 0], []], True),
    ([[], None, [0, 1], []], False),
    ([[], None, [0, 0], None], True),
  ],
)
def test_empty_and_missing_positions_neither_hide_nor_feign_packed_rows(
  tmp_path, positions, is_packed
):
  tokens = [[], [5, 6, 7], [8, 9], []]
  places = pa.array(positions, pa.list_(pa.uint16()))
  write(tmp_path / "x.arrow", table(input_ids=tokens, position_ids=places))
  if not is_packed:
    assert read(tmp_path / "x.arrow") == [0, 3, 2, 0]
    return
  with pytest.raises(packing.InputError, match="position_ids that begin again"):
    read(tmp_path / "x.arrow")


def test_text_may_begin_with_a_byte_order_mark(tmp_path):
  (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf3\r\n5\r\n")
  assert read(tmp_path / "x.txt") == [3, 5]
  (tmp_path / "x.csv").write_text("length,count\n3,12\n5,7\n")
  assert read(tmp_path / "x.csv", column="length") == [3, 5]


@pytest.mark.parametrize("values", [["a b"], [None], [0.5]])
def test_input_ids_that_are_not_lists_are_refused(tmp_path, values):
  write(tmp_path / "x.parquet", table(input_ids=values, attention_mask=[[1, 1]]))
  with pytest.raises(packing.InputError, match=r"Column 'input_ids' .* expected tokens in"):
    read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ({"max_sequence_length": 2, "counts": [[1], [2, 3]]}, "counts have shape .* a vector"),
    ({}, "None as counts"),
    ({"max_sequence_length": 3, "counts": [1, 2]}, "expected a histogram"),
    ({"max_sequence_length": 2, "counts": [0, 0]}, "empty"),
    ({"max_sequence_length": 2, "counts": [True, 1]}, "expected a histogram"),
    ({"max_sequence_length": True, "counts": [5]}, "expected a histogram"),
  ],
)
def test_invalid_histogram_files_are_refused(tmp_path, content, message):
  path = tmp_path / "h.json"
  path.write_text(json.dumps(content))
  with pytest.raises(packing.InputError, match=message):
    inputs.read_histogram(path)
