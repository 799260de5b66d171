import numpy as np
import pytest

from model.losses import mean_per_sequence, pretraining_loss, pretraining_per_sequence
from tests import packs


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_losses_equal_a_loop_over_sequences():
  batch = packs.lay_out(packs.random_sequences())
  rng = np.random.default_rng(0)
  num_rows, num_masked = batch["mlm_labels"].shape
  mlm_logits = rng.standard_normal((num_rows, num_masked, packs.VOCAB_SIZE), np.float32)
  nsp_logits = rng.standard_normal((num_rows, packs.MAX_SEQUENCES, 2), np.float32)
  expected: dict[str, list[float]] = {
    name: [] for name in ("mlm", "right", "nsp", "nsp_right")
  }
  for row in range(num_rows):
    for slot in range(packs.MAX_SEQUENCES):
      if not batch["sequence_mask"][row, slot]:
        continue
      mine = [i for i in range(num_masked) if batch["mlm_segment_ids"][row, i] == slot + 1]
      labels = [batch["mlm_labels"][row, i] for i in mine]
      scores = [log_softmax(mlm_logits[row, i]) for i in mine]
      expected["mlm"].append(-np.mean([s[k] for s, k in zip(scores, labels, strict=True)]))
      right = [s.argmax() == k for s, k in zip(scores, labels, strict=True)]
      expected["right"].append(np.mean(right))
      score, label = log_softmax(nsp_logits[row, slot]), batch["sequence_labels"][row, slot]
      expected["nsp"].append(-score[label])
      expected["nsp_right"].append(score.argmax() == label)

  outputs = {"mlm_logits": mlm_logits, "nsp_logits": nsp_logits}
  each = pretraining_per_sequence(outputs, batch)
  for name, ours in zip(expected, each.values(), strict=True):
    values, counts = ours
    np.testing.assert_array_equal(counts, batch["sequence_mask"])
    np.testing.assert_allclose(values[batch["sequence_mask"]], expected[name], rtol=1e-5)
  loss, metrics = pretraining_loss(outputs, batch)
  np.testing.assert_allclose(
    loss, np.mean(expected["mlm"]) + np.mean(expected["nsp"]), 1e-5
  )
  np.testing.assert_allclose(metrics["mlm_accuracy"], np.mean(expected["right"]), 1e-5)


def test_a_sequence_without_masked_tokens_does_not_count():
  means, present = mean_per_sequence(
    np.array([[2.0, 6.0]], np.float32), np.array([[3, 3]]), 3
  )
  assert means.tolist() == [[0, 0, 4]]
  assert present.tolist() == [[False, False, True]]


def test_a_pack_of_three_weighs_three_times_a_pack_of_one():
  """The paper's point against a loss averaged per pack."""
  values = np.array([[1, 1, 1], [5, 5, 5]], np.float32)
  means, present = mean_per_sequence(values, np.array([[1, 2, 3], [1, 1, 1]]), 3)
  assert means.sum() / present.sum() == pytest.approx(2.0)
