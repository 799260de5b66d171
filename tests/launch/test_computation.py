import dataclasses

import jax
import pytest

from configs import base
from launch import computation
from launch.door import settings_of
from model import AttentionError
from tests import packs
from tests.model.test_attention import AMPERE, HOPPER, as_if_on

CPU = jax.local_devices()[0]


def choose(*, begun=None, **fields):
  """For a new run, or for one that `begun` on another device."""
  config = base.get_config()
  config.model.update(fields)
  sizes = {"hidden_size": 64, "num_heads": 1}
  named = {name: config.model[name] for name in ("dtype", "attention_impl")}
  model_config = packs.small_config(**sizes, **named)
  run = settings_of(config)
  found = computation.of_run(
    run, model_config, run.rows.lengths, begun=begun and begun.config
  )
  return found, (found.config.dtype.name, found.config.attention_impl)


def test_a_run_takes_what_is_fastest_and_says_why(monkeypatch):
  said = "computing in float32 with attention_impl=xla: there is no faster kernel for "
  assert str(choose()[0]).startswith(said)
  as_if_on(monkeypatch, HOPPER)
  found, names = choose()
  assert names == ("bfloat16", "cudnn_packed")
  assert "the fastest attention that is proven on a GPU" in str(found)


def test_a_name_given_by_hand_is_never_replaced(monkeypatch):
  as_if_on(monkeypatch, HOPPER)
  assert choose(dtype="float32", attention_impl="blocks")[1] == ("float32", "blocks")
  with pytest.raises(AttentionError, match="found float32"):
    choose(dtype="float32", attention_impl="cudnn")


def test_a_resumed_run_keeps_its_dtype_and_takes_the_attention_of_its_device(monkeypatch):
  as_if_on(monkeypatch, HOPPER)
  begun, names = choose()
  assert names == ("bfloat16", "cudnn_packed")
  for device, expected in ((AMPERE, "cudnn"), (CPU, "xla"), (HOPPER, "cudnn_packed")):
    as_if_on(monkeypatch, device)
    assert choose(begun=begun)[1] == ("bfloat16", expected)
  assert choose(begun=begun, dtype="float32")[1][0] == "float32"


def test_only_the_computation_is_chosen(monkeypatch):
  begun = choose()[0]
  other = dataclasses.replace(begun.config, dropout_rate=0.5)
  found, _ = choose(begun=begun._replace(config=other))
  assert found.config.dropout_rate == begun.config.dropout_rate
