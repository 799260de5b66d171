"""What docs/how_to_pack.md shows of packing.torch runs as it stands."""

import types

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
  recipes = {path.read_text() for path in (markdown.ROOT / "docs/recipes").glob("*.py")}
  shown = [x for x in blocks if any(start in x for start in starts) and x not in recipes]
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
  page_loop = markdown.ROOT / "docs/recipes/packed_steps.py"
  assert page_loop.read_text() in markdown.blocks(page, "python")
