"""Load balance where attention skips: the ways to deal and the documents."""

import gzip
import json

import numpy as np
import pytest

import packing
from experiments.load_balance import skipping
from experiments.load_balance.skipping import WAYS, Case, simulate
from pipeline.tokenizer import SPECIAL_TOKENS

CASE = Case("wikipedia_2048", 2048)
VOCABULARY = "\n".join((*SPECIAL_TOKENS, "word"))


@pytest.fixture(scope="module")
def plan():
  histogram = packing.load_histogram("wikipedia_2048")
  return packing.pack(histogram, algorithm="lpfhp", max_sequences_per_pack="auto")


@pytest.fixture(scope="module")
def rows(plan):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(skipping, "PACKS", 2**13)
    patch.setattr(skipping, "LEAST_PACKS", 2**13)
    return {(r["model"], r["way"]): r for r in simulate(CASE, plan, 64)}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_deals_each_pack_once(way):
  costs = np.random.default_rng(0).permutation(3 * 8 * 4) + 1
  steps = WAYS[way](costs, devices=8, rows=4, rng=np.random.default_rng(1))
  assert steps.shape == (3, 32)
  np.testing.assert_array_equal(np.sort(steps.ravel()), np.sort(costs))


def test_the_snake_goes_forth_and_back():
  steps = skipping.snake(np.arange(8), devices=2, rows=4, rng=np.random.default_rng(0))
  assert steps.tolist() == [[7, 4, 3, 0, 6, 5, 2, 1]]


def test_devices_of_balanced_steps_do_not_wait(rows):
  waits = {way: rows["BERT-base", way]["waiting"] for way in WAYS}
  assert waits["balance=devices"] < 0.002
  assert waits["dealt"] <= waits["Megatron's snake"] < waits["random packs"]
  gains = {way: rows["BERT-base", way]["gain"] for way in WAYS}
  assert 1 < gains["random packs"] < gains["Megatron's snake"] < gains["balance=devices"]


def test_a_step_takes_as_long_as_its_slowest_device():
  squares = np.array([[7, 0, 2, 3], [1, 5, 4, 4]])
  assert skipping._slowest(squares, 2).tolist() == [7, 8]


def test_the_gain_of_one_device_is_right_to_a_thousandth(plan, monkeypatch):
  monkeypatch.setattr(skipping, "WAYS", {"random packs": skipping.at_random})
  cost = skipping.MODELS["BERT-base"]
  costs = cost.of_squares(plan.squares, row_length=2048)
  whole = cost.of_squares(2048**2, row_length=2048)
  exact = whole / np.average(costs, weights=plan.repeat_counts)
  assert simulate(CASE, plan, 1)[0]["gain"] == pytest.approx(exact, rel=1e-3)


def test_only_waiting_tells_the_gains_of_the_same_packs_apart(rows):
  for model in skipping.MODELS:
    here = [row for (name, _), row in rows.items() if name == model]
    without_waiting = [row["gain"] / (1 - row["waiting"]) for row in here]
    assert without_waiting == pytest.approx([without_waiting[0]] * len(WAYS), rel=2e-3)


def test_more_attention_in_a_layer_means_more_waiting(rows):
  for way in ("random packs", "Megatron's snake"):
    assert rows["ModernBERT-base", way]["waiting"] > rows["BERT-base", way]["waiting"]


def test_documents_are_counted_and_long_ones_are_cut(tmp_path):
  (tmp_path / "text").mkdir()
  (tmp_path / "bert-base-uncased-vocab.txt").write_text(VOCABULARY)
  articles = ["word " * 20_000, "word word\nword"]
  with gzip.open(tmp_path / "text" / "a.txt.gz", "wt") as file:
    file.write("\n\n".join(articles))
  histogram = skipping.documents(str(tmp_path), tmp_path)
  lengths = (np.flatnonzero(histogram.counts) + 1).tolist()
  assert lengths == [5, 20_000 - 2 * 8190 + 2, 8192]
  assert histogram.counts[[4, 3621, 8191]].tolist() == [1, 1, 2]
  with pytest.raises(packing.InputError, match="has no bert-base"):
    skipping.documents(str(tmp_path / "text"), tmp_path / "text")


def test_documents_of_another_folder_are_counted_anew(tmp_path):
  for name, text in (("a", "word"), ("b", "word word word")):
    data = tmp_path / name
    (data / "text").mkdir(parents=True)
    (data / "text" / "a.txt").write_text(text)
    (data / "bert-base-uncased-vocab.txt").write_text(VOCABULARY)
    histogram = skipping.documents(str(data), tmp_path)
    assert np.flatnonzero(histogram.counts).tolist() == [len(text.split()) + 1]


@pytest.mark.slow
def test_the_whole_study_runs_and_keeps_its_plans(tmp_path, capsys, monkeypatch):
  cases = Case("glue_cola_128", 128), Case("wikipedia_512", 512)
  for name, value in (
    ("CASES", cases),
    ("DEVICES", (1, 16, 64)),
    ("PACKS", 2**14),
    ("LEAST_PACKS", 2**14),
  ):
    monkeypatch.setattr(skipping, name, value)
  workdir = tmp_path / "study"
  assert skipping.main(["--workdir", str(workdir)]) == 0
  printed = capsys.readouterr().out
  assert printed.strip() == (workdir / "skipping.md").read_text().strip()
  tables = json.loads((workdir / "skipping.json").read_text())["tables"]
  assert list(tables) == list(skipping.MODELS)
  for rows in tables.values():
    ways = [(case.histogram, way) for case in cases for way in skipping.WAYS]
    assert [(row["lengths"], row["method"]) for row in rows] == ways
  plans = workdir.parent / "plans"
  made = {path: path.stat().st_mtime_ns for path in plans.iterdir()}
  assert skipping.main(["--workdir", str(workdir)]) == 0
  assert {path: path.stat().st_mtime_ns for path in plans.iterdir()} == made
