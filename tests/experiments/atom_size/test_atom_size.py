"""The atom-size study: its plan, its exhibits on made-up runs, and a small real one."""

import dataclasses
import functools
import itertools
import json

import hypothesis
import numpy as np
import pytest

from experiments.atom_size import __main__ as atom_size
from experiments.atom_size import layouts, runs
from experiments.atom_size.atom_sizes import (
  ATOMS,
  MARGIN,
  atom_sizes,
  ends_at_cuts,
  second_epoch,
)
from experiments.atom_size.perplexities import SEGMENTS, mean_nats, segments_of
from experiments.atom_size.runs import (
  CONCAT,
  ISOLATED,
  PACKED,
  PADDING,
  PADDING_ALL,
  UNSHUFFLED,
  Layout,
)
from experiments.atom_size.seeds import seeds_needed, seeds_to_decide
from experiments.atom_size.steps import full_size, predicted_rows, steps_an_epoch
from experiments.atom_size.text import filtering, row_lengths
from lab import part as parts
from lab import records
from lab.exhibits import Part
from lab.machine import machine
from launch.data import make_held_out
from pipeline.batches import atoms
from pipeline.batches.packed import lay_out
from pipeline.sources import stdlib
from pipeline.tokenizer import Tokenizer
from tests import packs, shared_data
from tests.pipeline.batches.test_atoms import SIZES, corpora, make_loader
from training.errors import Stopped
from training.evaluation import evaluate_causal
from training.mesh import make_mesh
from training.step import ModelProgram

pytestmark = pytest.mark.usefixtures("forked_jobs")

TINY = runs.Scale(tokens=64, epochs=1, size="tiny", vocab_size=400)
STEPS = 1200  # of a made-up run of concat
WORSE = {0.25: 0.5, 0.5: 0.2, 1.0: 0.0, 2.0: 0.05, 4.0: 0.1}  # nats, by the atom
# Nats above packed.
OF_LAYOUT = {"concat": 0.3, "concat_isolated": 0.2, "padding": 0.1, "packed": 0.0}


@pytest.mark.parametrize("layout", atoms.LAYOUTS)
@pytest.mark.parametrize(("size", "row_length"), SIZES)
@hypothesis.given(documents=corpora())
@hypothesis.settings(max_examples=25, deadline=None)
def test_predicted_rows_are_those_of_the_loader(layout, size, row_length, documents):
  lengths = np.array([len(document) for document in documents])
  sizes = {"layout": layout, "atom_size": size, "row_length": row_length}
  predicted = predicted_rows(lengths, **sizes)
  assert predicted == atoms.cut(lengths, **sizes).num_rows


def test_the_layouts_of_each_row_length():
  small = atom_size.layouts_of(runs.SMALL)
  everything = {Layout(kind, atom) for kind in ("concat", "padding") for atom in ATOMS}
  everything |= {PACKED, PADDING_ALL, UNSHUFFLED}
  assert [{*small[n]} for n in (32, 64, 128)] == [everything] * 3
  assert [{*small[n]} for n in (256, 512)] == [{*layouts.TIMED}, {*layouts.NAMES}]
  assert runs.SEEDS * sum(map(len, small.values())) == 144
  large = atom_size.layouts_of(runs.LARGE)
  fewer = {layout for layout in everything if 0.25 < layout.atom < 4}
  assert {n: {*of_length} for n, of_length in large.items()} == {128: fewer, 512: fewer}


def test_nothing_is_shuffled_if_the_text_is_one_atom():
  lengths = np.random.default_rng(0).integers(1, 300, 999)
  size = UNSHUFFLED.tokens(64)
  made = atoms.cut(lengths, layout=UNSHUFFLED.kind, atom_size=size, row_length=64)
  assert made.num_atoms == 1
  np.testing.assert_array_equal(made.order(seed=1, epoch=2), np.arange(made.num_rows))


def test_large_runs_are_of_wikipedia(tmp_path, monkeypatch):
  folder = tmp_path / "text"
  folder.mkdir()
  (folder / "articles.txt").write_text("A title\nOf it.\n\nAnother\nOf that.\n")
  part = Part(tmp_path / "large", "the command", data=str(tmp_path))
  monkeypatch.setattr(atom_size, "TEXT_BYTES", 10)
  text = atom_size.articles(part)
  study = runs.make_study(part.folder, 512, [PACKED], text=text, scale=runs.LARGE)
  config = study.runs[0][1].settings
  assert (tmp_path / "large" / "text.txt").read_text() == "A title\nOf it.\n\n"
  assert config.data.source == str(tmp_path / "large" / "text.txt")
  assert (config.model.size, config.data.vocab_size) == ("mini", 16_384)
  assert (config.train.batch_size, config.train.duration) == (8, "1 epochs")


