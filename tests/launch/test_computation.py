import dataclasses

import jax
import pytest

from configs import base
from launch import computation
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
  found = computation.of_run(config, model_config, begun=begun and begun.config)
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


def test_a_resumed_run_keeps_what_it_began_with(monkeypatch):
  as_if_on(monkeypatch, AMPERE)
  begun, names = choose()
  assert names == ("bfloat16", "cudnn")
  as_if_on(monkeypatch, HOPPER)
  found, names = choose(begun=begun)
  assert names == ("bfloat16", "cudnn")
  assert found.why == "as the run began"
  by_hand = choose(begun=begun, attention_impl="xla", dtype="float32")
  assert by_hand[1] == ("float32", "xla")


def test_a_resumed_run_takes_another_attention_where_it_must_and_says_so(monkeypatch):
  as_if_on(monkeypatch, HOPPER)
  begun, _ = choose()
  for device, expected in ((AMPERE, "cudnn"), (CPU, "xla")):
    as_if_on(monkeypatch, device)
    found, names = choose(begun=begun)
    assert names == ("bfloat16", expected)
    assert found.why.startswith("the run began with cudnn_packed, but attention_impl=")
    with pytest.raises(AttentionError):
      choose(begun=begun, attention_impl="cudnn_packed")
    as_if_on(monkeypatch, HOPPER)  # back again
    back = choose(begun=begun._replace(config=found.to_keep))
    assert back[1] == ("bfloat16", "cudnn_packed")
    assert back[0].why == "as the run began"


def test_only_the_computation_is_chosen(monkeypatch):
  begun = choose()[0]
  other = dataclasses.replace(begun.config, dropout_rate=0.5)
  found, _ = choose(begun=begun._replace(config=other))
  assert found.config.dropout_rate == begun.config.dropout_rate
