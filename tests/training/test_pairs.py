"""Embeddings by pairs: the loss and its gradients, packed or not, on any devices."""

import functools
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model import losses
from model.losses import PairLoss
from model.testing import relative_difference
from pipeline.batches.packed import pack_rows
from pipeline.store import PAIR_SCHEMA, SCORED_PAIR_SCHEMA, SequenceStore
from pipeline.tasks.pairs import Record
from tests import packs
from tests.training.test_step import assert_same, run
from training.mesh import make_mesh
from training.optimizer import lamb
from training.step import TrainingProgram

ROW = 31
# Records of each row, packed; the last row is empty. The others have one to four.
PACKED = [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9], [10, 11], [12], [13, 14, 15], []]
TEXTS = [2, 3, 2, 2, 4, 4, 2, 2, 2, 2, 3, 2, 2, 2, 2, 3]


# Texts that are those of other records, by the numbers of record and text: one anchor with
# several positives, one positive of several anchors, anchors and positives as negatives,
# and an anchor that is its own positive.
REPEATS = {
  **{(3, 0): (0, 0), (10, 0): (0, 0), (4, 2): (3, 1), (6, 1): (2, 1), (1, 2): (2, 1)},
  **{(5, 3): (5, 0), (8, 1): (5, 0), (12, 1): (12, 0), (15, 2): (0, 1)},
}


@functools.cache
def make_store(*, scored=False, seed=0, repeats=False) -> SequenceStore:
  """Records of short texts; with `repeats`, some texts are also those of other records."""
  rng, texts = np.random.default_rng(seed), []
  for count in TEXTS:
    lengths = rng.integers(2, 5, 2 if scored else count).tolist()
    ids = rng.integers(1, packs.VOCAB_SIZE, sum(lengths))
    texts.append(np.split(ids, np.cumsum(lengths)[:-1]))
  for (record, text), (other, same) in REPEATS.items() if repeats else ():
    texts[record][text] = texts[other][same]
  records = []
  for parts in texts:
    ids = np.concatenate(parts).tolist()
    score = float(rng.uniform(-1, 1)) if scored else 0
    records.append(Record(ids, len(ids), score, [len(part) for part in parts]))
  schema = SCORED_PAIR_SCHEMA if scored else PAIR_SCHEMA
  return SequenceStore.from_sequences(records, schema)


def lay_out(store, rows):
  depth = max(map(len, rows))
  ids = np.full((len(rows), depth), -1)
  for row, records in zip(ids, rows, strict=True):
    row[: len(records)] = records
  return pack_rows(store, ids, row_length=ROW)


def one_text_a_row(store):
  """The batch in which no text shares its row, as a plain encoder has it."""
  texts = np.split(store.gather(np.arange(len(store))), store.texts.lengths.cumsum()[:-1])
  batch = packs.layout.lay_out([[{"input_ids": x}] for x in texts], row_length=ROW)
  numbers = [n + 1 for count in store.texts.counts for n in range(count)]
  labels = np.repeat(store.sequence_labels, store.texts.counts)
  return batch | {
    "text_numbers": np.array(numbers)[:, None],
    "sequence_labels": labels[:, None],
  }


HOW: dict[str, tuple[dict[str, Any], bool]] = {
  "anchors choose": ({}, False),
  "both choose": ({"both_directions": True, "temperature": 0.2}, False),
  "scores": ({}, True),
  "cls": ({"pooling": "cls"}, False),
  "equal texts": ({"both_directions": True, "omit_equal_texts": True}, False),
}


