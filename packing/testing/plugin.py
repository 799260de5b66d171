"""A plugin of pytest, which the wheel registers: the fixture `assert_isolated`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packing import testing


@pytest.fixture
def assert_isolated() -> Callable[..., None]:
  """`packing.testing.assert_isolated`: fails if sequences of a batch are not apart.

  Example of a test:

    def test_sequences_are_apart(assert_isolated):
      model = transformers.AutoModelForCausalLM.from_config(config)
      assert_isolated(model, my_collator)
  """
  return testing.assert_isolated
