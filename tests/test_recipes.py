"""The recipes of docs/how_to_pack.md: every token once, in rows of one shape.

A recipe whose library is not installed is skipped; the extra `recipes` has them. In an
environment without JAX: pytest --noconftest tests/test_recipes.py
"""

import pathlib
import runpy

import numpy as np
import pytest

import packing

RECIPES = pathlib.Path(__file__).parents[1] / "docs" / "recipes"
ROW = 17


@pytest.fixture(scope="module")
def sequences() -> list[np.ndarray]:
  """Of all their tokens no two are equal, and none is 0."""
  lengths = np.random.default_rng(0).integers(1, ROW + 1, 61)
  return np.split(np.arange(1, lengths.sum() + 1, dtype=np.int32), np.cumsum(lengths)[:-1])


@pytest.fixture(scope="module")
def plan(sequences) -> packing.Plan:
  lengths = [len(sequence) for sequence in sequences]
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=ROW)
  return packing.pack(histogram, max_sequences_per_pack=3)


def recipe(name: str, library: str) -> dict:
  pytest.importorskip(library, reason='pip install ".[recipes]" installs it')
  return runpy.run_path(str(RECIPES / name))


def check(batches, sequences, plan):
  """Rows as dictionaries of [B, S]: each sequence is in one place, whole."""
  fields = ("input_ids", "segment_ids", "position_ids")
  rows = {name: np.concatenate([np.asarray(b[name]) for b in batches]) for name in fields}
  assert all(field.shape == (plan.num_packs, ROW) for field in rows.values())
  assert all(np.issubdtype(field.dtype, np.integer) for field in rows.values())
  found = []
  for ids, segments, positions in zip(*rows.values(), strict=True):
    lengths = np.bincount(segments)[1:]
    assert lengths.size <= 3
    assert lengths.all()
    end = lengths.sum()
    np.testing.assert_array_equal(
      segments[:end], np.repeat(np.arange(1, lengths.size + 1), lengths)
    )
    for field in (ids, segments, positions):
      assert not field[end:].any()
    found += [x.tolist() for x in np.split(ids[:end], np.cumsum(lengths)[:-1])]
    for part in np.split(positions[:end], np.cumsum(lengths)[:-1]):
      assert part.tolist() == list(range(len(part)))
  assert sorted(found) == sorted(sequence.tolist() for sequence in sequences)


@pytest.mark.extra("torch")
def test_pytorch(sequences, plan):
  made = recipe("torch_dataloader.py", "torch")
  import torch

  loader = torch.utils.data.DataLoader(
    made["PackedRows"](sequences, plan, epoch=1), batch_size=5, shuffle=True
  )
  batches = list(loader)
  assert {batch["input_ids"].shape[0] for batch in batches[:-1]} == {5}
  check(batches, sequences, plan)


@pytest.mark.extra("tensorflow")
def test_tf_data(sequences, plan):
  made = recipe("tf_data.py", "tensorflow")
  import tensorflow as tf

  ragged = tf.ragged.constant([sequence.tolist() for sequence in sequences])
  rows = made["packed_rows"](ragged, plan, epoch=1).shuffle(100, seed=0).batch(5)
  assert rows.element_spec["input_ids"].shape.as_list() == [None, ROW]
  check(list(rows.as_numpy_iterator()), sequences, plan)


@pytest.mark.extra("datasets")
def test_hugging_face_datasets(sequences, plan, tmp_path):
  made = recipe("hugging_face_datasets.py", "datasets")
  import datasets

  ids = {"input_ids": [sequence.tolist() for sequence in sequences]}
  stored = datasets.Dataset.from_dict(ids)
  stored.save_to_disk(tmp_path)
  packed = made["packed_rows"](datasets.load_from_disk(tmp_path), plan, epoch=1)
  assert len(packed) == plan.num_packs
  rows = packed.shuffle(seed=0)
  check([rows[:7], rows[7:]], sequences, plan)
  assert len(packed[0]["input_ids"]) == ROW


