"""The atom-size study: what its runs share, what it makes of them, how it goes on."""

import collections
import itertools
import json
import shutil

import hypothesis
import numpy as np
import pytest

from experiments.atom_size import __main__ as atom_size
from experiments.atom_size import exhibits as atom_exhibits
from experiments.atom_size import perplexities
from experiments.atom_size import runs as atom_runs
from experiments.atom_size.exhibits import ATOMS, CONCAT, PACKED, PADDING_ALL
from experiments.atom_size.runs import Arm
from experiments.lab import part as parts
from packing import InputError
from pipeline.batches import atoms
from pipeline.sources import stdlib
from tests.pipeline.batches.test_atoms import SIZES, corpora
from training.command import Stopped
from training.record.compilations import CompilationCounter
from training.record.parameters import parameters_digest

STEPS = 1200  # of a made-up run of concat
WORSE = {0.25: 0.5, 0.5: 0.2, 1.0: 0.0, 2.0: 0.05, 4.0: 0.1}  # nats, by the atom
OF_LAYOUT = {"concat": 0.3, "padding": 0.1, "packed": 0.0}  # nats above packed


def test_steps_of_the_papers_concat_epochs():
  """Table 3: two epochs; 1.81 M rows of text, of which 55.62 % were left out (A.1)."""
  lengths = np.full(803_000, 142)
  lengths[: 114_400_095 - lengths.sum()] += 1  # tokens an epoch (A.5)
  for row_length, batch_size, steps in (
    (32, 256, 28_120),
    (64, 256, 14_058),
    (128, 128, 14_056),
  ):
    rows = atom_exhibits.predicted_rows(
      lengths, layout="concat", atom_size=row_length, row_length=row_length
    )
    assert 2 * rows / batch_size == pytest.approx(steps, rel=1e-3)


@pytest.mark.parametrize("layout", atoms.LAYOUTS)
@pytest.mark.parametrize(("size", "row_length"), SIZES)
@hypothesis.given(documents=corpora())
@hypothesis.settings(max_examples=25, deadline=None)
def test_predicted_rows_are_those_of_the_loader(layout, size, row_length, documents):
  lengths = np.array([len(document) for document in documents])
  sizes = {"layout": layout, "atom_size": size, "row_length": row_length}
  predicted = atom_exhibits.predicted_rows(lengths, **sizes)
  assert predicted == atoms.cut(lengths, **sizes).num_rows


class TestStages:
  def test_rows_of_64_come_first_with_all_seeds(self):
    planned = list(atom_size.stages(quick=False))
    of_full = [number for number, run in enumerate(planned) if run[0] == 64]
    assert of_full == [*range(len(of_full))]
    arms = collections.Counter(arm for length, arm, _ in planned if length == 64)
    assert set(arms.values()) == {atom_size.SEEDS}
    assert {(arm.layout, arm.atom) for arm in arms} == {
      ("packed", 1.0),
      *((layout, atom) for layout in ("concat", "padding") for atom in ATOMS),
    }

  def test_every_run_is_planned_once(self):
    planned = list(atom_size.stages(quick=False))
    assert len(set(planned)) == len(planned)
    lengths = {(length, arm) for length, arm, _ in planned}
    assert {(length, PACKED) for length in (32, 64, 128, 256, 512)} <= lengths
    assert {(length, PADDING_ALL) for length in (32, 64, 128, 256, 512)} <= lengths

  def test_atoms_of_half_a_row_to_two_come_before_the_rest(self):
    planned = [(n, arm.atom) for n, arm, _ in atom_size.stages(quick=False) if n == 128]
    near, far = ([i for i, x in enumerate(planned) if x[1] in y] for y in ((0.5, 2), (4,)))
    assert min(near) < min(far)
    assert {atom for _, atom in planned} == set(ATOMS)


ONES = np.ones(1200)


def test_a_segment_without_a_step_is_refused():
  with pytest.raises(ValueError, match=r"99\.0 steps an epoch"):
    perplexities.last_epoch(ONES[:99], ONES[:99], steps_per_epoch=99, epochs=1)


