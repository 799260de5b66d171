"""The study on Wikipedia: what its arms start from, and how much text it takes."""

import gzip

import pytest

from experiments.lab.part import Part
from experiments.packing_paper.curves import wikipedia
from packing import InputError

ARTICLES = [
  f"Title {i}\nThe words of article {i}.\nAnd more of them.\n\n" for i in range(9)
]


@pytest.fixture
def data(tmp_path):
  """A folder of real data with nine articles in two files, and a vocabulary."""
  folder = tmp_path / "data"
  (folder / "text").mkdir(parents=True)
  first, second = "".join(ARTICLES[:5]), "".join(ARTICLES[5:])
  (folder / "text" / "a.txt.gz").write_bytes(gzip.compress(first.encode()))
  (folder / "text" / "b.txt").write_text(second)
  (folder / "bert-base-uncased-vocab.txt").write_text(
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
  )
  return folder


@pytest.fixture
def part(data, tmp_path):
  return Part(tmp_path / "out" / "a_part", "the command", data=str(data))


def arms_of(part, *names):
  return {arm.name: arm for arm in wikipedia.make_study(part, names).arms}


def test_an_arm_comes_with_the_phase_that_it_starts_from(part):
  arms = arms_of(part, "packed", "no_mask")
  assert list(arms) == ["phase_1", "packed", "no_mask"]
  assert arms["no_mask"].starts_from == "phase_1"
  assert arms["no_mask"].fields["model.attention_mask"] == "none"
  lengths = [arm.fields["data.max_sequence_length"] for arm in arms.values()]
  assert lengths == [wikipedia.SHORT, wikipedia.FULL, wikipedia.FULL]
  assert arms["phase_1"].keep


def test_one_arm_is_never_packed(part):
  arms = arms_of(part, "phase_2_unpacked")
  assert list(arms) == ["phase_1_unpacked", "phase_2_unpacked"]
  assert {arm.batches for arm in arms.values()} == {"constant"}
  assert arms["phase_2_unpacked"].starts_from == "phase_1_unpacked"


def test_parts_share_the_runs_and_phases_have_their_own_data(part):
  study = wikipedia.make_study(part, ["packed"])
  assert study.folder == wikipedia.make_study(part.beside("other"), ["packed"]).folder
  assert len({run.config.data.directory for _, run in study.runs}) == 2


@pytest.mark.parametrize(("size", "articles"), [(1, 1), (200, 4), (260, 6), (10**6, 9)])
def test_whole_articles_are_taken_until_there_is_enough(part, monkeypatch, size, articles):
  monkeypatch.setattr(wikipedia, "TEXT_BYTES", size)
  config = wikipedia.make_study(part, ["packed"]).runs[0][1].config
  with open(config.data.source) as file:
    found = [article.strip() for article in file.read().split("\n\n") if article.strip()]
  assert found == [article.strip() for article in ARTICLES[:articles]]


def test_a_folder_without_text_is_refused(data, part):
  (data / "text" / "a.txt.gz").unlink()
  (data / "text" / "b.txt").unlink()
  assert not wikipedia.is_there(part)
  with pytest.raises(InputError, match=r"has no text/\*"):
    wikipedia.make_study(part, ["packed"])


def test_quick_parts_and_those_without_data_have_other_text(part):
  assert wikipedia.is_there(part)
  assert not wikipedia.is_there(
    Part(part.folder, "the command", data=part.data, quick=True)
  )
  assert not wikipedia.is_there(Part(part.folder, "the command"))
