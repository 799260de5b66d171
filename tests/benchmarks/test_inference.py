"""benchmarks.inference: a short run, and the clock that fits the device."""

import json

import jax
import pytest

from benchmarks import inference


@pytest.mark.usefixtures("on_cpu")
def test_a_short_run_takes_one_of_several_devices(tmp_path, capsys, monkeypatch):
  """4 devices would not divide the 5 rows of 16 tokens in a batch."""

  def two_ways(*args, **options):
    ways = all_ways(*args, **options)
    return {name: ways[name] for name in ("packed", inference.PADDED)}

  all_ways = inference.ways_of
  monkeypatch.setattr(inference, "ways_of", two_ways)  # the others compile many shapes
  path = tmp_path / "inference.json"
  words = "--histograms=qm9_29 --sequences=8 --batch-size=3 --rounds=1"
  inference.main([*words.split(), f"--json={path}"])
  found = json.loads(path.read_text())["histograms"]["qm9_29"]
  assert list(found["seconds"]) == ["16", "29"]
  for name, way in found["ways"].items():
    assert way["same_answers"] == 8, name
    assert way["largest_difference"] < 1e-4, name
  assert "Microseconds of a token in full rows, processor time: 16: " in (
    capsys.readouterr().out
  )


@pytest.mark.parametrize(("backend", "clock"), [("cpu", "processor"), ("gpu", "wall")])
def test_an_accelerator_is_not_timed_by_the_processor(monkeypatch, capsys, backend, clock):
  clocks = []

  def attention_weight(*_, clock, **__):
    clocks.append(clock)
    return 2.0, {29: 1e-6}

  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  monkeypatch.setattr(inference, "measure", lambda *_, **__: {})
  monkeypatch.setattr(inference, "way_table", lambda *_: "")
  monkeypatch.setattr(inference, "attention_weight", attention_weight)
  inference.main(["--histograms=qm9_29", "--sequences=8"])
  assert clocks == [clock]
  assert f"in full rows, {clock} time: 29: 1.0\n" in capsys.readouterr().out
