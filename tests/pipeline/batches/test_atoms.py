"""Rows of atoms, held against plain loops; the paper's examples are those of `cut`."""

import cloudpickle
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from packing import InputError
from pipeline.batches import atoms
from pipeline.batches.atom_loader import AtomLoader
from pipeline.store import SCHEMA, SequenceStore, StoredSequence, write_sequences
from tests.pipeline.batches.test_batches import assert_same, joined

END = 1
SIZES = [(2, 16), (4, 16), (8, 16), (16, 16), (32, 16), (64, 16), (7, 21), (63, 21)]


def sequences_of(documents, *, cut):
  """Documents and end tokens, cut into sequences as the task `text` does."""
  texts = [[*document, END] for document in documents]
  pieces = [text[i : i + cut] for text in texts for i in range(0, len(text), cut)]
  return [StoredSequence(piece, len(piece), 0) for piece in pieces]


def make_loader(documents, layout, atom_size, row_length, **options) -> AtomLoader:
  store = SequenceStore.from_sequences(sequences_of(documents, cut=row_length), SCHEMA)
  options = {"batch_size": 1, "seed": 42} | options
  sizes = {"atom_size": atom_size, "row_length": row_length}
  return AtomLoader(store, layout=layout, **sizes, **options)


def expected_atoms(documents, layout, size, row_length):
  """Appendix A.3, in plain loops."""
  if layout == "concat":
    stream = [token for document in documents for token in [*document, END]]
    return [stream[i : i + size] for i in range(0, len(stream), size)]
  found = []
  for document in documents:
    for i in range(0, len(document), size - 1):
      piece = list(document[i : i + size - 1])
      if len(piece) == size - 1:
        found.append([*piece, END])
      else:  # a tail
        found.append(piece + [END] * (-len(piece) % min(size, row_length)))
  return found


def expected_rows(pieces, size, row_length):
  if size <= row_length:
    together = row_length // size
    groups = [pieces[i : i + together] for i in range(0, len(pieces), together)]
    return [[token for piece in group for token in piece] for group in groups]
  return [p[i : i + row_length] for p in pieces for i in range(0, len(p), row_length)]


def rows_of(batches):
  """The tokens of each row that is not empty, without its padding."""
  found = []
  for batch in batches:
    ids, segments = batch["input_ids"], batch["segment_ids"]
    assert (np.diff(segments) <= 0).all()
    assert set(segments.ravel()) <= {0, 1}
    assert not (ids[segments == 0]).any()
    used = segments.any(axis=1)
    np.testing.assert_array_equal(batch["sequence_mask"][:, 0], used)
    rows = zip(ids[used], segments[used], strict=True)
    found += [row[segment > 0].tolist() for row, segment in rows]
  return found


def epoch_of(loader, epoch=0):
  """Its rows, of a loader with one row a batch."""
  first = epoch * loader.num_rows
  return rows_of(loader[step] for step in range(first, first + loader.num_rows))


@st.composite
def corpora(draw):
  lengths = draw(st.lists(st.integers(1, 150), min_size=1, max_size=9))
  lengths += draw(st.sampled_from([[], [15, 62, 63, 16, 30, 32], [1]]))
  ends = np.cumsum(lengths).tolist()
  return [list(range(2 + end - n, 2 + end)) for n, end in zip(lengths, ends, strict=True)]


@pytest.mark.parametrize("layout", atoms.LAYOUTS)
@pytest.mark.parametrize(("size", "row_length"), SIZES)
@hypothesis.given(documents=corpora())
@hypothesis.settings(max_examples=25, deadline=None)
def test_atoms_and_rows_are_those_of_plain_loops(layout, size, row_length, documents):
  pieces = expected_atoms(documents, layout, size, row_length)
  loader = make_loader(documents, layout, size, row_length, batch_size=3)
  expected = expected_rows(pieces, size, row_length)
  assert rows_of(loader.evaluation_batches()) == expected
  assert loader.num_rows == len(expected)
  assert loader.batches_per_epoch == len(expected) / 3
  ended = len(documents) if layout == "concat" else sum(p[-1] == END for p in pieces)
  assert loader.atoms.row_tokens().sum() == sum(map(len, documents)) + ended


