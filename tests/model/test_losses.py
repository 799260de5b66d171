import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from model import losses
from model.losses import mean_per_sequence
from tests import packs

PACKS = [[13], [5, 4, 3], [2, 2, 2], [7, 6], [], [], [1, 3], [6, 2]]
WIDTHS = {"mlm": packs.VOCAB_SIZE, "nsp": 2, "sequence": 2, "token": 2, "answer": 2}
WIDTHS["causal"] = packs.VOCAB_SIZE


def make_batch():
  return packs.lay_out(packs.random_sequences(PACKS))


def random_logits(batch, heads=WIDTHS, seed=0) -> dict:
  rng = np.random.default_rng(seed)
  return {
    f"{head}_logits": rng.standard_normal(
      (*_items(head, batch).shape, WIDTHS[head]), np.float32
    )
    for head in heads
  }


def _items(head, batch):
  per_token = {"mlm": "mlm_segment_ids", "token": "segment_ids", "answer": "segment_ids"}
  per_token["causal"] = "segment_ids"
  return batch[per_token.get(head, "sequence_mask")]


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def by_hand(outputs, batch) -> dict:
  """For each head and sequence the losses and hits of its items, with plain loops."""
  found: dict = {}
  for row, slot in zip(*np.nonzero(batch["sequence_mask"]), strict=True):
    for head in WIDTHS:
      logits = outputs[f"{head}_logits"][row]
      pairs = []
      if head in ("nsp", "sequence"):
        pairs.append((log_softmax(logits[slot]), batch["sequence_labels"][row, slot]))
      elif head == "answer":
        mine = np.nonzero(batch["segment_ids"][row] == slot + 1)[0]
        ends = [
          (log_softmax(logits[mine, i]), batch[name][row, slot] - mine[0])
          for i, name in enumerate(("start_positions", "end_positions"))
        ]
        hit = all(scores.argmax() == label for scores, label in ends)
        cost = -np.mean([scores[label] for scores, label in ends])
        found[head, row, slot] = [(cost, hit)]
        continue
      elif head == "causal":
        mine = np.nonzero(batch["segment_ids"][row] == slot + 1)[0]
        pairs += [
          (log_softmax(logits[i]), batch["input_ids"][row, i + 1]) for i in mine[:-1]
        ]
      else:
        ids, labels = (
          ("mlm_segment_ids", "mlm_labels")
          if head == "mlm"
          else ("segment_ids", "token_labels")
        )
        pairs += [
          (log_softmax(logits[i]), batch[labels][row, i])
          for i in range(len(logits))
          if batch[ids][row, i] == slot + 1 and batch[labels][row, i] >= 0
        ]
      found[head, row, slot] = [(-s[k], s.argmax() == k) for s, k in pairs]
  return found


def mean(values):
  return np.mean(list(values), axis=0)


def in_units(found, head, unit):
  """The means of loss and hits that a unit asks for."""
  items = {(row, slot): v for (name, row, slot), v in found.items() if name == head and v}
  if unit == "token":
    return mean(x for v in items.values() for x in v)
  if unit == "sequence":
    return mean(mean(v) for v in items.values())
  rows = {row for row, _ in items}
  return mean(mean(x for (r, _), v in items.items() if r == row for x in v) for row in rows)


def test_each_sequence_equals_a_loop():
  batch = make_batch()
  outputs = random_logits(batch)
  found = by_hand(outputs, batch)
  each = jax.jit(losses.per_sequence)(outputs, batch)
  assert len(each) == 2 * len(WIDTHS)
  for head in WIDTHS:
    for i, name in enumerate(("loss", "accuracy")):
      values, counts = each[f"{head}_{name}"]
      for row, slot in np.ndindex(counts.shape):
        items = found.get((head, row, slot))
        assert counts[row, slot] == bool(items)
        expected = mean(items)[i] if items else 0
        assert values[row, slot] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("unit", losses.LOSS_UNITS)
def test_each_unit_equals_a_loop(unit):
  batch = make_batch()
  outputs = random_logits(batch)
  found = by_hand(outputs, batch)
  loss, totals = losses.loss(outputs, batch, unit=unit)
  expected = {head: in_units(found, head, unit) for head in WIDTHS}
  for head in WIDTHS:
    assert totals[f"{head}_loss"].mean == pytest.approx(expected[head][0], rel=1e-5)
    assert totals[f"{head}_accuracy"].mean == pytest.approx(expected[head][1], rel=1e-5)
  assert loss == pytest.approx(sum(e[0] for e in expected.values()), rel=1e-5)


def test_the_units_differ():
  batch = make_batch()
  outputs = random_logits(batch, ["mlm"])
  values = [float(losses.loss(outputs, batch, unit=u)[0]) for u in losses.LOSS_UNITS]
  assert len({round(value, 4) for value in values}) == 3


def test_regression_is_the_squared_error():
  batch = packs.lay_out(packs.random_sequences(PACKS))
  batch["sequence_labels"] = np.where(batch["sequence_mask"], 1.5, 0).astype(np.float32)
  rng = np.random.default_rng(0)
  logits = rng.standard_normal((*batch["sequence_mask"].shape, 1), np.float32)
  loss, totals = losses.loss({"sequence_logits": jnp.asarray(logits)}, batch)
  assert list(totals) == ["sequence_loss"]
  used = logits[batch["sequence_mask"]]
  assert loss == pytest.approx(np.mean((used - 1.5) ** 2), rel=1e-5)


