"""Evaluation, throughput, tables and pictures against plain loops and hand-made numbers."""

import types
import unittest.mock
from typing import NamedTuple

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from launch.record import throughput
from tests import packs
from training.evaluation import HeldOut, evaluate, evaluate_causal, evaluate_pretraining
from training.mesh import make_mesh, put_batch
from training.optimizer import lamb
from training.step import TrainingProgram

# Rows of up to 13 tokens. No sequence has 7 to 9 tokens; those of one have no masked one.
PACKS = [[[13], [5, 4, 3], [2, 2, 2], [6, 6], []], [[1, 3, 6], [11], [4], [10, 1], [12]]]
BINS = [(1, 3), (4, 6), (7, 9), (10, 13)]
UNIGRAM, FAVOURITE = 17, 5  # the most frequent label, and what the model likes to predict


def relabel(packs_of_sequences, seed, share_of_ones):
  """Makes two tokens and the labels as common as the test needs."""
  rng = np.random.default_rng(seed)
  for pack in packs_of_sequences:
    for sequence in pack:
      labels, draws = sequence["mlm_labels"], rng.random(sequence["mlm_labels"].size)
      labels[draws < 0.7] = FAVOURITE
      labels[draws < 0.4] = UNIGRAM
      sequence["sequence_label"] = int(rng.random() < share_of_ones)
  return packs_of_sequences