def plain_loss(vectors, store, how):
  """A loop in NumPy over vectors in the order of texts, float64."""
  unit = [v / np.sqrt(v @ v) for v in np.asarray(vectors, np.float64)]
  found, firsts = [], store.texts.ends[:-1].tolist()
  tokens = store.gather(np.arange(len(store)))
  texts = [x.tolist() for x in np.split(tokens, store.texts.lengths.cumsum()[:-1])]
  positives = [(texts[first], texts[first + 1]) for first in firsts]

  def allowed(anchor, other):
    wrong = texts[other] == texts[anchor] or (texts[anchor], texts[other]) in positives
    return other == anchor + 1 or not (how.omit_equal_texts and wrong)

  for record, first in enumerate(firsts):
    if store.sequence_labels.dtype.kind == "f":
      cosine = sum(a * b for a, b in zip(unit[first], unit[first + 1], strict=True))
      found.append((cosine - float(store.sequence_labels[record])) ** 2)
      continue
    others = [i for i in range(len(unit)) if i not in firsts and allowed(first, i)]
    directions = [(unit[first], unit[first + 1], [unit[i] for i in others])]
    if how.both_directions:
      others = [unit[i] for i in firsts if allowed(i, first + 1)]
      directions.append((unit[first + 1], unit[first], others))
    values = []
    for chooser, right, others in directions:
      odds = [np.exp(chooser @ other / how.temperature) for other in others]
      values.append(-np.log(np.exp(chooser @ right / how.temperature) / sum(odds)))
    found.append(np.mean(values))
  return np.mean(found)


@functools.partial(jax.jit, static_argnums=(1, 3))
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradients(params, graphdef, batch, how):
  vectors = nnx.merge(graphdef, params)(batch)[f"sequence_{how.pooling}"]
  return losses.pair_loss(vectors, batch, how)[0], vectors


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("case", HOW)
def test_packed_pairs_have_the_loss_and_gradients_of_texts_alone(case, dtype, tolerance):
  fields, scored = HOW[case]
  how = PairLoss(**fields)
  store = make_store(scored=scored, repeats=how.omit_equal_texts)
  with jax.enable_x64(dtype == "float64"):
    config = packs.small_config(dtype=dtype, param_dtype=dtype, pooler=False)
    graphdef, params = packs.random_params(config, head="encoder")
    results = []
    for batch in (lay_out(store, PACKED), one_text_a_row(store)):
      batch = {name: jnp.asarray(x) for name, x in batch.items() if name != "sequence_ids"}
      (loss, vectors), gradients = loss_and_gradients(params, graphdef, batch, how)
      used = np.asarray(batch["sequence_mask"])
      results.append((float(loss), gradients, np.asarray(vectors)[used]))
  (packed, gradients, vectors), (alone, expected, others) = results
  assert relative_difference(vectors, others) < tolerance
  assert packed == pytest.approx(alone, rel=tolerance)
  assert relative_difference(gradients, expected) < tolerance
  assert packed == pytest.approx(plain_loss(vectors, store, how), rel=tolerance)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))


@functools.cache
def make_program(
  num_devices=1, accumulate=1, fsdp=1, case="both choose", dropout=0.0, optimizer=None
):
  config = packs.small_config(num_layers=1, pooler=False, dropout_rate=dropout)
  return TrainingProgram(
    config,
    optimizer or lamb(0.01),
    mesh=make_mesh(num_devices, fsdp=fsdp),
    seed=0,
    head="encoder",
    accumulate=accumulate,
    pair_loss=PairLoss(**HOW[case][0]),
  )


@pytest.mark.parametrize("case", ["both choose", "scores", "equal texts"])
@pytest.mark.parametrize(
  ("devices", "accumulate", "fsdp"), [(2, 1, 1), (4, 1, 1), (1, 4, 1), (2, 2, 2)]
)
def test_devices_and_micro_batches_choose_among_the_texts_of_all(
  case, devices, accumulate, fsdp
):
  fields, scored = HOW[case]
  repeats = fields.get("omit_equal_texts", False)
  stores = [make_store(scored=scored, seed=seed, repeats=repeats) for seed in (0, 1)]
  batches = [lay_out(store, PACKED) for store in stores]
  expected = run(make_program(case=case), batches)
  assert_same(run(make_program(devices, accumulate, fsdp, case), batches), expected)
  if not scored:  # among fewer, it would be another loss
    rows = lay_out(make_store(), PACKED[:4]), lay_out(make_store(), PACKED[4:])
    alone = [run(make_program(case=case), [x])[1][0] for x in rows]
    assert abs(np.mean(alone) - expected[1][0]) > 0.1