ONES = np.ones(1200)


def steps_of(nats, targets, steps_per_epoch):
  return {"nats": nats, "targets": targets, "steps_per_epoch": steps_per_epoch}


def test_a_segment_without_a_step_is_refused():
  with pytest.raises(ValueError, match=r"99\.0 steps an epoch"):
    segments_of(steps_of(ONES[:99], ONES[:99], 99))


def test_epochs_need_no_whole_number_of_steps():
  steps = round(3 * 333.3)
  nats = np.log(np.arange(1, steps + 1))
  found = segments_of(steps_of(nats, ONES[:steps], 333.3))
  assert found.size == SEGMENTS
  assert (np.diff(found) > 0).all()
  assert found[0] == pytest.approx(668.5, abs=2)


def test_tokens_weigh_the_same_and_not_steps():
  nats, targets = np.tile([2.0, 5.0], 100), np.tile([3, 1], 100)
  found = segments_of(steps_of(nats, targets, 200))
  np.testing.assert_allclose(found, np.exp((3 * 2.0 + 5.0) / 4))


def made_up(arm, seed):
  """A run that ends where its layout and its atom say, in fewer steps where it packs."""
  rng = np.random.default_rng((seed, len(arm.name)))
  steps = STEPS + 300 * (arm.kind == "padding")
  above = OF_LAYOUT[arm.kind] + WORSE[arm.atom] - 0.3 * arm.loss_on_padding
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
  layouts = [Layout(kind, atom) for kind in ("concat", "padding") for atom in ATOMS]
  return {
    layout: [made_up(layout, seed) for seed in (1, 2, 3)]
    for layout in (*layouts, PADDING_ALL, PACKED, ISOLATED)
  }


@pytest.fixture
def part(tmp_path):
  return Part(tmp_path, "the command")


LENGTHS = np.full(100, 500)  # of documents, in tokens
SECONDS = {layout.name: [0.04, 0.05, 0.06] for layout in layouts.TIMED}


def outcomes(exhibit) -> list[str]:
  return [x.outcome for x in exhibit.statements]


@pytest.mark.parametrize("kind", ["concat", "padding"])
def test_atoms_of_a_row_are_best(found, part, kind):
  exhibit = atom_sizes(part, kind, 64, found, LENGTHS)
  assert outcomes(exhibit) == ["holds"] * {"concat": 4, "padding": 5}[kind]
  assert "atoms of 1 S have the lowest perplexity over" in exhibit.finding
  picture = part.folder / exhibit.pictures[0]
  assert picture.read_bytes().startswith(b"\x89PNG")
  assert {"concat": "118.08", "padding": "102.82"}[kind] in exhibit.text
  fewer = {layout: runs for layout, runs in found.items() if layout.atom != 0.25}
  text = atom_sizes(part, kind, 64, fewer, LENGTHS).text
  assert "| 1.00 |  |" in text  # ranks among fewer atoms are not beside the paper's
  one = {layout: of_layout[:1] for layout, of_layout in found.items()}
  one_seed = atom_sizes(part, kind, 32, one, LENGTHS)
  assert {*outcomes(one_seed)} == {"no power"}


def test_the_claim_fails_if_another_atom_is_better(found, part):
  two = Layout("concat", 2.0)
  swapped = found | {CONCAT: found[two], two: found[CONCAT]}
  exhibit = atom_sizes(part, "concat", 64, swapped, LENGTHS)
  assert outcomes(exhibit) == ["fails"] * 4
  assert "atoms of 2 S have the lowest" in exhibit.finding
  # The evidence is that of the least favourable comparison.
  assert all("of 'atoms of 2 S': difference -" in x.evidence for x in exhibit.statements)


