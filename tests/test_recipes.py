"""The recipes of docs/how_to_pack.md: every token once, in rows of one shape.

A recipe whose library is not installed is skipped; the extra `recipes` has them. In an
environment without JAX: pytest --noconftest tests/test_recipes.py
"""

import itertools
import pathlib
import runpy

import numpy as np
import pytest

import packing

RECIPES = pathlib.Path(__file__).parents[1] / "docs" / "recipes"
ROW = 17
LENGTHS = np.random.default_rng(0).integers(1, ROW + 1, 61)
# Of all their tokens no two are equal, and none is 0.
TOKENS = np.arange(1, LENGTHS.sum() + 1, dtype=np.int32)
SEQUENCES = np.split(TOKENS, np.cumsum(LENGTHS)[:-1])
PLAN = packing.pack(
  packing.Histogram.from_lengths(LENGTHS, max_sequence_length=ROW), max_sequences_per_pack=3
)


def recipe(name: str, library: str) -> dict:
  pytest.importorskip(library, reason='pip install ".[recipes]" installs it')
  return runpy.run_path(str(RECIPES / name))


def check(batches):
  """Rows of [B, S] are the packs of epoch 1, in any order; each sequence is in one."""
  packs = [pack.tolist() for pack in PLAN.assign(LENGTHS, seed=1)]
  assert sorted(itertools.chain(*packs)) == list(range(len(SEQUENCES)))
  expected = []
  for pack in packs:
    ids = [token for i in pack for token in SEQUENCES[i].tolist()]
    segments = [number for number, i in enumerate(pack, 1) for _ in SEQUENCES[i]]
    positions = [position for i in pack for position in range(LENGTHS[i])]
    expected.append([x + [0] * (ROW - len(x)) for x in (ids, segments, positions)])
  fields = ("input_ids", "segment_ids", "position_ids")
  found = [np.concatenate([np.asarray(b[name]) for b in batches]) for name in fields]
  assert all(np.issubdtype(field.dtype, np.integer) for field in found)
  assert sorted(np.stack(found, axis=1).tolist()) == sorted(expected)


@pytest.mark.extra("torch")
def test_pytorch():
  rows = recipe("torch_dataloader.py", "torch")["PackedRows"](SEQUENCES, PLAN, epoch=1)
  import torch

  batches = list(torch.utils.data.DataLoader(rows, batch_size=5, shuffle=True))
  assert {batch["input_ids"].shape[0] for batch in batches[:-1]} == {5}
  check(batches)


@pytest.mark.extra("tensorflow")
def test_tf_data():
  packed_rows = recipe("tf_data.py", "tensorflow")["packed_rows"]
  import tensorflow as tf

  ragged = tf.RaggedTensor.from_row_lengths(TOKENS, LENGTHS)
  rows = packed_rows(ragged, PLAN, epoch=1).shuffle(100, seed=0).batch(5)
  assert rows.element_spec["input_ids"].shape.as_list() == [None, ROW]
  check(list(rows.as_numpy_iterator()))


@pytest.mark.extra("datasets")
def test_hugging_face_datasets(tmp_path):
  packed_rows = recipe("hugging_face_datasets.py", "datasets")["packed_rows"]
  import datasets

  datasets.Dataset.from_dict({"input_ids": SEQUENCES}).save_to_disk(tmp_path)
  packed = packed_rows(datasets.load_from_disk(tmp_path), PLAN, epoch=1)
  assert len(packed[0]["input_ids"]) == ROW
  rows = packed.shuffle(seed=0)
  check([rows[:7], rows[7:]])


MODELS = {  # what the recipe is given of each
  "RobertaForMaskedLM": {"causal": False, "pad_id": 0, "first_position": 1},
  "BertForMaskedLM": {"causal": False, "pad_id": 0},
  "GPT2LMHeadModel": {"causal": True, "pad_id": 0},
}


@pytest.fixture(params=MODELS)
def case(request):
  """A transformers model with random weights, what the recipe is given, and some rows."""
  rows = recipe("torch_dataloader.py", "torch")["PackedRows"]
  transformers = pytest.importorskip("transformers", reason="make reference installs it")
  import torch

  torch.manual_seed(0)
  made = getattr(transformers, request.param)
  sizes = {"hidden_size": 14, "intermediate_size": 11, "max_position_embeddings": ROW + 2}
  sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 1000}
  config = made.config_class(**sizes, pad_token_id=0, bos_token_id=0, eos_token_id=0)
  others = {}
  if request.param == "BertForMaskedLM":  # RoBERTa has no types of tokens
    others["token_type_ids"] = [np.arange(n) % 2 for n in LENGTHS]
  if not MODELS[request.param]["causal"]:
    others["labels"] = [np.where(x % 3, -100, x) for x in SEQUENCES]
  packed = rows(SEQUENCES, PLAN, epoch=0, **others)
  return made(config).eval(), MODELS[request.param], [packed[n] for n in range(5)]


@pytest.mark.extra("torch", "transformers")
def test_a_batch_for_transformers_is_isolated(case):
  model, options, rows = case
  made = recipe("transformers_batch.py", "torch")
  assert 0 < made["largest_difference"](model, rows, **options) < 1e-5


@pytest.mark.extra("torch", "transformers")
def test_the_loss_of_a_batch_for_transformers_is_that_of_its_sequences(case):
  """The mean over all tokens with labels; of a causal model a sequence's first has none."""
  model, options, rows = case
  batch = recipe("transformers_batch.py", "torch")["model_arguments"](rows, **options)
  import torch

  losses, counts = [], []
  for row in rows:
    for segment in range(1, row["segment_ids"].max() + 1):
      alone = {name: x[row["segment_ids"] == segment] for name, x in row.items()}
      labels = alone.setdefault("labels", alone["input_ids"])
      if count := (labels[options["causal"] :] != -100).sum():
        names = {"input_ids", "token_type_ids", "labels"} & alone.keys()
        tokens = {name: torch.as_tensor(alone[name]).long()[None] for name in names}
        losses.append(model(**tokens).loss.item())
        counts.append(count)
  mean = np.average(losses, weights=counts)
  assert model(**batch).loss.item() == pytest.approx(mean, rel=1e-5)
  padding = np.stack([row["segment_ids"] for row in rows]) == 0
  assert set(batch["labels"].numpy()[padding]) == {-100}