def test_another_epoch_has_other_neighbours(sequences, plan):
  """What all recipes take from the plan."""
  lengths = [len(sequence) for sequence in sequences]
  one, other = (plan.assign(lengths, seed=seed).sequence_ids for seed in (0, 1))
  assert not np.array_equal(one, other)


def hugging_face(architecture: str):
  """With random weights; its sizes are those of the sequences."""
  transformers = pytest.importorskip("transformers", reason="make reference installs it")
  import torch

  torch.manual_seed(0)
  sizes = {
    "vocab_size": 1000,
    "pad_token_id": 0,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
  }
  sizes |= {"hidden_size": 14, "intermediate_size": 11, "max_position_embeddings": ROW + 2}
  if architecture.startswith("GPT2"):
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(
      vocab_size=1000, n_embd=14, n_layer=2, n_head=2, n_positions=ROW, **ends
    )
  else:
    kind = architecture.removesuffix("ForMaskedLM") + "Config"
    config = getattr(transformers, kind)(**sizes)
  return getattr(transformers, architecture)(config).eval()


# Of each model what it is given besides.
MODELS = {
  "BertForMaskedLM": {"causal": False, "pad_id": 0},
  "RobertaForMaskedLM": {"causal": False, "pad_id": 0, "first_position": 1},
  "GPT2LMHeadModel": {"causal": True, "pad_id": 0},
}


def rows_for(architecture, sequences, plan, **others) -> list[dict]:
  """Some rows, as a DataLoader has them; all BERTs but RoBERTa have types of tokens."""
  if architecture == "BertForMaskedLM":
    others["token_type_ids"] = [np.arange(len(x)) % 2 for x in sequences]
  made = recipe("torch_dataloader.py", "torch")
  rows = made["PackedRows"](sequences, plan, epoch=0, **others)
  return [rows[number] for number in range(5)]


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("architecture", MODELS)
def test_a_batch_for_transformers_is_isolated(architecture, sequences, plan):
  """And a row as it comes is not, which no error tells."""
  made = recipe("transformers_batch.py", "torch")
  import torch

  model, options = hugging_face(architecture), MODELS[architecture]
  rows = rows_for(architecture, sequences, plan)
  assert min(row["segment_ids"].max() for row in rows) > 1
  assert made["largest_difference"](model, rows, **options) < 1e-5
  plain = {
    name: torch.as_tensor(np.stack([row[name] for row in rows])).long() for name in rows[0]
  }
  with torch.no_grad():
    leaking = model(**plain).logits
    isolated = model(**made["model_arguments"](rows, **options)).logits
  real = plain["segment_ids"] > 0
  assert (leaking - isolated)[real].abs().max() > 1e-3


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize("architecture", MODELS)
def test_the_loss_of_a_batch_for_transformers_is_that_of_its_sequences(
  architecture, sequences, plan
):
  """The mean over all tokens with labels; of a causal model a sequence's first has none."""
  made = recipe("transformers_batch.py", "torch")
  import torch

  model, options = hugging_face(architecture), MODELS[architecture]
  others = {}
  if not options["causal"]:
    others["labels"] = [np.where(x % 3, -100, x) for x in sequences]
  rows = rows_for(architecture, sequences, plan, **others)
  total, count = 0.0, 0
  for row in rows:
    for segment in range(1, row["segment_ids"].max() + 1):
      alone = {name: x[row["segment_ids"] == segment] for name, x in row.items()}
      tokens = {
        k: alone[k] for k in ("input_ids", "token_type_ids", "labels") if k in alone
      }
      tokens.setdefault("labels", tokens["input_ids"])
      told = (tokens["labels"][options["causal"] :] != -100).sum()
      if told:
        batch = {k: torch.as_tensor(x).long()[None] for k, x in tokens.items()}
        total += told * model(**batch).loss.item()
        count += told
  batch = made["model_arguments"](rows, **options)
  assert model(**batch).loss.item() == pytest.approx(total / count, rel=1e-5)
  padding = batch["labels"][
    torch.as_tensor(np.stack([r["segment_ids"] for r in rows])) == 0
  ]
  assert padding.numel()
  assert set(padding.tolist()) == {-100}
