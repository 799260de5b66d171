import numpy as np
import pytest

from pipeline.tasks import pretraining
from pipeline.tasks.pretraining import segment_pairs


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
  chosen = {"max_tokens": 28, "short_sequence_probability": 0.1, "seed": (7,)}
  chosen |= options
  return [segment_pairs(documents, i, **chosen) for i in range(len(documents))]


def is_run(tokens, document) -> bool:
  """Whether the tokens stand next to each other in the document."""
  text = [t for sentence in document for t in sentence]
  return any(text[i : i + len(tokens)] == tokens for i in range(len(text)))


def test_segments_are_runs_of_the_right_documents():
  documents = make_documents()
  assert all_pairs(documents) == all_pairs(documents) != all_pairs(documents, seed=(8,))
  seen = {0: 0, 1: 0}
  for index, pairs in enumerate(all_pairs(documents)):
    for pair in pairs:
      assert min(len(pair.a), len(pair.b)) > 0
      assert len(pair.a) + len(pair.b) <= 28
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
  pairs = all_pairs(documents, max_tokens=996, short_sequence_probability=0.0)
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


def ones(num_documents, num_sentences):
  return [[[1_000 * d + s] for s in range(num_sentences)] for d in range(num_documents)]


@pytest.mark.parametrize(
  ("probability", "longest"), [(0.0, 28), (0.1, 28), (0.4, 28), (0.9, 3)]
)
def test_a_document_has_one_target_and_some_documents_a_short_one(probability, longest):
  """The target is read off where b follows a and the document does not end there."""
  documents = ones(397, 211)
  options = {"max_tokens": longest, "short_sequence_probability": probability}
  found, reached = [], 0
  for document, pairs in zip(documents, all_pairs(documents, **options), strict=True):
    full = (p for p in pairs if not p.is_random_next and p.b[-1] != document[-1][0])
    (target,) = {len(p.a) + len(p.b) for p in full}
    # A random b may end early, with its own document.
    random = [len(p.a) + len(p.b) for p in pairs if p.is_random_next]
    assert all(length <= target for length in random)
    reached += random.count(target)
    found.append(target)
  assert reached > 397
  lengths = np.array(found)
  share = probability * (longest - 2) / (longest - 1)  # a random one may be the longest
  sigma = np.sqrt(share * (1 - share) / lengths.size)
  assert abs(np.mean(lengths < longest) - share) <= 4 * sigma
  if probability == 0.4:  # any from 2 on is as likely
    short = lengths[lengths < longest]
    assert short.min() < 5
    assert short.max() == longest - 1
    assert abs(short.mean() - (2 + longest - 1) / 2) < 4 * 8 / np.sqrt(short.size)


@pytest.mark.parametrize("max_tokens", [2, 5, 28, 29])
def test_tokens_are_lost_one_by_one_at_both_ends_as_often(max_tokens):
  """Of the longer segment, of two even ones of the second, as in truncate_seq_pair."""
  for seed in range(300):
    length_a, length_b = np.random.default_rng(seed).integers(1, 40, 2).tolist()
    a, b = [*range(length_a)], [*range(100, 100 + length_b)]
    found, drawn, rng = (
      ([*a], [*b]),
      np.random.default_rng(seed),
      np.random.default_rng(seed),
    )
    lost = pretraining._truncate(*found, max_tokens, drawn)
    for _ in range(lost):
      longer = a if len(a) > len(b) else b
      longer.pop(0 if rng.random() < 0.5 else -1)
    assert lost == max(length_a + length_b - max_tokens, 0)
    assert found == (a, b), seed
    assert drawn.random() == rng.random()  # as many numbers were drawn


def test_a_random_next_starts_at_any_sentence_of_any_other_document():
  counts = np.zeros((5, 5, 7))
  for seed in range(1_100):  # of a length that nothing is cut off
    cut = all_pairs(ones(5, 7), max_tokens=94, seed=(seed,))
    for index, pairs in enumerate(cut):
      for pair in pairs:
        if pair.is_random_next:
          counts[index, *divmod(pair.b[0], 1_000)] += 1
  own = np.eye(5, dtype=bool)
  assert (counts[own] == 0).all()
  others = counts[~own]
  expected = others.mean()
  assert expected > 30
  assert np.abs(others - expected).max() < 5 * np.sqrt(expected)
