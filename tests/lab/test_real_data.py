"""Files of the folder with real data."""

import pytest

from lab import real_data
from packing import InputError


def test_articles_are_written_once_and_those_of_another_folder_are_refused(tmp_path):
  path = tmp_path / "text.txt"
  for name in "ab":
    (tmp_path / name / "text").mkdir(parents=True)
    (tmp_path / name / "text" / "a.txt").write_text(f"{name} 1\n\n{name} 2\n\n{name} 3\n")
  for _ in range(2):
    assert real_data.write_articles(tmp_path / "a", path, at_least=6) == path
    assert path.read_text().split() == ["a", "1", "a", "2"]
  with pytest.raises(InputError, match=r"text\.txt has other articles than .*/b\. Give"):
    real_data.write_articles(tmp_path / "b", path, at_least=6)


def test_an_article_ends_with_its_file(tmp_path):
  (tmp_path / "text").mkdir()
  for name in "ab":
    (tmp_path / "text" / f"{name}.txt").write_text(f"{name} 1\n\n{name} 2")
  path = real_data.write_articles(tmp_path, tmp_path / "text.txt", at_least=100)
  assert path.read_text() == "a 1\n\na 2\n\nb 1\n\nb 2\n\n"
