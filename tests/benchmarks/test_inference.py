"""benchmarks.inference: a short run."""

import json

import pytest

from benchmarks import inference


@pytest.mark.usefixtures("on_cpu")
def test_a_short_run_takes_one_of_several_devices(tmp_path, monkeypatch):
  """4 devices would not divide the 3 rows of a batch."""

  def two_ways(*args, **options):
    ways = all_ways(*args, **options)
    return {name: ways[name] for name in ("packed", inference.PADDED)}

  all_ways = inference.ways_of
  monkeypatch.setattr(inference, "ways_of", two_ways)  # the others compile many shapes
  path = tmp_path / "inference.json"
  words = "--histograms=qm9_29 --sequences=8 --batch-size=3 --rounds=1"
  inference.main([*words.split(), f"--json={path}"])
  found = json.loads(path.read_text())["histograms"]["qm9_29"]
  for name, way in found["ways"].items():
    assert way["same_answers"] == 8, name
    assert way["largest_difference"] < 1e-4, name
