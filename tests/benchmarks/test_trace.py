"""benchmarks.trace in a process of its own, since it sets a flag of XLA."""

import json

from tests import forked
from tests.programs import ROOT


def test_a_trace_of_a_step_has_its_products(tmp_path):
  path = tmp_path / "trace.json"
  words = ["--size", "tiny", "--sequences", "8", "--batch-size", "4", "--json", str(path)]
  result = forked.run(["-m", "benchmarks.trace", *words], cwd=ROOT)
  assert result.returncode == 0, result.stderr
  seconds = json.loads(path.read_text())["seconds"]
  assert seconds["products"] > 0.2 * sum(seconds.values())
  assert seconds["element by element"] > 0
  assert "| products |" in result.stdout
