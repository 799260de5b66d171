import numpy as np
import pytest

from pipeline.pretraining import segment_pairs


def make_documents(seed: int = 0, num_documents: int = 23):
  """Documents of token ids that tell the document, the sentence and the place."""
  rng = np.random.default_rng(seed)
  return [
    [
      [1_000_000 * d + 1_000 * s + t for t in range(rng.integers(1, 12))]
      for s in range(rng.integers(1, 9))
    ]
    for d in range(num_documents)
  ]


def all_pairs(documents, **options):
  options = {
    "max_sequence_length": 31,
    "short_sequence_probability": 0.1,
    "seed": 7,
  } | options
  return [segment_pairs(documents, i, **options) for i in range(len(documents))]


def is_run(tokens, document) -> bool:
  """Whether the tokens stand next to each other in the document."""
  text = [t for sentence in document for t in sentence]
  return any(text[i : i + len(tokens)] == tokens for i in range(len(text)))


def test_segments_are_runs_of_the_right_documents():
  documents = make_documents()
  seen = {0: 0, 1: 0}
  for index, pairs in enumerate(all_pairs(documents)):
    for pair in pairs:
      assert pair.a
      assert pair.b
      assert len(pair.a) + len(pair.b) + 3 <= 31
      assert is_run(pair.a, documents[index])
      other = pair.b[0] // 1_000_000
      assert is_run(pair.b, documents[other])
      assert (other != index) == pair.is_random_next
      if not pair.is_random_next:
        assert pair.b[0] > pair.a[-1]
      seen[pair.is_random_next] += 1
  assert min(seen.values()) > 10


def test_without_truncation_every_sentence_is_used_once_and_whole():
  documents = make_documents()
  pairs = all_pairs(documents, max_sequence_length=999, short_sequence_probability=0.0)
  for index, document in enumerate(documents):
    own = [p.a for p in pairs[index]]
    own += [p.b for p in pairs[index] if not p.is_random_next]
    assert sorted(t for part in own for t in part) == [t for s in document for t in s]


def test_half_of_the_longer_documents_pairs_have_a_random_next():
  documents = [[[d, s] for s in range(2)] for d in range(4001)]
  pairs = all_pairs(documents, short_sequence_probability=0.0)
  first = [document_pairs[0].is_random_next for document_pairs in pairs]
  assert np.mean(first) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(4001))


def test_a_single_sentence_gets_a_random_next():
  (pairs, _) = all_pairs([[[1, 2]], [[3, 4], [5]]])
  assert [(p.a, p.is_random_next) for p in pairs] == [([1, 2], 1)]


def test_some_targets_are_short():
  """Counted where b follows a: a random b may end early with its document."""

  def share_of_short(probability):
    documents = [[[1]] * 999, [[2]] * 999]
    cut = all_pairs(documents, short_sequence_probability=probability)
    real = [p for pairs in cut for p in pairs[:-1] if not p.is_random_next]
    return np.mean([len(p.a) + len(p.b) < 28 for p in real])

  assert share_of_short(0.0) == 0
  assert 0.5 < share_of_short(0.99) < 1


def test_pairs_repeat_with_the_seed():
  documents = make_documents()
  assert all_pairs(documents) == all_pairs(documents)
  assert all_pairs(documents) != all_pairs(documents, seed=8)
