"""A fresh clone has requirements.txt alone: every test module must be collected there."""

import re
import subprocess
import sys

import pytest

from tests.programs import ROOT


@pytest.mark.slow
def test_tests_are_collected_without_any_extra():
  command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "tests.without_extras"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert result.returncode == 0, result.stdout[-3000:]
  assert re.search(r"^\d{4} tests collected", result.stdout, re.M), result.stdout[-300:]
