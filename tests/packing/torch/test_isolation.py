"""`packing.testing.isolation`: real models of transformers, real collators, real leaks."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

import packing

torch = pytest.importorskip("torch")

from packing.testing import LeakError, assert_isolated, isolation  # noqa: E402

pytestmark = pytest.mark.extra("torch")
EXAMPLES = [{"input_ids": [11, 12, 13, 14]}, {"input_ids": [15, 16, 17]}]


class Model(torch.nn.Module):  # type: ignore[name-defined]
  """Positions and embeddings; `mix` adds the mean of the row times a factor."""

  def __init__(self, *, mix=0.0, dropout=0.0, half=False):
    super().__init__()
    torch.manual_seed(0)
    self.tokens, self.places = torch.nn.Embedding(40, 8), torch.nn.Embedding(40, 8)
    self.mix, self.dropout = mix, torch.nn.Dropout(dropout)
    if half:
      self.to(torch.bfloat16)

  def forward(self, input_ids, position_ids=None):
    if position_ids is None:
      position_ids = torch.arange(input_ids.shape[1])[None]
    x = self.tokens(input_ids) + self.places(position_ids)
    return self.dropout(x) + self.mix * x.mean(1, keepdim=True)


def one_row(examples, *, restart=True):
  ids = [list(example["input_ids"]) for example in examples]
  places = [range(len(x)) for x in ids]
  flat = [place for one in places for place in one]
  if not restart:
    flat = list(range(len(flat)))
  return {
    "input_ids": torch.tensor([[token for one in ids for token in one]]),
    "position_ids": torch.tensor([flat]),
    "labels": torch.zeros(1, len(flat)),
  }


def test_a_model_that_keeps_sequences_apart_is_isolated():
  found = isolation(Model(), one_row, examples=EXAMPLES)
  assert (found.verdict, found.influence, found.difference) == ("isolated", 0, 0)
  assert_isolated(Model(), one_row, examples=EXAMPLES)


def test_a_leak_names_the_examples_and_its_size():
  model = Model(mix=0.5)
  found = isolation(model, one_row, examples=EXAMPLES)
  assert found.verdict == "leaks"
  assert {(x.source, x.target) for x in found.leaks} == {(0, 1), (1, 0)}
  # The mean of the row changes by the embeddings that are replaced, and no more.
  with torch.no_grad():
    ids = torch.tensor([[11, 12, 13, 14, 15, 16, 17]])
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    other = torch.tensor([[10, 9, 8, 7, 15, 16, 17]])
    change = (model(ids, places) - model(other, places))[:, 4:].abs().max()
    alone = [model(torch.tensor([x["input_ids"]])).abs().max() for x in EXAMPLES]
  assert found.leaks[0].size == pytest.approx(float(change / max(alone)), rel=1e-5)
  with pytest.raises(LeakError, match=r"example 1 change with the tokens of example 0"):
    assert_isolated(model, one_row, examples=EXAMPLES)


def test_a_leak_that_does_not_depend_on_the_order_of_tokens_is_found():
  assert isolation(Model(mix=1e-3), one_row, examples=EXAMPLES).verdict == "leaks"


def test_positions_that_do_not_restart_differ_without_a_leak():
  def running(examples):
    return one_row(examples, restart=False)

  found = isolation(Model(), running, examples=EXAMPLES)
  assert (found.verdict, found.influence, found.worst) == ("differs", 0, 1)
  with pytest.raises(AssertionError, match=r"example 1 differs .* position_ids") as caught:
    assert_isolated(Model(), running, examples=EXAMPLES)
  assert not isinstance(caught.value, LeakError)


def test_a_trainer_can_warn_or_stop_and_its_model_goes_on_training():
  model = Model(mix=0.5, dropout=0.5).train()
  with pytest.warns(UserWarning, match="change with the tokens"):
    isolation(model, one_row, examples=EXAMPLES, on_failure="warn")
  with pytest.raises(LeakError):
    isolation(model, one_row, examples=EXAMPLES, on_failure="raise")
  assert model.training
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    isolation(Model().train(), one_row, examples=EXAMPLES, on_failure="warn")


@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.float32).min, -float("inf")])
def test_a_column_that_a_model_masks_hides_no_leak(value):
  class Masked(Model):
    def forward(self, input_ids, position_ids=None):
      x = super().forward(input_ids, position_ids)
      return torch.cat([x, torch.full((*x.shape[:2], 1), value)], -1)

  assert isolation(Masked(mix=0.5), one_row, examples=EXAMPLES).verdict == "leaks"
  assert isolation(Masked(), one_row, examples=EXAMPLES).verdict == "isolated"


def test_each_module_keeps_its_mode():
  model = Model(dropout=0.5).train()
  model.tokens.eval()
  assert isolation(model, one_row, examples=EXAMPLES).verdict == "isolated"
  assert (model.training, model.tokens.training, model.dropout.training) == (1, 0, 1)
  model.eval()
  model.dropout.train()
  assert isolation(model, one_row, examples=EXAMPLES).verdict == "isolated"
  assert model.dropout.training


def test_outputs_may_be_named_and_functions_are_models():
  model = Model(mix=0.5)
  found = isolation(lambda **x: {"logits": model(**x)}, one_row, examples=EXAMPLES)
  assert found == isolation(model, one_row, examples=EXAMPLES)

  def of_numpy(input_ids, position_ids=None):
    return np.eye(40)[input_ids]

  def plain(examples):
    return {name: x.numpy() for name, x in one_row(examples).items()}

  assert isolation(of_numpy, plain, examples=EXAMPLES).verdict == "isolated"


def test_outputs_of_a_model_in_16_bits():
  assert isolation(Model(half=True), one_row, examples=EXAMPLES).verdict == "isolated"
  leaky = Model(mix=0.5, half=True)
  assert isolation(leaky, one_row, examples=EXAMPLES).verdict == "leaks"


def test_what_proves_nothing_is_refused():
  def refused(message, model=None, collate=one_row, examples=EXAMPLES, **options):
    with pytest.raises(packing.InputError, match=message):
      isolation(model or Model(), collate, examples=examples, **options)

  class Noise(Model):
    def forward(self, input_ids, position_ids=None):
      return super().forward(input_ids, position_ids) + torch.randn(1)

  class Constant(Model):
    def forward(self, input_ids, position_ids=None):
      return torch.zeros(*input_ids.shape, 3)

  class Summed(Model):
    def forward(self, input_ids, position_ids=None):
      return super().forward(input_ids, position_ids).sum(1)

  class Text(Model):
    def forward(self, input_ids, position_ids=None):
      return "logits"

  class Broken(Model):
    def forward(self, input_ids, position_ids=None):
      return super().forward(input_ids, position_ids) * float("nan")

  def masked(examples):
    batch = one_row(examples)
    batch["input_ids"][0, 1] = 39
    return batch

  refused("Turn off what is random", Noise())
  refused("do not depend on its tokens", Constant())
  refused("returns a str; expected an array", Text())
  refused("example 0 has NaN", Broken())
  refused(r"shape \(1, 8\); expected one that begins", Summed())
  refused("example 0 are not in the batch", collate=masked)
  refused("number of examples is 1; expected at least 2", examples=EXAMPLES[:1])
  refused("Token 11 comes twice", examples=[EXAMPLES[0], EXAMPLES[0]])
  refused("Example 1 has no input_ids", examples=[EXAMPLES[0], {"input_ids": []}])
  refused("Example 0 has no input_ids", examples=[{"ids": [3]}, EXAMPLES[0]])
  refused("collate returned tuple; expected a mapping", collate=lambda x: (x,))
  refused("collate returned ids; expected a mapping", collate=lambda x: {"ids": x})
  small = [{"input_ids": [0, 1]}, {"input_ids": [2, 3]}]
  refused("largest token id is 3, and 0 smaller ids are free", examples=small)
  refused("vocab_size is None", examples=None)
  with pytest.raises(packing.InputError, match=r"has no config\. Pass collate"):
    isolation(Model())
  refused("on_failure is 'stop'", on_failure="stop")


def test_collators_of_transformers_and_of_this_project():
  transformers = pytest.importorskip("transformers")
  from experiments.isolation_atlas.tiny import build, tiny
  from packing.torch import PackedCollator, packed_heads

  model = build(transformers.AutoModelForCausalLM, tiny("llama"), "sdpa")
  flatten = transformers.DataCollatorWithFlattening()
  assert isolation(model, flatten).verdict == "leaks"  # its default has a cache
  model.config.use_cache = False
  assert isolation(model, flatten).verdict == "isolated"
  model.config.use_cache = True
  assert isolation(model).verdict == "isolated"  # by PackedCollator.for_model

  def padded(examples):
    batch = torch.nn.utils.rnn.pad_sequence(
      [torch.tensor(x["input_ids"]) for x in examples], batch_first=True
    )
    return {"input_ids": batch, "attention_mask": (batch > 0).long()}

  assert isolation(model, padded).verdict == "isolated"

  config = tiny("bert")
  config.num_labels = 3
  model = build(transformers.AutoModelForSequenceClassification, config, "sdpa")
  collator = PackedCollator.for_model(config, row_length=32, answers="sequence")
  found = isolation(
    packed_heads(model), collator, alone=lambda x: model(torch.tensor([x["input_ids"]]))
  )
  assert found.verdict == "isolated"


def test_a_collator_that_changes_the_batch_of_another_is_not_passed_over():
  from packing.torch import PackedCollator

  class Changing:
    def __init__(self, collator):
      self.collator = collator

    def __call__(self, packs):
      return {"input_ids": self.collator(packs)["input_ids"]}

  with pytest.raises(packing.InputError, match="A pack is "):
    isolation(Model(), Changing(PackedCollator(row_length=64)), examples=EXAMPLES)


@pytest.mark.parametrize("multiple", [1, 2, 128])
def test_a_row_holds_all_examples_and_what_is_between_them(multiple):
  from packing.torch import PackedCollator

  collator = PackedCollator(row_length=128, separator_tokens=1, length_multiple=multiple)

  def plain(input_ids, position_ids, attention_mask):
    return Model()(input_ids, position_ids)

  examples = [{"input_ids": [3 * i + 15, 3 * i + 16, 3 * i + 17]} for i in range(6)]
  found = isolation(
    plain,
    collator,
    examples=examples,
    alone=lambda x: Model()(torch.tensor([x["input_ids"]])),
  )
  assert found.verdict == "isolated"


def test_the_fixture_of_the_wheel(tmp_path):
  (tmp_path / "test_mine.py").write_text(
    "from tests.packing.torch.test_isolation import EXAMPLES, Model, one_row\n"
    "def test_good(assert_isolated):\n"
    "  assert_isolated(Model(), one_row, examples=EXAMPLES)\n"
    "def test_bad(assert_isolated):\n"
    "  assert_isolated(Model(mix=0.5), one_row, examples=EXAMPLES)\n"
  )
  (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
  run = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "packing.testing.plugin", tmp_path],
    capture_output=True,
    text=True,
  )
  assert "1 failed, 1 passed" in run.stdout, run.stdout + run.stderr
  assert "LeakError: The outputs of example 1 change" in run.stdout
