"""Packed logits of transformers' models equal those of each sequence alone.

python -m tests.packing.torch.test_transformers prints by how much they differ.
"""

import functools
from typing import Any

import numpy as np
import pytest

import packing
from packing.testing import (
  assert_causal,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
)
from packing.torch import PackedCollator

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.extra("torch", "transformers")

ROW = 24
SIZES: dict[str, Any] = {
  "vocab_size": 60,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 3,
  "num_attention_heads": 2,
  "max_position_embeddings": ROW + 4,
  "pad_token_id": 0,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
# The class, its own sizes, and the collator's options.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
  "bert": ("BertForMaskedLM", {}, {}),
  "roberta": ("RobertaForMaskedLM", {"pad_token_id": 1}, {"first_position": 2}),
  # A window of 2 tokens to each side, in two of three layers.
  "modernbert": (
    "ModernBertForMaskedLM",
    {"local_attention": 4, "global_attn_every_n_layers": 3, "cls_token_id": 3},
    {"window": 2},
  ),
  "gpt2": ("GPT2LMHeadModel", {}, {"causal": True}),
  "llama": ("LlamaForCausalLM", {"num_key_value_heads": 1}, {"causal": True}),
}
GEOMETRIES: dict[str, dict[str, Any]] = {
  "plain": {},
  "aligned": {"length_multiple": 4, "separator_tokens": 1},
}


def make(name, implementation="eager"):
  torch.manual_seed(0)
  kind, sizes, options = MODELS[name]
  kind = getattr(transformers, kind)
  config = kind.config_class(**(SIZES | sizes), attn_implementation=implementation)
  model = kind(config).eval()
  for parameter in model.parameters():  # biases and all else matter too
    torch.nn.init.normal_(parameter, std=0.3)
  if sizes.get("local_attention"):
    assert config.sliding_window == options["window"]
  return model, options


def sequences():
  rng = np.random.default_rng(0)
  return [{"input_ids": rng.integers(4, 60, n)} for n in (9, 3, 11, 1, 6, 2, 14, 5)]


def as_function(model, collator):
  def apply(batch):
    arguments = collator.arguments(batch)
    arguments.pop("labels", None)
    arguments.pop("token_type_ids", None)
    for name in ("cls_positions", "sequence_mask"):
      arguments.pop(name, None)
    with torch.no_grad():
      return model(**arguments).logits

  return apply


def without_mask(model, collator):
  def apply(batch):
    arguments = collator.arguments(batch)
    names = ("input_ids", "position_ids")
    with torch.no_grad():
      return model(**{name: arguments[name] for name in names}).logits

  return apply


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_packed_equals_unpacked_and_nothing_leaks(name, implementation):
  model, options = make(name, implementation)
  apply = as_function(model, PackedCollator(row_length=ROW, **options))
  assert_packed_equals_unpacked(apply, sequences(), row_length=ROW)
  batch = PackedCollator(row_length=ROW).rows([sequences()[:3], sequences()[3:7]])
  assert_no_cross_contamination(apply, batch)
  if options.get("causal"):
    assert_causal(apply, batch)


@pytest.mark.parametrize("name", MODELS)
def test_sequences_alone_get_what_the_model_gives_without_any_mask(name):
  """As users call it: the model's own mask, positions and window."""
  model, options = make(name)
  collator = PackedCollator(row_length=ROW, **options)
  for geometry in GEOMETRIES.values():
    lengths = [len(x["input_ids"]) for x in sequences()]
    plan = packing.pack(lengths, max_sequence_length=ROW, **geometry)
    collator = PackedCollator.of(plan, **options)
    packs = [[sequences()[i] for i in pack] for pack in plan.assign(lengths, seed=0)]
    rows = collator.rows(packs)
    arguments = collator.arguments(rows)
    arguments.pop("labels", None)
    with torch.no_grad():
      packed = model(**arguments).logits
      for row, pack in enumerate(packs):
        for number, example in enumerate(pack, start=1):
          ids = torch.as_tensor(example["input_ids"])[None]
          alone = model(input_ids=ids).logits[0]
          here = torch.as_tensor(rows["segment_ids"][row] == number)
          torch.testing.assert_close(packed[row, here], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_come_from_its_config_and_a_reference_checks_them(name):
  model, options = make(name)
  lengths = [len(x["input_ids"]) for x in sequences()]
  plan = packing.pack(lengths, max_sequence_length=ROW)
  collator = PackedCollator.of(plan, model.config)
  assert collator.causal == options.get("causal", False)
  assert collator.window == options.get("window")
  assert collator.first_position == options.get("first_position", 0)
  assert collator.pad_id == model.config.pad_token_id

  def alone(sequence):
    with torch.no_grad():
      return model(input_ids=torch.as_tensor(sequence["input_ids"])[None]).logits[0]

  check = functools.partial(
    assert_packed_equals_unpacked, sequences=sequences(), row_length=ROW
  )
  check(as_function(model, collator), reference=alone)
  wrong = {"modernbert": {"window": 4}, "roberta": {"first_position": 3}}.get(name)
  if wrong is not None:
    apply = as_function(model, PackedCollator.of(plan, model.config, **wrong))
    check(apply)
    with pytest.raises(AssertionError, match="differs from the reference"):
      check(apply, reference=alone)


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    ({"layer_types": ["full_attention", "linear_attention"]}, "of type linear_attention"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
    (
      {"_attn_implementation_internal": "a_kernel"},
      "attn_implementation='a_kernel', whose",
    ),
    ({"sliding_window": 3}, {"window": 3, "local_layers": "all"}),
    ({"layer_types": ["full_attention"], "sliding_window": 3}, {"window": None}),
    ({"layer_types": ["sliding_attention"], "sliding_window": 3}, {"window": 3}),
    ({"pad_token_id": -1}, {"pad_id": 0, "window": None}),
    ({"pad_token_id": 7, "dtype": torch.bfloat16}, {"pad_id": 7, "dtype": torch.bfloat16}),
    ({"is_causal": False}, {"causal": False}),
  ],
)
def test_fields_of_a_config_become_options_or_are_refused(fields, expected):
  config = transformers.LlamaConfig()
  for name, value in fields.items():
    setattr(config, name, value)
  if isinstance(expected, str):
    with pytest.raises(packing.InputError, match=expected):
      PackedCollator.for_model(config, row_length=8)
    return
  collator = PackedCollator.for_model(config, row_length=8)
  assert {name: getattr(collator, name) for name in expected} == expected


