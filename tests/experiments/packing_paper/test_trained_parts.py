"""Parts that train, on made-up results; and how they share their runs."""

import numpy as np
import pytest

from experiments.packing_paper import figures_3_4_other_text as other_text
from experiments.packing_paper import figures_18_19_two_phases as two_phases
from experiments.packing_paper import section_c_other_ways as other_ways
from experiments.packing_paper import section_i_next_sentence as next_sentence
from experiments.packing_paper.curves.arms import make_study
from experiments.packing_paper.figures_18_19_two_phases import Phase
from lab.exhibits import Part
from lab.studies.study import Study
from packing import InputError
from pipeline.tokenizer import SPECIAL_TOKENS
from tests.experiments import made_up

SEEDS = 3
# How far the held-out loss of each arm lies above that of `packed`.
ABOVE = {
  "packed": 0.0,
  "same_time": 0.05,
  "no_mask": 0.4,
  "phase_1": 0.3,
  "phase_1_unpacked": 0.3005,
  "phase_2": 0.1,
  "phase_2_unpacked": 0.1005,
  "phase_2_no_mask": 0.3,
}


def made_up_run(arm, seed):
  row_length = 192 - 128 * ("1" in arm)
  return made_up.run(
    seed,
    np.random.default_rng((seed, len(arm))),
    above=ABOVE[arm],
    run={"config": {"data": {"max_sequence_length": row_length}}},
  )


@pytest.fixture(scope="module")
def found():
  return {arm: [made_up_run(arm, seed) for seed in range(SEEDS)] for arm in ABOVE}


def test_two_phases_against_one(found, tmp_path):
  rates = {64: 500.0, 192: 250.0}
  exhibit = two_phases.outlook(Part(tmp_path, "command"), found, rates)
  assert [x.outcome for x in exhibit.statements] == ["holds"] * 4
  assert "take 1.50 times as long" in exhibit.finding  # 50,000 at 500 and at 250
  assert (tmp_path / "two_phases.png").stat().st_size


@pytest.mark.parametrize("number", [1, 2])
def test_a_phase_packed_and_unpacked(found, tmp_path, number):
  exhibit = two_phases.phase(Part(tmp_path, "command"), number, found)
  assert exhibit.name == f"Figure {17 + number}"
  assert f"rows of {(64, 192)[number - 1]} tokens" in exhibit.finding
  assert exhibit.statements[0].outcome == "holds"
  assert "after 33,500 sequences." in exhibit.text  # of 50,000
  short = {
    arm: [run | {"evaluations": run["evaluations"][-1:]} for run in runs[:1]]
    for arm, runs in found.items()
  }
  exhibit = two_phases.phase(Part(tmp_path, "command"), number, short)
  assert exhibit.statements[0].outcome == "no power"


def test_arms_of_both_phases():
  phases = {x: Phase(10 * x, {"data.max_sequence_length": x}) for x in (192, 64)}
  made = two_phases.make_arms(phases, {192: 16, 64: 32})
  arms = {arm.name: arm for arm in made}
  assert {arm.starts_from for arm in arms.values()} == {"", "phase_1", "phase_1_unpacked"}
  for name, arm in arms.items():
    row_length = 64 if "1" in name else 192
    assert arm.fields["data.max_sequence_length"] == row_length
    assert arm.fields["train.duration"] == f"{10 * row_length} sequences"
    assert arm.fields["train.batch_size"] == {64: 32, 192: 16}[row_length]
    assert ("model.attention_mask" in arm.fields) == ("no_mask" in name)
    assert arm.batches == ("constant" if "unpacked" in name else "packed")
    assert bool(arm.starts_from) == ("2" in name)
    assert arm.keep or not any(x.starts_from == name for x in arms.values())
  assert arms["phase_2_no_mask"].starts_from == "phase_1"


