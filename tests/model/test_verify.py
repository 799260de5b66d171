import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from model import BertConfig, attention, gpt2, hf, masks
from model import __main__ as command
from model.attention import kernels
from model.testing import verify

GOLDEN = pathlib.Path(__file__).parent / "golden"
CASE = ("question answering", "xla", "float32")
CAUSAL = ("next tokens, ALiBi", "xla", "float32")
PASSES = verify.Row(*CASE, 1e-7, 0.0, 2e-7, 1e-5, influence=0.0, limit=1e-5)


def test_a_mask_that_forgets_a_sequence_is_found(monkeypatch):
  def leaky(segment_ids):
    return masks.padding_attention_mask(jnp.minimum(segment_ids, 2))

  monkeypatch.setattr(attention, "packed_attention_mask", leaky)
  row = verify.verify_case(*CASE)
  assert not row.passes
  assert row.influence > 1e-3
  assert row.outputs > row.limit
  assert "FAILS" in verify.table([row])


def test_a_model_that_looks_ahead_is_found(monkeypatch):
  monkeypatch.setattr(gpt2.Gpt2Config, "CAUSAL", False)
  row = verify.verify_case(*CAUSAL)
  assert not row.passes
  assert row.influence > 1e-3


@pytest.mark.parametrize(
  ("head", "implementation", "dtype", "reason"),
  [
    *(
      ("regression", k, "bfloat16", "runs only on")
      for k in ("cudnn", "cudnn_packed", "splash")
    ),
    (CAUSAL[0], "splash_interpret", "float32", "needs .*found ALiBi's"),
  ],
)
def test_what_cannot_be_run_says_why(head, implementation, dtype, reason):
  row = verify.verify_case(head, implementation, dtype)
  assert (row.passes, row.outputs) == (None, None)
  told = f"Not run, {implementation}: attention_impl={implementation} {reason}"
  assert re.search(told, verify.table([row]))


def test_positions_that_continue_through_the_row_are_verified_in_rows_that_they_reach(
  monkeypatch,
):
  """The paper's ablation: no sequence influences another, but packing moves each."""
  stored = hf.open_model(GOLDEN / "BertForTokenClassification")
  bert = stored.config_as(BertConfig)
  assert bert.max_position_embeddings < verify.ROW_LENGTH
  config = dataclasses.replace(bert, position_reset=False)
  monkeypatch.setattr(verify, "DTYPES", ("float32",))
  stored = dataclasses.replace(stored, config=config)
  row, *others = verify.verify(stored=stored, reference=False)
  assert row.influence == 0
  assert row.outputs > row.limit
  assert all("row length" in x.not_run or "runs only on" in x.not_run for x in others)


@pytest.mark.parametrize("name", ["outputs", "losses", "gradients", "reference"])
def test_each_difference_and_any_influence_fails_a_row(name):
  assert PASSES.passes
  assert not dataclasses.replace(PASSES, **{name: 1.1e-5}).passes
  assert not dataclasses.replace(PASSES, **{name: float("nan")}).passes
  assert not dataclasses.replace(PASSES, influence=1e-30).passes


def test_the_largest_of_all_heads_is_shown():
  other = dataclasses.replace(
    PASSES, head="regression", outputs=3e-7, losses=None, gradients=0.0, reference=None
  )
  (shown,) = verify.largest([PASSES, other, dataclasses.replace(other, not_run="why")])
  sizes = {"outputs": "3.0e-07", "losses": "0", "gradients": "2.0e-07"}
  about = {"attention": "xla", "dtype": "float32", "Hugging Face": "1.0e-05"}
  assert shown == about | sizes | {"influence": "0", "": ""}
  assert verify.table([PASSES, other]).splitlines()[-1].startswith("| xla | float32 | 3.0e")
  (shown,) = verify.largest([PASSES, dataclasses.replace(other, outputs=float("nan"))])
  assert (shown["outputs"], shown[""]) == ("nan", "FAILS")


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_prints_a_table_and_fails_with_a_row(monkeypatch, capsys, broken):
  """What was not run neither passes nor fails."""
  row = dataclasses.replace(PASSES, reference=None, influence=float(broken))
  rows = [verify.Row(*CASE, not_run="no GPU"), row]
  monkeypatch.setattr(verify, "verify", lambda *_, **__: rows)
  assert command.main(["verify"]) == broken
  assert "| 1.0e-07 | 0 | 2.0e-07 | - |" in capsys.readouterr().out
  assert command.main(["verify", "--json"]) == broken
  result = json.loads(capsys.readouterr().out)
  assert result["passes"] is not broken
  assert [row["passes"] for row in result["rows"]] == [None, not broken]
  assert result["rows"][1]["gradients"] == 2e-7
  assert result["jax"] == jax.__version__