def test_micro_batches_are_embedded_with_the_same_dropout_both_times():
  """A small step along the gradient lowers the loss, with its dropout, as it should."""
  rate, program = 1e-4, make_program(accumulate=4, dropout=0.3, optimizer=optax.sgd(1e-4))
  batch = program.put_batch(lay_out(make_store(), PACKED))
  state, values = program.train_step(program.init(), batch)
  state |= {"step": jnp.zeros((), jnp.int32)}  # whose dropout is then the same
  _, after = program.train_step(state, batch)
  fall = float(values["pair_loss"].mean - after["pair_loss"].mean)
  expected = rate * float(values["gradient_norm"].mean) ** 2
  assert fall == pytest.approx(expected, rel=0.05)


def test_a_step_counts_records_and_the_anchors_that_chose_right():
  program, batch = make_program(), lay_out(make_store(), PACKED)
  values = program.train_step(program.init(), program.put_batch(batch))[1]
  values = jax.device_get(values)
  assert values["sequences"] == len(TEXTS)
  assert values["pair_loss"].units == values["pair_accuracy"].units == len(TEXTS)
  vectors = np.asarray(program.apply(program.init()["params"], batch)["sequence_mean"])
  unit = vectors[batch["sequence_mask"]]
  unit /= np.linalg.norm(unit, axis=1, keepdims=True)
  firsts = make_store().texts.ends[:-1]
  cosines = unit[firsts] @ unit.T
  cosines[:, firsts] = -2
  assert values["pair_accuracy"].total == (cosines.argmax(axis=1) == firsts + 1).sum()


@pytest.mark.parametrize(("omit", "loss"), [(False, np.log(2)), (True, 0)])
def test_a_second_positive_of_an_anchor_may_be_omitted_from_its_choices(omit, loss):
  """Two records with one anchor, whose vectors could not be better."""
  texts = [[5, 6], [7, 8, 9]], [[5, 6], [7, 9, 8]]
  records = [Record([*pair[0], *pair[1]], 5, 0, [2, 3]) for pair in texts]
  store = SequenceStore.from_sequences(records, PAIR_SCHEMA)
  batch = lay_out(store, [[0], [1]])
  how = PairLoss(omit_equal_texts=omit)
  found, _ = losses.pair_loss(jnp.ones((*batch["text_numbers"].shape, 3)), batch, how)
  assert float(found) == pytest.approx(loss, abs=1e-6)


@pytest.mark.extra("sentence_transformers")
@pytest.mark.parametrize("case", [case for case in HOW if case != "equal texts"])
def test_the_loss_is_that_of_sentence_transformers(case):
  torch = pytest.importorskip("torch")
  from sentence_transformers.sentence_transformer import losses as theirs

  fields, scored = HOW[case]
  how = PairLoss(**fields)
  rng = np.random.default_rng(3)
  texts = 2 if scored else 4
  vectors = rng.standard_normal((texts, 11, 7)).astype(np.float32)
  labels = rng.uniform(-1, 1, 11).astype(np.float32)
  model = torch.nn.Identity()
  if scored:
    loss = theirs.CosineSimilarityLoss(model)
  else:
    directions = ["query_to_doc", *["doc_to_query"] * how.both_directions]
    loss = theirs.MultipleNegativesRankingLoss(
      model,
      scale=1 / how.temperature,
      directions=tuple(directions),
      partition_mode="per_direction",
    )
  given = [torch.tensor(x, requires_grad=True) for x in vectors]
  expected = loss.compute_loss_from_embeddings(given, torch.tensor(labels))
  expected.backward()
  batch = {
    "text_numbers": jnp.asarray(np.tile(np.arange(1, texts + 1), (11, 1))),
    "sequence_labels": jnp.asarray(
      np.repeat(labels[:, None] if scored else np.zeros((11, 1), np.int32), texts, axis=1)
    ),
  }
  ours = jax.value_and_grad(lambda x: losses.pair_loss(x, batch, how)[0])
  found, gradient = ours(jnp.asarray(vectors.swapaxes(0, 1)))
  assert float(found) == pytest.approx(expected.item(), rel=1e-5)
  for number, vector in enumerate(given):
    np.testing.assert_allclose(gradient[:, number], vector.grad.numpy(), atol=1e-6)
