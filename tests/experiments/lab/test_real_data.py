"""Files of the folder with real data."""

from experiments.lab import real_data


def test_articles_are_those_of_the_folder_and_are_written_once(tmp_path):
  path = tmp_path / "text.txt"
  for name in "ab":
    (tmp_path / name / "text").mkdir(parents=True)
    (tmp_path / name / "text" / "a.txt").write_text(f"{name} 1\n\n{name} 2\n\n{name} 3\n")
    real_data.write_articles(tmp_path / name, path, at_least=6)
    assert path.read_text().split() == [name, "1", name, "2"]
  made = path.stat().st_mtime_ns
  real_data.write_articles(tmp_path / "b", path, at_least=6)
  assert path.stat().st_mtime_ns == made
