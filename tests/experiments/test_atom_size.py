"""The atom-size study: what its runs share, what it makes of them, how it goes on."""

import collections
import itertools
import json

import numpy as np
import pytest

from experiments import atom_exhibits, atom_runs, atom_size, parts, perplexities
from experiments.atom_exhibits import ATOMS, CONCAT, PACKED, PADDING, PADDING_ALL
from experiments.atom_runs import Arm
from packing import InputError
from pipeline import corpus

STEPS = 1200  # of a made-up run of concat
WORSE = {0.25: 0.5, 0.5: 0.2, 1.0: 0.0, 2.0: 0.05, 4.0: 0.1}  # nats, by the atom
OF_LAYOUT = {"concat": 0.3, "padding": 0.1, "packed": 0.0}  # nats above packed


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


def test_a_segment_without_a_step_is_refused():
  with pytest.raises(ValueError, match=r"99\.0 steps an epoch"):
    perplexities.last_epoch(np.ones(99), steps_per_epoch=99, epochs=1)


def test_epochs_need_no_whole_number_of_steps():
  values = np.arange(round(3 * 333.3))
  found = perplexities.last_epoch(values, steps_per_epoch=333.3, epochs=3)
  assert found.size == perplexities.SEGMENTS
  assert (np.diff(found) > 0).all()
  assert found[0] == pytest.approx(667.5, abs=2)


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
    "evaluations": [
      {
        "step": round(steps * n / 9),
        "seconds": 0.05 * steps * n / 9,
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


class TestExhibits:
  @pytest.mark.parametrize("layout", ["concat", "padding"])
  def test_atoms_of_a_row_are_found_to_be_best(self, found, tmp_path, layout):
    exhibit = atom_exhibits.atom_sizes(layout, 64, found, tmp_path, quick=False)
    assert [x.outcome for x in exhibit.statements] == ["holds"] * 3
    assert "atoms of 1 S have the lowest final training perplexity" in exhibit.finding
    assert (tmp_path / exhibit.pictures[0]).read_bytes().startswith(b"\x89PNG")
    assert "118.08" in exhibit.text or layout == "padding"

  def test_it_fails_where_another_atom_is_better(self, found, tmp_path):
    swapped = found | {CONCAT: found[Arm("concat", 2.0)], Arm("concat", 2.0): found[CONCAT]}
    exhibit = atom_exhibits.atom_sizes("concat", 64, swapped, tmp_path, quick=False)
    assert [x.outcome for x in exhibit.statements] == ["fails"] * 3
    assert "atoms of 2 S have the lowest" in exhibit.finding

  def test_one_seed_has_no_power(self, found, tmp_path):
    one = {arm: {1: runs[1]} for arm, runs in found.items()}
    exhibit = atom_exhibits.atom_sizes("concat", 32, one, tmp_path, quick=False)
    assert [x.outcome for x in exhibit.statements[:2]] == ["no power"] * 2

  def test_only_seeds_that_all_arms_have_are_compared(self, found, tmp_path):
    fewer = found | {PACKED: {2: found[PACKED][2], 3: found[PACKED][3]}}
    assert "2 seeds" in atom_exhibits.packed(64, fewer, tmp_path).text

  def test_padding_against_concat(self, found, tmp_path):
    exhibit = atom_exhibits.concat_and_padding({64: found}, tmp_path, quick=False)
    assert [x.outcome for x in exhibit.statements] == ["holds"] * 4
    assert "1.25 at 64" in exhibit.finding
    assert "14,058" in exhibit.text

  def test_where_packing_stands(self, found, tmp_path):
    exhibit = atom_exhibits.packed(64, found, tmp_path)
    outcomes = {x.claim: x.outcome for x in exhibit.statements}
    assert outcomes["At equal steps packed has a lower held-out perplexity than concat"]
    assert set(outcomes.values()) == {"holds"}
    assert len(outcomes) == 6

  def test_steps_that_are_not_as_foretold_are_told(self, found):
    lengths = np.array([130, 35])
    exhibit = atom_exhibits.steps_an_epoch(lengths, {64: found}, tokens=512)
    assert not any(value.agrees for value in exhibit.values)
    assert exhibit.finding.startswith("0 of 10")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  """A folder as that of WikiText-2: a document a line."""
  folder = tmp_path_factory.mktemp("text")
  found = corpus.standard_library_documents(corpus.source_files())
  long = (" ".join(" ".join(x).split()) for x in found if len(" ".join(x).split()) >= 60)
  documents = list(itertools.islice(long, 140))
  for name, part in (("test", documents[:120]), ("valid", documents[120:])):
    (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
  return folder


@pytest.fixture(scope="module")
def small():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(atom_runs, "TOKENS", 128)
    patch.setattr(atom_runs, "QUICK_STEPS", 100)
    patch.setitem(atom_runs.OVERRIDES, "data.vocab_size", 400)
    patch.setattr(atom_size, "TOKENS", 128)
    patch.setattr(atom_size, "PAPER_ROWS", (64,))
    patch.setattr(atom_size, "LONG_ROWS", ())
    yield


@pytest.fixture(scope="module")
def made(text, small, tmp_path_factory):
  folder = tmp_path_factory.mktemp("made")
  exhibits = parts.make(atom_size.exhibits, folder, quick=True, wikitext=str(text))
  return folder, exhibits


class TestTheWholeStudy:
  def test_it_makes_all_exhibits_and_pictures(self, made):
    folder, exhibits = made
    told = {exhibit.name: exhibit for exhibit in exhibits}
    assert {"Figure 1 and Table 2", "Figure 2 and Table 2", "Table 3 and Figure 3"} <= {
      *told
    }
    steps = told["Table 1, Appendices A.3 and A.9"]
    assert steps.state == "6 of 6 numbers agree"
    for exhibit in exhibits:
      assert "Quick" in exhibit.finding
      for picture in exhibit.pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    assert (folder / "exhibits.md").read_text().count("## ") == len(exhibits)

  def test_runs_start_from_the_same_weights_and_learn(self, made):
    folder, _ = made
    runs = [json.loads(x.read_text()) for x in folder.glob("*/64/runs/*.json")]
    assert len(runs) == 8
    for run in runs:
      assert run["nats"][0] == pytest.approx(np.log(400), abs=0.2)
      assert np.mean(run["nats"][-10:]) < run["nats"][0] - 0.5
      points = [point["perplexity"] for point in run["evaluations"]]
      assert points[-1] < points[0]

  def test_what_is_finished_is_not_run_again(self, made, text, monkeypatch):
    folder, before = made

    def fail(*_):
      raise AssertionError("A run was repeated.")

    monkeypatch.setattr(atom_runs.RowLengthStudy, "_train", fail)
    after = parts.make(atom_size.exhibits, folder, quick=True, wikitext=str(text))
    assert after == before

  def test_a_run_of_another_recipe_is_not_taken(self, made, text, monkeypatch):
    folder, _ = made
    study = self.study(folder, text)
    assert study.read(CONCAT, 1)
    monkeypatch.setitem(atom_runs.OVERRIDES, "optimizer.learning_rate", 1e-3)
    assert study.read(CONCAT, 1) is None

  def test_without_time_it_says_so(self, text, small, tmp_path):
    with pytest.raises(InputError, match="more --minutes"):
      atom_size.exhibits(tmp_path, quick=True, wikitext=str(text), minutes=0)

  def test_all_arms_are_one_compiled_step(self, made, text):
    folder, _ = made
    study = self.study(folder, text)
    for arm in (PACKED, CONCAT, PADDING, Arm("padding", 0.5), PADDING_ALL):
      batch = atom_runs.with_loss_mask(study.loader(arm, 1)[0])
      shapes = {name: (x.shape, x.dtype) for name, x in batch.items()}
      if arm == PACKED:
        expected = shapes
      assert shapes == expected

  def study(self, folder, text):
    data = atom_size.data_of(str(text))
    return atom_runs.RowLengthStudy(
      folder / "wikitext-quick" / "64", 64, data=data, quick=True
    )


def test_a_folder_without_the_text_is_refused(tmp_path):
  with pytest.raises(InputError, match=r"found no test\.txt"):
    atom_size.exhibits(tmp_path, wikitext=str(tmp_path))
