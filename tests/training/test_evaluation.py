"""Evaluation, throughput, tables and pictures against plain loops and hand-made numbers."""

import math
import types
import unittest.mock
from typing import NamedTuple

import jax
import numpy as np
import pytest
from matplotlib import colormaps, image

from tests import packs
from training.evaluation import evaluate, evaluate_causal, evaluate_pretraining
from training.mesh import make_mesh
from training.optimizer import lamb
from training.record import plots, report, throughput
from training.step import TrainingProgram

# Rows of up to 13 tokens. No sequence has 7 to 9 tokens; those of one have no masked one.
PACKS = [[[13], [5, 4, 3], [2, 2, 2], [6, 6], []], [[1, 3, 6], [11], [4], [10, 1], [12]]]
BINS = [(1, 3), (4, 6), (7, 9), (10, 13)]
UNIGRAM = 17


def relabel(packs_of_sequences, seed, share_of_ones):
  """Makes the unigram token and the labels as common as the test needs."""
  rng = np.random.default_rng(seed)
  for pack in packs_of_sequences:
    for sequence in pack:
      labels = sequence["mlm_labels"]
      labels[rng.random(labels.size) < 0.4] = UNIGRAM
      sequence["sequence_label"] = int(rng.random() < share_of_ones)
  return packs_of_sequences


@pytest.fixture(scope="module")
def program():
  return TrainingProgram(packs.small_config(), lamb(0.01), mesh=make_mesh(1), seed=0)


@pytest.fixture(scope="module")
def params():
  return packs.random_params(packs.small_config())[1]


@pytest.fixture(scope="module", params=[0.2, 0.8])
def batches(request):
  sequences = [
    relabel(packs.random_sequences(part, seed), seed, request.param)
    for seed, part in enumerate(PACKS)
  ]
  packed = [packs.lay_out(part) for part in sequences]
  alone = [[sequence] for part in sequences for pack in part for sequence in pack]
  alone += [[]] * (-len(alone) % 5)
  unpacked = [
    packs.lay_out(alone[i : i + 5], max_sequences=1) for i in range(0, len(alone), 5)
  ]
  return {"packed": packed, "unpacked": unpacked}


def reference(logits_of, batches) -> dict:
  """Every number of `evaluate`, token by token, in the words of its documentation."""
  each: dict[str, list[float]] = {
    name: [] for name in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
  }
  unigram, labels, lengths = [], [], []
  bins: dict[tuple[int, int], list[tuple[float, float]]] = {edges: [] for edges in BINS}
  for batch in batches:
    logits = logits_of(batch)
    for row, slot in np.argwhere(batch["sequence_mask"]):
      length = int((batch["segment_ids"][row] == slot + 1).sum())
      label = int(batch["sequence_labels"][row, slot])
      scores = logits["nsp_logits"][row, slot].astype(float)
      each["nsp_loss"].append(math.log(sum(math.exp(s) for s in scores)) - scores[label])
      each["nsp_accuracy"].append(float(scores[label] >= scores[1 - label]))
      labels.append(label)
      lengths.append(length)
      losses, hits, unigram_hits = [], [], []
      for i, owner in enumerate(batch["mlm_segment_ids"][row]):
        if owner == slot + 1:
          scores = logits["mlm_logits"][row, i].astype(float)
          label = int(batch["mlm_labels"][row, i])
          losses.append(math.log(sum(math.exp(s) for s in scores)) - scores[label])
          hits.append(float(max(scores) == scores[label]))
          unigram_hits.append(float(label == UNIGRAM))
      if losses:
        each["mlm_loss"].append(sum(losses) / len(losses))
        each["mlm_accuracy"].append(sum(hits) / len(hits))
        unigram.append(sum(unigram_hits) / len(unigram_hits))
        for low, high in BINS:
          if low <= length <= high:
            bins[low, high].append((each["mlm_accuracy"][-1], each["mlm_loss"][-1]))
  means = {name: sum(values) / len(values) for name, values in each.items()}
  ones = sum(labels)
  return means | {
    "loss": means["mlm_loss"] + means["nsp_loss"],
    "unigram_mlm_accuracy": sum(unigram) / len(unigram),
    "nsp_majority_accuracy": max(ones, len(labels) - ones) / len(labels),
    "sequences": len(labels),
    "mlm_accuracy_by_length": [
      {
        "from": low,
        "to": high,
        "sequences": len(values),
        "mlm_accuracy": sum(accuracy for accuracy, _ in values) / len(values),
        "mlm_loss": sum(loss for _, loss in values) / len(values),
      }
      for (low, high), values in bins.items()
      if values
    ],
  }


