import pytest

from tests.pipeline.tasks.making import VOCABULARY


@pytest.fixture
def vocab_file(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(VOCABULARY) + "\n")
  return str(path)