def test_epochs_need_no_whole_number_of_steps():
  steps = round(3 * 333.3)
  nats = np.log(np.arange(1, steps + 1))
  found = perplexities.last_epoch(nats, ONES[:steps], steps_per_epoch=333.3, epochs=3)
  assert found.size == perplexities.SEGMENTS
  assert (np.diff(found) > 0).all()
  assert found[0] == pytest.approx(668.5, abs=2)


def test_tokens_weigh_the_same_and_not_steps():
  nats, targets = np.tile([2.0, 5.0], 100), np.tile([3, 1], 100)
  found = perplexities.last_epoch(nats, targets, steps_per_epoch=200, epochs=1)
  np.testing.assert_allclose(found, np.exp((3 * 2.0 + 5.0) / 4))


def made_up(arm, seed):
  """A run that ends where its layout and its atom say, in fewer steps where it packs."""
  rng = np.random.default_rng((seed, len(arm.name)))
  steps = STEPS + 300 * (arm.layout == "padding")
  above = OF_LAYOUT[arm.layout] + WORSE[arm.atom] - 0.3 * arm.loss_on_padding
  places = np.arange(1, steps + 1) / steps
  nats = 4.0 + above + 2.0 * np.exp(-4 * places) + 0.003 * rng.standard_normal(steps)
  held_out = 4.5 + above + 0.002 * rng.standard_normal()
  return {
    "rows": steps / 3,
    "steps_per_epoch": steps / 3,
    "nats": nats.tolist(),
    "targets": [500] * steps,
    "evaluations": [
      {
        "step": round(steps * n / 9),
        "perplexity": float(np.exp(held_out + 2.0 * np.exp(-4 * n / 9))),
      }
      for n in range(1, 10)
    ],
    "held_out": {"perplexity": float(np.exp(held_out)), "tokens": 1000},
  }


@pytest.fixture(scope="module")
def found():
  arms = [Arm(layout, atom) for layout in ("concat", "padding") for atom in ATOMS]
  return {
    arm: {seed: made_up(arm, seed) for seed in (1, 2, 3)}
    for arm in (*arms, PADDING_ALL, PACKED)
  }


LENGTHS = np.full(100, 500)  # of documents, in tokens
STUDY = atom_exhibits.Study("the command", "The recipe.", quick=False)
SECONDS = {arm.name: [0.04, 0.05, 0.06] for arm in atom_exhibits.NAMES}


