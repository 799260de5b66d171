"""`PackedCollator.for_model`: packed equals each sequence alone, or a model is refused."""

import pickle

import pytest

import packing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention.flex_attention import create_mask  # noqa: E402

from experiments.isolation_atlas.tiny import KINDS, build, tiny  # noqa: E402
from experiments.isolation_atlas.trial import measure  # noqa: E402
from packing.torch import PackedCollator, masks  # noqa: E402
from tests.packing.torch.rows import ROW, packs  # noqa: E402

pytestmark = pytest.mark.extra("torch", "transformers")

EQUAL = [
  ("bert", "bidirectional"),
  ("xlm-roberta", "bidirectional"),
  ("modernbert", "bidirectional"),
  ("llama", "causal"),
  ("mistral", "causal"),  # a window in all layers
  ("gemma3_text", "causal"),  # in some
  ("gemma3", "of images and text"),
  ("llava", "of images and text"),
]


def make(model_type, kind="causal", implementation="sdpa"):
  return build(KINDS[kind][1], tiny(model_type), implementation)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("model_type", "kind"), EQUAL)
def test_packed_equals_each_sequence_alone(model_type, kind, implementation):
  model = make(model_type, kind, implementation)
  collator = PackedCollator.for_model(model.config, row_length=ROW)
  found = measure(model, lambda examples: collator([examples]), collator.causal)
  assert found.influence == found.derivative == 0
  assert max(found.outputs, found.loss or 0, found.gradients or 0) < 2e-6
  assert (collator.dtype == torch.bool) == (implementation == "sdpa")
  plan = packing.pack([9, 3], max_sequence_length=ROW)
  options = {"max_sequences": plan.packing_depth, "row_length": ROW}
  assert PackedCollator.of(plan, model.config) == PackedCollator.for_model(
    model.config, **options
  )


def test_llava_on_mistral_has_the_window_of_its_text_model():
  text = tiny("mistral").to_dict()
  config = tiny("llava").to_dict() | {"text_config": text}
  config = transformers.LlavaConfig.from_dict(config)
  model = build(transformers.AutoModelForImageTextToText, config, "sdpa")
  collator = PackedCollator.for_model(model.config, row_length=ROW)
  assert collator.window == 4
  found = measure(model, lambda examples: collator([examples]), collator.causal)
  assert found.influence == found.derivative == 0
  assert max(found.outputs, found.loss or 0, found.gradients or 0) < 2e-6


@pytest.mark.parametrize("model_type", ["esm", "deberta", "deberta-v2", "convbert"])
def test_types_that_mix_sequences_or_take_no_mask_are_refused_by_name(model_type):
  with pytest.raises(
    packing.InputError, match=f"models of type {model_type}: .* Pad the batches, or"
  ):
    PackedCollator.for_model(tiny(model_type), row_length=ROW)


def test_other_configs_are_refused_with_the_reason():
  def refused(config, message, **options):
    with pytest.raises(packing.InputError, match=message):
      PackedCollator.for_model(config, row_length=ROW, **options)

  refused(tiny("bart"), "has an encoder and a decoder")
  refused(tiny("qwen3_5"), "models of type qwen3_5.*linear_attention")
  refused(tiny("big_bird"), "models of type big_bird: in long rows")
  refused(transformers.PretrainedConfig(), "never tried with models of type ''")
  refused({"model_type": "llama"}, "expected the config of a model")
  refused(tiny("llama"), "Leave it out, or", causal=False)
  refused(tiny("bert"), "Leave it out, or", causal=True)


@pytest.mark.parametrize("asked", ["flash", "flex"])
def test_an_attention_that_the_model_does_not_take_is_refused(asked):
  for model_type, kind in EQUAL[:4]:
    model = make(model_type, kind)
    with pytest.raises(packing.InputError, match="attn_implementation='sdpa', with which"):
      PackedCollator.for_model(model.config, row_length=ROW, attention=asked)


def test_flash_inputs_are_for_models_with_flash_attention():
  for name in ("bert", "llama"):
    config = tiny(name)
    config._attn_implementation_internal = "flash_attention_2"
    collator = PackedCollator.for_model(config, row_length=ROW)
    assert collator.attention == "flash"
    assert collator(packs()).get("use_cache", True) == (name == "bert")
  with pytest.raises(packing.InputError, match=r"not causal keeps .*for_model"):
    PackedCollator(row_length=ROW, attention="flash")


def test_flash_inputs_are_right_with_sdpa_for_a_causal_model():
  """Positions tell transformers where sequences begin, but not with a cache."""
  model = make("llama")
  collator = PackedCollator(row_length=ROW, causal=True, attention="flash")
  batch = collator(packs())
  masked = PackedCollator.for_model(model.config, row_length=ROW)(packs())
  with torch.no_grad():
    expected, flat = model(**masked), model(**batch)
    cached = model(**batch | {"use_cache": True}).logits
  real = collator.rows(packs())["segment_ids"].ravel() > 0
  logits = expected.logits.flatten(0, 1)[real]
  torch.testing.assert_close(flat.logits[0][real], logits, atol=1e-5, rtol=1e-5)
  torch.testing.assert_close(flat.loss, expected.loss)
  assert (cached[0][real] - logits).abs().max() > 1e-2


# ---- masks ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 40}])
@pytest.mark.parametrize("length", [256, 301])
def test_blocks_are_those_of_the_mask(options, length):
  lengths = ((100, 130), (3, 17, 140))
  rows = [[{"input_ids": [5] * n} for n in pack] for pack in lengths]
  options = {"row_length": length, "local_layers": "all"} | options
  mask = PackedCollator(dtype=torch.bool, **options)(rows)["attention_mask"]
  added = PackedCollator(**options)(rows)["attention_mask"]
  assert torch.equal(added == 0, mask)
  blocks = PackedCollator(attention="flex", **options)(rows)["attention_mask"]
  again = pickle.loads(pickle.dumps(blocks)).to("cpu")
  assert torch.equal(create_mask(again.mask_mod, 2, 1, length, length, "cpu"), mask)
  number = -(-length // 128)
  padded = torch.nn.functional.pad(mask, (0, number * 128 - length) * 2)
  tiles = padded.unflatten(3, (number, 128)).unflatten(2, (number, 128))
  assert torch.equal(again.to_dense().bool(), tiles.any(-1).any(3))
  assert torch.equal(again.full_kv_num_blocks, tiles.all(-1).all(3).sum(-1).to(torch.int32))


def test_the_mask_of_blocks_moves_with_what_it_reads():
  collator = PackedCollator(row_length=ROW, attention="flex")
  moved = collator(packs())["attention_mask"].to("meta")
  assert isinstance(moved, masks.PackedBlockMask)
  assert isinstance(moved.mask_mod, masks.Allowed)
  assert moved.mask_mod.segments.device.type == moved.kv_indices.device.type == "meta"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of its compiler
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "bert", "modernbert"])
def test_flex_attention_gives_the_logits_of_sdpa(model_type):
  """Forward on a CPU, where PyTorch has no gradient of FlexAttention."""
  kind = next(kind for name, kind in EQUAL if name == model_type)
  found = []
  for implementation in ("sdpa", "flex_attention"):
    model = make(model_type, kind, implementation)
    collator = PackedCollator.for_model(model.config, row_length=ROW)
    batch = collator(packs())
    real = collator.rows(packs())["segment_ids"] > 0
    with torch.no_grad():
      found.append(model(**batch).logits[torch.as_tensor(real)])
  assert collator.attention == "flex"
  torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
