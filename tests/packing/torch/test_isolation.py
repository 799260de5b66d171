"""`packing.testing.isolation`: real models of transformers, real collators, real leaks."""

import subprocess
import sys
import warnings

import pytest

import packing

torch = pytest.importorskip("torch")

from packing.testing import LeakError, assert_isolated, isolation  # noqa: E402

pytestmark = pytest.mark.extra("torch")
EXAMPLES = [{"input_ids": [11, 12, 13, 14]}, {"input_ids": [15, 16, 17]}]


class Model(torch.nn.Module):
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


def test_rounding_of_16_bits_is_no_leak():
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

  def masked(examples):
    batch = one_row(examples)
    batch["input_ids"][0, 1] = 39
    return batch

  refused("Turn off what is random", Noise())
  refused("do not depend on its tokens", Constant())
  refused(r"shape \(1, 8\); expected one that begins", Summed())
  refused("example 0 are not in the batch", collate=masked)
  refused("Expected two examples or more", examples=EXAMPLES[:1])
  refused("no token comes twice", examples=[EXAMPLES[0], EXAMPLES[0]])
  refused(
    "largest token id, 3, 0 are not used",
    examples=[{"input_ids": [0, 1]}, {"input_ids": [2, 3]}],
  )
  refused("vocab_size is None", examples=None)
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
