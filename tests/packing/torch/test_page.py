"""What docs/how_to_pack.md shows of packing.torch runs as it stands."""

import types

import numpy as np
import pytest

import packing
from tests import markdown

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra("torch")


class Model:
  """One layer of attention, with the arguments and outputs of a model of transformers."""

  config = types.SimpleNamespace(model_type="gpt2", pad_token_id=None)

  def __init__(self):
    self.token, self.position = torch.nn.Embedding(19, 8), torch.nn.Embedding(19, 8)
    self.output = torch.nn.Linear(8, 19)

  def __call__(self, input_ids, position_ids=None, attention_mask=None, labels=None):
    if position_ids is None:  # as a model of transformers makes them
      length = input_ids.shape[1]
      position_ids = torch.arange(length)[None]
      attention_mask = torch.full((1, 1, length, length), -torch.inf).triu(1)
    x = self.token(input_ids) + self.position(position_ids)
    scores = x @ x.swapaxes(1, 2) + attention_mask[:, 0]
    logits = self.output(scores.softmax(-1) @ x)
    loss = None
    if labels is not None:
      targets = labels[:, 1:].reshape(-1)
      loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets)
    return types.SimpleNamespace(logits=logits, loss=loss)


def test_the_blocks_run():
  page = (markdown.ROOT / "docs/how_to_pack.md").read_text()
  blocks = markdown.blocks(page, "python")
  starts = "collator = PackedCollator.of", "apply"
  shown = [block for block in blocks if any(start in block for start in starts)]
  assert len(shown) == 2
  sequences = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1, 2], [6, 5]]
  names = {
    "sequences": sequences,
    "examples": [{"input_ids": ids} for ids in sequences],
    "plan": packing.pack([*map(len, sequences)], max_sequence_length=8),
    "model": Model(),
    "torch": torch,
  }
  exec("\n".join(shown), names)
  assert names["loss"].isfinite()


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_loop_of_steps_learns_what_sequences_alone_would(world_size):
  page = (markdown.ROOT / "docs/how_to_pack.md").read_text()
  (loop,) = (block for block in markdown.blocks(page, "python") if "world_size" in block)
  torch.manual_seed(0)
  model = Model()
  rng = np.random.default_rng(0)
  sequences = [rng.integers(1, 19, n).tolist() for n in (7, 2, 5, 3, 8, 4, 6)]
  weight = model.token.weight
  losses = []
  for ids in sequences:
    logits = model(torch.tensor([ids])).logits[0, :-1]
    target = torch.tensor(ids[1:])
    losses.append(torch.nn.functional.cross_entropy(logits, target, reduction="none"))
  torch.cat(losses).mean().backward()
  expected, found = weight.grad.clone(), []

  class Optimizer:
    def step(self):
      found.append(weight.grad.clone())

    def zero_grad(self):
      weight.grad = None

  weight.grad = None
  for rank in range(world_size):
    names = {
      "packing": packing,
      "steps": [[{"input_ids": ids} for ids in sequences]],
      "model": model,
      "optimizer": Optimizer(),
      "world_size": world_size,
      "rank": rank,
    }
    exec(loop.replace("8192", "12"), names)
  torch.testing.assert_close(sum(found) / world_size, expected)