class TestExhibits:
  @pytest.mark.parametrize("layout", ["concat", "padding"])
  def test_atoms_of_a_row_are_found_to_be_best(self, found, tmp_path, layout):
    exhibit = atom_exhibits.atom_sizes(layout, 64, found, LENGTHS, tmp_path, study=STUDY)
    outcomes = [x.outcome for x in exhibit.statements]
    assert outcomes == ["holds"] * {"concat": 4, "padding": 5}[layout]
    assert "atoms of 1 S have the lowest perplexity over" in exhibit.finding
    assert (tmp_path / exhibit.pictures[0]).read_bytes().startswith(b"\x89PNG")
    assert {"concat": "118.08", "padding": "102.82"}[layout] in exhibit.text
    assert exhibit.text.endswith(atom_exhibits.ELSEWHERE)

  def test_it_fails_where_another_atom_is_better(self, found, tmp_path):
    swapped = found | {CONCAT: found[Arm("concat", 2.0)], Arm("concat", 2.0): found[CONCAT]}
    exhibit = atom_exhibits.atom_sizes(
      "concat", 64, swapped, LENGTHS, tmp_path, study=STUDY
    )
    assert [x.outcome for x in exhibit.statements] == ["fails"] * 4
    assert "atoms of 2 S have the lowest" in exhibit.finding
    # The least favourable of those that fail is told.
    assert all("of 'atoms of 2 S': difference -" in x.evidence for x in exhibit.statements)

  def test_ends_at_cuts_can_be_left_out(self, found, tmp_path):
    run = found[Arm("padding")][1] | {"nats": [2.0] * (STEPS + 300)}
    assert STUDY.mean_nats(run) == pytest.approx(2)
    assert STUDY.mean_nats(run, free=50_000) == pytest.approx(2 * 250 / 200)
    # Text costs 5 % more with atoms of half a row, whose many ends hide it.
    lengths = np.full(1000, 500)
    share = atom_exhibits.ends_at_cuts(lengths, Arm("padding", 0.5), 64) / 250_000
    assert share == pytest.approx(16 * 1000 / 250_000)
    runs = {
      seed: run | {"nats": [1.05 * (1 - share) * x for x in run["nats"]]}
      for seed, run in found[Arm("padding")].items()
    }
    given = {Arm("padding"): found[Arm("padding")], Arm("padding", 0.5): runs}
    exhibit = atom_exhibits.atom_sizes("padding", 64, given, lengths, tmp_path, study=STUDY)
    _, as_counted, if_free, *_ = exhibit.statements
    assert as_counted.outcome == "fails"
    assert "even if ends at cuts cost nothing" in if_free.claim
    assert if_free.outcome == "holds"

  def test_one_seed_has_no_power(self, found, tmp_path):
    one = {arm: {1: runs[1]} for arm, runs in found.items()}
    exhibit = atom_exhibits.atom_sizes("concat", 32, one, LENGTHS, tmp_path, study=STUDY)
    assert {x.outcome for x in exhibit.statements} == {"no power"}

  def test_ranks_are_among_the_atoms_of_the_paper(self, found, tmp_path):
    exhibit = atom_exhibits.atom_sizes("concat", 128, found, LENGTHS, tmp_path, study=STUDY)
    _, _, *table = exhibit.text.partition("\n\n")[0].splitlines()
    rows = [line.split(" | ") for line in table]
    assert [row[4:6] for row in rows] == [
      ["4.00", "4"],
      ["3.00", ""],
      ["1.00", "1"],
      ["2.00", ""],
      ["", ""],  # the paper has no atoms of 4 rows of 128
    ]

  def test_ranks_among_fewer_atoms_are_not_beside_those_of_the_paper(self, found, tmp_path):
    fewer = {arm: runs for arm, runs in found.items() if arm.atom != 0.25}
    text = atom_exhibits.atom_sizes(
      "concat", 64, fewer, LENGTHS, tmp_path, study=STUDY
    ).text
    assert "| 1.00 |  |" in text
    assert "| 1.05 |" not in text

  def test_only_seeds_that_all_arms_have_are_compared(self, found, tmp_path):
    fewer = found | {PACKED: {2: found[PACKED][2], 3: found[PACKED][3]}}
    exhibit = atom_exhibits.packed(64, fewer, SECONDS, tmp_path, study=STUDY)
    assert "Seeds: 2." in exhibit.text

  def test_padding_against_concat(self, found, tmp_path):
    exhibit = atom_exhibits.concat_and_padding({64: found}, tmp_path, study=STUDY)
    # The last is that at equal steps padding is worse; made up, it is better there too.
    assert [x.outcome for x in exhibit.statements] == [*["holds"] * 5, "fails"]
    assert "1.25 (rows of 64)" in exhibit.finding
    assert "| 64 | concat | 400.0 | 7,029 |" in exhibit.text

  def test_where_packing_stands(self, found, tmp_path):
    exhibit = atom_exhibits.packed(64, found, SECONDS, tmp_path, study=STUDY)
    assert [x.outcome for x in exhibit.statements] == ["holds"] * 6
    swapped = found | {PACKED: found[CONCAT], CONCAT: found[PACKED]}
    exhibit = atom_exhibits.packed(64, swapped, SECONDS, tmp_path, study=STUDY)
    assert [x.outcome for x in exhibit.statements[:3]] == ["fails"] * 3

  def test_a_slower_step_tells_at_equal_time_alone(self, found, tmp_path):
    slow = SECONDS | {PACKED.name: [0.5]}  # ten times that of the others
    exhibit = atom_exhibits.packed(64, found, slow, tmp_path, study=STUDY)
    outcomes = {x.claim.partition(": at ")[2]: x.outcome for x in exhibit.statements}
    against = "packed has a lower held-out perplexity than concat"
    assert outcomes[f"equal steps {against}"] == "holds"
    assert outcomes[f"equal time {against}"] == "fails"

  def test_equal_steps_are_read_where_the_shorter_run_ends(self):
    short, long = (
      {"evaluations": [{"step": n, "perplexity": np.exp(1 / np.log(n))} for n in steps]}
      for steps in ((10, 100), (10, 1000))
    )
    ((ours, theirs),) = atom_exhibits._at_equal([short], [long], by="step")
    assert ours == pytest.approx(1 / np.log(100))
    middle = (1 / np.log(10) + 1 / np.log(1000)) / 2  # 100 is half-way by its logarithm
    assert theirs == pytest.approx(middle)

  def test_steps_that_are_not_as_foretold_are_told(self, found):
    lengths = np.array([130, 35])
    exhibit = atom_exhibits.steps_an_epoch(lengths, {64: found}, tokens=512, study=STUDY)
    assert not any(value.agrees for value in exhibit.values)
    assert exhibit.finding.startswith("0 of 10")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  """A folder as that of WikiText-2: a document a line."""
  folder = tmp_path_factory.mktemp("text")
  found = stdlib.standard_library_documents(stdlib.source_files())
  long = (" ".join(" ".join(x).split()) for x in found if len(" ".join(x).split()) >= 60)
  documents = list(itertools.islice(long, 140))
  for name, part in (("test", documents[:120]), ("valid", documents[120:])):
    (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
  return folder


@pytest.fixture(scope="module")
def small():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(atom_runs, "TOKENS", 64)
    patch.setattr(atom_runs, "TURNS", 2)
    patch.setitem(atom_runs.QUICK, "steps", 100)
    patch.setitem(atom_runs.QUICK, "sample", 5)
    patch.setitem(atom_runs.OVERRIDES, "data.vocab_size", 400)
    patch.setattr(atom_size, "TOKENS", 64)
    patch.setattr(atom_size, "PAPER_ROWS", (64,))
    patch.setattr(atom_size, "LONG_ROWS", ())
    yield


@pytest.fixture(scope="module")
def made(text, small, tmp_path_factory):
  folder = tmp_path_factory.mktemp("made")
  counter = CompilationCounter()
  exhibits = parts.make(atom_size.exhibits, folder, quick=True, wikitext=str(text))
  return folder, exhibits, counter


@pytest.mark.slow
class TestTheWholeStudy:
  def study(self, folder, text):
    where = folder / "wikitext-quick" / "64"
    data = atom_size.data_of(str(text))
    return atom_runs.RowLengthStudy(where, 64, data=data, quick=True)

  def test_it_makes_all_exhibits_and_pictures(self, made):
    folder, exhibits, _ = made
    told = {exhibit.name: exhibit for exhibit in exhibits}
    assert list(told) == [
      "Table 1, Appendices A.3 and A.9",
      "Figure 1 and Table 2",
      "Figure 2 and Table 2",
      "Table 3 and Figure 3",
      "Packed, rows of 64",
    ]
    steps = told["Table 1, Appendices A.3 and A.9"]
    assert steps.state == "6 of 6 to the digit"
    assert "100 steps, which say" in steps.text
    for exhibit in exhibits:
      assert exhibit.command.endswith("--wikitext FOLDER --quick")
      for picture in exhibit.pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    text = (folder / "exhibits.md").read_text()
    assert text.count("\n## ") == len(exhibits)
    assert "no weight" in text  # it was quick

  def test_all_arms_are_one_compiled_step(self, made, text):
    folder, _, counter = made
    name = self.study(folder, text).program.train_step_name
    assert counter.count(name) == 1

  def test_runs_learn_and_are_judged_on_as_many_tokens(self, made, text):
    folder, *_ = made
    runs = [json.loads(x.read_text()) for x in folder.glob("*/64/runs/*.json")]
    assert len(runs) == 8
    for run in runs:
      assert run["nats"][0] == pytest.approx(np.log(400), abs=0.2)
      assert np.mean(run["nats"][-10:]) < run["nats"][0] - 0.5
      points = [point["perplexity"] for point in run["evaluations"]]
      assert points[-1] < points[0]
    assert len({run["held_out"]["tokens"] for run in runs}) == 1

  def test_all_of_the_held_out_text_is_judged_once(self, made, text):
    study = self.study(made[0], text)
    judged = sum(int(batch["loss_mask"].sum()) for batch in study.held_out)
    lengths, _ = atoms.documents(study.dataset.held_out)
    assert judged == lengths.sum()  # and the end tokens, less the first of each

  def test_arms_of_a_seed_start_from_the_same_weights(self, made, text):
    study = self.study(made[0], text)
    first, again, other = (study.initial_params(seed) for seed in (1, 1, 2))
    assert parameters_digest(first) == parameters_digest(again)
    assert parameters_digest(first) != parameters_digest(other)
    assert study.program.init(first)["params"].keys() == first.keys()

  def test_what_is_finished_is_not_run_again_in_another_place(
    self, made, text, monkeypatch, tmp_path
  ):
    folder, before, _ = made
    shutil.copytree(folder, tmp_path / "moved")

    def fail(*_):
      raise AssertionError("A run was repeated.")

    monkeypatch.setattr(atom_runs.RowLengthStudy, "_train", fail)
    for place in (folder, tmp_path / "moved"):
      after = parts.make(atom_size.exhibits, place, quick=True, wikitext=str(text))
      assert after == before

  def test_a_run_of_another_recipe_is_not_taken(self, made, text, monkeypatch):
    study = self.study(made[0], text)
    assert study.read(CONCAT, 1)
    assert study.read(CONCAT, 2) is None
    with monkeypatch.context() as patch:
      patch.setitem(atom_runs.OVERRIDES, "optimizer.learning_rate", 1e-4)
      assert study.read(CONCAT, 1) is None
    monkeypatch.setitem(atom_runs.QUICK, "sample", 3)
    assert study.read(CONCAT, 1) is None

  def test_without_time_nothing_is_prepared(self, text, small, tmp_path):
    with pytest.raises(InputError, match="more --minutes"):
      atom_size.exhibits(tmp_path, quick=True, wikitext=str(text), minutes=0)
    assert not list(tmp_path.iterdir())

  def test_a_run_that_fails_is_told_when_all_others_are_done(
    self, made, text, monkeypatch, tmp_path
  ):
    shutil.copytree(made[0], tmp_path / "copy")
    runs = tmp_path / "copy" / "wikitext-quick" / "64" / "runs"
    for name in ("concat,atom=1,seed=1", "packed,seed=1"):
      (runs / f"{name}.json").unlink()
    train = atom_runs.RowLengthStudy._train

    def diverge(self, arm, seed):
      if arm == CONCAT:
        raise Stopped("concat: the loss is not finite.")
      return train(self, arm, seed)

    monkeypatch.setattr(atom_runs.RowLengthStudy, "_train", diverge)
    with pytest.raises(Stopped, match=r"1 of 8 runs failed\. concat: the loss"):
      atom_size.exhibits(tmp_path / "copy", quick=True, wikitext=str(text))
    assert (runs / "packed,seed=1.json").exists()

  def test_too_little_text_is_refused_before_any_work(self, made, text, monkeypatch):
    data, where = atom_size.data_of(str(text)), made[0] / "wikitext-quick" / "64"
    monkeypatch.setattr(atom_runs, "TOKENS", 10_240)
    with pytest.raises(InputError, match="Give more text"):
      atom_runs.RowLengthStudy(where, 64, data=data)


def test_a_folder_without_the_text_is_refused(tmp_path):
  with pytest.raises(InputError, match=r"found no test\.txt"):
    atom_size.exhibits(tmp_path, wikitext=str(tmp_path))