@pytest.mark.parametrize(
  "head",
  [
    "masked tokens, next sentence",
    "RoBERTa, masked tokens",
    "DistilBERT, question answering",
    "ELECTRA, token classes",
    "next tokens, learned positions",
  ],
)
@pytest.mark.extra("torch", "transformers")
def test_the_reference_agrees(head):
  row = verify.verify_case(head, *CASE[1:], reference=True)
  assert row.passes
  assert row.reference < 1e-5


def test_every_reason_is_told_and_of_which_heads_if_not_of_all():
  sizes = dict.fromkeys(("outputs", "losses", "gradients", "influence"), 0.0)
  rows = [
    verify.Row(head, "blocks", "float32", limit=1.0, **sizes | more)
    for head, more in (
      ("a", {"failed": "no engine"}),
      ("b", {"failed": "no memory"}),
      ("c", {"not_run": "it needs a bias"}),
      ("d", {}),
    )
  ]
  told = verify.table(rows)
  for line in (
    "FAILS, blocks (a): no engine",
    "FAILS, blocks (b): no memory",
    "Not run, blocks (c): it needs a bias",
  ):
    assert line in told.splitlines()


def test_attention_that_is_wrong_packed_and_unpacked_alike_is_seen_beside_xla(monkeypatch):
  assert verify.compare_with_xla("blocks", "float32", 128).passes
  right = kernels.attend
  monkeypatch.setattr(kernels, "attend", lambda *x, **options: 1.01 * right(*x, **options))
  wrong = verify.compare_with_xla("blocks", "float32", 128)
  assert not wrong.passes
  assert 1e-3 < wrong.difference < 0.1
  assert "1.0e-02 | FAILS" in verify.comparison_table([wrong])
  refused = verify.comparison_table([dataclasses.replace(wrong, implementation="cudnn")])
  assert "1.0e-02 | refused" in refused
  assert "auto takes another" in refused


def test_a_kernel_that_overflows_where_scores_are_low_is_seen_beside_xla(monkeypatch):
  """As a softmax without its largest score taken off first."""

  def naive(_, query, key, value, segment_ids, *rest, **options):
    scores = jnp.einsum("BQNH,BKNH->BNQK", query, key) / query.shape[-1] ** 0.5
    weights = jnp.exp(scores) * masks.packed_attention_mask(segment_ids)
    total = weights.sum(-1, keepdims=True)
    return jnp.einsum("BNQK,BKNH->BQNH", jnp.where(total > 0, weights / total, 0), value)

  assert not verify.compare_with_xla("blocks", "bfloat16", 64).failed
  monkeypatch.setattr(kernels, "attend", naive)
  assert not verify.compare_with_xla("blocks", "bfloat16", 64).passes


@pytest.mark.slow
def test_quick_verifies_each_implementation_of_this_device():
  rows, comparisons = verify.quick()
  found = {(row.implementation, row.dtype) for row in rows}
  dtypes = ("float32", "bfloat16")
  assert found == {(name, dtype) for name in ("xla", "blocks") for dtype in dtypes}
  assert {(x.dtype, x.row_length) for x in comparisons} == {
    (dtype, length) for dtype in dtypes for length in verify.QUICK_LENGTHS
  }
  assert all(row.passes for row in rows)
  assert all(x.passes for x in comparisons)