@pytest.mark.parametrize("layout", atoms.LAYOUTS)
@pytest.mark.parametrize(("size", "row_length"), [(4, 16), (16, 16), (64, 16)])
def test_an_epoch_has_each_atom_whole_and_once_in_another_order(layout, size, row_length):
  documents = [list(range(100 * i, 100 * i + 18 + 7 * i)) for i in range(1, 12)]
  pieces = expected_atoms(documents, layout, size, row_length)
  assert layout == "padding" or len(pieces[-1]) < size
  loader = make_loader(documents, layout, size, row_length)
  epochs = [epoch_of(loader, epoch) for epoch in range(2)]
  for rows in epochs:
    stream = [token for row in rows for token in row]
    found = []
    while stream:  # the atom that begins as the rest of the epoch
      (piece,) = (p for p in pieces if stream[: len(p)] == p and p not in found)
      found.append(piece)
      stream = stream[len(piece) :]
    assert len(found) == len(pieces)
    assert found != pieces
  assert epochs[0] != epochs[1]
  again = make_loader(documents, layout, size, row_length)
  assert epoch_of(again, 1) == epochs[1]
  assert epoch_of(make_loader(documents, layout, size, row_length, seed=7)) != epochs[0]


@pytest.mark.parametrize("loss_on_padding", [False, True])
def test_targets_are_all_but_the_end_tokens_that_only_fill(loss_on_padding):
  documents = [[11, 12, 13, 14, 15], [21, 22, 23]]
  options = {"loss_on_padding": loss_on_padding, "batch_size": 2, "num_slots": 2}
  loader = make_loader(documents, "padding", 4, 8, **options)
  (batch,) = loader.evaluation_batches()
  assert batch["input_ids"].tolist() == [
    [11, 12, 13, END, 14, 15, END, END],
    [21, 22, 23, END, 0, 0, 0, 0],
  ]
  assert batch["segment_ids"].tolist() == [[1] * 8, [1] * 4 + [0] * 4]
  assert batch["position_ids"].tolist() == [[*range(8)], [0, 1, 2, 3, 0, 0, 0, 0]]
  targets = [[True] * 7 + [loss_on_padding], [True] * 4 + [False] * 4]
  assert batch["loss_mask"].tolist() == targets
  assert batch["sequence_mask"].tolist() == [[True, False]] * 2
  assert batch["sequence_ids"].tolist() == [[0, -1], [2, -1]]
  assert batch["real_tokens"].tolist() == loader.atoms.row_tokens().tolist() == [7, 4]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  """From a file with several batches of records, which atoms cross."""
  rng = np.random.default_rng(0)
  documents = [rng.integers(2, 97, n).tolist() for n in rng.integers(1, 90, 37)]
  path = tmp_path_factory.mktemp("atoms") / "s.arrow"
  write_sequences(path, sequences_of(documents, cut=13), batch_size=5)
  return SequenceStore(path)


@pytest.mark.parametrize(("layout", "size"), [("concat", 13), ("padding", 26)])
def test_batches_are_rows_of_epochs_laid_end_to_end_on_any_processes(store, layout, size):
  options = {"layout": layout, "atom_size": size, "row_length": 13, "seed": 5}
  alone = AtomLoader(store, batch_size=1, **options)
  loader = AtomLoader(store, batch_size=4, **options)
  blocks = [loader.for_process(index, 2) for index in range(2)]
  again = cloudpickle.loads(cloudpickle.dumps(loader))
  assert alone.num_rows % 4
  step = alone.num_rows // 4  # has rows of two epochs
  rows = joined(alone[row] for row in range(4 * step, 4 * step + 4))
  for batch in (loader[step], joined(block[step] for block in blocks), again[step]):
    assert_same(batch, rows)
  evaluated = [list(x.evaluation_batches()) for x in (loader, *blocks)]
  assert len(evaluated[0]) == loader.num_evaluation_batches
  for batch, *parts in zip(*evaluated, strict=True):
    assert_same(joined(parts), batch)


@pytest.mark.parametrize("fields", [{"layout": "packed"}, {"atom_size": 5}])
def test_impossible_options_are_refused(store, fields):
  options = {"layout": "concat", "atom_size": 16, "row_length": 16, "batch_size": 4}
  with pytest.raises(InputError, match=f"^{next(iter(fields))} is"):
    AtomLoader(store, seed=0, **options | fields)