def predict_some(logits_of, batch, rng):
  """Turns some labels into what the model predicts: a random model hits too few."""
  best = logits_of(batch)["mlm_logits"].argmax(-1)
  hit = (rng.random(best.shape) < 0.4) & (batch["mlm_segment_ids"] > 0)
  return batch | {"mlm_labels": np.where(hit, best, batch["mlm_labels"]).astype(np.int32)}


@pytest.mark.parametrize("kind", ["packed", "unpacked"])
def test_every_number_is_that_of_a_plain_loop(program, params, batches, kind):
  apply = jax.jit(program.apply)
  logits_of = lambda batch: jax.device_get(apply(params, batch))  # noqa: E731
  rng = np.random.default_rng(5)
  given = [predict_some(logits_of, batch, rng) for batch in batches[kind]]
  found = evaluate_pretraining(program, params, given, unigram_token=UNIGRAM)
  expected = reference(logits_of, given)
  by_length, expected_by_length = (
    numbers.pop("mlm_accuracy_by_length") for numbers in (found, expected)
  )
  assert found == pytest.approx(expected, rel=1e-5)
  assert by_length == [pytest.approx(part, rel=1e-5) for part in expected_by_length]
  # The example tells the numbers apart.
  assert [part["from"] for part in by_length] == [1, 4, 10]
  assert sum(part["sequences"] for part in by_length) == found["sequences"] - 2
  assert 0.1 < found["unigram_mlm_accuracy"] < 0.6
  assert 0.2 < found["mlm_accuracy"] < 0.9
  assert 0.5 < found["nsp_majority_accuracy"] < 1
  assert len({part["mlm_accuracy"] for part in by_length}) == 3


def test_packed_and_unpacked_give_the_same_numbers(program, params, batches):
  packed, unpacked = (
    evaluate_pretraining(program, params, batches[kind], unigram_token=UNIGRAM)
    for kind in ("packed", "unpacked")
  )
  by_length = [x.pop("mlm_accuracy_by_length") for x in (packed, unpacked)]
  assert packed == pytest.approx(unpacked, rel=1e-5)
  assert by_length[0] == [pytest.approx(part, rel=1e-5) for part in by_length[1]]


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

  def train_step(self, state, batch):
    kind = "packed" if batch["sequence_mask"].shape[1] > 1 else "unpacked"
    self.now += next(self._seconds[kind])
    return {"steps": state["steps"] + 1}, {}