@pytest.mark.parametrize("quick", [False, True])
def test_quick_runs_have_data_of_their_own(tmp_path, monkeypatch, quick):
  for module in (next_sentence, two_phases):
    monkeypatch.setattr(module, "mean_length", lambda *_: 90.0)
  pairs = make_study(Part(tmp_path / "part", "command", quick=quick, seeds=1), ["packed"])
  ((_, run),) = pairs.runs
  data = run.settings.data.directory
  assert data == ("data/quick" if quick else "data/quickstart")
  of_short_rows = two_phases.make_phases(run.settings, 1, 64, 192)[64].fields
  of_sentences = next_sentence.make_arms(pairs)[1].fields
  assert of_short_rows["data.vocab_file"] == f"{data}/vocab.txt"
  directories = {x["data.directory"] for x in (of_short_rows, of_sentences)}
  assert directories == {f"{data}-64", f"{data}-sentences"}
  assert pairs.folder == tmp_path / "learning_curves"


@pytest.mark.parametrize("apart", [0.0, 0.2])
def test_other_ways_are_told_apart_if_they_differ(tmp_path, apart):
  above = dict.fromkeys(["packed", "constant", "doc_sentences"], 0.0) | {"no_mask": 0.4}
  above |= dict.fromkeys(["sorted", "token_type", "full_sentences"], apart)
  results = {}
  for name in above:
    rng = np.random.default_rng(len(name))
    results[name] = [made_up.run(n, rng, above=above[name]) for n in range(SEEDS)]
  part = Part(tmp_path, "command")
  outcomes = [
    [x.outcome for x in make(part, results).statements]
    for make in (other_ways.sorted_batches, other_ways.sentences, other_ways.apart)
  ]
  tells = "holds" if apart else "equivalent"
  assert [found[-1] for found in outcomes] == [tells] * 3
  assert outcomes[2][0] == ("fails" if apart else "holds")
  assert {path.name for path in tmp_path.iterdir()} == {
    *("sorted.png", "full_sentences.png", "token_type.png")
  }


def test_arms_of_other_ways_have_as_many_real_tokens(tmp_path, monkeypatch):
  monkeypatch.setattr(
    other_ways.arms,
    "mean_length",
    lambda _, fields: 180.0 if fields.get("data.cross_documents") else 60.0,
  )
  pairs = make_study(Part(tmp_path / "part", "command", seeds=1), ["packed", "no_mask"])
  config = pairs.runs[0][1].settings
  made = {arm.name: arm for arm in other_ways.make_arms(pairs)}
  assert made["sorted"].fields == made["constant"].fields
  doc, full = made["doc_sentences"].fields, made["full_sentences"].fields
  assert doc["train.batch_size"] == config.train.batch_size
  assert full["train.batch_size"] == round(config.train.batch_size / 3)
  assert doc["data.vocab_file"] == full["data.vocab_file"]
  assert doc["data.directory"] != full["data.directory"]


def test_the_arms_of_section_i_have_as_many_real_tokens(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  vocabulary = tmp_path / "data" / "quickstart" / "vocab.txt"
  vocabulary.parent.mkdir(parents=True)
  vocabulary.write_text("\n".join(SPECIAL_TOKENS))
  tokens = {True: 30.0, False: 90.0}  # of a sequence: of sentences, and of pairs
  monkeypatch.setattr(
    next_sentence, "mean_length", lambda _, fields: tokens["data.task" in fields]
  )
  pairs = make_study(Part(tmp_path / "part", "command", seeds=1), ["packed"])
  ((_, of_pairs),) = pairs.runs
  made = Study(tmp_path, next_sentence.make_arms(pairs), pairs.overrides, seeds=1).runs
  configs = {arm.name: run.settings for arm, run in made}
  assert list(configs) == list(next_sentence.NAMES)[1:]
  batch, steps = of_pairs.settings.train.batch_size, of_pairs.settings.train.steps
  for name in ("sentences", "greedy"):
    train = configs[name].train
    assert train.batch_size * tokens[True] == batch * tokens[False]
    assert train.duration == f"{steps * train.batch_size} sequences"
  assert configs["no_next_sentence"].train.batch_size == batch
  assert not any(run.given["model.next_sentence"] for run in configs.values())
  assert configs["greedy"].model.config.attention_mask == "none"


def test_other_text_that_is_missing(tmp_path):
  with pytest.raises(InputError, match=r"nowhere has no wikitext-2/"):
    other_text.exhibits(Part(tmp_path, "command", data="nowhere"))