@pytest.mark.parametrize("name", MODELS)
def test_without_the_mask_sequences_contaminate_each_other(name):
  model, options = make(name)
  apply = without_mask(model, PackedCollator(row_length=ROW, **options))
  (difference,) = differences(apply, sequences(), row_length=ROW)
  assert difference.size > 1e-3


def test_one_mask_for_all_layers_ignores_the_window():
  """What transformers does with a mask of four axes, and why `window` has to be given."""
  model, _ = make("modernbert")
  apply = as_function(model, PackedCollator(row_length=ROW))
  with_window = as_function(model, PackedCollator(row_length=ROW, window=2))
  batch = PackedCollator(row_length=ROW).rows([sequences()[:3]])
  assert (apply(batch) - with_window(batch)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_loss_is_the_mean_over_all_tokens_with_labels(name):
  model, options = make(name)
  collator = PackedCollator(row_length=ROW, **options)
  examples = sequences()
  if not options.get("causal"):
    for x in examples:
      x["labels"] = np.where(x["input_ids"] % 3 == 0, x["input_ids"], -100)
  losses, counts = [], []
  with torch.no_grad():
    batch = collator([examples[:2], examples[2:5]])
    loss = model(**batch).loss
    for x in examples[:5]:
      ids = torch.as_tensor(x["input_ids"])[None]
      labels = torch.as_tensor(x.get("labels", x["input_ids"]))[None]
      if count := (labels[:, options.get("causal", False) :] != -100).sum():
        losses.append(float(model(input_ids=ids, labels=labels).loss))
        counts.append(int(count))
  assert float(loss) == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


def test_gradients_of_packed_and_unpacked_are_equal():
  model, options = make("bert")
  collator = PackedCollator(row_length=ROW, **options)

  def apply(params, batch):
    arguments = collator.arguments(batch)
    for name in ("cls_positions", "sequence_mask"):
      arguments.pop(name, None)
    return torch.func.functional_call(model, params, kwargs=arguments).logits

  params = dict(model.named_parameters())
  assert_packed_equals_unpacked(apply, sequences(), params=params, row_length=ROW)


def test_boundaries_for_flash_attention_are_those_of_transformers():
  examples = [{"input_ids": x["input_ids"].tolist()} for x in sequences()]
  packs = [[examples[0], examples[2], examples[3]], [examples[6], examples[7], examples[5]]]
  ours = PackedCollator(row_length=21, causal=True, attention="flash")(packs)
  theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(
    [example for pack in packs for example in pack]
  )
  assert ours["cu_seq_lens_q"].tolist() == theirs["cu_seq_lens_q"].tolist()
  assert ours["cu_seq_lens_k"].tolist() == theirs["cu_seq_lens_k"].tolist()
  for name in ("input_ids", "position_ids", "labels"):
    torch.testing.assert_close(ours[name], theirs[name], check_dtype=False)
  assert ours["max_length_q"] >= theirs["max_length_q"]


def test_boundaries_are_whole_numbers_where_float32_has_no_more_of_them():
  collator = PackedCollator(row_length=2**24 + 1, causal=True, attention="flash")
  assert collator([[{"input_ids": np.arange(3)}]])["cu_seq_lens_q"][-1] == 2**24 + 1


if __name__ == "__main__":
  print(
    "| model | attention | packed to unpacked | without the mask |\n|---|---|---:|---:|"
  )
  for name in MODELS:
    for implementation in ("eager", "sdpa"):
      model, options = make(name, implementation)
      collator = PackedCollator(row_length=ROW, **options)
      cells = []
      for apply in (as_function(model, collator), without_mask(model, collator)):
        (difference,) = differences(apply, sequences(), row_length=ROW)
        cells.append(f"{difference.size:.1e}")
      print(f"| {MODELS[name][0]} | {implementation} | {' | '.join(cells)} |")