@pytest.mark.parametrize("unit", losses.LOSS_UNITS)
@pytest.mark.parametrize("heads", [["mlm", "nsp"], ["token"], ["answer"], ["causal"]])
def test_parts_add_up_to_the_whole(unit, heads):
  """Micro-batches: unequal counts in each, and one of padding alone."""
  with jax.enable_x64(True):
    batch = make_batch()
    logits = {k: x.astype(np.float64) for k, x in random_logits(batch, heads).items()}

    def loss(logits, batch, counts=None):
      return losses.loss(logits, batch, unit=unit, counts=counts)[0]

    @jax.jit
    def accumulated(logits, batch):
      parts = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), (logits, batch))
      counts = jax.vmap(lambda part: losses.count(heads, part, unit=unit))(parts[1])
      counts = jax.tree.map(lambda x: x.sum(0), counts)

      def add(total, part):
        logits, batch = part
        gradients = jax.grad(loss)(logits, batch, counts)
        return total + loss(logits, batch, counts), gradients

      return jax.lax.scan(add, jnp.zeros(()), parts)

    value, gradients = jax.jit(jax.value_and_grad(loss))(logits, batch)
    parts_value, parts_gradients = accumulated(logits, batch)
    assert parts_value == pytest.approx(float(value), rel=1e-14)
    for name, gradient in gradients.items():
      ours = parts_gradients[name].reshape(gradient.shape)
      np.testing.assert_allclose(ours, gradient, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("unit", losses.LOSS_UNITS)
def test_devices_add_up_to_the_whole(unit):
  batch = make_batch()
  outputs = random_logits(batch, ["mlm", "nsp"])
  devices = jax.devices()
  assert len(devices) == 4
  mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  split = jax.device_put((outputs, batch), rows)

  def loss(outputs, batch):
    return losses.loss(outputs, batch, unit=unit)[0]

  whole, parts = loss(outputs, batch), jax.jit(loss)(*split)
  assert parts == pytest.approx(float(whole), rel=1e-6)


def test_a_sequence_without_masked_tokens_does_not_count():
  means, present = mean_per_sequence(
    np.array([[2.0, 6.0]], np.float32), np.array([[3, 3]]), 3
  )
  assert means.tolist() == [[0, 0, 4]]
  assert present.tolist() == [[False, False, True]]


def test_what_stands_in_an_empty_slot_does_not_spread():
  values, owners = jnp.array([[jnp.nan, 2.0, 4.0]]), jnp.array([[0, 1, 1]])
  mean = lambda x: mean_per_sequence(x, owners, 2)[0]  # noqa: E731
  assert mean(values).tolist() == [[3, 0]]
  gradient = jax.grad(lambda x: jnp.square(mean(x)).sum())(values)
  assert gradient.tolist() == [[0, 3, 3]]


def test_a_pack_of_three_weighs_three_times_a_pack_of_one():
  """The paper's point against a loss averaged per pack."""
  values = np.array([[1, 1, 1], [5, 5, 5]], np.float32)
  means, present = mean_per_sequence(values, np.array([[1, 2, 3], [1, 1, 1]]), 3)
  assert means.sum() / int(present.sum()) == pytest.approx(2.0)


def test_tokens_that_are_no_targets_do_not_count():
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  outputs = random_logits(batch, ["causal"])
  batch["loss_mask"] = np.ones(batch["segment_ids"].shape, bool)
  everything = losses.loss(outputs, batch, unit="token")[1]["causal_loss"]
  batch["loss_mask"][0, [0, 2, 5, 12]] = False  # a sequence's first never is
  total = losses.loss(outputs, batch, unit="token")[1]["causal_loss"]
  assert (everything.units, total.units) == (7, 6)
  counts = losses.count(["causal"], batch, unit="token")
  assert counts["causal"] == 6
  missing = -log_softmax(outputs["causal_logits"][0, 1])[batch["input_ids"][0, 2]]
  assert everything.total - total.total == pytest.approx(missing, rel=1e-5)


def test_the_loss_of_a_sequence_does_not_see_the_first_token_of_the_next():
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  outputs = random_logits(batch, ["causal"])
  other = batch | {"input_ids": batch["input_ids"].copy()}
  other["input_ids"][0, 5] += 1
  before, after = (losses.per_sequence(outputs, x)["causal_loss"] for x in (batch, other))
  np.testing.assert_array_equal(before, after)
  # In one stream it is a target as any other.
  stream = np.ones_like(batch["segment_ids"])
  ours, theirs = (
    losses.loss(outputs, x | {"segment_ids": stream}, unit="token") for x in (batch, other)
  )
  assert ours[0] != theirs[0]
  assert ours[1]["causal_loss"].units == packs.ROW_LENGTH - 1


def test_an_answer_outside_of_its_sequence_is_not_hidden():
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  batch["start_positions"][0, 1] = 0  # in the first sequence
  outputs = random_logits(batch, ["answer"])
  assert losses.loss(outputs, batch)[0] > 1e30


def test_labels_out_of_range_are_not_hidden():
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  batch["sequence_labels"][0, 1] = 2
  outputs = random_logits(batch, ["nsp"])
  assert np.isnan(losses.loss(outputs, batch)[0])


def test_an_unknown_unit_is_refused():
  batch = make_batch()
  with pytest.raises(ValueError, match="'word'; expected one of sequence, token, pack"):
    losses.loss(random_logits(batch), batch, unit="word")
