"""Losses are sums over counts: by plain loops, in parts, and with nothing hidden."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from model import losses
from model.losses import mean_per_sequence
from tests import packs

PACKS = [[13], [5, 4, 3], [2, 2, 2], [7, 6], [], [], [1, 3], [6, 2]]
# By head: the width of its logits, and a field with an entry for each of them.
HEADS = {
  "mlm": (packs.VOCAB_SIZE, "mlm_segment_ids"),
  "nsp": (2, "sequence_mask"),
  "sequence": (2, "sequence_mask"),
  "token": (2, "segment_ids"),
  "answer": (2, "segment_ids"),
  "causal": (packs.VOCAB_SIZE, "segment_ids"),
}
UNIT_OF = {  # of what stands at a row and slot
  "sequence": lambda place: place,
  "token": lambda place: "all",
  "pack": lambda place: place[0],
}


def make_batch(lengths=PACKS):
  return packs.lay_out(packs.random_sequences(lengths))


def random_logits(batch, heads=HEADS) -> dict:
  rng = np.random.default_rng(0)
  shapes = {head: (*batch[HEADS[head][1]].shape, HEADS[head][0]) for head in heads}
  return {f"{k}_logits": rng.standard_normal(s, np.float32) for k, s in shapes.items()}


def items_by_hand(head, outputs, batch, row, slot) -> list:
  """The loss of each item of a sequence, and whether it is right."""
  logits = outputs[f"{head}_logits"][row]
  fields = {name: field[row] for name, field in batch.items()}
  mine = np.flatnonzero(fields["segment_ids"] == slot + 1)
  if head == "answer":
    places = [fields[name][slot] - mine[0] for name in ("start_positions", "end_positions")]
    ends = list(zip(log_softmax(logits[mine], axis=0).T, places, strict=True))
    right = all(scores.argmax() == label for scores, label in ends)
    return [(-np.mean([scores[label] for scores, label in ends]), right)]
  if head == "mlm":
    masked = np.flatnonzero(fields["mlm_segment_ids"] == slot + 1)
    labels: dict = {i: fields["mlm_labels"][i] for i in masked}
  elif head == "token":
    labels = {i: label for i in mine if (label := fields["token_labels"][i]) >= 0}
  elif head == "causal":
    labels = {i: fields["input_ids"][i + 1] for i in mine[:-1]}
  else:
    labels = {slot: fields["sequence_labels"][slot]}
  return [(-log_softmax(logits[i])[k], logits[i].argmax() == k) for i, k in labels.items()]


def all_by_hand(head, outputs, batch) -> dict:
  """The items by row and slot."""
  places = map(tuple, np.argwhere(batch["sequence_mask"]).tolist())
  return {place: items_by_hand(head, outputs, batch, *place) for place in places}


def mean_of(groups):
  """The mean of the means of loss and hits, as a unit asks for."""
  return np.mean([np.mean(group, axis=0) for group in groups if group], axis=0)


@pytest.mark.parametrize("head", HEADS)
def test_each_sequence_equals_a_loop(head):
  batch = make_batch()
  outputs = random_logits(batch)
  found = all_by_hand(head, outputs, batch)
  each = losses.per_sequence(outputs, batch)
  for i, name in enumerate(("loss", "accuracy")):
    values, counts = each[f"{head}_{name}"]
    for place in np.ndindex(counts.shape):
      items = found.get(place)
      assert counts[place] == bool(items)
      expected = np.mean(items, axis=0)[i] if items else 0
      assert values[place] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("unit", losses.LOSS_UNITS)
def test_each_unit_equals_a_loop(unit):
  batch = make_batch()
  outputs = random_logits(batch)
  loss, totals = losses.loss(outputs, batch, unit=unit)
  whole = 0
  for head in HEADS:
    groups: dict = collections.defaultdict(list)
    for place, items in all_by_hand(head, outputs, batch).items():
      groups[UNIT_OF[unit](place)] += items
    expected, accuracy = mean_of(groups.values())
    assert totals[f"{head}_loss"].mean == pytest.approx(expected, rel=1e-5)
    assert totals[f"{head}_accuracy"].mean == pytest.approx(accuracy, rel=1e-5)
    whole += expected
  assert loss == pytest.approx(whole, rel=1e-5)


def test_regression_is_the_squared_error():
  batch = make_batch()
  used = batch["sequence_mask"]
  batch["sequence_labels"] = np.where(used, 1.5, 0).astype(np.float32)
  logits = np.random.default_rng(0).standard_normal((*used.shape, 1), np.float32)
  loss, totals = losses.loss({"sequence_logits": jnp.asarray(logits)}, batch)
  assert list(totals) == ["sequence_loss"]
  assert loss == pytest.approx(np.mean((logits[used] - 1.5) ** 2), rel=1e-5)


@pytest.mark.parametrize("unit", losses.LOSS_UNITS)
def test_parts_add_up_to_the_whole(unit):
  """Micro-batches: unequal counts in each, and one of padding alone."""
  with jax.enable_x64(True):
    batch = make_batch()
    logits = {k: x.astype(np.float64) for k, x in random_logits(batch).items()}

    def loss(logits, batch, counts=None):
      return losses.loss(logits, batch, unit=unit, counts=counts)[0]

    @jax.jit
    def accumulated(logits, batch):
      parts = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), (logits, batch))
      counts = jax.vmap(lambda part: losses.count(HEADS, part, unit=unit))(parts[1])
      counts = jax.tree.map(lambda x: x.sum(0), counts)

      def add(total, part):
        value, gradients = jax.value_and_grad(loss)(*part, counts)
        return total + value, gradients

      return jax.lax.scan(add, jnp.zeros(()), parts)

    value, gradients = jax.jit(jax.value_and_grad(loss))(logits, batch)
    parts_value, parts_gradients = accumulated(logits, batch)
    assert parts_value == pytest.approx(float(value), rel=1e-14)
    for name, gradient in gradients.items():
      ours = parts_gradients[name].reshape(gradient.shape)
      np.testing.assert_allclose(ours, gradient, rtol=1e-13, atol=1e-16)


def test_what_stands_in_an_empty_slot_does_not_spread():
  values, owners = jnp.array([[jnp.nan, 2.0, 4.0]]), jnp.array([[0, 1, 1]])
  mean = lambda x: mean_per_sequence(x, owners, 2)[0]  # noqa: E731
  assert mean(values).tolist() == [[3, 0]]
  gradient = jax.grad(lambda x: jnp.square(mean(x)).sum())(values)
  assert gradient.tolist() == [[0, 3, 3]]


def test_tokens_that_are_no_targets_do_not_count():
  batch = make_batch([[5, 4]])
  outputs = random_logits(batch, ["causal"])
  batch["loss_mask"] = np.ones(batch["segment_ids"].shape, bool)
  everything = losses.loss(outputs, batch, unit="token")[1]["causal_loss"]
  batch["loss_mask"][0, [0, 2, 5, 12]] = False  # a sequence's first never is
  total = losses.loss(outputs, batch, unit="token")[1]["causal_loss"]
  assert (everything.units, total.units) == (7, 6)
  assert losses.count(["causal"], batch, unit="token")["causal"] == 6
  missing = -log_softmax(outputs["causal_logits"][0, 1])[batch["input_ids"][0, 2]]
  assert everything.total - total.total == pytest.approx(missing, rel=1e-5)


@pytest.mark.parametrize(
  ("head", "field", "label"),
  [
    pytest.param("answer", "start_positions", 0, id="an answer in another sequence"),
    pytest.param("nsp", "sequence_labels", 2, id="a class that is not there"),
  ],
)
def test_a_label_that_cannot_be_is_not_hidden(head, field, label):
  batch = make_batch([[5, 4]])
  batch[field][0, 1] = label
  loss = losses.loss(random_logits(batch, [head]), batch)[0]
  assert np.isnan(loss) or loss > 1e30