def test_throughput_compares_neighbouring_steps_without_the_first(monkeypatch):
  program = TimedProgram({"packed": [1000, 2, 4, 3, 1], "unpacked": [1, 4, 4, 9, 5]})
  clock = types.SimpleNamespace(perf_counter=lambda: program.now)
  monkeypatch.setattr(throughput, "time", clock)

  def batches(counts, max_sequences):
    for count in counts:
      program.now += 77  # making a batch takes time that is not the step's
      mask = np.zeros((7, max_sequences), bool)
      mask.flat[:count] = True
      yield {"sequence_mask": mask, "sequence_ids": np.zeros((7, max_sequences))}

  found = throughput.packed_against_unpacked(
    program, batches([1, 12, 10, 11, 15], 3), batches([1, 7, 6, 5, 6], 1), rounds=4
  )
  # A packed step has 12 sequences and a median of 2.5 s, an unpacked 6 and 4.5 s. The
  # ratios of their times are 2, 1, 3 and 5.
  assert found == pytest.approx(
    {
      "packed_sequences_per_second": 12 / 2.5,
      "unpacked_sequences_per_second": 6 / 4.5,
      "speedup_measured": 2 * 2.5,
      "speedup_low": 2 * 1.75,
      "speedup_high": 2 * 3.5,
    }
  )
  assert program.states == 1


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
  found = evaluate(
    program,
    params,
    sets,
    unigram_token=0,
    over=over,
  )
  assert over.call_count == 2
  assert (found["sequences"], found["mismatched_sequences"]) == (3, 4)
  for one in sets:
    losses, classes = [], []
    for sequence in (s for pack in one.packs for s in pack):
      batch = packs.lay_out([[sequence]])
      logits = jax.jit(program.apply)(params, batch)["sequence_logits"][0, 0].astype(float)
      label = sequence["sequence_label"]
      losses.append(math.log(sum(math.exp(x) for x in logits)) - logits[label])
      classes.append(int(logits.argmax()))
    assert found[f"{one.prefix}loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found[f"{one.prefix}score"] == np.mean(classes)


BY_LENGTH = [
  {"from": 1, "to": 48, "sequences": 713, "mlm_accuracy": 0.4137},
  {"from": 49, "to": 97, "sequences": 1709, "mlm_accuracy": 0.2639},
]
SUMMARY = {
  "steps": 1409,
  "epochs": 3.7,
  "sequences": 81_239,
  "packs": 40_213,
  "packing_factor": 2.0202,
  "efficiency": 0.9747,
  "packing_depth": 5,
  "padding_tokens": 123_457,
  "unpacked_padding_tokens": 987_654,
  "compilations": 1,
  "parameters": 4_423_681,
  "parameters_digest": "0123abcd" * 8,
  "seconds": 177.0,
  "sequences_per_second": 431.0,
  "real_tokens_per_second": 37_903.0,
  "train_loss": 3.1,
  "train_mlm_accuracy": 0.3719,
  "train_nsp_accuracy": 0.6143,
  "eval_loss": 3.3,
  "eval_mlm_loss": 2.7,
  "eval_mlm_accuracy": 0.3371,
  "eval_nsp_accuracy": 0.5867,
  "unigram_mlm_accuracy": 0.0739,
  "nsp_majority_accuracy": 0.5231,
  "mlm_accuracy_by_length": BY_LENGTH,
  "devices": "1 x cpu",
  "jax": "0.0",
}
MEASURED = {
  "packed_sequences_per_second": 449.0,
  "unpacked_sequences_per_second": 229.0,
  "speedup_measured": 1.93,
  "speedup_low": 1.87,
  "speedup_high": 2.11,
}


def line_of(table, words) -> str:
  (line,) = [line for line in table.splitlines() if line.strip().startswith(words)]
  return line


@pytest.mark.parametrize(
  ("words", "figures"),
  [
    ("packing factor", ["2.02"]),
    ("efficiency", ["97.47"]),
    ("padding avoided", ["87.5", "987,654", "123,457"]),
    ("masked-token accuracy", ["37.2", "33.7", "7.4"]),
    ("next-sentence accuracy", ["61.4", "58.7", "52.3"]),
    ("training speed", ["431", "37,903"]),
    ("1 to 48 tokens", ["41.4", "713"]),
    ("49 to 97 tokens", ["26.4", "1709"]),
    ("packed : unpacked", ["449", "229", "1.93", "1.87", "2.11"]),
  ],
)
def test_the_summary_shows_its_figures_in_order_each_beside_its_name(words, figures):
  line = line_of(report.summary_table(SUMMARY | MEASURED), words)
  places = [line.find(figure) for figure in figures]
  assert min(places) >= 0, line
  assert places == sorted(places)


def test_the_summary_counts_sequences_and_packs_and_leaves_out_what_was_not_measured():
  table = report.summary_table(SUMMARY)
  assert "81,239" in table
  assert "40,213" in table
  assert "packed : unpacked" not in table


def test_the_table_of_an_evaluation_shows_its_figures():
  result = {
    "step": 1409,
    "sequences": 2422,
    "loss": 3.3171,
    "mlm_loss": 2.71,
    "nsp_loss": 0.61,
    "mlm_accuracy": 0.3371,
    "nsp_accuracy": 0.5867,
    "unigram_mlm_accuracy": 0.0739,
    "nsp_majority_accuracy": 0.5231,
    "mlm_accuracy_by_length": BY_LENGTH,
  }
  table = report.evaluation_table(result)
  for figure in ("1409", "2,422", "3.317", "33.71", "7.39", "58.67", "52.31", "41.4"):
    assert figure in table, figure
  assert table.index("33.71") < table.index("7.39")
  assert table.index("58.67") < table.index("52.31")


def picture(path) -> np.ndarray:
  """uint8[height, width, 3]."""
  assert path.read_bytes().startswith(b"\x89PNG\r\n")
  pixels = np.rint(image.imread(path)[..., :3] * 255).astype(np.uint8)
  height, width, _ = pixels.shape
  assert 600 <= width <= 3000
  assert 250 <= height <= 2000
  return pixels


def share_of(pixels, colour) -> float:
  distance = np.abs(pixels - 255.0 * np.array(colour[:3])).max(-1)
  return float((distance < 4).mean())


@pytest.mark.parametrize("padding", [3, 9])
def test_the_picture_of_packs_has_as_much_padding_as_the_packs(tmp_path, padding):
  """The first 10 - `padding` of 10 columns are two sequences."""
  segment_ids = np.zeros((7, 30), np.int32)
  segment_ids[:, : 3 * (10 - padding)] = 1
  segment_ids[:, : 3 * (10 - padding) // 3] = 2
  path = tmp_path / "plots" / "packing.png"  # a folder that is not there yet
  lengths = np.array([3, 5, 5, 30])
  plots.plot_packing(path, lengths, segment_ids, efficiency=1 - padding / 10)
  pixels = picture(path)
  one, two = (share_of(pixels, c) for c in colormaps["viridis"]([0.15, 0.9]))
  assert 0.005 < two < one
  assert share_of(pixels, (0.88, 0.88, 0.88)) / (one + two) == pytest.approx(
    padding / (10 - padding), rel=0.2
  )
  assert [p.name for p in path.parent.iterdir()] == ["packing.png"]


def test_the_names_of_many_sequences_do_not_leave_the_picture(tmp_path):
  segment_ids = np.tile(np.arange(1, 24, dtype=np.int32), (3, 1))
  path = tmp_path / "packing.png"
  plots.plot_packing(path, np.ones(69, int), segment_ids, efficiency=1.0)
  assert (picture(path)[-60:, :5] == 255).all()


def test_scores_below_0_are_drawn(tmp_path):
  held_out = [{"step": t, "loss": 2.0, "score": -0.5 + t / 100} for t in (5, 11, 17)]
  plots.plot_learning_curve(tmp_path / "a.png", held_out, held_out, metric="score")
  right = picture(tmp_path / "a.png")[:, -700:]
  assert share_of(right, (1.0, 127 / 255, 14 / 255)) > 1e-3


def test_the_learning_curve_is_drawn_and_differs_with_the_lines(tmp_path):
  def draw(name, slope):
    train = [
      {"step": t, "loss": 5 - slope * t, "mlm_accuracy": slope * t / 10} for t in range(9)
    ]
    held_out = [line | {"unigram_mlm_accuracy": 0.07} for line in train[::4]]
    plots.plot_learning_curve(tmp_path / name, train, held_out)
    return picture(tmp_path / name)

  first, again, other = draw("a.png", 0.3), draw("b.png", 0.3), draw("c.png", 0.1)
  for pixels in (first, other):
    assert np.unique(pixels.reshape(-1, 3), axis=0).shape[0] > 20
    assert 0.5 < share_of(pixels, (1, 1, 1)) < 0.99
    assert share_of(pixels, (1.0, 127 / 255, 14 / 255)) > 1e-3  # the held-out line
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


def test_a_causal_model_is_judged_by_its_tokens():
  """Against a loop over tokens; every third is no target."""
  config = packs.small_gpt2(num_layers=1)
  program = TrainingProgram(config, lamb(0.01), mesh=make_mesh(1), seed=0, head="causal")
  params = packs.random_params(config, head="causal")[1]
  batches = [
    packs.lay_out(packs.random_sequences(part, seed)) for seed, part in enumerate(PACKS)
  ]
  costs, hits = [], []
  for batch in batches:
    batch["loss_mask"] = np.arange(batch["segment_ids"].size) % 3 != 1
    batch["loss_mask"] = batch["loss_mask"].reshape(batch["segment_ids"].shape)
    logits = np.asarray(program.apply(params, batch)["causal_logits"], np.float64)
    ids = batch["segment_ids"]
    for row, i in np.argwhere(ids[:, 1:] > 0):
      if ids[row, i] == ids[row, i + 1] and batch["loss_mask"][row, i + 1]:
        scores, label = logits[row, i], batch["input_ids"][row, i + 1]
        costs.append(np.log(np.exp(scores).sum()) - scores[label])
        hits.append(scores.argmax() == label)
  found = evaluate_causal(program, params, batches)
  assert found["tokens"] == len(costs) > 40
  assert found["sequences"] == sum(int(b["sequence_mask"].sum()) for b in batches)
  assert found["loss"] == found["causal_loss"] == pytest.approx(np.mean(costs), rel=1e-5)
  assert found["causal_accuracy"] == pytest.approx(np.mean(hits))
  assert found["perplexity"] == pytest.approx(np.exp(np.mean(costs)), rel=1e-4)
  held_out = types.SimpleNamespace(batches=lambda: batches, score=None, prefix="")
  assert evaluate(program, params, [held_out], unigram_token=0) == found
