"""The study of contamination, on made-up runs whose truth is known."""

import csv
import functools
import hashlib
import itertools
import pathlib

import numpy as np
import pytest
import scipy.stats

from experiments.contamination import __main__ as contamination
from experiments.finetuning import pretrained, real_tasks
from experiments.finetuning.real_tasks import Files
from lab.exhibits import Part
from lab.studies.streams import CUT
from lab.studies.study import Study
from packing import InputError
from packing.files import write_json
from tests.experiments import encoders, made_up

SEEDS = 3
# How far the held-out loss of each arm lies above the first; and its scores, in points.
ABOVE = {"isolated": 0.0, "one_a_row": 0.0, "pieces": 0.002, "concatenated": 0.1}
SCORES = {"isolated": 70.0, "one_a_row": 70.1, "pieces": 69.0, "concatenated": 60.0}


def made_up_run(arm, seed):
  rng = np.random.default_rng((seed, len(arm)))
  return made_up.run(seed, rng, above=ABOVE[arm])


def test_losses_tell_packing_from_contamination(tmp_path):
  results = {arm: [made_up_run(arm, seed) for seed in range(SEEDS)] for arm in ABOVE}
  exhibit = contamination.losses(Part(tmp_path, "command"), results)
  assert [x.outcome for x in exhibit.statements] == ["holds"] * 4
  assert "+0.10" in exhibit.finding
  assert "| 1 to 64 |" in exhibit.text
  assert (tmp_path / "losses.png").stat().st_size
  # Nothing was learned that contamination could spoil: the test sees no difference.
  same = {arm: results["isolated"] for arm in ABOVE}
  exhibit = contamination.losses(Part(tmp_path, "command"), same)
  outcomes = [x.outcome for x in exhibit.statements]
  assert outcomes == ["no power", "no power", "equivalent", "equivalent"]


def test_scores_and_embeddings_are_compared(tmp_path):
  def scores(seed):
    rng = np.random.default_rng(seed)
    return {arm: (x + 0.1 * rng.standard_normal(3)).tolist() for arm, x in SCORES.items()}

  tasks = {"cola": scores(1), "rte": scores(2)}
  exhibit = contamination.downstream(Part(tmp_path, "command"), tasks, scores(3))
  assert len(exhibit.statements) == 8  # twice: two tasks, their mean, embeddings
  assert {x.outcome for x in exhibit.statements} == {"holds"}
  row = next(x for x in exhibit.text.splitlines() if x.startswith("| mean of these"))
  means = [float(cell.split(" ± ")[0]) for cell in row.split("|")[2:-1]]
  assert means == pytest.approx(list(SCORES.values()), abs=0.2)


def write_text(data: pathlib.Path):
  (data / "text").mkdir()
  (data / "text" / "a.txt").write_text("Title\n" + "A long paragraph. " * 9 + "\n\n")


def test_arms_differ_only_in_how_rows_are_made(tmp_path, monkeypatch):
  write_text(tmp_path)
  study = contamination.make_study(
    Part(tmp_path / "part", "command", data=str(tmp_path), seeds=2)
  )
  assert [arm.batches for arm in study.arms] == ["packed", "unpacked", *CUT[::-1]]
  given = {str(run.settings.given) for _, run in study.runs}
  assert len(given) == 2  # one a seed
  config = study.runs[0][1].settings
  assert config.data.task == "documents"
  assert config.data.documents == "line"
  with pytest.raises(InputError, match="--data is not given; expected a folder"):
    contamination.exhibits(Part(tmp_path, "command"))


def test_the_report_needs_finished_runs_and_no_weights(tmp_path, monkeypatch):
  write_text(tmp_path)
  part = Part(tmp_path, "command", quick=True, seeds=SEEDS, data=str(tmp_path))
  dev = tmp_path / "dev.tsv"
  dev.write_text("pairs")
  files = Files("train.tsv", str(dev))
  calls = []

  def run(study, kept=()):
    assert not kept  # no weights are trained again
    calls.append(study)
    data = pathlib.Path(study.runs[0][1].settings.data.directory)
    data.mkdir(exist_ok=True)
    (data / "tokenizer.json").write_text("{}")
    if len(calls) == 1:  # weights that are missing are trained by the second call
      return {}
    return {arm: [made_up_run(arm, seed) for seed in range(SEEDS)] for arm in ABOVE}

  monkeypatch.setattr(Study, "run", run)
  monkeypatch.setattr(real_tasks, "glue", lambda *_, **__: {"stsb": files})
  monkeypatch.setattr(pretrained, "to_start_from", lambda runs: set())
  monkeypatch.setattr(pretrained, "run_all", lambda studies, number: None)
  score = {"summary": {"eval_score": 0.5}}
  results = {arm: [score] * SEEDS for arm in ABOVE}
  monkeypatch.setattr(Study, "results", lambda study: results)
  (tmp_path / "ranks").mkdir()
  of_pairs = hashlib.sha256(b"pairs").hexdigest()[:8]
  for arm, seed in itertools.product(ABOVE, range(1, SEEDS + 1)):
    write_json(tmp_path / "ranks" / f"{arm},seed={seed}--{of_pairs}.json", 50.0)
  losses, fine_tuning = contamination.exhibits(part)
  assert len(losses.statements) == 4
  assert "| stsb | 50.0 ± 0.0 | 50.0 ± 0.0 |" in fine_tuning.text
  dev.write_text("other pairs")
  calls.clear()
  with pytest.raises(AssertionError, match="seed=1"):  # their ranks need the weights
    contamination.exhibits(part)


@pytest.mark.extra
def test_embeddings_are_ranked_as_by_transformers(tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  words = ["red", "green", "blue", "cat", "dog", "bird"]
  tokens = encoders.write(tmp_path / "model", words, max_position_embeddings=31)
  rng = np.random.default_rng(0)
  pairs = [
    [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(2)] for _ in range(41)
  ]
  labels = rng.uniform(0, 5, len(pairs))
  path = tmp_path / "dev.tsv"
  with path.open("w", newline="") as file:
    rows = csv.writer(file, delimiter="\t")
    rows.writerow(["sentence1", "sentence2", "score"])
    rows.writerows([*pair, label] for pair, label in zip(pairs, labels, strict=True))
  found = contamination.rank_correlation(
    tmp_path / "model", Files("", str(path), columns="label=score", longest=16)
  )
  model = transformers.AutoModel.from_pretrained(tmp_path / "model")

  @functools.cache
  def vector(text):
    ids = [tokens.index(x) for x in ("[CLS]", *text.split(), "[SEP]")]
    with torch.no_grad():
      hidden = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
    return (hidden / hidden.norm()).numpy()

  cosines = [vector(a) @ vector(b) for a, b in pairs]
  expected = 100 * scipy.stats.spearmanr(cosines, labels).statistic
  assert found == pytest.approx(expected, abs=1e-3)