def test_the_second_epoch_is_read_from_its_first_tenth_to_its_last(found, part):
  everywhere = second_epoch(part, {64: found, 128: found})
  assert outcomes(everywhere) == ["fails", "holds", "fails", "holds", "holds"]
  # Atoms of a row, with more in the first tenth of the second epoch of three.
  later: dict[Layout, list] = {}
  for layout in (CONCAT, PADDING):
    later[layout] = []
    for run in found[layout]:
      nats = np.array(run["nats"])
      nats[len(nats) // 3 :][: len(nats) // 30] += 0.5
      later[layout].append(run | {"nats": nats.tolist()})
  exhibit = second_epoch(part, {64: found | later, 128: found | later})
  assert outcomes(exhibit) == ["holds"] * 5


def test_ends_at_cuts_can_be_left_out(found, part):
  run = found[PADDING][0] | {"nats": [2.0] * (STEPS + 300)}
  assert mean_nats(run) == pytest.approx(2)
  assert mean_nats(run, free=50_000) == pytest.approx(2 * 250 / 200)
  # Text costs 5 % more with atoms of half a row, whose many ends hide it.
  lengths, half = np.full(1000, 500), Layout("padding", 0.5)
  share = ends_at_cuts(lengths, half, 64) / 250_000
  assert share == pytest.approx(16 * 1000 / 250_000)
  costly = [
    run | {"nats": [1.05 * (1 - share) * x for x in run["nats"]]} for run in found[PADDING]
  ]
  given = {PADDING: found[PADDING], half: costly}
  exhibit = atom_sizes(part, "padding", 64, given, lengths)
  _, as_counted, if_free, *_ = exhibit.statements
  assert as_counted.outcome == "fails"
  assert "even if ends at cuts cost nothing" in if_free.claim
  assert if_free.outcome == "holds"


def test_ranks_are_among_the_atoms_of_the_paper(found, part):
  text = atom_sizes(part, "concat", 128, found, LENGTHS).text
  rows = [line.split(" | ") for line in text.partition("\n\n")[0].splitlines()[2:]]
  ranks = ["4.00 4", "3.00 ", "1.00 1", "2.00 ", " "]  # it has no atoms of 4 rows of 128
  assert [" ".join(row[4:6]) for row in rows] == ranks


def test_padding_against_concat(found, part):
  exhibit = layouts.concat_and_padding(part, {64: found})
  # In the last claim padding is worse at equal steps; made up, it is better there too.
  assert outcomes(exhibit) == [*["holds"] * 4, "fails"]
  assert exhibit.statements[2].claim.endswith("a lower training perplexity than concat")
  assert "1.25 (rows of 64)" in exhibit.finding
  assert "| 64 | concat | 400.0 | 7,029 |" in exhibit.text


def test_how_packing_compares(found, part):
  assert outcomes(layouts.packed(part, 64, found, SECONDS)) == ["holds"] * 10
  without = {layout: of_layout for layout, of_layout in found.items() if layout != ISOLATED}
  assert outcomes(layouts.packed(part, 64, without, SECONDS)) == ["holds"] * 6
  swapped = found | {PACKED: found[CONCAT], CONCAT: found[PACKED]}
  exhibit = layouts.packed(part, 64, swapped, SECONDS)
  assert outcomes(exhibit)[:3] == ["fails"] * 3
  slow = SECONDS | {PACKED.name: [0.5]}  # ten times that of the others
  exhibit = layouts.packed(part, 64, found, slow)
  assert outcomes(exhibit)[:3] == ["holds", "holds", "fails"]  # steps, text, time


def test_the_loss_of_isolated_documents_is_that_of_their_parts_alone():
  documents = [[*range(2, 9)], [*range(9, 13)], [*range(13, 33)], [33, 34]]
  config = packs.small_gpt2(vocab_size=35)
  program = ModelProgram(config, mesh=make_mesh(1), head="causal")
  params = packs.random_params(config, head="causal")[1]

  def total(batches):
    found = evaluate_causal(program, params, batches)
    return found["loss"] * found["tokens"], found["tokens"]

  def rows(layout):
    loader = make_loader(documents, layout, 16, 16)
    return list(loader.evaluation_batches())

  alone = []
  for batch in rows("concat_isolated"):
    for number in range(1, batch["segment_ids"].max() + 1):
      ids = batch["input_ids"][batch["segment_ids"] == number]
      of_part = lay_out(ids, np.array([[ids.size]]), np.array([[0]]), row_length=16)
      alone.append(of_part | {"loss_mask": of_part["segment_ids"] > 0})
  assert len(alone) == 6  # two documents are cut
  expected, targets = total(alone)
  isolated, of_rows = total(rows("concat_isolated"))
  assert isolated == pytest.approx(expected, rel=1e-6)
  assert of_rows == targets
  mixed, of_concat = total(rows("concat"))
  assert of_concat > targets
  assert abs(mixed / of_concat - expected / targets) > 1e-3


def test_equal_steps_are_read_where_the_shorter_run_ends():
  short, long = (
    {"evaluations": [{"step": n, "perplexity": np.exp(1 / np.log(n))} for n in steps]}
    for steps in ((10, 100), (10, 1000))
  )
  (ours,), (theirs,) = layouts._at_equal([short], [long], by="step")
  assert ours == pytest.approx(1 / np.log(100))
  middle = (1 / np.log(10) + 1 / np.log(1000)) / 2  # 100 is half-way by its logarithm
  assert theirs == pytest.approx(middle)


def test_the_papers_model_has_its_parameters_and_steps(part):
  exhibit = full_size(part)
  assert exhibit.state == "1 of 1 to the digit, 6 of 6 within their tolerance"
  assert "123,653,376 parameters" in exhibit.finding  # 124,439,808 with 1,024 positions


def test_seeds_that_would_decide_the_final_perplexity(found, part):
  assert seeds_to_decide(0.05, 0.1) < seeds_to_decide(0.025, 0.1) < 130
  # A one-sided test of half a standard deviation, that of the margin, needs fewer.
  assert seeds_to_decide(MARGIN - 0.05, 0.1) == 27 < seeds_to_decide(0.05, 0.1) == 34
  # An effect near the margin: above 0 at once, but is it large enough to matter?
  assert seeds_to_decide(0.012, 0.01) == 18  # (0.84 * 0.01 / 0.002) ** 2
  assert seeds_to_decide(MARGIN, 0.01) == 10_000  # never
  rng = np.random.default_rng(0)
  near = [  # by 0.03 nats, in hundredths of 4 steps with a standard deviation of 0.1
    run | {"nats": (np.array(run["nats"]) + rng.normal(0.03, 0.2, STEPS)).tolist()}
    for run in found[CONCAT]
  ]
  exhibit = seeds_needed(part, {64: found | {Layout("concat", 2.0): near}, 256: found})
  assert exhibit.finding.startswith("Of the 2 figures")
  (line,) = (x for x in exhibit.text.splitlines() if x.startswith("| Figure 1 "))
  _, _, seeds, more, nearest, mean, sd = line.strip("| ").split(" | ")
  assert nearest == "2 S"
  assert float(mean) == pytest.approx(0.03, abs=0.02)
  assert float(sd) == pytest.approx(0.1, rel=0.1)
  assert int(seeds) == seeds_to_decide(float(mean), float(sd)) > 20
  assert int(more.replace(",", "")) == 5 * (int(seeds) - 3)


def test_steps_that_differ_from_the_prediction_are_reported(found, part):
  lengths = np.array([130, 35])
  exhibit = steps_an_epoch(part, lengths, {64: found}, tokens=512, recipe="A recipe.")
  assert [x.outcome for x in exhibit.statements] == ["fails"]
  assert exhibit.finding.startswith("0 of 10")
  for apart, outcome in ((0.0006, "fails"), (0.0004, "holds")):
    near = {}
    for layout in found:
      shape = {"layout": layout.kind, "atom_size": round(64 * layout.atom)}
      steps = predicted_rows(lengths, **shape, row_length=64) / 8
      near[layout] = [{"steps_per_epoch": steps + apart}]
    made = steps_an_epoch(part, lengths, {64: near}, tokens=512, recipe="x")
    assert [x.outcome for x in made.statements] == [outcome]


def test_rows_are_left_out_by_words_or_by_characters(tmp_path, part):
  short, long = "I " * 30, "word " * 60  # 30 words in 60 characters; 60 in 300
  path = tmp_path / "valid.txt"
  path.write_text("\n".join(["", "A title", short, long, long]) + "\n")
  exhibit = filtering(part, path)
  here = [value.here for value in exhibit.values]
  by_words = ["60.00", f"{100 * 32 / 152:.2f}", "120"]  # three of five rows
  by_characters = ["40.00", f"{100 * 2 / 152:.2f}", "150"]
  assert here == by_words + by_characters
  assert exhibit.statements[0].outcome == "fails"  # these are not the paper's rows
  assert "| 1 to 49 | 40.00 |" in exhibit.text


def test_rows_of_the_training_text_are_counted_in_tokens(tmp_path, part):
  vocabulary = tmp_path / "vocab.txt"
  vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
  path = tmp_path / "test.txt"
  path.write_text("\n".join(["", "a b", "a " * 200, "b " * 201]) + "\n")
  exhibit = row_lengths(part, path, Tokenizer(vocabulary))
  assert "75.0 % have at most 200 tokens; 25.0 % are blank" in exhibit.finding
  assert exhibit.statements[0].outcome == "holds"
  for row in ("| 0 to 50 | 50.00 |", "| 101 to 200 | 25.00 |", "| 201 to 400 | 25.00 |"):
    assert row in exhibit.text


@pytest.mark.extra
def test_the_printed_shares_are_those_of_characters(part):
  path = shared_data.needed("wikitext-2/valid.txt")
  exhibit = filtering(part, path)
  assert [x.agrees for x in exhibit.values] == [False] * 3 + [True] * 3
  (statement,) = exhibit.statements
  assert "at most 50 characters" in statement.claim
  assert statement.outcome == "holds"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
  """A folder with real data, of which WikiText-2 is made up: a document a line."""
  data = tmp_path_factory.mktemp("text")
  folder = data / "wikitext-2"
  folder.mkdir()
  found = stdlib.standard_library_documents(stdlib.source_files())
  words = (" ".join(sentences).split() for sentences in found)
  long = (" ".join(x[:60]) for x in words if len(x) >= 60)
  documents = list(itertools.islice(long, 90))
  for name, part in (("test", documents[:80]), ("valid", documents[80:])):
    (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
  return data


@pytest.fixture(scope="module")
def small():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runs, "SEEDS", 1)
    patch.setattr(runs, "TURNS", 2)
    fewer = (x for x in atom_size.layouts_of(runs.LARGE)[128] if x.atom >= 1)
    near = (*fewer, UNSHUFFLED)
    patch.setattr(atom_size, "layouts_of", lambda _: {64: near})
    yield


@pytest.fixture(scope="module")
def made(text, small, tmp_path_factory):
  folder = tmp_path_factory.mktemp("made")
  part = Part(folder, "the command", jobs=2, data=str(text))
  return part, parts.make(functools.partial(atom_size.exhibits, scale=TINY), part)


@pytest.mark.slow
class TestTheWholeStudy:
  def test_it_makes_all_exhibits_and_pictures(self, made):
    part, exhibits = made
    assert [exhibit.name for exhibit in exhibits] == [
      "Table 1, Appendices A.3 and A.9",
      "Table 3, Appendices A.1, A.4 and A.5",
      "Section A.1",
      "Figure 4",
      "Figure 1 and Table 2",
      "Figure 2 and Table 2",
      "Introduction and A.3, shuffling",
      "Seeds for the final perplexity",
      "Table 3 and Figure 3",
      "Packed, rows of 64",
    ]
    assert exhibits[0].state == "1 holds"
    assert "4 of 4 layouts" in exhibits[0].finding
    where = f"trained on {machine()}; steps timed on {machine()}"
    assert exhibits[0].machine == where
    for exhibit in exhibits:
      assert exhibit.claim
      for picture in exhibit.pictures:
        assert (part.folder / picture).read_bytes().startswith(b"\x89PNG")

  def test_runs_learn_and_are_evaluated_on_the_same_tokens(self, made):
    part, _ = made
    results = [json.loads(x.read_text()) for x in part.folder.glob("*/64/runs/*.json")]
    assert len(results) == 7
    for run in results:
      assert run["nats"][0] == pytest.approx(np.log(400), abs=0.2)
      assert np.mean(run["nats"][-10:]) < run["nats"][0] - 0.5
      points = [point["perplexity"] for point in run["evaluations"]]
      assert points[-1] < points[0]
    assert len({run["held_out"]["tokens"] for run in results}) == 1

  def test_all_of_the_held_out_text_is_evaluated_once(self, made):
    part, _ = made
    folder = part.folder / "wikitext" / "64"
    fields = atom_size.text_of(part)
    study = runs.make_study(folder, 64, [PACKED], text=fields, scale=TINY)
    config = study.runs[0][1].settings
    dataset, _ = runs.prepare_data(config)
    (held_out,) = make_held_out(config, dataset)
    evaluated = sum(int(batch["loss_mask"].sum()) for batch in held_out.batches())
    lengths, _ = atoms.documents(dataset.held_out)
    assert evaluated == lengths.sum()  # and the end tokens, less the first of each

  def test_published_runs_alone_make_the_report(self, made, tmp_path):
    made_part, exhibits = made
    part = dataclasses.replace(made_part, folder=tmp_path)
    for folder in made_part.folder.glob("wikitext/*/"):  # as they are published
      records.pack(folder, tmp_path / folder.relative_to(made_part.folder))
    again = atom_size.exhibits(part, scale=TINY)
    assert not list(tmp_path.rglob("runs/*.json"))  # nothing was trained
    assert [(x.text, x.statements) for x in again] == [
      (x.text, x.statements) for x in exhibits
    ]

  def test_runs_that_diverge_are_reported(self, made, monkeypatch):
    part, _ = made
    monkeypatch.setattr(atom_size, "layouts_of", lambda _: {64: (PACKED,)})
    monkeypatch.setitem(runs.OVERRIDES, "optimizer.learning_rate", 1e30)
    with pytest.raises(Stopped, match=r"1 of 1 runs failed\. .* not finite"):
      atom_size.exhibits(part, scale=TINY)