def reference(logits_of, batches) -> dict:
  """Every number of `evaluate`, from those of each sequence."""
  each = []
  for batch in batches:
    scores = {n: log_softmax(x.astype(float), -1) for n, x in logits_of(batch).items()}
    for row, slot in np.argwhere(batch["sequence_mask"]):
      label, nsp = batch["sequence_labels"][row, slot], scores["nsp_logits"][row, slot]
      figures = {
        "label": label,
        "nsp_loss": -nsp[label],
        "nsp_accuracy": nsp[label] == max(nsp),
      }
      figures["length"] = (batch["segment_ids"][row] == slot + 1).sum()
      mine = np.flatnonzero(batch["mlm_segment_ids"][row] == slot + 1)
      if mine.size:
        labels, mlm = batch["mlm_labels"][row, mine], scores["mlm_logits"][row, mine]
        figures["mlm_loss"] = -np.mean([x[i] for x, i in zip(mlm, labels, strict=True)])
        figures["mlm_accuracy"] = np.mean(mlm.argmax(-1) == labels)
        figures["unigram_mlm_accuracy"] = np.mean(labels == UNIGRAM)
      each.append(figures)

  def means(sequences, *names):
    return {n: np.mean([x[n] for x in sequences if n in x]) for n in names}

  found = means(each, "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
  ones = np.mean([x["label"] for x in each])
  masked = [x for x in each if "mlm_loss" in x]
  bins = [[x for x in masked if low <= x["length"] <= high] for low, high in BINS]
  return {
    **found,
    **means(masked, "unigram_mlm_accuracy"),
    "loss": found["mlm_loss"] + found["nsp_loss"],
    "nsp_majority_accuracy": max(ones, 1 - ones),
    "sequences": len(each),
    "mlm_accuracy_by_length": [
      {"from": low, "to": high, "sequences": len(inside)}
      | means(inside, "mlm_accuracy", "mlm_loss")
      for (low, high), inside in zip(BINS, bins, strict=True)
      if inside
    ],
  }


def assert_close(found, expected):
  """Of two evaluations."""
  found, expected = dict(found), dict(expected)
  name = "mlm_accuracy_by_length"
  for one, other in zip(found.pop(name), expected.pop(name), strict=True):
    assert one == pytest.approx(other, rel=1e-5)
  assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("share_of_ones", [0.2, 0.8])
def test_every_number_is_that_of_a_plain_loop_packed_or_not(share_of_ones):
  program = TrainingProgram(packs.small_config(), lamb(0.01), mesh=make_mesh(1), seed=0)
  params = packs.random_params(packs.small_config())[1]
  params["mlm_bias"] = params["mlm_bias"].at[FAVOURITE].add(3)
  apply = jax.jit(program.apply)
  sequences = [
    relabel(packs.random_sequences(part, seed), seed, share_of_ones)
    for seed, part in enumerate(PACKS)
  ]
  alone = [[sequence] for part in sequences for pack in part for sequence in pack]
  alone += [[]] * (-len(alone) % 5)
  packed = [packs.lay_out(part) for part in sequences]
  unpacked = [packs.lay_out(alone[i : i + 5], 1) for i in range(0, len(alone), 5)]
  found, of_alone = (
    evaluate_pretraining(program, params, batches, unigram_token=UNIGRAM)
    for batches in (packed, unpacked)
  )
  assert_close(found, of_alone)
  for batches in (packed, unpacked):
    expected = reference(lambda batch: jax.device_get(apply(params, batch)), batches)
    assert_close(found, expected)
  # The example tells the numbers apart.
  by_length = found["mlm_accuracy_by_length"]
  assert [part["from"] for part in by_length] == [1, 4, 10]
  assert sum(part["sequences"] for part in by_length) == found["sequences"] - 2
  assert 0.1 < found["unigram_mlm_accuracy"] < 0.6
  assert 0.1 < found["mlm_accuracy"] != found["unigram_mlm_accuracy"]
  assert 0.5 < found["nsp_majority_accuracy"] < 1
  accuracies = [part["mlm_accuracy"] for part in by_length]
  assert len(set(accuracies)) == 3, accuracies


class TimedProgram:
  """Steps that take the seconds they are told to, on a clock of its own."""

  def __init__(self, seconds):
    self.mesh = make_mesh(1)
    self.now = 0.0
    self.states = 0
    self._seconds = {kind: iter(values) for kind, values in seconds.items()}

  def init(self):
    self.states += 1
    return {"steps": 0}

  def put_batch(self, batch):
    return put_batch(batch, self.mesh)

  def train_step(self, state, batch):
    kind = "packed" if batch["sequence_mask"].shape[1] > 1 else "unpacked"
    self.now += next(self._seconds[kind])
    of_two = 2 * batch["sequence_mask"].sum()  # another process has as many
    return {"steps": state["steps"] + 1}, {"sequences": of_two}


def batches_of(program, counts, max_sequences):
  for count in counts:
    program.now += 77  # making a batch takes time that is not the step's
    mask = np.zeros((7, max_sequences), bool)
    mask.flat[:count] = True
    yield {"sequence_mask": mask, "sequence_ids": np.zeros((7, max_sequences))}


def test_throughput_compares_neighbouring_steps_without_the_first(monkeypatch):
  program = TimedProgram({"packed": [1000, 2, 4, 3, 1], "unpacked": [1, 4, 4, 9, 5]})
  clock = types.SimpleNamespace(perf_counter=lambda: program.now)
  monkeypatch.setattr(throughput, "time", clock)

  packed = batches_of(program, [1, 12, 10, 11, 15], 3)
  unpacked = batches_of(program, [1, 7, 6, 5, 6], 1)
  found = throughput.packed_against_unpacked(program, packed, unpacked, rounds=4)
  # A packed step has 12 sequences and a median of 2.5 s, an unpacked 6 and 4.5 s. The
  # ratios of their times are 2, 1, 3 and 5.
  assert found == pytest.approx(
    {
      "packed_sequences_per_second": 24 / 2.5,
      "unpacked_sequences_per_second": 12 / 4.5,
      "speedup_measured": 2 * 2.5,
      "speedup_low": 2 * 1.75,
      "speedup_high": 2 * 3.5,
    }
  )
  assert program.states == 1


@pytest.mark.parametrize(("at_most", "rounds"), [(0, 1), (500, 2), (600, 2), (700, 3)])
def test_throughput_ends_in_time_after_at_least_one_round(monkeypatch, at_most, rounds):
  """A round takes 77 + 3 + 77 + 8 = 165 seconds; the first one is not counted."""
  program = TimedProgram({"packed": [3] * 6, "unpacked": [8] * 6})
  clock = types.SimpleNamespace(perf_counter=lambda: program.now)
  monkeypatch.setattr(throughput, "time", clock)
  both = batches_of(program, [6] * 6, 3), batches_of(program, [3] * 6, 1)
  found = throughput.packed_against_unpacked(program, *both, rounds=5, at_most=at_most)
  assert found["speedup_measured"] == pytest.approx(2 * 8 / 3)
  assert program.now == 165 * (1 + rounds)


class Judged(NamedTuple):
  """Held-out packs of a task: a class is scored by how near the logits come to it."""

  packs: list
  prefix: str
  num_batches: int = 1

  def batches(self):
    batch = packs.lay_out(self.packs)
    used = batch["sequence_mask"]
    batch["sequence_ids"] = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
    return [batch]

  def score(self, logits):
    return {"score": float(np.mean([row.argmax() for row in logits]))}


def test_a_task_is_evaluated_by_its_own_score_on_each_held_out_set():
  head = "sequence_classification"
  config = packs.small_config(num_labels=3, num_layers=1)
  program = TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0, head=head)
  params = packs.random_params(config, head=head)[1]
  sets = [
    Judged(packs.random_sequences([[5, 4], [13]], seed=1), ""),
    Judged(packs.random_sequences([[2], [3, 4, 5]], seed=2), "mismatched_"),
  ]
  over = unittest.mock.Mock(side_effect=iter)
  found = evaluate(program, params, sets, unigram_token=0, over=over)
  assert over.call_count == 2
  assert (found["sequences"], found["mismatched_sequences"]) == (3, 4)
  for one in sets:
    losses, classes = [], []
    for sequence in (s for pack in one.packs for s in pack):
      batch = packs.lay_out([[sequence]])
      logits = jax.jit(program.apply)(params, batch)["sequence_logits"][0, 0]
      losses.append(-log_softmax(logits)[sequence["sequence_label"]])
      classes.append(int(logits.argmax()))
    assert found[f"{one.prefix}loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found[f"{one.prefix}score"] == np.mean(classes)


def test_a_causal_model_is_judged_by_its_tokens():
  """Against a loop over tokens; every third is no target."""
  config = packs.small_gpt2(num_layers=1)
  program = TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0, head="causal")
  params = packs.random_params(config, head="causal")[1]
  batches = [packs.lay_out(packs.random_sequences(part)) for part in PACKS]
  costs, hits = [], []
  for batch in batches:
    batch["loss_mask"] = np.arange(batch["segment_ids"].size) % 3 != 1
    batch["loss_mask"] = batch["loss_mask"].reshape(batch["segment_ids"].shape)
    scores = log_softmax(program.apply(params, batch)["causal_logits"], -1)
    ids = batch["segment_ids"]
    for row, i in np.argwhere(ids[:, 1:] > 0):
      if ids[row, i] == ids[row, i + 1] and batch["loss_mask"][row, i + 1]:
        label = batch["input_ids"][row, i + 1]
        costs.append(-scores[row, i, label])
        hits.append(scores[row, i].argmax() == label)
  found = evaluate_causal(program, params, batches)
  assert found["tokens"] == len(costs) > 40
  assert found["sequences"] == sum(int(b["sequence_mask"].sum()) for b in batches)
  assert found["loss"] == found["causal_loss"] == pytest.approx(np.mean(costs), rel=1e-5)
  assert found["causal_accuracy"] == pytest.approx(np.mean(hits))
  assert found["perplexity"] == pytest.approx(np.exp(np.mean(costs)), rel=1e-4)
  held_out = HeldOut(lambda: iter(batches), len(batches), score=None, prefix="")
  assert evaluate(program, params, [held_out], unigram_token=0) == found
